"""Placement: the least loaded shard, the same one on every machine, with as many members as demanded."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.cluster.coordinator import Write
from lightrail.cluster.map import SHARD_SETS, SHARDS, Map, Member, ShardRecord
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.placement import (
    NowhereError,
    choose,
    demanded,
    members_of,
    place,
    replicas_max,
    takers,
)
from lightrail.cluster.replica_sets import MEMBERS_MAX, first
from lightrail.model.policy_fields import REPLICAS_MAX

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


# --- replicas ------------------------------------------------------------------------------------------


def cluster(*shards: tuple[str, int, bool], min_in_sync: int = 1) -> Map:
    """A map of shards 0, 1, …, each with its state, how many members it is to have, and whether it serves."""

    async def written() -> Map:
        space = MemoryCoordinator()
        for id, (state, members, serves) in enumerate(shards):
            writes = [Write(f"{SHARD_SETS}{id}", ShardRecord(id, "d", state).encode())]
            if members > 1:
                found = first(id, "d", "h", replicas=members, min_in_sync=min_in_sync)
                writes.append(Write(found.key, found.encode()))
            if serves:
                writes.append(Write(f"{SHARDS}{id}", Member(id, 1).encode()))
            await space.write(writes)
        map = Map(space)
        map.refresh()
        return map

    return asyncio.run(written())


def test_a_policy_demands_at_most_as_many_replicas_as_a_shard_may_have() -> None:
    assert REPLICAS_MAX == MEMBERS_MAX


def test_a_queue_is_placed_where_as_many_members_are_to_be_whether_they_are_in_sync_or_not() -> None:
    map = cluster(("active", 1, True), ("active", 2, True), ("active", 3, True))
    assert [members_of(map, shard) for shard in (0, 1, 2, 9)] == [1, 2, 3, 1]
    chosen = place(map, {f"q{number}": 2 for number in range(4)} | {"three": 3})
    assert chosen.pop("three") == 2
    # Loads count within one call, and a shard without replicas stays empty.
    assert sorted(chosen.values()) == [1, 1, 2, 2]
    assert place(map, {f"q{number}": 1 for number in range(3)}).keys() == {"q0", "q1", "q2"}
    assert sorted(place(map, {f"q{number}": 1 for number in range(3)}).values()) == [0, 1, 2]


def test_a_shard_with_enough_members_that_does_not_serve_now_is_better_than_one_without() -> None:
    map = cluster(("active", 1, True), ("active", 3, False))
    assert takers(map) == [0]
    assert takers(map, 3) == [1]
    assert place(map, {"q": 3}) == {"q": 1}


def test_draining_shards_get_no_queues_whatever_these_demand() -> None:
    map = cluster(("active", 2, True), ("draining", 3, True))
    assert (replicas_max(map), takers(map, 2), takers(map, 3)) == (2, [0], [])
    with pytest.raises(NowhereError, match="every shard is draining"):
        place(cluster(("draining", 3, True)), {"q": 1})
    with pytest.raises(NowhereError, match="never set"):
        place(cluster(), {"q": 1})


def test_the_error_says_what_is_demanded_what_there_is_and_what_to_do() -> None:
    with pytest.raises(NowhereError) as refused:
        place(cluster(("active", 2, True)), {"orders": 3})
    assert str(refused.value) == (
        "orders can't be placed: its policy demands 3 replicas, found shards with at most 2 members: of the "
        "shards that take queues none is to have more; `lightrail-admin shard replicas N --replicas 3` gives "
        "one more members"
    )


@pytest.mark.parametrize(
    ("value", "replicas"),
    [
        (None, 1),
        ('{"policy":{"role":"queue"}}', 1),
        ('{"policy":{"role":"queue","replicas":3}}', 3),
        ("{", 1),
        ("[]", 1),
        ('{"policy":{"replicas":null}}', 1),
    ],
)
def test_what_a_queue_demands_is_in_the_entry_of_its_name(value: str | None, replicas: int) -> None:
    assert demanded(value) == replicas
