"""Credit counts bytes as well: who was sent so many gets no further turn before the next credit."""

import pytest

from lightrail.model import limits
from lightrail.shard.queue.commands import RELEASED, Credit, Settle
from lightrail.shard.queue.effects import Drained
from lightrail.shard.queue.policy import Policy
from tests.support.checked_queue import DELAY, GROUPS, LAST_VALUE, SORTED, Bench

LARGE = limits.DELIVERY_SLICE_BYTES + 1
"""One of these is a whole turn."""
POLICIES = pytest.mark.parametrize(
    "policy", [Policy(), Policy(priorities=3), SORTED, LAST_VALUE, GROUPS, DELAY], ids=str
)


def large(*names: str) -> list[str]:
    return [name.ljust(LARGE) for name in names]


def names(found: list[str]) -> str:
    return " ".join(each.strip() for each in found)


@POLICIES
@pytest.mark.parametrize("browse", [False, True])
@pytest.mark.parametrize("selects", [False, True])
def test_a_turn_that_uses_the_bytes_up_is_the_last_until_the_next_credit(
    policy: Policy, browse: bool, selects: bool
) -> None:
    bench = Bench(policy)
    bench.put(*large("a", "b", "c", "d"))
    bench.consumer(1, browse=browse, selects=(lambda message: True) if selects else None)
    bench.do(Credit(1, 100, size=1))
    assert names(bench.get()) == "a"
    assert not bench.get()
    bench.do(Credit(1, 100, size=LARGE + 1))
    assert names(bench.get()) == "b c"
    assert not bench.get()
    bench.do(Credit(1, 100))
    assert names(bench.get()) == "d"


@POLICIES
def test_others_get_what_one_without_bytes_does_not(policy: Policy) -> None:
    bench = Bench(policy)
    bench.consumer(1, credit=0)
    bench.consumer(2, credit=0)
    bench.do(Credit(1, 100, size=1), Credit(2, 100, size=10 * LARGE))
    bench.put(*large("a", "b", "c", "d"))
    effects = bench.dispatch()
    assert [effect.consumer for effect in effects if hasattr(effect, "run")].count(1) == 1


def test_a_drain_ends_where_the_bytes_are_used_up() -> None:
    bench = Bench(Policy())
    bench.put(*large("a", "b"))
    bench.consumer(1)
    bench.do(Credit(1, 100, drain=True, size=1))
    effects = bench.dispatch()
    assert [effect for effect in effects if isinstance(effect, Drained)] == [Drained(1, 1)]


def test_what_comes_back_goes_out_with_the_next_credit() -> None:
    bench = Bench(Policy())
    bench.put(*large("a"))
    bench.consumer(1)
    bench.do(Credit(1, 100, size=1))
    assert names(bench.get()) == "a"
    bench.do(Settle(1, 0, 1, RELEASED))
    assert not bench.get()
    bench.do(Credit(1, 100, size=1))
    assert names(bench.get()) == "a"
