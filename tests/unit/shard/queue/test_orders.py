"""Special orders of the queue machine, one behaviour per test: who gets which message next."""

import uuid
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from lightrail.amqp.types import Symbol, Timestamp
from lightrail.model import limits, orders
from lightrail.shard.queue import invariants, last_values
from lightrail.shard.queue.commands import (
    ACCEPTED,
    FAILED,
    RELEASED,
    Attach,
    Cancel,
    Change,
    Command,
    ConsumerOptions,
    Credit,
    Detach,
    Enqueue,
    Fetched,
    Outcome,
    OutcomeKind,
    Peek,
    Purge,
    RenewLock,
    Restore,
    Settle,
    Tick,
)
from lightrail.shard.queue.effects import (
    DeadLetter,
    Deliver,
    Drained,
    Effect,
    Fetch,
    LockAnswer,
    Peeked,
    Reason,
    Removed,
    State,
)
from lightrail.shard.queue.keys import MISSING, key_of
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.policy import Policy
from lightrail.shard.queue.runs import Place, Run, batch_of

NOT_HERE = Outcome(OutcomeKind.MODIFIED, undeliverable_here=True)
LAST_VALUE = Policy(order="last_value", order_key="key")
SORTED = Policy(order="sorted", order_key="key")
GROUPS = Policy(groups=True)
DELAY = Policy(delay=True)


def look(path: str) -> Callable[[bytes], Any]:
    """Messages of these tests look like `key=7 group=a delay=50 anything`."""
    name = {
        "key": b"key",
        "properties.group-id": b"group",
        "message-annotations.x-opt-delivery-delay": b"delay",
        "message-annotations.x-opt-delivery-time": b"time",
    }[path]

    def find(message: bytes) -> Any:
        for word in message.split():
            left, _, right = word.partition(b"=")
            if left == name:
                return int(right) if right.isdigit() else right.decode()
        return None

    return find


class Bench:
    """A machine with the invariants checked after every call."""

    def __init__(self, policy: Policy) -> None:
        self.machine = Machine("orders", policy, look=look)
        self.now = 1_000

    def do(self, *commands: Command) -> list[Effect]:
        effects: list[Effect] = []
        for command in commands:
            effects += self.machine.apply(command, self.now)
            invariants.check(self.machine)
        return effects

    def dispatch(self) -> list[Effect]:
        effects = self.machine.dispatch(self.now)
        invariants.check(self.machine)
        return effects

    def put(self, *messages: str, **attributes: Any) -> None:
        attributes.setdefault("enqueued_at_ms", self.now)
        self.do(Enqueue(batch_of([message.encode() for message in messages], **attributes)))

    def consumer(self, identity: int, credit: int = 100, **options: Any) -> None:
        assert not self.do(Attach(identity, ConsumerOptions(**options)), Credit(identity, credit))

    def get(self, consumer: int | None = None) -> list[str]:
        return delivered(self.dispatch(), consumer)


def delivered(effects: Iterable[Effect], consumer: int | None = None) -> list[str]:
    return [
        message.decode()
        for effect in effects
        if isinstance(effect, Deliver) and consumer in (None, effect.consumer)
        for message in effect.run.messages()
    ]


def removed(effects: Iterable[Effect], reason: Reason) -> list[int]:
    return [
        sequence
        for effect in effects
        if isinstance(effect, Removed) and effect.reason is reason
        for sequence in range(effect.first_sequence, effect.last_sequence)
    ]


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
    bench.machine.eviction.head_bytes = 1
    bench.put("n1", "n2")
    high = batch_of([b"e1", b"e2"], priority=9, durable=True, place=Place(1, 0, 99))
    bench.do(Enqueue(high))
    assert bench.machine.evict(4) > 0
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
    assert bench.machine.counters.replaced == 1


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


# --- groups --------------------------------------------------------------------------------------------


def test_a_group_is_with_one_consumer_at_a_time() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "group=b 1", "group=a 2", "group=b 2")
    bench.consumer(1)
    bench.consumer(2)
    effects = bench.dispatch()
    assert delivered(effects, 1) == ["group=a 1", "group=a 2"]
    assert delivered(effects, 2) == ["group=b 1", "group=b 2"]
    bench.put("group=a 3", "group=b 3")
    effects = bench.dispatch()
    assert delivered(effects, 1) == ["group=a 3"]
    assert delivered(effects, 2) == ["group=b 3"]


def test_an_owner_without_credit_keeps_its_group() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "group=a 2")
    bench.consumer(1, credit=1)
    bench.consumer(2)
    assert bench.get() == ["group=a 1"]
    bench.do(Settle(1, 0, 1))
    assert not bench.get()
    bench.do(Credit(1, 2))
    assert bench.get(1) == ["group=a 2"]


def test_a_group_with_nothing_left_goes_to_anybody() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1")
    bench.consumer(1, credit=1)
    bench.consumer(2, credit=1)
    assert bench.get(1) == ["group=a 1"]
    bench.do(Settle(1, 0, 1))
    bench.dispatch()
    bench.put("group=a 2")
    assert bench.get(2) == ["group=a 2"]


def test_a_group_is_handed_over_when_its_owner_leaves_and_its_order_is_kept() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "group=a 2", "group=a 3")
    bench.consumer(1, credit=2)
    bench.consumer(2)
    assert bench.get() == ["group=a 1", "group=a 2"]
    bench.do(Detach(1))
    assert bench.get(2) == ["group=a 1", "group=a 2", "group=a 3"]


def test_the_next_ones_of_a_group_wait_for_the_one_that_came_back() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "group=a 2", "group=a 3")
    bench.consumer(1, credit=2)
    bench.dispatch()
    bench.do(Settle(1, 0, 1, FAILED), Credit(1, 100))
    assert bench.get() == ["group=a 1", "group=a 3"]


def test_an_owner_that_is_barred_gives_its_group_up() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "group=a 2")
    bench.consumer(1, credit=1)
    bench.dispatch()
    bench.do(Settle(1, 0, 1, NOT_HERE), Credit(1, 100))
    bench.consumer(2)
    assert bench.get() + bench.get() == ["group=a 1", "group=a 2"]
    assert bench.machine.consumers.by_id[2].in_flight.runs


def test_groups_are_spread_over_consumers_with_credit() -> None:
    bench = Bench(GROUPS)
    bench.put(*[f"group={index % 6} {index}" for index in range(60)])
    for identity in range(3):
        bench.consumer(identity)
    effects = bench.dispatch()
    assert [len(delivered(effects, identity)) for identity in range(3)] == [20, 20, 20]


def test_messages_without_a_group_go_to_anybody() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "x", "y", "z")
    bench.consumer(1, credit=1)
    bench.consumer(2, credit=10)
    bench.dispatch()
    assert bench.machine.ready.count == 0


def test_a_group_of_which_everything_expired_is_offered_again() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1")
    bench.put("group=a 2", expires_at_ms=1_050)
    bench.consumer(1, credit=1)
    bench.consumer(2)
    assert bench.get() == ["group=a 1"]
    bench.now = 1_050
    bench.do(Settle(1, 0, 1))
    assert [type(effect) for effect in bench.dispatch()] == [DeadLetter]
    bench.put("group=a 3")
    assert bench.get(2) == ["group=a 3"]


# --- delays --------------------------------------------------------------------------------------------


def test_a_delayed_message_becomes_ready_at_its_place_when_it_is_due() -> None:
    bench = Bench(DELAY)
    bench.put("delay=50 a", "b", "time=1030 c")
    bench.consumer(1, credit=1)
    assert bench.get() == ["b"]
    assert bench.machine.gauges.delayed == 2
    assert bench.machine.next_deadline_ms == 1_030
    bench.now = 1_050
    assert not bench.do(Tick())
    assert bench.machine.gauges.ready == 2
    bench.do(Credit(1, 9))
    assert bench.get() == ["delay=50 a", "time=1030 c"]


def test_a_dispatch_wakes_what_is_due() -> None:
    bench = Bench(DELAY)
    bench.put("delay=50 a")
    bench.consumer(1)
    assert not bench.get()
    bench.now = 1_049
    assert not bench.get()
    bench.now = 1_050
    assert bench.get() == ["delay=50 a"]
    assert bench.machine.next_deadline_ms is None


def test_an_old_value_that_was_delayed_never_comes_after_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_values, "_THIN_MIN", 2)
    bench = Bench(Policy(order="last_value", order_key="key", delay=True))
    bench.put("key=a delay=50 old", "key=b delay=50 old", "key=a new", "key=b new")
    bench.consumer(1)
    assert bench.get() == ["key=a new", "key=b new"]
    bench.do(Settle(1, 0, 2))
    bench.dispatch()
    bench.put("key=c 1", "key=d 1")
    bench.dispatch()
    bench.now = 1_050
    effects = bench.dispatch()
    assert delivered(effects) == []
    assert removed(effects, Reason.REPLACED) == [0, 1]


def test_a_delayed_message_is_seen_by_a_consumer_that_passed_over_later_ones() -> None:
    bench = Bench(DELAY)
    bench.put("delay=50 a", "b")
    bench.consumer(1)
    assert bench.get() == ["b"]
    bench.do(Settle(1, 0, 1, NOT_HERE))
    assert bench.get() == []
    bench.now = 1_050
    assert bench.get() == ["delay=50 a"]


def test_a_delayed_message_can_be_cancelled_once() -> None:
    bench = Bench(DELAY)
    bench.put("delay=50 a", "b")
    assert removed(bench.do(Cancel(0)), Reason.CANCELLED) == [0]
    assert not bench.do(Cancel(0))
    assert not bench.do(Cancel(1))
    assert bench.machine.next_deadline_ms is None


def test_a_delayed_message_expires() -> None:
    bench = Bench(DELAY)
    bench.put("delay=50 a", expires_at_ms=1_020)
    bench.now = 1_020
    (effect,) = bench.do(Tick())
    assert isinstance(effect, DeadLetter)
    assert effect.reason is Reason.EXPIRED


def test_a_peek_says_what_is_ready_and_what_is_delayed() -> None:
    bench = Bench(DELAY)
    bench.put("a", "delay=50 b", "c")
    (peeked,) = bench.do(Peek(0, 10))
    assert isinstance(peeked, Peeked)
    assert [(run.sequence, state) for run, state in zip(peeked.runs, peeked.states, strict=True)] == [
        (0, State.READY),
        (1, State.DELAYED),
        (2, State.READY),
    ]


def test_a_purge_takes_what_is_delayed() -> None:
    bench = Bench(DELAY)
    bench.put("a", "delay=50 b")
    assert removed(bench.do(Purge()), Reason.PURGED) == [0, 1]
    assert bench.machine.gauges.delayed == 0


def test_a_message_is_as_late_after_a_restart_as_it_was_to_be() -> None:
    bench = Bench(DELAY)
    batch = batch_of([b"delay=50 a", b"b"], durable=True, enqueued_at_ms=980)
    later = batch_of([b"delay=50 c"], durable=True, enqueued_at_ms=990)
    bench.do(Restore([Run(batch, 0, 2, 0), Run(later, 0, 1, 2)], 3))
    assert bench.machine.next_deadline_ms == 1_030
    bench.consumer(1)
    assert bench.get() == ["b"]
    bench.now = 1_030
    assert bench.get() == ["delay=50 a"]
    bench.now = 1_040
    assert bench.get() == ["delay=50 c"]


def test_priorities_and_delays_go_together() -> None:
    bench = Bench(Policy(priorities=2, delay=True))
    bench.put("n1", "delay=10 n2")
    bench.put("delay=10 e1", priority=9)
    bench.now = 1_010
    bench.consumer(1)
    assert bench.get() == ["delay=10 e1", "n1", "delay=10 n2"]


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
    assert bench.machine.next_deadline_ms == 0
    bench.consumer(1)
    bench.put("key=2")
    fetches = bench.dispatch()
    assert [effect.run.sequence for effect in fetches if isinstance(effect, Fetch)] == [1, 3]
    assert bench.machine.next_deadline_ms is None
    bench.do(Fetched(1, [Run(gone, 0, 2, 1)]))
    assert not bench.dispatch()
    bench.do(Fetched(3, [], damaged=True))
    assert bench.get() == ["key=1", "key=2", "key=3", "key=5"]


def test_a_queue_that_reads_messages_keeps_them_in_memory() -> None:
    bench = Bench(SORTED)
    bench.machine.eviction.head_bytes = 0
    bench.put("key=1", "key=2", durable=True, place=Place(1, 0, 9))
    assert bench.machine.spill_candidates(1_000) == []
    assert bench.machine.evict(1_000) == 0


def test_single_messages_are_moved_on_disk_by_the_batch() -> None:
    bench = Bench(SORTED)
    bench.put("key=3", "key=1", "key=2", durable=True, place=Place(1, 0, 99))
    (run,) = bench.machine.runs_in(1)
    assert (run.sequence, run.count) == (0, 3)
    bench.machine.relocate(run, Place(2, 0, 99))
    (run,) = bench.machine.runs_in(2)
    assert run.count == 3
    assert not bench.machine.runs_in(1)
    bench.consumer(1)
    assert bench.get() == ["key=1", "key=2", "key=3"]


# --- selectors -----------------------------------------------------------------------------------------


class Selector:
    """Matches what contains a word, and counts how often it is asked."""

    def __init__(self, word: bytes) -> None:
        self.word = word
        self.looks = 0

    def __call__(self, message: bytes) -> bool:
        self.looks += 1
        return self.word in message


@pytest.mark.parametrize(
    "policy", [Policy(), Policy(priorities=3), SORTED, LAST_VALUE, GROUPS, DELAY], ids=str
)
def test_a_consumer_gets_only_what_it_selects_and_looks_once(policy: Policy) -> None:
    bench = Bench(policy)
    bench.put("red 1", "blue 1", "red 2", "red 3", "blue 2")
    red = Selector(b"red")
    bench.consumer(1, selects=red)
    assert bench.get() == ["red 1", "red 2", "red 3"]
    assert red.looks == 5
    bench.put("blue 3", "red 4")
    assert bench.get() == ["red 4"]
    assert not bench.get()
    assert red.looks == 7
    bench.do(Settle(1, 0, 1, RELEASED))
    assert bench.get() == ["red 1"]
    assert red.looks == 8
    bench.consumer(2)
    assert bench.get(2) == ["blue 1", "blue 2", "blue 3"]


def test_a_selector_that_matches_nothing_costs_nothing_per_dispatch() -> None:
    bench = Bench(Policy())
    bench.put(*[f"m{index}" for index in range(1_000)])
    nothing = Selector(b"nothing")
    bench.consumer(1, selects=nothing)
    for _ in range(50):
        assert not bench.get()
    assert nothing.looks == 1_000


def test_selectors_look_at_a_bounded_number_of_messages_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SELECTOR_LOOKS", 10)
    bench = Bench(Policy())
    bench.put(*[f"m{index}" for index in range(25)], "end")
    end = Selector(b"end")
    bench.consumer(1, selects=end)
    bench.do(Credit(1, 5, drain=True))
    assert not bench.dispatch()
    assert bench.machine.next_deadline_ms == 0
    assert not bench.dispatch()
    effects = bench.dispatch()
    assert delivered(effects) == ["end"]
    assert isinstance(effects[-1], Drained)
    assert bench.machine.next_deadline_ms is None


def test_others_take_from_the_head_beside_a_consumer_that_selects() -> None:
    bench = Bench(Policy())
    bench.put(*[f"m{index}" for index in range(6)], "red")
    bench.consumer(1, credit=1, selects=Selector(b"red"))
    bench.consumer(2, credit=3)
    effects = bench.dispatch()
    assert delivered(effects, 1) == ["red"]
    assert delivered(effects, 2) == ["m0", "m1", "m2"]
    bench.do(Detach(1))
    assert bench.machine.deliveries.order is None


def test_a_browser_may_select() -> None:
    bench = Bench(Policy())
    bench.put("red 1", "blue 1", "red 2")
    red = Selector(b"red")
    bench.consumer(1, browse=True, selects=red)
    assert bench.get() == ["red 1", "red 2"]
    bench.put("red 3")
    assert bench.get() == ["red 3"]
    assert red.looks == 4


def test_a_selector_waits_for_what_is_on_disk() -> None:
    bench = Bench(Policy())
    bench.machine.eviction.head_bytes = 0
    bench.put("red 1", "blue 1", durable=True, place=Place(1, 0, 50))
    bench.machine.evict(100)
    bench.consumer(1, selects=Selector(b"red"))
    assert [type(effect) for effect in bench.dispatch()] == [Fetch]
    again = batch_of([b"red 1", b"blue 1"], durable=True, place=Place(1, 0, 50))
    bench.do(Fetched(0, [Run(again, 0, 2, 0)]))
    assert bench.get() == ["red 1"]


# --- change of policy ----------------------------------------------------------------------------------


def test_a_plain_queue_becomes_a_sorted_one_and_plain_again() -> None:
    bench = Bench(Policy())
    bench.put("key=3", "key=2", "key=1", "key=0")
    bench.consumer(1, credit=1)
    assert bench.get() == ["key=3"]
    bench.do(Change(SORTED), Credit(1, 2))
    assert bench.get() == ["key=0"]
    bench.do(Change(Policy()))
    assert len(bench.machine.ready) == 1
    bench.do(Settle(1, 0, 2, RELEASED), Credit(1, 100))
    assert bench.get() == ["key=3", "key=2", "key=1", "key=0"]


def test_what_was_delayed_is_ready_when_delays_are_no_more() -> None:
    bench = Bench(DELAY)
    bench.put("delay=500 a", "b")
    bench.do(Change(Policy()))
    bench.consumer(1)
    assert bench.get() == ["delay=500 a", "b"]


def test_groups_respect_what_others_hold_from_before() -> None:
    bench = Bench(Policy())
    bench.put("group=a 1", "group=a 2", "group=a 3")
    bench.consumer(1, credit=1)
    bench.consumer(2, credit=1)
    bench.dispatch()
    bench.do(Change(GROUPS), Credit(1, 9), Credit(2, 9))
    assert not bench.get()
    bench.do(Settle(2, 0, 1))
    assert bench.get(1) == ["group=a 3"]


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


def test_a_group_of_which_the_rest_expired_is_left_by_an_owner_without_credit() -> None:
    bench = Bench(GROUPS)
    bench.consumer(1, credit=0, presettled=True)
    bench.put("group=a 1")
    bench.put("group=a 2", expires_at_ms=1_010)
    bench.now = 1_010
    bench.do(Tick(), Credit(1, 1))
    assert bench.get() == ["group=a 1"]
    bench.consumer(2)
    bench.put("group=a 3")
    assert bench.get(2) == ["group=a 3"]


def test_an_owner_gets_what_follows_a_message_that_it_was_barred_from_and_that_expired() -> None:
    bench = Bench(GROUPS)
    bench.consumer(1)
    bench.put("group=a 1")
    bench.put("group=a 2", expires_at_ms=1_010)
    bench.dispatch()
    bench.do(Settle(1, 1, 2, NOT_HERE))
    assert bench.get() == []
    bench.now = 1_010
    bench.do(Tick())
    bench.put("group=a 3")
    assert bench.get(1) == ["group=a 3"]


# --- bounds and locks, beside them ---------------------------------------------------------------------


BOUNDED = Policy(delay=True, max_length=2, overflow="discard_existing")


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


def test_what_was_delayed_gives_way_when_it_is_ready() -> None:
    bench = Bench(BOUNDED)
    bench.put("delay=50 a", "delay=50 b", "delay=50 c")
    bench.now = 1_050
    assert removed(bench.do(Tick()), Reason.DISCARDED) == [0]
    bench.put("delay=50 d", "delay=50 e")
    bench.now = 1_100
    assert removed(bench.dispatch(), Reason.DISCARDED) == []
    assert bench.machine.held == 2


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
