"""Delivery-ids that have an outcome in a transaction, against a set."""

from hypothesis import given
from hypothesis import strategies as st

from lightrail.frontend.transactions.named import NamedDeliveries

RANGES = st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda each: (each[0], sum(each)))


@given(st.lists(RANGES), RANGES)
def test_ranges_are_those_of_a_set(added: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    named, session, other = NamedDeliveries(), object(), object()
    ids: set[int] = set()
    for first, last in added:
        named.add(session, first, last)
        ids.update(range(first, last + 1))
    mine = set(range(asked[0], asked[1] + 1))
    assert named.has(session, *asked) is (mine <= ids)
    assert named.overlaps(session, *asked) is bool(mine & ids)
    assert not named.overlaps(other, *asked)
