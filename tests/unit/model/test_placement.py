"""The planner: what it moves, what it leaves, and that it stops."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.model.placement import AIM, TOLERANCE, MovePlan, QueueLoad, plan


def on(shard: int, count: int, load: float = 1.0, prefix: str = "q") -> dict[str, QueueLoad]:
    return {f"{prefix}{shard}-{i}": QueueLoad(shard, load, 100) for i in range(count)}


def carried_out(queues: dict[str, QueueLoad], made: MovePlan) -> dict[str, QueueLoad]:
    after = dict(queues)
    for move in made.moves:
        assert after[move.queue].shard == move.source
        after[move.queue] = after[move.queue]._replace(shard=move.to)
    return after


def test_a_thousand_equal_queues_spread_over_twice_the_shards_and_a_second_run_proposes_nothing() -> None:
    queues = on(0, 500) | on(1, 500)
    made = plan(queues, {0, 1, 2, 3})
    assert max(each.load for each in made.after.values()) <= 1.05 * 250
    assert len(made.moves) <= 500
    assert not plan(carried_out(queues, made), {0, 1, 2, 3}).moves


def test_what_is_within_the_tolerance_stays() -> None:
    assert not plan(on(0, 109) | on(1, 91), {0, 1}).moves


def test_a_draining_shard_loses_every_queue_also_those_without_load() -> None:
    queues = on(0, 10) | on(1, 10, load=0.0) | on(2, 3, load=7.0)
    made = plan(queues, {0, 2}, {1})
    assert made.after[1].queues == 0
    assert {move.source for move in made.moves} >= {1}


def test_a_queue_that_is_larger_than_the_mean_is_not_pushed_around() -> None:
    queues = {"large": QueueLoad(0, 100.0, 5)} | on(1, 10)
    assert not plan(queues, {0, 1}).moves
    queues = {"large": QueueLoad(0, 100.0, 5), "small": QueueLoad(0, 1.0, 5)} | on(1, 10)
    assert [move.queue for move in plan(queues, {0, 1}).moves] == ["small"]


def test_among_queues_of_one_load_those_with_few_bytes_move() -> None:
    queues = {f"q{i}": QueueLoad(0, 1.0, i) for i in range(10)}
    assert {move.queue for move in plan(queues, {0, 1}).moves} == {f"q{i}" for i in range(5)}


def test_a_bound_on_moves_is_kept_and_the_next_plan_goes_on() -> None:
    queues = on(0, 40)
    first = plan(queues, {0, 1}, max_moves=5)
    assert len(first.moves) == 5
    queues = carried_out(queues, first)
    second = plan(queues, {0, 1})
    assert 19 <= first.after[1].queues + len(second.moves) <= 20


def test_queues_without_an_active_shard_are_refused() -> None:
    with pytest.raises(ValueError, match="no shard is active"):
        plan(on(0, 1), set(), {0})
    with pytest.raises(ValueError, match="active or draining"):
        plan(on(5, 1), {0})


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1000), st.integers(0, 10**9)), max_size=60),
    st.sets(st.integers(0, 5), max_size=3),
)
def test_any_plan_helps_ends_and_is_stable(rows: list[tuple[int, float, int]], draining: set[int]) -> None:
    queues = {f"q{i}": QueueLoad(*row) for i, row in enumerate(rows)}
    active = set(range(6)) - draining
    made = plan(queues, active, draining)
    assert all(made.after[shard].queues == 0 for shard in draining)
    assert sum(each.queues for each in made.after.values()) == len(queues)
    total = sum(each.load for each in queues.values())
    mean = total / len(active)
    largest = max((each.load for each in queues.values()), default=0.0)
    worst = max(made.after[shard].load for shard in active)
    # No shard has more than the mean and one queue that fits nowhere better.
    assert worst <= max(TOLERANCE * mean, AIM * mean + largest) + 1e-6
    if not draining:
        before = max(made.before[shard].load for shard in active)
        assert worst <= before + 1e-6
    again = plan(carried_out(queues, made), active, draining)
    assert max(again.after[shard].load for shard in active) <= worst + 1e-6
    third = plan(carried_out(carried_out(queues, made), again), active, draining)
    assert not third.moves or len(third.moves) < len(queues)


# --- replicas ------------------------------------------------------------------------------------------


def demanding(shard: int, count: int, replicas: int, load: float = 1.0) -> dict[str, QueueLoad]:
    return {f"r{shard}-{i}": QueueLoad(shard, load, 100, replicas) for i in range(count)}


def test_a_queue_does_not_move_to_a_shard_with_fewer_members_than_it_demands() -> None:
    queues = demanding(0, 40, 3)
    assert not plan(queues, {0, 1}, members={0: 3, 1: 2}).moves
    made = plan(queues, {0, 1, 2}, members={0: 3, 2: 3})
    # The empty shard without replicas is not the only one that may take some.
    assert {move.to for move in made.moves} == {2}
    assert made.after[2].queues == 20


def test_other_queues_of_such_a_shard_move_anywhere() -> None:
    made = plan(demanding(0, 10, 3) | on(0, 10), {0, 1}, members={0: 3})
    assert {move.queue for move in made.moves} == {f"q0-{i}" for i in range(10)}


def test_a_queue_on_a_shard_with_too_few_members_moves_also_without_load_and_in_balance() -> None:
    queues = on(0, 5) | on(1, 5) | demanding(0, 1, 2, load=0.0)
    (move,) = plan(queues, {0, 1}, members={1: 2}).moves
    assert (move.queue, move.source, move.to) == ("r0-0", 0, 1)
    assert not plan(queues, {0, 1}).moves


def test_a_draining_shard_keeps_the_queues_that_no_other_may_have() -> None:
    made = plan(demanding(2, 3, 3) | on(2, 2), {0, 1}, {2}, members={2: 3, 1: 2})
    assert {move.queue for move in made.moves} == {"q2-0", "q2-1"}
    assert made.after[2].queues == 3


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.floats(0, 1000), st.integers(0, 10**9), st.integers(1, 3)),
        max_size=60,
    ),
    st.sets(st.integers(0, 5), max_size=3),
    st.lists(st.integers(1, 3), min_size=6, max_size=6),
)
def test_any_plan_heeds_what_queues_demand_and_ends(
    rows: list[tuple[int, float, int, int]], draining: set[int], numbers: list[int]
) -> None:
    queues = {f"q{i}": QueueLoad(*row) for i, row in enumerate(rows)}
    members = dict(enumerate(numbers))
    active = set(range(6)) - draining
    made = plan(queues, active, draining, members=members)
    for move in made.moves:
        assert queues[move.queue].replicas <= members[move.to]
    most = max(members[shard] for shard in active)
    for name, each in carried_out(queues, made).items():
        if each.replicas <= most:
            assert each.shard in active
            assert each.replicas <= members[each.shard]
        else:
            assert each.shard == queues[name].shard
    assert sum(each.queues for each in made.after.values()) == len(queues)
