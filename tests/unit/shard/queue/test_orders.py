"""Orders of a queue, one behaviour per test: priorities, last values, sorted by a key."""

import uuid

import pytest

from lightrail.amqp.values import Symbol, Timestamp
from lightrail.model import limits, orders
from lightrail.shard.queue.commands import (
    ACCEPTED,
    FAILED,
    RELEASED,
    Change,
    Credit,
    Detach,
    Enqueue,
    Fetched,
    RenewLock,
    Restore,
    Settle,
)
from lightrail.shard.queue.effects import Fetch, LockAnswer, Reason
from lightrail.shard.queue.keys import MISSING, key_of
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.policy import Policy
from lightrail.shard.queue.runs import Place, Run, batch_of
from tests.support.checked_queue import (
    BOUNDED,
    GROUPS,
    LAST_VALUE,
    NOT_HERE,
    SORTED,
    Bench,
    Checked,
    removed,
)
from tests.support.now import now

# --- priorities ----------------------------------------------------------------------------------------


def test_higher_priorities_go_first_and_equals_by_sequence() -> None:
    bench = Bench(Policy(priorities=10))
    bench.put("low1", "low2", priority=1)
    bench.put("high1", "high2", priority=8)
    bench.put("low3", priority=1)
    bench.consumer(1)
    assert bench.get() == ["high1", "high2", "low1", "low2", "low3"]


def test_a_released_message_goes_back_to_its_place_in_its_level() -> None:
    bench = Bench(Policy(priorities=2))
    bench.put("n1", "n2", "n3")
    bench.put("e1", "e2", priority=9)
    bench.consumer(1, credit=3)
    assert bench.get() == ["e1", "e2", "n1"]
    bench.do(Settle(1, 1, 3, RELEASED), Credit(1, 100))
    assert bench.get() == ["e2", "n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (1, [0] * 11),
        (2, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]),
        (3, [0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2]),
        (5, [0, 0, 0, 1, 2, 3, 4, 4, 4, 4, 4]),
        (10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]),
    ],
)
def test_priorities_are_told_apart_around_the_normal_one(levels: int, expected: list[int]) -> None:
    assert [orders.level(priority, levels) for priority in range(11)] == expected


def test_a_browser_of_a_priority_queue_sees_the_order_of_sequences() -> None:
    bench = Bench(Policy(priorities=2))
    bench.put("n1")
    bench.put("e1", priority=9)
    bench.consumer(1, browse=True)
    assert bench.get() == ["n1", "e1"]


def test_an_evicted_run_of_a_higher_level_is_fetched_before_anything_lower_goes() -> None:
    bench = Bench(Policy(priorities=2))
    bench.machine.contents.eviction.head_bytes = 1
    bench.put("n1", "n2")
    high = batch_of([b"e1", b"e2"], priority=9, durable=True, place=Place(1, 0, 99))
    bench.do(Enqueue(high))
    assert bench.machine.contents.evict(4) > 0
    bench.consumer(1)
    (fetch,) = bench.dispatch()
    assert isinstance(fetch, Fetch)
    again = batch_of([b"e1", b"e2"], priority=9, durable=True, place=Place(1, 0, 99))
    bench.do(Fetched(2, [Run(again, 0, 2, 2)]))
    assert bench.get() == ["e1", "e2", "n1", "n2"]


def test_whoever_is_barred_from_the_first_message_gets_the_next_and_others_get_it() -> None:
    bench = Bench(Policy(priorities=2))
    bench.put("n1")
    bench.put("e1", priority=9)
    bench.consumer(1, credit=1)
    assert bench.get() == ["e1"]
    bench.do(Settle(1, 0, 1, NOT_HERE), Credit(1, 5))
    assert bench.get() == ["n1"]
    bench.consumer(2)
    assert bench.get(2) == ["e1"]


# --- last values ---------------------------------------------------------------------------------------


def test_a_newer_message_replaces_the_ready_one_with_its_key() -> None:
    bench = Bench(LAST_VALUE)
    bench.put("key=a v1", "key=b v1", "plain")
    bench.put("key=a v2")
    assert removed(bench.dispatch(), Reason.REPLACED) == [0]
    bench.consumer(1)
    assert bench.get() == ["key=b v1", "plain", "key=a v2"]
    assert bench.machine.contents.counters.replaced == 1


def test_a_message_in_flight_is_not_replaced_until_it_comes_back() -> None:
    bench = Bench(LAST_VALUE)
    bench.put("key=a v1")
    bench.consumer(1, credit=1)
    assert bench.get() == ["key=a v1"]
    bench.put("key=a v2")
    assert not bench.dispatch()
    bench.do(Settle(1, 0, 1, RELEASED))
    assert removed(bench.dispatch(), Reason.REPLACED) == [0]
    bench.do(Credit(1, 9))
    assert bench.get() == ["key=a v2"]


def test_an_old_value_never_comes_after_a_new_one_that_was_taken_meanwhile() -> None:
    bench = Bench(LAST_VALUE)
    bench.put("key=a v1")
    bench.consumer(1, credit=1)
    bench.consumer(2, credit=1)
    bench.dispatch()
    bench.put("key=a v2")
    assert bench.get(2) == ["key=a v2"]
    bench.do(Settle(2, 0, 1, ACCEPTED), Settle(1, 0, 1, FAILED))
    assert removed(bench.dispatch(), Reason.REPLACED) == [0]


def test_a_batch_may_replace_its_own_messages() -> None:
    bench = Bench(LAST_VALUE)
    bench.put("key=1 v1", "key=1 v2", "key=1 v3")
    assert removed(bench.dispatch(), Reason.REPLACED) == [0, 1]


# --- sorted --------------------------------------------------------------------------------------------


def test_messages_are_delivered_by_key_and_equals_by_sequence() -> None:
    bench = Bench(SORTED)
    bench.put("key=7 first", "none", "key=x", "key=3", "key=7 second")
    bench.put("key=1")
    bench.consumer(1, credit=4)
    assert bench.get() == ["key=1", "key=3", "key=7 first", "key=7 second"]
    bench.put("key=2")
    bench.do(Settle(1, 1, 2, RELEASED), Credit(1, 100))
    assert bench.get() == ["key=2", "key=3", "key=x", "none"]


def test_keys_of_all_types_have_one_order() -> None:
    values = [
        False, True, -1, 0.5, 1, 2.0, 10**20, float("inf"), float("nan"), Timestamp(5), "", "a", Symbol("b"),
        "c", uuid.UUID(int=1), b"", b"z", [1], {"a": 1}, None,
    ]  # fmt: skip
    keys = [key_of(value) for value in values]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert key_of(1) == key_of(1.0)
    assert key_of("b") == key_of(Symbol("b"))
    assert keys[-1] == MISSING


# --- what is on disk -----------------------------------------------------------------------------------


def test_a_queue_that_reads_messages_waits_for_all_of_them_after_a_restart() -> None:
    bench = Bench(SORTED)
    gone = batch_of([b"key=1", b"key=5"], durable=True, place=Place(1, 0, 50))
    lost = batch_of([b"key=0"], durable=True, place=Place(2, 0, 50))
    runs = [
        Run(batch_of([b"key=3"]), 0, 1, 0),
        Run(batch_of([b"key=1", b"key=5"], durable=True, place=Place(1, 0, 50)), 0, 2, 1),
        Run(lost, 0, 1, 3),
    ]
    for run in runs[1:]:
        run.batch.data = run.batch.ends = None
    bench.do(Restore(runs, 4))
    assert now(bench.machine.next_deadline_ms) == 0
    bench.consumer(1)
    bench.put("key=2")
    fetches = bench.dispatch()
    assert [effect.run.sequence for effect in fetches if isinstance(effect, Fetch)] == [1, 3]
    assert bench.machine.next_deadline_ms is None
    bench.do(Fetched(1, [Run(gone, 0, 2, 1)]))
    assert not bench.dispatch()
    bench.do(Fetched(3, [], damaged=True))
    assert bench.get() == ["key=1", "key=2", "key=3", "key=5"]


def test_after_a_restart_each_message_expires_in_its_time_wherever_it_lay_beside_others() -> None:
    bench = Bench(SORTED)

    def batches() -> list[Run]:
        return [
            Run(
                batch_of([b"key=1"], durable=True, place=Place(1, 50 * n, 50), expires_at_ms=1_010 + 10 * n),
                *(0, 1, n),
            )
            for n in range(2)
        ]

    runs = batches()
    for run in runs:
        run.batch.data = run.batch.ends = None
    bench.do(Restore(runs, 2))
    bench.now = 1_010
    fetches = [effect.run for effect in bench.dispatch() if isinstance(effect, Fetch)]
    assert [(run.sequence, run.end) for run in fetches] == [(0, 2)]
    bench.do(Fetched(0, batches()))
    bench.dispatch()
    assert bench.machine.contents.counters.expired == 1
    assert bench.machine.next_deadline_ms == 1_020
    bench.now = 1_020
    bench.dispatch()
    assert bench.machine.contents.counters.expired == 2


def test_single_messages_leave_memory_and_share_what_is_left_of_them() -> None:
    bench = Bench(SORTED)
    bench.machine.contents.eviction.head_bytes = 0
    bench.put("key=2", "key=1", durable=True, place=Place(1, 0, 9))
    bench.put("key=3 and more", durable=True, place=Place(1, 9, 9))
    assert bench.machine.contents.spill_candidates(1_000) == []
    resident = bench.machine.contents.resident_bytes
    assert bench.machine.contents.evict(1_000) >= 24
    assert bench.machine.contents.resident_bytes <= resident - 24
    runs = bench.machine.contents.ready.waiting()
    assert len({id(run.batch) for run in runs}) == 1
    assert [run.size for run in runs] == [5, 5, 14]
    bench.machine.contents.eviction.head_bytes = 100
    bench.consumer(1, 1)
    (fetch,) = bench.dispatch()
    assert isinstance(fetch, Fetch)
    assert (fetch.run.sequence, fetch.run.count) == (0, 3)
    read = batch_of([b"key=2", b"key=1", b"key=3 and more"], place=Place(1, 0, 18))
    bench.do(Fetched(0, [Run(read, 0, 3, 0)]))
    assert bench.get() == ["key=1"]


def test_what_little_is_left_of_large_batches_does_not_keep_them_in_memory() -> None:
    """A group that nobody settles has one message of each batch; the others come and go."""
    bench = Bench(GROUPS)
    bench.consumer(1, 1)
    bench.put("group=stuck")
    assert bench.get(1) == ["group=stuck"]
    bench.consumer(2, 1_000_000, presettled=True)
    for number in range(40):
        bench.put("group=stuck", *[f"group=g {number} {each}" + "x" * 1_000 for each in range(100)])
        bench.get()
    bench.dispatch()
    batches = {id(run.batch): run.batch for run in bench.machine.contents.ready.waiting()}
    assert sum(batch.size for batch in batches.values()) < 20 * 100_000
    assert bench.machine.contents.ready.count == 40


def test_nor_does_what_a_consumer_has_not_settled() -> None:
    bench = Checked(Machine("orders"), now=1_000)
    bench.consumer(1, 10_000)
    for number in range(20):
        bench.do(Enqueue(batch_of([b"%01000d" % each for each in range(100)])))
        bench.dispatch()
        bench.do(Settle(1, number * 100, number * 100 + 50), Settle(1, number * 100 + 51, number * 100 + 100))
    (consumer,) = bench.machine.contents.consumers
    held = consumer.in_flight.runs[consumer.in_flight.head :]
    assert [run.messages() for run in held] == [[b"%01000d" % 50]] * 20
    assert sum(run.batch.size for run in held) == 20_000


def test_transient_messages_of_one_batch_are_spilled_together_and_apart_from_what_is_in_flight() -> None:
    bench = Bench(GROUPS)
    bench.machine.contents.eviction.head_bytes = 0
    bench.consumer(1, 1)
    first = "group=a " + 1_000 * "1"
    bench.put(first, "group=a 2", "group=a 3")
    assert bench.get() == [first]
    run, held = bench.machine.contents.spill_candidates(1_000)
    assert (run.sequence, run.count) == (1, 2)
    assert (held.sequence, held.count) == (0, 1)
    run.batch.place = Place(1, 0, 18)
    assert bench.machine.contents.evict(1_000) >= 18
    assert next(iter(bench.machine.contents.consumers)).in_flight.runs[0].batch.place is None
    held.batch.place = Place(1, 18, 1_100)
    assert bench.machine.contents.evict(1_000) == len(first)
    bench.do(Settle(1, 0, 1, RELEASED), Credit(1, 2))
    assert bench.get() == []
    again = batch_of([first.encode()], place=Place(1, 18, 1_100))
    bench.do(Fetched(0, [Run(again, 0, 1, 0)]))
    assert bench.get() == [first]


def test_single_messages_are_moved_on_disk_by_the_batch() -> None:
    bench = Bench(SORTED)
    bench.put("key=3", "key=1", "key=2", durable=True, place=Place(1, 0, 99))
    (run,) = bench.machine.contents.runs_in(1)
    assert (run.sequence, run.count) == (0, 3)
    bench.machine.contents.relocate(run, Place(2, 0, 99))
    (run,) = bench.machine.contents.runs_in(2)
    assert run.count == 3
    assert not bench.machine.contents.runs_in(1)
    bench.consumer(1)
    assert bench.get() == ["key=1", "key=2", "key=3"]


# --- change of policy ----------------------------------------------------------------------------------


def test_a_plain_queue_becomes_a_sorted_one_and_plain_again() -> None:
    bench = Bench(Policy())
    bench.put("key=3", "key=2", "key=1", "key=0")
    bench.consumer(1, credit=1)
    assert bench.get() == ["key=3"]
    bench.do(Change(SORTED), Credit(1, 2))
    assert bench.get() == ["key=0"]
    bench.do(Change(Policy()))
    assert len(bench.machine.contents.ready) == 1
    bench.do(Settle(1, 0, 2, RELEASED), Credit(1, 100))
    assert bench.get() == ["key=3", "key=2", "key=1", "key=0"]


def test_last_values_are_found_among_what_is_ready() -> None:
    bench = Bench(Policy())
    bench.put("key=a 1", "key=a 2", "key=b 1")
    bench.do(Change(LAST_VALUE))
    assert removed(bench.dispatch(), Reason.REPLACED) == [0]


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Policy(groups=True, priorities=2), "groups and priorities"),
        (Policy(groups=True, order="sorted", order_key="key"), "groups and order sorted"),
        (Policy(priorities=3, order="last_value", order_key="key"), "priorities and order last_value"),
        (Policy(order="sorted"), "order_key: expected"),
        (Policy(order_key="key"), "order_key: expected none"),
        (Policy(order="random"), "one of fifo, last_value, sorted, found random"),
        (Policy(priorities=11), "1 to 10 levels, found 11"),
    ],
)
def test_a_policy_says_what_does_not_go_together(policy: Policy, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        policy.check()


# --- bounds and locks, beside them ---------------------------------------------------------------------


def test_a_policy_that_bounds_a_queue_lets_the_oldest_give_way_at_once() -> None:
    bench = Bench(Policy())
    bench.put("a", "b", "c", "d")
    assert removed(bench.do(Change(BOUNDED)), Reason.DISCARDED) == [0, 1]


def test_what_comes_back_to_a_queue_that_was_bounded_meanwhile_gives_way() -> None:
    bench = Bench(Policy())
    bench.put("a", "b", "c")
    bench.consumer(1)
    bench.dispatch()
    assert not removed(bench.do(Change(BOUNDED)), Reason.DISCARDED)
    assert removed(bench.do(Settle(1, 0, 2, RELEASED)), Reason.DISCARDED) == [0]


def test_a_policy_with_timed_locks_locks_what_is_in_flight_already() -> None:
    bench = Bench(Policy())
    bench.put("a")
    bench.consumer(1, lock_key="key")
    bench.dispatch()
    bench.do(Change(Policy(lock_ms=20)), Detach(1))
    assert bench.machine.next_deadline_ms == 1_020
    bench.now = 1_020
    bench.consumer(2)
    assert bench.get(2) == ["a"]


def test_a_lock_that_is_renewed_for_a_shorter_time_ends_when_it_is_said_to() -> None:
    bench = Bench(Policy(lock_ms=100))
    bench.put("a")
    bench.consumer(1, lock_key="key")
    bench.dispatch()
    bench.do(Change(Policy(lock_ms=20)))
    assert bench.do(RenewLock("key", 0)) == [LockAnswer(True, 1_020)]
    assert bench.do(RenewLock("key", 0)) == [LockAnswer(True, 1_020)]
    assert bench.machine.next_deadline_ms == 1_020
    bench.now = 1_020
    assert bench.get(1) == ["a"]


@pytest.mark.parametrize("kind", [str, bytes])
def test_long_keys_are_cut_and_told_apart(kind: type[str | bytes]) -> None:
    """Whatever a message has in the field of a key, what is kept of it is small."""
    most = limits.KEY_BYTES_MAX
    texts = ["k" * most, "k" * most * 4_000 + "a", "k" * most * 4_000 + "b"]
    exact, one, two = texts if kind is str else [text.encode() for text in texts]
    assert key_of(exact)[1] == exact
    assert key_of(one) != key_of(two)
    assert key_of(one) == key_of(one[:])
    assert len(key_of(one)[1]) <= most + 32
