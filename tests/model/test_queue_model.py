"""The queue machine against a model with one object per message, in random histories.

Machine and model are compared in full after every step: which messages are ready with which attempts, who
holds which delivery, and that every byte can be found in memory or on the disk of the model
(tests/model/modelled_queue.py).
"""

from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from lightrail.model.links import Ending
from lightrail.shard.queue.changes.outcomes import KEPT
from lightrail.shard.queue.changes.removals import outcome_of_rest
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import (
    Attach,
    Cancel,
    Change,
    ConsumerOptions,
    Credit,
    Detach,
    Enqueue,
    Fetched,
    Outcome,
    OutcomeKind,
    Peek,
    Purge,
    Restore,
    Settle,
    Tick,
)
from lightrail.shard.queue.values.effects import (
    DeadLetter,
    Effect,
    Peeked,
    PeekedState,
    Reason,
    Refused,
    Removed,
    Replaced,
    Returned,
    Stored,
)
from lightrail.shard.queue.values.runs import Run, batch_of
from tests.model.histories import SOAK_S, checked, soak
from tests.model.modelled_queue import (
    POLICIES,
    SEGMENT_BYTES,
    Link,
    Message,
    ModelledQueue,
    annotate,
    look,
    messages_of,
    selects_even,
    selects_nothing,
)
from tests.support.shard import invariants

outcomes = st.one_of(
    st.just(Outcome(OutcomeKind.ACCEPTED)),
    st.just(Outcome(OutcomeKind.REJECTED, "amqp:invalid-field", "bad")),
    st.just(Outcome(OutcomeKind.RELEASED)),
    st.builds(
        Outcome,
        kind=st.just(OutcomeKind.MODIFIED),
        delivery_failed=st.booleans(),
        undeliverable_here=st.booleans(),
        annotations=st.sampled_from([None, b"+", b"annotated"]),
        # Deferral has its rules in test_combined_model.py.
        defers=st.just(False),
    ),
)


class QueueModel(ModelledQueue):
    """Rules are what frontends, the journal and time may do to a queue."""

    # --- rules ----------------------------------------------------------------------------------------

    @rule(
        payloads=st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=9),
        durable=st.booleans(),
        lives_ms=st.sampled_from([None, None, None, 1, 20, 50]),
        priority=st.sampled_from([4, 4, 0, 9]),
        steps=st.booleans(),
    )
    def enqueue(
        self, payloads: list[bytes], durable: bool, lives_ms: int | None, priority: int, steps: bool
    ) -> None:
        expires_at_ms = None if lives_ms is None else self.now + lives_ms
        batch = batch_of(
            payloads,
            durable=durable,
            expires_at_ms=expires_at_ms,
            enqueued_at_ms=self.now,
            priority=priority,
        )
        (effect,) = self.machine.apply(Enqueue(batch), self.now)
        assert isinstance(effect, Stored)
        run = effect.run
        assert (run.batch, run.sequence, run.count) == (batch, self.next_sequence, len(payloads))
        if durable:
            batch.location = self.write(batch.size)
        for payload in payloads:
            message = Message(
                self.next_sequence,
                payload,
                expires_at_ms,
                durable,
                batch.location,
                priority=priority,
                enqueued_at_ms=self.now,
            )
            self.live[self.next_sequence] = message
            self.next_sequence += 1
            message.delayed = not self.building and self.policy.delay and message.due_ms > self.now
            if not (message.delayed or self.building):
                self.note(message)
        if steps:
            self.dispatch()

    @precondition(lambda self: len(self.links) < 5)
    @rule(
        browse=st.sampled_from([False, False, False, True]),
        presettled=st.sampled_from([False, False, True]),
        exclusive=st.sampled_from([False] * 7 + [True]),
        priority=st.sampled_from([0, 0, 0, 5]),
        outcome=outcomes,
        first=st.sampled_from([0, 7]),
        selects=st.sampled_from([None, None, None, selects_even, selects_nothing]),
        credit=st.integers(0, 12),
    )
    def attach(
        self,
        browse: bool,
        presettled: bool,
        exclusive: bool,
        priority: int,
        outcome: Outcome,
        first: int,
        selects: Callable[[bytes], bool] | None,
        credit: int,
    ) -> None:
        options = ConsumerOptions(browse, presettled, exclusive, priority, outcome, first, selects=selects)
        identity = self.next_consumer
        self.next_consumer += 1
        effects = self.machine.apply(Attach(identity, options), self.now)
        competing = [link for link in self.links.values() if not link.options.browse]
        refused = not browse and (
            any(link.options.exclusive for link in competing) or (exclusive and bool(competing))
        )
        if refused:
            (effect,) = effects
            assert isinstance(effect, Refused)
            assert effect.condition == "amqp:resource-locked"
            return
        assert not effects
        self.links[identity] = Link(options, first, first + credit)
        assert not self.machine.apply(Credit(identity, first + credit), self.now)
        self.dispatch()

    @precondition(lambda self: self.links)
    @rule(data=st.data(), more=st.integers(-4, 12), drain=st.sampled_from([False, False, True]))
    def credit(self, data: st.DataObject, more: int, drain: bool) -> None:
        identity = data.draw(st.sampled_from(sorted(self.links)))
        link = self.links[identity]
        assert not self.machine.apply(Credit(identity, link.limit + more, drain), self.now)
        link.limit = max(link.limit + more, link.next)
        link.draining = drain
        self.dispatch()

    @precondition(lambda self: self.held())
    @rule(data=st.data(), outcome=outcomes, steps=st.booleans())
    def settle(self, data: st.DataObject, outcome: Outcome, steps: bool) -> None:
        held = sorted((m.holder or 0, m.number or 0) for m in self.held())
        holder, first = data.draw(st.sampled_from(held))
        last = first + data.draw(st.integers(1, 10))
        evicted = self.evicted_deliveries()
        effects = self.perform(self.machine.apply(Settle(holder, first, last, outcome), self.now))
        chosen = [m for m in self.held() if m.holder == holder and first <= (m.number or 0) < last]
        chosen = self.not_deferred(chosen, outcome, evicted)
        self.settled(holder, chosen, outcome, effects)
        if steps:
            self.dispatch()

    @precondition(lambda self: self.links)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        identity = data.draw(st.sampled_from(sorted(self.links)))
        ending = data.draw(st.sampled_from([Ending.BY_CLIENT, Ending.BY_BROKER]))
        evicted = self.evicted_deliveries()
        effects = self.perform(self.machine.apply(Detach(identity, ending), self.now))
        outcome = outcome_of_rest(self.links[identity].options.default_outcome, ending)
        chosen = [m for m in self.held() if m.holder == identity]
        self.settled(identity, self.not_deferred(chosen, outcome, evicted), outcome, effects)
        del self.links[identity]
        self.dispatch()

    def not_deferred(self, chosen: list[Message], outcome: Outcome, evicted: set[int]) -> list[Message]:
        """What may have its outcome at once: the rest is on disk, and has to be read for it."""
        now = []
        for message in chosen:
            failed = outcome.delivery_failed and message.attempts >= 2 and self.dead_letters
            rejected = outcome.kind == OutcomeKind.REJECTED and self.dead_letters
            if message.sequence in evicted and (outcome.annotations or failed or rejected):
                message.deferred, message.number = outcome, None
            else:
                now.append(message)
        return now

    def held(self) -> list[Message]:
        """What consumers hold."""
        return [m for m in self.live.values() if m.holder is not None and m.deferred is None]

    def evicted_deliveries(self) -> set[int]:
        """Sequences of what is in flight and only on disk."""
        return {
            sequence
            for consumer in self.machine.contents.consumers
            for run in consumer.in_flight.runs[consumer.in_flight.head :]
            if run.batch.data is None
            for sequence in range(run.sequence, run.end)
        }

    def settled(self, holder: int, chosen: list[Message], outcome: Outcome, effects: list[Effect]) -> None:
        """What the model expects of an outcome, message by message."""
        if outcome.kind == OutcomeKind.REJECTED and not self.dead_letters:
            outcome = KEPT
        removed: set[int] = set()
        dead: dict[int, tuple[str, int]] = {}
        returned: dict[int, int] = {}
        replaced: dict[int, bytes] = {}
        for message in chosen:
            if outcome.kind == OutcomeKind.ACCEPTED:
                removed.add(message.sequence)
            elif outcome.kind == OutcomeKind.REJECTED:
                dead[message.sequence] = ("rejected", message.attempts)
            else:
                message.holder = message.number = None
                if outcome.kind == OutcomeKind.RELEASED:
                    continue
                message.attempts += outcome.delivery_failed
                if outcome.undeliverable_here:
                    message.barred.add(holder)
                if outcome.delivery_failed and message.attempts >= 3 and self.dead_letters:
                    dead[message.sequence] = ("max-delivery-count", message.attempts)
                elif outcome.annotations:
                    message.payload += outcome.annotations
                    replaced[message.sequence] = message.payload
                    self.put_off(message)
                elif outcome.delivery_failed:
                    returned[message.sequence] = message.attempts
        for effect in effects:
            if isinstance(effect, Removed):
                assert effect.reason == outcome.kind.name.lower()
                sequences = range(effect.first_sequence, effect.last_sequence)
                assert effect.size == sum(len(self.live[sequence].payload) for sequence in sequences)
                removed -= set(sequences)
                for sequence in sequences:
                    del self.live[sequence]
            elif isinstance(effect, DeadLetter):
                for sequence, payload in messages_of(effect.run):
                    assert dead.pop(sequence) == (effect.reason, effect.run.attempts)
                    assert self.live.pop(sequence).payload == payload
                if effect.reason is Reason.REJECTED:
                    assert effect.condition == "amqp:invalid-field"
            elif isinstance(effect, Returned):
                for run in effect.runs:
                    for sequence in range(run.sequence, run.end):
                        assert returned.pop(sequence) == run.attempts
            else:
                assert isinstance(effect, Replaced)
                assert (effect.old.sequence, effect.old.count) == (effect.run.sequence, effect.run.count)
                for sequence, payload in messages_of(effect.run):
                    assert replaced.pop(sequence) == payload
                if effect.run.batch.durable:
                    effect.run.batch.location = self.write(effect.run.size)
                for sequence in range(effect.run.sequence, effect.run.end):
                    self.live[sequence].area = effect.run.batch.location
        missing = [*removed, *dead, *returned, *replaced]
        assert not missing, "an effect is missing"
        if not self.building:
            for message in sorted(chosen, key=lambda m: m.number or 0):
                if message.sequence in self.live and not message.delayed:
                    self.note(message)

    @rule(passes_ms=st.sampled_from([1, 10, 30, 1_100]), ticks=st.booleans())
    def time_passes(self, passes_ms: int, ticks: bool) -> None:
        self.now += passes_ms
        if ticks:
            if not self.building:
                self.wake()
            assert not self.perform(self.machine.apply(Tick(), self.now))
        else:
            self.dispatch()

    @rule(reaches=st.integers(0, 10))
    def purge(self, reaches: int) -> None:
        if reaches:
            return
        gone: set[int] = set()
        for effect in self.machine.apply(Purge(), self.now):
            assert isinstance(effect, Removed)
            assert effect.reason is Reason.PURGED
            gone |= set(range(effect.first_sequence, effect.last_sequence))
        assert gone == {m.sequence for m in self.live.values() if m.holder is None}
        for sequence in gone:
            del self.live[sequence]

    @rule(count=st.integers(0, 20), back=st.integers(0, 30))
    def peek(self, count: int, back: int) -> None:
        start = max(self.next_sequence - back, 0)
        (effect,) = self.machine.apply(Peek(start, count), self.now)
        assert isinstance(effect, Peeked)
        seen = [
            (sequence, state)
            for run, state in zip(effect.runs, effect.states, strict=True)
            for sequence, _ in messages_of(run)
        ]
        waiting = sorted((m for m in self.live.values() if m.holder is None), key=lambda m: m.sequence)
        assert (
            seen
            == [
                (m.sequence, PeekedState.DELAYED if m.delayed else PeekedState.READY)
                for m in waiting
                if m.sequence >= start
            ][:count]
        )

    @rule(wanted=st.sampled_from([20, 60, 1_000]), spills=st.booleans())
    def evict(self, wanted: int, spills: bool) -> None:
        if spills:
            for run in self.machine.footprint.spill_candidates(wanted):
                assert run.batch.location is None
                run.batch.location = self.write(run.size)
                self.journal(run, run.batch.location)
        machine = self.machine
        # Between two counts the number of runs is an estimate, which the eviction corrects.
        machine.contents.deliveries.run_count.outdate()
        before, messages = machine.footprint.sizes()[0], machine.contents.resident_message_bytes
        freed = machine.footprint.evict(wanted)
        assert machine.contents.resident_message_bytes <= messages
        assert bool(freed) == (machine.contents.resident_message_bytes < messages)
        # What an order has to know of a delivery is kept, and may be more than these tiny messages.
        if machine.contents.special is None or not machine.contents.special.keys.are_read:
            assert machine.footprint.sizes()[0] <= before
            assert bool(freed) == (machine.footprint.sizes()[0] < before)

    @precondition(lambda self: self.fetches)
    @rule(data=st.data(), fate=st.sampled_from(["read", "read", "read", "failed", "damaged"]))
    def fetched(self, data: st.DataObject, fate: str) -> None:
        asked = self.fetches.pop(data.draw(st.integers(0, len(self.fetches) - 1)))
        location = asked.batch.location
        assert location is not None
        read: list[Run] = []
        for sequence in range(asked.sequence, asked.end):
            message = self.live.get(sequence)
            # What was rewritten since is not found at the old location.
            if message is None or message.area is None or message.area.segment != location.segment:
                continue
            if fate == "failed" or (fate == "damaged" and sequence % 3 == 0):
                continue
            one = batch_of(
                [message.payload],
                durable=message.durable,
                priority=message.priority,
                expires_at_ms=message.expires_at_ms,
                enqueued_at_ms=message.enqueued_at_ms,
                location=message.area,
            )
            read.append(Run(one, 0, 1, sequence))
        effects = self.perform(self.machine.apply(Fetched(asked.sequence, read, fate == "damaged"), self.now))
        outcomes: list[Effect] = []
        for effect in effects:
            if not (isinstance(effect, Removed) and effect.reason is Reason.LOST):
                outcomes.append(effect)
                continue
            assert fate == "damaged"
            for sequence in range(effect.first_sequence, effect.last_sequence):
                assert sequence not in [run.sequence for run in read]
                del self.live[sequence]
        self.resumed({run.sequence for run in read}, outcomes)
        self.dispatch()

    def resumed(self, read: set[int], effects: list[Effect]) -> None:
        """What had been deferred and was read now has its outcome."""
        left = {each for run in self.machine.contents.deferred for each in range(run.sequence, run.end)}
        done = [m for m in self.live.values() if m.deferred is not None and m.sequence not in left]
        assert {m.sequence for m in done} <= read
        for message in done:
            outcome, holder = message.deferred, message.holder
            assert outcome is not None
            assert holder is not None
            message.deferred = None
            self.settled(holder, [message], outcome, [e for each in effects for e in only(each, message)])

    @rule(data=st.data())
    def clean(self, data: st.DataObject) -> None:
        segments = sorted({m.area.segment for m in self.live.values() if m.area is not None})
        if not segments:
            return
        segment = segments[0]
        runs = self.machine.footprint.runs_in(segment)
        found = sorted(sequence for run in runs for sequence in range(run.sequence, run.end))
        assert found == sorted(
            m.sequence for m in self.live.values() if m.area is not None and m.area.segment == segment
        )
        self.offset += SEGMENT_BYTES - self.offset % SEGMENT_BYTES
        for run in runs:
            pieces = [run]
            if run.count > 1 and data.draw(st.booleans()):
                pieces = list(run.split(data.draw(st.integers(1, run.count - 1))))
            for piece in pieces:
                location = self.write(piece.size)
                self.machine.footprint.relocate([(piece, location)])
                self.journal(piece, location)
        assert not self.machine.footprint.runs_in(segment)

    @precondition(lambda self: self.given < 2 and self.next_sequence)
    @rule(memory=st.integers(0, 60))
    def restart(self, memory: int) -> None:
        """The shard dies: durable messages come back, some of them on disk; consumers are gone."""
        self.given += 1
        self.machine = Machine(self.name, self.policy, annotate, look)
        self.machine.contents.eviction.head_bytes = 30
        self.replaced.clear()
        self.links.clear()
        self.fetches.clear()
        self.live = {s: m for s, m in self.live.items() if m.durable}
        runs = []
        for message in sorted(self.live.values(), key=lambda m: m.sequence):
            message.holder = message.number = message.deferred = None
            message.delayed = False
            message.barred.clear()
            batch = batch_of(
                [message.payload],
                durable=True,
                priority=message.priority,
                expires_at_ms=message.expires_at_ms,
                enqueued_at_ms=message.enqueued_at_ms,
                location=message.area,
            )
            memory -= batch.size
            if memory < 0:
                batch.data = batch.ends = None
            runs.append(Run(batch, 0, 1, message.sequence, message.attempts))
        assert not self.machine.apply(Restore(runs, self.next_sequence), self.now)
        self.begin_building()
        self.dispatch()

    @precondition(lambda self: any(m.delayed for m in self.live.values()))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.live)))
        effects = self.machine.apply(Cancel(sequence), self.now)
        if not self.live[sequence].delayed:
            assert not effects
            return
        (effect,) = effects
        assert isinstance(effect, Removed)
        assert (effect.first_sequence, effect.last_sequence) == (sequence, sequence + 1)
        assert effect.reason is Reason.CANCELLED
        del self.live[sequence]

    @precondition(lambda self: len(self.policies) > 1)
    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        before, self.policy = self.policy, POLICIES[data.draw(st.sampled_from(self.policies))]
        assert not self.machine.apply(Change(self.policy), self.now)
        if self.policy.arrangement != before.arrangement:
            self.begin_building()
        self.dispatch()

    # --- after every step -----------------------------------------------------------------------------

    @invariant()
    def laws_hold(self) -> None:
        invariants.check(self.machine)

    @invariant()
    def machine_and_model_agree(self) -> None:
        if self.building:
            self.follow_building()
        ready = [
            (sequence, run.attempts, set(run.barred), payload)
            for run in self.machine.contents.waiting()
            for sequence, payload in messages_of(run)
        ]
        expected = sorted((m for m in self.live.values() if m.holder is None), key=lambda m: m.sequence)
        assert self.machine.contents.delayed.count == sum(m.delayed for m in expected)
        assert len(ready) == len(expected)
        for (sequence, attempts, barred, payload), message in zip(ready, expected, strict=True):
            assert (sequence, attempts, barred) == (message.sequence, message.attempts, message.barred)
            assert payload is None or payload == message.payload
        for identity, link in self.links.items():
            consumer = self.machine.contents.consumers.by_id[identity]
            assert (consumer.next, consumer.limit) == (link.next, link.limit)
            line = consumer.in_flight
            held = [
                (key + index, sequence, payload)
                for key, run in zip(line.keys[line.head :], line.runs[line.head :], strict=True)
                for index, (sequence, payload) in enumerate(messages_of(run))
            ]
            expected_held = sorted((m.number or 0, m) for m in self.held() if m.holder == identity)
            assert [each[:2] for each in held] == [(number, m.sequence) for number, m in expected_held]
            for (_, _, payload), (_, message) in zip(held, expected_held, strict=True):
                assert payload is None or payload == message.payload
        deferred = {each for run in self.machine.contents.deferred for each in range(run.sequence, run.end)}
        assert deferred == {m.sequence for m in self.live.values() if m.deferred is not None}

    @invariant()
    def everything_can_be_found(self) -> None:
        for run in self.machine.contents._all_runs():
            location = run.batch.location
            for sequence in range(run.sequence, run.end):
                area = self.live[sequence].area
                assert (location is None) == (area is None)
                if location is not None and area is not None:
                    assert location.segment == area.segment
                    assert location.offset <= area.offset
                    assert location.offset + location.length >= area.offset + area.length


def only(effect: Effect, message: Message) -> list[Effect]:
    """The part of an effect that is about one message."""
    first, last = message.sequence, message.sequence + 1
    if isinstance(effect, Removed):
        is_its = effect.first_sequence <= first < effect.last_sequence
        size = len(message.payload)
        return [effect._replace(first_sequence=first, last_sequence=last, size=size)] if is_its else []
    if isinstance(effect, Returned):
        runs = [run for each in effect.runs for run in part(each, first)]
        return [Returned(runs)] if runs else []
    if isinstance(effect, DeadLetter):
        return [effect._replace(run=run) for run in part(effect.run, first)]
    assert isinstance(effect, Replaced)
    both = zip(part(effect.run, first), part(effect.old, first), strict=True)
    return [Replaced(run, old) for run, old in both]


def part(run: Run, sequence: int) -> list[Run]:
    index = sequence - run.sequence
    return [run.cut(index, index + 1)] if 0 <= index < run.count else []


class DeadLetterQueueModel(QueueModel):
    """The same of a dead-letter queue, which has none of its own."""

    name = "orders/$dlq"


class PriorityQueueModel(QueueModel):
    policies: ClassVar[list[str]] = ["priorities"]


class LastValueQueueModel(QueueModel):
    policies: ClassVar[list[str]] = ["last_value"]


class SortedQueueModel(QueueModel):
    policies: ClassVar[list[str]] = ["sorted"]


class GroupedQueueModel(QueueModel):
    policies: ClassVar[list[str]] = ["groups"]


class DelayingQueueModel(QueueModel):
    policies: ClassVar[list[str]] = ["delay"]


class ChangingQueueModel(QueueModel):
    """The policy changes at any time, to and from all kinds of orders."""

    policies: ClassVar[list[str]] = list(POLICIES)


MODELS = (
    QueueModel,
    DeadLetterQueueModel,
    PriorityQueueModel,
    LastValueQueueModel,
    SortedQueueModel,
    GroupedQueueModel,
    DelayingQueueModel,
    ChangingQueueModel,
)
TestQueue = checked(QueueModel)
TestDeadLetterQueue = checked(DeadLetterQueueModel)
TestPriorityQueue = checked(PriorityQueueModel)
TestLastValueQueue = checked(LastValueQueueModel)
TestSortedQueue = checked(SortedQueueModel)
TestGroupedQueue = checked(GroupedQueueModel)
TestDelayingQueue = checked(DelayingQueueModel)
TestChangingQueue = checked(ChangingQueueModel, 2.0)


@pytest.mark.soak
@pytest.mark.parametrize("model", MODELS)
def test_many_histories(model: type[QueueModel]) -> None:
    soak(model, SOAK_S / len(MODELS))


if __name__ == "__main__":
    pytest.main([__file__])
