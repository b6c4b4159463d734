"""Orders, delays, timed locks and bounds together, at a queue whose policy changes among all of them.

The other models say what must happen; where everything comes together this one says what must be true: it
follows the effects message by message and checks the laws that each part of a policy promises.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lightrail.model import limits
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.order import order as order_module
from lightrail.shard.queue.timed.aside import NOBODY
from lightrail.shard.queue.values.commands import (
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
    LockDeferred,
    Outcome,
    OutcomeKind,
    Purge,
    RenewLock,
    Settle,
    SettleLocked,
    Tick,
)
from lightrail.shard.queue.values.effects import (
    DeadLetter,
    Deliver,
    Effect,
    LockAnswer,
    LockedDeferred,
    Reason,
    Refused,
    Removed,
)
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Run, batch_of
from tests.model.histories import SOAK_S, checked, soak
from tests.support.shard import invariants

SMALL_LIMITS = [
    (limits, "DELIVERY_SLICE_MESSAGES", 4),
    (order_module, "SELECTOR_LOOKS", 7),
    (limits, "STALE_RANGES_MIN", 2),
    (limits, "STALE_ENTRIES_MIN", 2),
]
LENGTH_MAX = 8
NOT_HERE = Outcome(OutcomeKind.MODIFIED, delivery_failed=True, undeliverable_here=True)
ORDERS: list[dict[str, Any]] = [
    {},
    {"groups": True},
    {"order": "last_value", "order_key": "key"},
    {"order": "sorted", "order_key": "key"},
    {"priorities": 3},
]
DEFER = Outcome(OutcomeKind.MODIFIED, defers=True)
outcomes = st.sampled_from([ACCEPTED, RELEASED, FAILED, NOT_HERE, DEFER, Outcome(OutcomeKind.REJECTED)])
policies = st.builds(
    lambda order, delay, bound, buries, lock_ms, single: Policy(
        max_delivery_count=3,
        delay=delay,
        max_length=LENGTH_MAX if bound else None,
        overflow="discard_existing" if bound else "reject",
        discard_to_dead_letter=buries,
        lock_ms=lock_ms,
        single_active=single,
        **order,
    ),
    st.sampled_from(ORDERS),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 20]),
    st.sampled_from([False, False, True]),
)


def look(path: str) -> Any:
    """The first byte of a message is its key and its group, the second its delay."""
    if path == "message-annotations.x-opt-delivery-delay":
        return lambda message: message[1] % 40 if message[1] % 3 == 0 else None
    if path in ("key", "properties.group-id"):
        return lambda message: (None, 1, 2, 3)[message[0] % 4]
    return lambda message: None


@dataclass
class Message:
    key: int | None
    holder: int | None = None
    until_ms: int | None = None
    renewed: bool = False
    is_deferred: bool = False


class CombinedModel(RuleBasedStateMachine):
    """Rules are what links, gateways and time may do."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        for module, attribute, value in SMALL_LIMITS:
            self.stack.enter_context(patch.object(module, attribute, value))
        self.policy = Policy(max_delivery_count=3)
        self.machine = Machine("orders", self.policy, look=look)
        self.now = 1_000
        self.live: dict[int, Message] = {}
        self.sequence = 0
        self.identity = 0
        self.lock_ms: dict[int, int] = {}
        """Of those that are attached, and of those that have gone and left something locked."""
        self.shown: dict[int | None, int] = {}
        """The newest sequence of each key that anybody got since the queue is one of last values."""
        self.former: set[int] = set()
        """In flight since before the policy changed."""

    def teardown(self) -> None:
        self.stack.close()

    # --- what happens ----------------------------------------------------------------------------------

    def do(self, command: Command) -> list[Effect]:
        effects = self.machine.apply(command, self.now)
        self.follow(effects)
        return effects

    def dispatch(self) -> None:
        for _ in range(60):
            self.follow(self.machine.dispatch(self.now))
            due_ms = self.machine.next_deadline_ms
            if due_ms is None or due_ms > self.now:
                break
        else:
            raise AssertionError("the queue never comes to an end")
        self.nobody_waits()

    def follow(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                for sequence in range(effect.run.sequence, effect.run.end):
                    self.deliver(effect.consumer, sequence)
            elif isinstance(effect, Removed):
                for sequence in range(effect.first_sequence, effect.last_sequence):
                    self.gone(sequence, effect.reason)
            elif isinstance(effect, DeadLetter):
                for sequence in range(effect.run.sequence, effect.run.end):
                    self.gone(sequence, effect.reason)
        # What has come back is what is neither gone nor in flight: the machine is asked.
        # What comes back in pieces from a consumer that has detached is locked no more.
        for consumer in self.machine.view.holders():
            for run in consumer.in_flight.runs:
                if run.is_deferred:
                    for sequence in range(run.sequence, run.end):
                        self.live[sequence].is_deferred = True
        held = {
            s: consumer.id
            for consumer in self.machine.view.holders()
            if consumer not in self.machine.outcomes.returning
            for s in held_by(consumer.in_flight.runs)
        }
        for sequence, message in self.live.items():
            if message.holder is not None and sequence not in held:
                message.holder = message.until_ms = None
                self.former.discard(sequence)
            elif sequence in held:
                if message.holder != held[sequence] and held[sequence] == NOBODY:
                    message.until_ms = None
                message.holder = held[sequence]

    def deliver(self, identity: int, sequence: int) -> None:
        message = self.live[sequence]
        assert not message.is_deferred, "nobody has asked for it"
        assert not self.is_held(message), "locked twice"
        self.former.discard(sequence)
        assert identity in self.machine.contents.consumers.by_id, "to somebody who has gone"
        assert not self.machine.contents.consumers.by_id[identity].standby
        if self.policy.order == "last_value" and message.key is not None:
            assert sequence >= self.shown.get(message.key, -1), "an old value after a new one"
            self.shown[message.key] = sequence
        if self.policy.groups and message.key is not None:
            for other, each in self.live.items():
                if each.is_deferred:
                    continue
                if each.key == message.key and self.is_held(each) and other not in self.former:
                    assert each.holder == identity, "a group with two consumers"
        message.holder = identity
        message.renewed = False
        lock_ms = self.lock_ms[identity]
        message.until_ms = self.now + lock_ms if lock_ms else None

    def is_held(self, message: Message) -> bool:
        """Whether a consumer has it; an expired lock ends before anything is delivered."""
        return message.holder is not None and (message.until_ms is None or message.until_ms > self.now)

    def gone(self, sequence: int, reason: Reason) -> None:
        message = self.live.pop(sequence)
        self.former.discard(sequence)
        if reason in (Reason.DISCARDED, Reason.QUEUE_FULL):
            assert self.policy.overflow == "discard_existing"
        if reason is Reason.QUEUE_FULL:
            assert self.policy.discard_to_dead_letter
        if reason is Reason.REPLACED:
            assert message.key is not None

    def ready(self) -> list[tuple[int, Run]]:
        runs = self.machine.contents.ready.waiting()
        return [(s, run) for run in runs for s in range(run.sequence, run.end)]

    def nobody_waits(self) -> None:
        """Who has credit got everything that it may have."""
        ready = self.ready()
        if self.policy.order == "last_value":
            keys = [self.live[s].key for s, _ in ready if self.live[s].key is not None]
            assert len(keys) == len(set(keys)), "two values of one key"
        for consumer in self.machine.contents.consumers.by_id.values():
            if consumer.next >= consumer.limit or consumer.standby:
                continue
            for sequence, run in ready:
                key = self.live[sequence].key
                group = [(s, m) for s, m in self.live.items() if m.key == key and key is not None]
                if consumer.id in run.barred:
                    continue
                if self.policy.groups and key is not None:
                    first = min(s for s, _ in ready if self.live[s].key == key)
                    if sequence != first or any(m.holder is not None and not m.is_deferred for _, m in group):
                        continue
                    # Its owner may be without credit; it keeps the group while the group has messages.
                    order: Any = self.machine.contents.deliveries.order
                    if any(
                        each.owner is not None for each in order.groups.values() if each.ready[:1] == [first]
                    ):
                        continue
                raise AssertionError(f"{consumer.id} waits for {sequence}")

    # --- rules -----------------------------------------------------------------------------------------

    @rule(payloads=st.lists(st.binary(min_size=2, max_size=3), min_size=1, max_size=6), steps=st.booleans())
    def enqueue(self, payloads: list[bytes], steps: bool) -> None:
        for payload in payloads:
            self.live[self.sequence] = Message((None, 1, 2, 3)[payload[0] % 4])
            self.sequence += 1
        priority = payloads[0][1] % 10
        self.do(Enqueue(batch_of(payloads, priority=priority, enqueued_at_ms=self.now)))
        if steps:
            self.dispatch()

    @precondition(lambda self: len(self.machine.contents.consumers.by_id) < 4)
    @rule(
        lock_ms=st.sampled_from([0, 0, 10]),
        key=st.sampled_from(["", "", "a", "b"]),
        presettled=st.sampled_from([False, False, True]),
        outcome=outcomes,
        credit=st.integers(0, 9),
    )
    def attach(self, lock_ms: int, key: str, presettled: bool, outcome: Outcome, credit: int) -> None:
        identity = self.identity
        self.identity += 1
        # A new connection begins far beyond the numbers of those before it.
        options = ConsumerOptions(
            presettled=presettled,
            default_outcome=outcome,
            first=identity * 1_000,
            lock_ms=lock_ms,
            lock_key=key,
        )
        self.lock_ms[identity] = 0 if presettled else lock_ms or self.policy.lock_ms or 0
        if any(isinstance(effect, Refused) for effect in self.do(Attach(identity, options))):
            del self.lock_ms[identity]
            return
        self.do(Credit(identity, options.first + credit))
        self.dispatch()

    @precondition(lambda self: self.machine.contents.consumers.by_id)
    @rule(data=st.data(), more=st.integers(-2, 9))
    def credit(self, data: st.DataObject, more: int) -> None:
        consumer = self.draw_consumer(data)
        self.do(Credit(consumer.id, consumer.limit + more))
        self.dispatch()

    @precondition(lambda self: self.machine.contents.consumers.by_id)
    @rule(
        data=st.data(), count=st.integers(1, 6), back=st.integers(0, 9), outcome=outcomes, steps=st.booleans()
    )
    def settle(self, data: st.DataObject, count: int, back: int, outcome: Outcome, steps: bool) -> None:
        consumer = self.draw_consumer(data)
        first = max(consumer.next - back, consumer.options.first)
        self.do(Settle(consumer.id, first, first + count, outcome))
        if steps:
            self.dispatch()

    def draw_consumer(self, data: st.DataObject) -> Any:
        by_id = self.machine.contents.consumers.by_id
        return by_id[data.draw(st.sampled_from(sorted(by_id)))]

    @rule(key=st.sampled_from(["a", "b"]), back=st.integers(0, 5), outcome=outcomes, renews=st.booleans())
    def use_key(self, key: str, back: int, outcome: Outcome, renews: bool) -> None:
        consumer = self.machine.contents.locks.seen(key)
        number = 0 if consumer is None else consumer.next - back
        command: Command = RenewLock(key, number) if renews else SettleLocked(key, number, outcome)
        *_, answer = self.do(command)
        assert isinstance(answer, LockAnswer)
        if renews and answer.found and consumer is not None:
            line = consumer.in_flight
            index = line.index(number)
            sequence = line.runs[index].sequence + number - line.keys[index]
            self.live[sequence].until_ms = answer.until_ms
            self.live[sequence].renewed = True
        self.dispatch()

    @precondition(lambda self: self.machine.contents.aside.count)
    @rule(data=st.data(), count=st.integers(1, 3), outcome=outcomes, settles=st.booleans())
    def receive_deferred(self, data: st.DataObject, count: int, outcome: Outcome, settles: bool) -> None:
        deferred = sorted(s for s, message in self.live.items() if message.holder == NOBODY)
        wanted = data.draw(st.lists(st.sampled_from(deferred), min_size=1, max_size=count, unique=True))
        identity = self.identity
        self.identity += 1
        lock_ms = self.policy.lock_ms or 15
        *_, answer = self.do(LockDeferred(identity, f"deferred {identity}", wanted, lock_ms))
        assert isinstance(answer, LockedDeferred)
        assert [run.sequence for run in answer.runs] == sorted(wanted)
        for sequence in wanted:
            self.live[sequence].until_ms = self.now + lock_ms
        if settles:
            self.do(SettleLocked(f"deferred {identity}", wanted[0], outcome))
        self.dispatch()

    @precondition(lambda self: self.machine.contents.consumers.by_id)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        self.do(Detach(self.draw_consumer(data).id))
        self.dispatch()

    @rule(passes_ms=st.sampled_from([1, 5, 20, 50]), ticks=st.booleans())
    def time_passes(self, passes_ms: int, ticks: bool) -> None:
        self.now += passes_ms
        if ticks:
            self.do(Tick())
        self.dispatch()
        assert all(m.until_ms is None or m.until_ms > self.now for m in self.live.values()), "locked too long"

    @rule(policy=policies)
    def change(self, policy: Policy) -> None:
        self.policy = policy
        self.shown.clear()
        self.former = {s for s, message in self.live.items() if message.holder is not None}
        self.do(Change(policy))
        for identity, consumer in self.machine.contents.consumers.by_id.items():
            if consumer.lock_ms and not self.lock_ms[identity]:
                # What was locked before the policy had no locks is so for as long as it was.
                for message in self.live.values():
                    if message.holder == identity and not message.renewed:
                        begun = self.now + consumer.lock_ms
                        message.until_ms = min(message.until_ms or begun, begun)
            self.lock_ms[identity] = consumer.lock_ms
        self.dispatch()

    @rule(reaches=st.integers(0, 9), sequence=st.integers(0, 60))
    def purge_or_cancel(self, reaches: int, sequence: int) -> None:
        self.do(Purge() if not reaches else Cancel(sequence))
        self.dispatch()

    # --- after every step ------------------------------------------------------------------------------

    @invariant()
    def laws_hold(self) -> None:
        invariants.check(self.machine)

    @invariant()
    def every_message_is_where_it_is_said_to_be(self) -> None:
        waiting = {s for run in self.machine.contents.waiting() for s in range(run.sequence, run.end)}
        # What was replaced is out, and told with the next dispatch.
        untold = {s for s, m in self.live.items() if m.holder is None} - waiting
        assert waiting <= {s for s, m in self.live.items() if m.holder is None}
        assert not untold or self.machine.next_deadline_ms == 0

    @invariant()
    def a_tick_comes_in_time(self) -> None:
        until = [m.until_ms for m in self.live.values() if m.until_ms is not None]
        due_ms = self.machine.next_deadline_ms
        assert not until or (due_ms is not None and due_ms <= min(until))


def held_by(runs: list[Run]) -> list[int]:
    return [sequence for run in runs for sequence in range(run.sequence, run.end)]


TestCombined = checked(CombinedModel, 2.0)


@pytest.mark.soak
def test_many_histories() -> None:
    soak(CombinedModel, SOAK_S)
