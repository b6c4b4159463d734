"""Placement: the least loaded shard, the same one on every machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.cluster.placement import choose

LOADS = st.dictionaries(st.integers(0, 300), st.integers(0, 5), min_size=1)


@given(st.text(max_size=20), LOADS)
def test_the_chosen_shard_is_among_the_least_loaded(queue: str, loads: dict[int, int]) -> None:
    assert loads[choose(queue, loads)] == min(loads.values())


@given(st.text(max_size=20), LOADS)
def test_the_order_of_the_shards_does_not_matter(queue: str, loads: dict[int, int]) -> None:
    assert choose(queue, loads) == choose(queue, dict(reversed(loads.items())))


@given(st.text(max_size=20), st.integers(2, 20))
def test_a_shard_that_goes_moves_only_the_choices_that_fell_on_it(queue: str, count: int) -> None:
    loads = dict.fromkeys(range(count), 0)
    chosen = choose(queue, loads)
    for gone in range(count):
        if gone != chosen:
            assert choose(queue, {shard: load for shard, load in loads.items() if shard != gone}) == chosen


def test_the_choice_is_part_of_the_format() -> None:
    """Processes of different versions must agree among equals."""
    assert [choose(f"q{number}", dict.fromkeys(range(8), 0)) for number in range(8)] == CHOSEN


@given(st.text(max_size=20), LOADS, st.data())
def test_among_the_least_loaded_those_with_the_fewest_siblings_near_them_are_chosen(
    queue: str, loads: dict[int, int], data: st.DataObject
) -> None:
    near = {shard: data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for shard in loads}
    chosen = choose(queue, loads, near)
    assert (loads[chosen], near[chosen]) == min((load, near[shard]) for shard, load in loads.items())


def test_no_shard() -> None:
    with pytest.raises(ValueError, match="at least one shard"):
        choose("q", {})


CHOSEN = [7, 3, 7, 5, 5, 6, 2, 3]
