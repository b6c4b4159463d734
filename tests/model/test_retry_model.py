"""Retries against a model with one entry per message, in random histories.

The model knows until when each message waits, and which attempts are in the journal. No message is delivered
before its time, none is forgotten after it, no message of a group passes one that waits, and the time
survives restarts, moves, evictions and changes of the policy.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lightrail.model import limits
from lightrail.model.attempts import failures, waits_until_ms
from lightrail.model.links import Ending
from lightrail.shard.queue.changes import removals
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import (
    ACCEPTED,
    FAILED,
    RELEASED,
    Attach,
    Change,
    Command,
    ConsumerOptions,
    Credit,
    Detach,
    Enqueue,
    Fetched,
    Open,
    Outcome,
    Purge,
    Restore,
    Settle,
    Tick,
)
from lightrail.shard.queue.values.effects import (
    DeadLetter,
    Deliver,
    Effect,
    Fetch,
    Purged,
    Reason,
    Removed,
    Returned,
)
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.model.histories import SOAK_S, checked, soak
from tests.support.shard import invariants
from tests.support.shard.checked_queue import annotated, look

WAIT = Policy(max_delivery_count=4, retry_delay_ms=10, retry_growth=2, retry_delay_max_ms=30)
POLICIES = {
    "plain": WAIT,
    "groups": Policy(max_delivery_count=4, retry_delay_ms=10, groups=True),
    "priorities": Policy(max_delivery_count=4, retry_delay_ms=10, priorities=3),
    "delay": Policy(max_delivery_count=4, retry_delay_ms=10, delay=True),
    "locks": Policy(max_delivery_count=4, retry_delay_ms=10, lock_ms=15),
    "none": Policy(max_delivery_count=4),
    "long": Policy(max_delivery_count=4, retry_delay_ms=60),
}


@dataclass
class Message:
    """What the model knows of one message."""

    text: bytes
    expires_at_ms: int | None
    attempts: int = 0
    """As the journal has them: with the time of the last failure."""
    flight: tuple[int, int] | None = None
    """Consumer and delivery number."""
    until_ms: int = 0

    @property
    def group(self) -> bytes:
        return self.text[:7]


class RetryModel(RuleBasedStateMachine):
    """Rules are what clients, time, disk and operators may do."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        for module, name, value in (
            (limits, "DELIVERY_SLICE_MESSAGES", 3),
            (limits, "STALE_ENTRIES_MIN", 2),
            (removals, "EXPIRED_AT_ONCE", 2),
        ):
            self.stack.enter_context(patch.object(module, name, value))
        self.policy = WAIT
        self.machine = Machine("orders", WAIT, annotate=annotated, look=look)
        self.now = 1_000
        self.messages: dict[int, Message] = {}
        self.disk: list[Message] = []
        """Every message by its sequence, also those that have left."""
        self.sequence = 0
        self.identity = 0
        self.fetches: list[Run] = []

    def teardown(self) -> None:
        self.stack.close()

    # --- following the machine ----------------------------------------------------------------------------

    def do(self, *commands: Command) -> None:
        for command in commands:
            self.see(self.machine.apply(command, self.now))
            invariants.check(self.machine)

    def see(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                self.delivered(effect)
            elif isinstance(effect, Fetch):
                self.fetches.append(effect.run)
            elif isinstance(effect, Returned):
                for run in effect.runs:
                    for sequence in range(run.sequence, run.end):
                        self.failed(self.messages[sequence], run.attempts)
            elif isinstance(effect, DeadLetter):
                self.dead(effect)
            elif isinstance(effect, Removed):
                assert effect.reason in (Reason.ACCEPTED, Reason.PURGED)
                for sequence in range(effect.first_sequence, effect.last_sequence):
                    del self.messages[sequence]
            elif isinstance(effect, Purged):
                for run in effect.runs:
                    for sequence in range(run.sequence, run.end):
                        del self.messages[sequence]

    def delivered(self, effect: Deliver) -> None:
        run = effect.run
        for index in range(run.count):
            message = self.messages[run.sequence + index]
            assert run.batch.message(run.first + index) == message.text
            assert message.flight is None, "delivered twice"
            assert message.until_ms <= self.now, "before its time"
            assert run.attempts == failures(message.attempts)
            if self.policy.groups:
                before = [each for number, each in self.messages.items() if number < run.sequence + index]
                held = [each for each in before if each.group == message.group and each.until_ms > self.now]
                assert not held, "it passes a message of its group that waits"
            message.flight = effect.consumer, effect.first_number + index
            message.until_ms = 0

    def failed(self, message: Message, attempts: int) -> None:
        """It returns after a failed delivery."""
        assert message.flight is not None
        assert failures(attempts) == failures(message.attempts) + 1
        wait = self.policy.retry_ms(failures(attempts))
        assert waits_until_ms(attempts) == (self.now + wait if wait else 0)
        message.attempts, message.flight, message.until_ms = attempts, None, waits_until_ms(attempts)

    def dead(self, effect: DeadLetter) -> None:
        for sequence in range(effect.run.sequence, effect.run.end):
            message = self.messages.pop(sequence)
            if effect.reason is Reason.EXPIRED:
                assert message.flight is None
                assert message.expires_at_ms is not None
                assert message.expires_at_ms <= self.now
                assert effect.run.attempts == failures(message.attempts)
            else:
                assert message.flight is not None
                assert effect.run.attempts == failures(message.attempts) + 1 == 4

    # --- rules --------------------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 4),
        group=st.sampled_from("ab"),
        ttl=st.none() | st.integers(5, 60),
        size=st.sampled_from([0, 300]),
    )
    def enqueue(self, count: int, group: str, ttl: int | None, size: int) -> None:
        expires_at_ms = None if ttl is None else self.now + ttl
        texts = [f"group={group} {self.sequence + index} {'x' * size}".encode() for index in range(count)]
        for index, text in enumerate(texts):
            self.messages[self.sequence + index] = Message(text, expires_at_ms)
            self.disk.append(self.messages[self.sequence + index])
        location = Location(1, self.sequence, count)
        self.sequence += count
        fields = {"durable": True, "enqueued_at_ms": self.now, "expires_at_ms": expires_at_ms}
        self.do(Enqueue(batch_of(texts, location=location, **fields)))  # type: ignore[arg-type]

    @rule(credit=st.integers(1, 5))
    def attach(self, credit: int) -> None:
        self.identity += 1
        self.do(Attach(self.identity, ConsumerOptions()), Credit(self.identity, credit))

    @precondition(lambda self: self.machine.contents.consumers.by_id)
    @rule(data=st.data(), credit=st.integers(1, 5))
    def credit(self, data: st.DataObject, credit: int) -> None:
        consumer = data.draw(st.sampled_from(list(self.machine.contents.consumers.by_id.values())))
        self.do(Credit(consumer.id, consumer.next + credit))

    @precondition(lambda self: self.machine.contents.consumers.by_id)
    @rule(data=st.data(), ending=st.sampled_from(Ending))
    def detach(self, data: st.DataObject, ending: Ending) -> None:
        identity = data.draw(st.sampled_from(list(self.machine.contents.consumers.by_id)))
        mine = [each for each in self.messages.values() if each.flight and each.flight[0] == identity]
        self.do(Detach(identity, ending))
        for message in mine:
            message.flight = None

    @precondition(lambda self: any(each.flight for each in self.messages.values()))
    @rule(data=st.data(), outcome=st.sampled_from([ACCEPTED, RELEASED, FAILED, FAILED]))
    def settle(self, data: st.DataObject, outcome: Outcome) -> None:
        flying = [each for each in self.messages.values() if each.flight]
        message = data.draw(st.sampled_from(flying))
        assert message.flight is not None
        identity, number = message.flight
        count = data.draw(st.integers(1, 3))
        same = [each for each in flying if each.flight and each.flight[0] == identity]
        settled = [each for each in same if each.flight and number <= each.flight[1] < number + count]
        self.do(Settle(identity, number, number + count, outcome))
        for each in settled:
            each.flight = None

    @rule(elapsed=st.integers(1, 25))
    def pass_time(self, elapsed: int) -> None:
        self.now += elapsed
        self.do(Tick())

    @rule(wanted=st.integers(1, 2_000))
    def evict(self, wanted: int) -> None:
        self.machine.contents.eviction.head_bytes = 30
        self.machine.footprint.evict(wanted)
        invariants.check(self.machine)

    @precondition(lambda self: self.fetches)
    @rule()
    def fetch(self) -> None:
        run = self.fetches.pop(0)
        self.do(Fetched(run.sequence, self.stored(range(run.sequence, run.end))))

    def stored(self, sequences: Iterable[int]) -> list[Run]:
        """What the disk has of these messages."""
        found: list[Run] = []
        for each in sequences:
            message = self.disk[each]
            batch = batch_of([message.text], durable=True, location=Location(1, each, 1))
            batch.expires_at_ms, batch.enqueued_at_ms = message.expires_at_ms, self.now
            found.append(Run(batch, 0, 1, each, message.attempts))
        return found

    @rule()
    def purge(self) -> None:
        self.do(Purge())

    @rule(name=st.sampled_from(sorted(POLICIES)))
    def change(self, name: str) -> None:
        self.policy = POLICIES[name]
        for message in self.messages.values():
            self.bound(message)
        self.do(Change(self.policy))

    def bound(self, message: Message) -> None:
        if message.until_ms:
            longest = self.now + self.policy.retry_ms(failures(message.attempts))
            message.until_ms = min(message.until_ms, longest)

    @rule(moves=st.booleans(), on_disk=st.booleans())
    def restart(self, moves: bool, on_disk: bool) -> None:
        runs = self.stored(sorted(self.messages))
        for run in runs:
            if on_disk:
                run.batch.data = run.batch.ends = None
        self.fetches.clear()
        for message in self.messages.values():
            message.flight = None
            message.until_ms = waits_until_ms(message.attempts)
            self.bound(message)
        self.machine = Machine("orders", None if moves else self.policy, annotate=annotated, look=look)
        self.see(self.machine.apply(Restore(runs, self.sequence, is_copy=moves), self.now))
        if moves:
            self.do(Open(self.policy))

    @rule()
    def dispatch(self) -> None:
        for _ in range(4):
            self.see(self.machine.dispatch(self.now))
            invariants.check(self.machine)

    @precondition(lambda self: self.policy.lock_ms is None)
    @rule()
    def nothing_is_forgotten(self) -> None:
        """With time, credit and the disk's answers every message is delivered."""
        self.now += 1_000
        self.do(Tick())
        self.identity += 1
        self.do(Attach(self.identity, ConsumerOptions()))
        for consumer in list(self.machine.contents.consumers.by_id.values()):
            # One without credit may have groups.
            self.do(Credit(consumer.id, consumer.next + 1_000))
        for _ in range(100):
            self.dispatch()
            if not self.fetches:
                break
            self.fetch()
        assert not self.fetches
        rest = {number for number, each in self.messages.items() if each.flight is None}
        # A lock that has just expired is a failure, after which a message waits.
        again = {number for number, each in self.messages.items() if each.until_ms > self.now}
        assert not rest - again, "they are not delivered"
        assert self.machine.contents.retries_count == len(again)

    @invariant()
    def counted(self) -> None:
        gauges = self.machine.view.gauges
        every = self.messages.values()
        late = sum(each.expires_at_ms is not None and each.expires_at_ms <= self.now for each in every)
        waiting = sum(each.until_ms > self.now for each in every)
        flying = sum(each.flight is not None for each in every)
        # Messages on disk that have expired are read for their dead letters, and in flight meanwhile.
        assert waiting <= gauges.delayed + late
        assert flying <= gauges.in_flight <= flying + late
        assert gauges.ready + gauges.delayed + gauges.in_flight == len(self.messages)


TestRetries = checked(RetryModel)


@pytest.mark.soak
def test_many_histories() -> None:
    soak(RetryModel, SOAK_S)
