"""The queue machine against a model with one object per message, in random histories.

Machine and model are compared in full after every step: which messages are ready with which attempts, who
holds which delivery, and that every byte can be found in memory or on the disk of the model. All limits are
set so small that slices, joins, evictions and fetches happen all the time.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lightrail.model import limits, orders
from lightrail.shard.queue import contents, invariants, last_values, machine, merging, sparse, views
from lightrail.shard.queue.commands import (
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
from lightrail.shard.queue.effects import (
    DeadLetter,
    Deliver,
    Drained,
    Effect,
    Fetch,
    Peeked,
    Reason,
    Refused,
    Removed,
    Replaced,
    Returned,
    State,
    Stored,
)
from lightrail.shard.queue.machine import Machine, Policy
from lightrail.shard.queue.runs import Place, Run, batch_of
from tests.support.histories import SOAK_S, checked, soak

SMALL_LIMITS = [
    (merging, "JOINED_BYTES", 48),
    (merging, "PLACE_BYTES", 200),
    (merging, "PLACE_SPARSE_BYTES", 300),
    (machine, "JOINED_BYTES", 12),
    (contents, "_JOIN_BACKLOG_BYTES", 24),
    (limits, "DELIVERY_SLICE_MESSAGES", 4),
    (limits, "DELIVERY_SLICE_BYTES", 40),
    (limits, "SELECTOR_LOOKS", 7),
    (limits, "LOADING_BYTES", 30),
    (last_values, "_THIN_MIN", 2),
    (sparse, "_HOLES", 2),
    (views, "_THIN_MIN", 3),
]
SEGMENT_BYTES = 400


@dataclass
class Message:
    """One message and all that may become of it."""

    sequence: int
    payload: bytes
    expires_at_ms: int | None
    durable: bool
    area: Place | None = None
    attempts: int = 0
    barred: set[int] = field(default_factory=set)
    holder: int | None = None
    number: int | None = None
    priority: int = 4
    enqueued_at_ms: int = 0
    delayed: bool = False

    @property
    def key(self) -> Any:
        return look("key")(self.payload)

    @property
    def group(self) -> Any:
        return look("properties.group-id")(self.payload)

    @property
    def due_ms(self) -> int:
        delay = look("message-annotations.x-opt-delivery-delay")(self.payload)
        return 0 if delay is None else self.enqueued_at_ms + int(delay)


def look(path: str) -> Callable[[bytes], Any]:
    """The first byte of a message is its key and its group, the second, if there is one, its delay."""
    if path == "message-annotations.x-opt-delivery-delay":
        return lambda message: message[1] % 40 if len(message) > 1 and message[1] % 3 == 0 else None
    if path in ("key", "properties.group-id"):
        return lambda message: (None, 2, "b", 1)[message[0] % 4]
    return lambda message: None


def selects_even(message: bytes) -> bool:
    return message[0] % 2 == 0


def selects_nothing(message: bytes) -> bool:
    return False


POLICIES = {
    "plain": Policy(max_delivery_count=3),
    "priorities": Policy(max_delivery_count=3, priorities=3),
    "last_value": Policy(max_delivery_count=3, order="last_value", order_key="key"),
    "sorted": Policy(max_delivery_count=3, order="sorted", order_key="key"),
    "groups": Policy(max_delivery_count=3, groups=True),
    "delay": Policy(max_delivery_count=3, delay=True),
    "priorities, delay": Policy(max_delivery_count=3, priorities=5, delay=True),
    "groups, delay": Policy(max_delivery_count=3, groups=True, delay=True),
    "last_value, delay": Policy(max_delivery_count=3, order="last_value", order_key="key", delay=True),
}


@dataclass
class Link:
    """A consumer as the model sees it."""

    options: ConsumerOptions
    next: int
    limit: int
    cursor: int = 0
    draining: bool = False


def annotate(message: bytes, annotations: bytes) -> bytes:
    return message + annotations


def messages_of(run: Run) -> Iterator[tuple[int, bytes | None]]:
    """Sequence and payload of each message; None when it is only on disk."""
    for index in range(run.count):
        payload = None if run.batch.data is None else run.batch.message(run.first + index)
        yield run.sequence + index, payload


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
    ),
)


class QueueModel(RuleBasedStateMachine):
    """Rules are what frontends, the journal and time may do to a queue."""

    name = "orders"
    policies: ClassVar[list[str]] = ["plain"]
    """The first one is the queue's; it may change to any of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        for module, attribute, value in SMALL_LIMITS:
            self.stack.enter_context(patch.object(module, attribute, value))
        self.policy = POLICIES[self.policies[0]]
        self.machine = Machine(self.name, self.policy, annotate, look)
        self.machine.eviction.head_bytes = 30
        self.dead_letters = not self.name.endswith("/$dlq")
        self.now = 1_000
        self.next_sequence = 0
        self.next_consumer = 0
        self.offset = 0
        self.live: dict[int, Message] = {}
        self.links: dict[int, Link] = {}
        self.fetches: list[Run] = []
        self.given = 0
        self.newest: dict[Any, int] = {}
        """Of last values: the newest sequence of each key."""
        self.replaced: set[int] = set()
        """Taken out, and to be told with the next dispatch."""
        self.owners: dict[Any, int] = {}
        self.building = False
        """The queue was given a policy, or restarted, and may have to load what is on disk first."""

    def teardown(self) -> None:
        self.stack.close()

    # --- the model ------------------------------------------------------------------------------------

    def ready(self) -> list[Message]:
        """By sequence."""
        waiting = (each for each in self.live.values() if each.holder is None and not each.delayed)
        return sorted(waiting, key=lambda m: m.sequence)

    def rank(self, message: Message) -> Any:
        if self.policy.order == "sorted":
            return 3 if message.key is None else (1, 2, "b").index(message.key), message.sequence
        if self.policy.priorities > 1:
            return -orders.level(message.priority, self.policy.priorities), message.sequence
        return 0, message.sequence

    def may_get(self, identity: int, message: Message) -> bool:
        """Whether a consumer may get a message that is ready, were it alone with its credit."""
        selects = self.links[identity].options.selects
        if identity in message.barred or (selects is not None and not selects(message.payload)):
            return False
        if not self.policy.groups or message.group is None:
            return True
        members = [m for m in self.live.values() if m.group == message.group]
        first = min(m.sequence for m in members if m.holder is None and not m.delayed)
        owner = self.owners.get(message.group)
        if message.sequence != first or owner not in (None, identity):
            return False
        # What is in flight is its own, and not only left over from an owner before it.
        return all(m.holder == owner for m in members if m.holder is not None)

    def for_consumer(self, identity: int) -> list[Message]:
        """What it may get, the first one first."""
        return sorted((m for m in self.ready() if self.may_get(identity, m)), key=self.rank)

    def forget_owners(self) -> None:
        """Groups that nobody owns any more."""
        for group, owner in list(self.owners.items()):
            members = [m for m in self.live.values() if m.group == group and not m.delayed]
            held = [m for m in members if m.holder is not None]
            waiting = sorted((m for m in members if m.holder is None), key=lambda m: m.sequence)
            if not members or owner not in self.links:
                del self.owners[group]
            elif waiting and not [m for m in held if m.holder == owner]:
                selects = self.links[owner].options.selects
                first = waiting[0]
                link = self.links[owner]
                looks = selects is not None and link.next < link.limit
                if owner in first.barred or (looks and selects is not None and not selects(first.payload)):
                    del self.owners[group]

    def note(self, message: Message) -> None:
        """A message is ready in a queue of last values: the older of it and the newest one goes."""
        if self.policy.order != "last_value" or message.key is None:
            return
        newest = self.newest.get(message.key, -1)
        self.newest[message.key] = max(newest, message.sequence)
        older = self.live.get(min(newest, message.sequence))
        if newest != message.sequence and older is not None and older.holder is None and not older.delayed:
            self.replaced.add(older.sequence)
            del self.live[older.sequence]

    def wake(self) -> None:
        """What is due becomes ready."""
        for message in sorted(self.live.values(), key=lambda m: (m.due_ms, m.sequence)):
            if message.delayed and message.due_ms <= self.now:
                message.delayed = False
                self.note(message)

    def built(self) -> None:
        """After a restart, or a change of policy: everything was looked into, and has found its place."""
        special = self.machine.special
        if special is not None and special.loading:
            return
        self.building = False
        self.newest.clear()
        self.owners.clear()
        delays = None if special is None else special.delays
        held = [m for m in self.live.values() if m.holder is not None]
        if self.policy.groups:
            for identity in self.links:
                for message in held:
                    if message.holder == identity and message.group is not None:
                        self.owners.setdefault(message.group, identity)
        for message in held:
            if self.policy.order == "last_value" and message.key is not None:
                self.newest[message.key] = max(self.newest.get(message.key, -1), message.sequence)
        for message in sorted(self.live.values(), key=lambda m: m.sequence):
            if message.holder is None:
                # Joined messages of a plain queue share the earliest time of arrival.
                message.delayed = delays is not None and delays.line.has(message.sequence)
                if message.delayed and delays is not None:
                    run = delays.line.runs[delays.line.index(message.sequence)]
                    assert run.batch.enqueued_at_ms <= message.enqueued_at_ms
                    message.enqueued_at_ms = run.batch.enqueued_at_ms
                assert not message.delayed or message.due_ms > self.now
                if not message.delayed:
                    self.note(message)

    def write(self, size: int) -> Place:
        """Room on the model's disk: offsets rise, and other queues write in between."""
        length = size + 8
        if self.offset % SEGMENT_BYTES + length > SEGMENT_BYTES:
            self.offset += SEGMENT_BYTES - self.offset % SEGMENT_BYTES
        place = Place(self.offset // SEGMENT_BYTES, self.offset % SEGMENT_BYTES, length)
        self.offset += length + (size % 3) * 5
        return place

    def journal(self, run: Run, place: Place) -> None:
        for sequence in range(run.sequence, run.end):
            self.live[sequence].area = place

    def remove(self, run: Run, holder: int | None, check_payload: bool = True) -> list[Message]:
        gone = []
        for sequence, payload in messages_of(run):
            message = self.live.pop(sequence)
            assert message.holder == holder
            if check_payload and payload is not None:
                assert payload == message.payload
            gone.append(message)
        return gone

    def perform(self, effects: Iterable[Effect]) -> list[Effect]:
        """Effects that may come at any time; returns the others."""
        rest: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Fetch):
                assert effect.run.batch.data is None
                assert effect.run.batch.place is not None
                assert effect.run.sequence not in [run.sequence for run in self.fetches], "asked for twice"
                self.fetches.append(effect.run)
            elif isinstance(effect, DeadLetter) and effect.reason is Reason.EXPIRED:
                assert self.dead_letters
                assert effect.run.batch.data is not None
                self.expire(self.remove(effect.run, None))
            elif isinstance(effect, Removed) and effect.reason is Reason.EXPIRED:
                assert not self.dead_letters
                self.expire([self.live.pop(s) for s in range(effect.first_sequence, effect.last_sequence)])
            else:
                rest.append(effect)
        return rest

    def expire(self, gone: list[Message]) -> None:
        for message in gone:
            assert message.holder is None
            assert message.expires_at_ms is not None
            assert message.expires_at_ms <= self.now

    def dispatch(self) -> None:
        self.dispatch_once()
        rounds = 0
        while self.machine.deliveries.order is not None and self.machine.deliveries.order.unfinished:
            rounds += 1
            assert rounds < 50, "the selectors look at the same messages again"
            assert self.machine.next_deadline_ms == 0
            self.dispatch_once()
        self.everything_was_handed_out()

    def dispatch_once(self) -> None:
        if not self.building:
            self.wake()
        effects = self.perform(self.machine.dispatch(self.now))
        if self.building:
            self.built()
        self.forget_owners()
        for effect in effects:
            if isinstance(effect, Deliver):
                self.deliver(effect)
            elif isinstance(effect, Removed) and effect.reason is Reason.REPLACED:
                self.replaced.remove(effect.first_sequence)
                assert effect.last_sequence == effect.first_sequence + 1
            elif isinstance(effect, Removed):
                assert effect.reason is Reason.ACCEPTED
                for sequence in range(effect.first_sequence, effect.last_sequence):
                    message = self.live.pop(sequence)
                    assert message.holder is not None
                    assert self.links[message.holder].options.presettled
            else:
                assert isinstance(effect, Drained)
                link = self.links[effect.consumer]
                assert link.draining
                assert effect.number == link.next
                if not link.options.browse:
                    assert not self.for_consumer(effect.consumer) or link.next == link.limit
                link.limit = link.next
                link.draining = False
            self.forget_owners()
        self.browsers_looked()
        assert not self.replaced, "nobody was told what was replaced"

    def browsers_looked(self) -> None:
        """A browser that selects does not come back to what it has passed over."""
        for identity, link in self.links.items():
            selects = link.options.selects
            if not link.options.browse or selects is None:
                continue
            cursor = self.machine.consumers.by_id[identity].cursor
            assert cursor >= link.cursor
            for message in self.ready():
                if link.cursor <= message.sequence < cursor:
                    assert not selects(message.payload), "passed over"
            link.cursor = cursor

    def deliver(self, effect: Deliver) -> None:
        link = self.links[effect.consumer]
        assert effect.first_number == link.next
        assert effect.run.count <= 4
        for sequence, payload in messages_of(effect.run):
            message = self.live[sequence]
            assert payload == message.payload
            assert message.holder is None, "locked twice"
            assert effect.run.attempts == message.attempts
            assert message.expires_at_ms is None or message.expires_at_ms > self.now
            assert link.next < link.limit, "beyond its credit"
            selects = link.options.selects
            if link.options.browse:
                assert sequence >= link.cursor
                expected = min(
                    m.sequence
                    for m in self.ready()
                    if m.sequence >= link.cursor and (selects is None or selects(m.payload))
                )
                assert sequence == expected, "out of order"
                link.cursor = sequence + 1
            else:
                assert self.may_get(effect.consumer, message), "not for this consumer"
                for other_id, other in self.links.items():
                    assert (
                        other.options.browse
                        or other.options.priority <= link.options.priority
                        or other.next >= other.limit
                        or other.options.selects is not None
                        or not self.may_get(other_id, message)
                        # What is first for it comes from disk.
                        or self.for_consumer(other_id)[0].sequence in self.on_disk()
                    ), "a consumer of higher priority waits"
                if not self.policy.groups:
                    assert message is self.for_consumer(effect.consumer)[0], "out of order"
                elif message.group is not None:
                    self.owners[message.group] = effect.consumer
                message.holder, message.number = effect.consumer, link.next
            link.next += 1

    def on_disk(self) -> set[int]:
        return {
            sequence
            for run in self.machine.ready.waiting()
            if run.batch.data is None
            for sequence in range(run.sequence, run.end)
        }

    def everything_was_handed_out(self) -> None:
        """After a dispatch nobody with credit waits for something that is in memory."""
        on_disk = self.on_disk()
        if self.building:
            asked = {sequence for sequence in on_disk if self.is_asked_for(sequence)}
            assert asked, "nobody asked for what has to be looked into"
            return
        ready = self.ready()
        assert not any(m.delayed and m.due_ms <= self.now for m in self.live.values()), "nobody woke it"
        for message in self.live.values():
            if message.holder is not None:
                continue
            if message.expires_at_ms is not None and message.expires_at_ms <= self.now:
                assert message.sequence in on_disk
                assert self.is_asked_for(message.sequence)
        for identity, link in self.links.items():
            if link.next >= link.limit:
                continue
            assert not link.draining or on_disk
            selects = link.options.selects
            if link.options.browse:
                mine = [
                    m.sequence
                    for m in ready
                    if m.sequence >= link.cursor and (selects is None or selects(m.payload))
                ]
            else:
                mine = [m.sequence for m in self.for_consumer(identity)]
            if mine and selects is not None:
                # What it waits for lies behind something on disk that it has not looked at.
                assert any(self.is_asked_for(sequence) for sequence in on_disk), f"{identity} waits"
            elif mine:
                assert mine[0] in on_disk, f"{identity} waits for {mine[0]}"
                assert self.is_asked_for(mine[0])

    def is_asked_for(self, sequence: int) -> bool:
        eviction = self.machine.eviction
        retrying = [(first, eviction.fetching[first]) for _, first in eviction.retries]
        asked = [(run.sequence, run.end) for run in self.fetches]
        return any(first <= sequence < last for first, last in asked + retrying)

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
            batch.place = self.write(batch.size)
        for payload in payloads:
            message = Message(
                self.next_sequence,
                payload,
                expires_at_ms,
                durable,
                batch.place,
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

    @precondition(lambda self: any(m.holder is not None for m in self.live.values()))
    @rule(data=st.data(), outcome=outcomes, steps=st.booleans())
    def settle(self, data: st.DataObject, outcome: Outcome, steps: bool) -> None:
        held = sorted(
            (m.holder, m.number) for m in self.live.values() if m.holder is not None and m.number is not None
        )
        holder, first = data.draw(st.sampled_from(held))
        last = first + data.draw(st.integers(1, 10))
        effects = self.machine.apply(Settle(holder, first, last, outcome), self.now)
        chosen = [m for m in self.live.values() if m.holder == holder and first <= (m.number or 0) < last]
        self.settled(holder, chosen, outcome, effects)
        if steps:
            self.dispatch()

    @precondition(lambda self: self.links)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        identity = data.draw(st.sampled_from(sorted(self.links)))
        effects = self.machine.apply(Detach(identity), self.now)
        chosen = [m for m in self.live.values() if m.holder == identity]
        self.settled(identity, chosen, self.links[identity].options.default_outcome, effects)
        del self.links[identity]
        self.dispatch()

    def settled(self, holder: int, chosen: list[Message], outcome: Outcome, effects: list[Effect]) -> None:
        """What the model expects of an outcome, message by message."""
        removed: set[int] = set()
        dead: dict[int, tuple[str, int]] = {}
        returned: dict[int, int] = {}
        replaced: dict[int, bytes] = {}
        for message in chosen:
            if outcome.kind == OutcomeKind.ACCEPTED:
                removed.add(message.sequence)
            elif outcome.kind == OutcomeKind.REJECTED:
                if self.dead_letters:
                    dead[message.sequence] = ("rejected", message.attempts)
                else:
                    removed.add(message.sequence)
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
                    effect.run.batch.place = self.write(effect.run.size)
                for sequence in range(effect.run.sequence, effect.run.end):
                    self.live[sequence].area = effect.run.batch.place
        missing = [*removed, *dead, *returned, *replaced]
        assert not missing, "an effect is missing"
        if not self.building:
            for message in sorted(chosen, key=lambda m: m.number or 0):
                if message.sequence in self.live:
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
                (m.sequence, State.DELAYED if m.delayed else State.READY)
                for m in waiting
                if m.sequence >= start
            ][:count]
        )

    @rule(wanted=st.sampled_from([20, 60, 1_000]), spills=st.booleans())
    def evict(self, wanted: int, spills: bool) -> None:
        if spills:
            for run in self.machine.spill_candidates(wanted):
                assert run.batch.place is None
                run.batch.place = self.write(run.size)
                self.journal(run, run.batch.place)
        before = self.machine.resident_bytes
        freed = self.machine.evict(wanted)
        assert self.machine.resident_bytes <= before
        assert bool(freed) == (self.machine.resident_bytes < before)

    @precondition(lambda self: self.fetches)
    @rule(data=st.data(), fate=st.sampled_from(["read", "read", "read", "failed", "damaged"]))
    def fetched(self, data: st.DataObject, fate: str) -> None:
        asked = self.fetches.pop(data.draw(st.integers(0, len(self.fetches) - 1)))
        place = asked.batch.place
        assert place is not None
        read: list[Run] = []
        for sequence in range(asked.sequence, asked.end):
            message = self.live.get(sequence)
            # What was rewritten since is not found at the old place.
            if message is None or message.area is None or message.area.segment != place.segment:
                continue
            if fate == "failed" or (fate == "damaged" and sequence % 3 == 0):
                continue
            one = batch_of(
                [message.payload],
                durable=message.durable,
                priority=message.priority,
                expires_at_ms=message.expires_at_ms,
                enqueued_at_ms=message.enqueued_at_ms,
                place=message.area,
            )
            read.append(Run(one, 0, 1, sequence))
        effects = self.machine.apply(Fetched(asked.sequence, read, fate == "damaged"), self.now)
        for effect in effects:
            assert isinstance(effect, Removed)
            assert effect.reason is Reason.LOST
            assert fate == "damaged"
            for sequence in range(effect.first_sequence, effect.last_sequence):
                assert sequence not in [run.sequence for run in read]
                del self.live[sequence]
        self.dispatch()

    @rule(data=st.data())
    def clean(self, data: st.DataObject) -> None:
        segments = sorted({m.area.segment for m in self.live.values() if m.area is not None})
        if not segments:
            return
        segment = segments[0]
        runs = self.machine.runs_in(segment)
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
                place = self.write(piece.size)
                self.machine.relocate(piece, place)
                self.journal(piece, place)
        assert not self.machine.runs_in(segment)

    @precondition(lambda self: self.given < 2 and self.next_sequence)
    @rule(memory=st.integers(0, 60))
    def restart(self, memory: int) -> None:
        """The shard dies: durable messages come back, some of them on disk; consumers are gone."""
        self.given += 1
        self.machine = Machine(self.name, self.policy, annotate, look)
        self.machine.eviction.head_bytes = 30
        self.building = True
        self.replaced.clear()
        self.links.clear()
        self.fetches.clear()
        self.live = {s: m for s, m in self.live.items() if m.durable}
        runs = []
        for message in sorted(self.live.values(), key=lambda m: m.sequence):
            message.holder = message.number = None
            message.delayed = False
            message.barred.clear()
            batch = batch_of(
                [message.payload],
                durable=True,
                priority=message.priority,
                expires_at_ms=message.expires_at_ms,
                enqueued_at_ms=message.enqueued_at_ms,
                place=message.area,
            )
            memory -= batch.size
            if memory < 0:
                batch.data = batch.ends = None
            runs.append(Run(batch, 0, 1, message.sequence, message.attempts))
        assert not self.machine.apply(Restore(runs, self.next_sequence), self.now)
        self.built()
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
        self.policy = POLICIES[data.draw(st.sampled_from(self.policies))]
        assert not self.machine.apply(Change(self.policy), self.now)
        self.building = True
        for message in self.live.values():
            message.delayed = False
        self.built()
        self.dispatch()

    # --- after every step -----------------------------------------------------------------------------

    @invariant()
    def laws_hold(self) -> None:
        invariants.check(self.machine)

    @invariant()
    def machine_and_model_agree(self) -> None:
        ready = [
            (sequence, run.attempts, set(run.barred), payload)
            for run in self.machine.waiting()
            for sequence, payload in messages_of(run)
        ]
        expected = sorted((m for m in self.live.values() if m.holder is None), key=lambda m: m.sequence)
        assert self.machine.delayed_count == sum(m.delayed for m in expected)
        assert len(ready) == len(expected)
        for (sequence, attempts, barred, payload), message in zip(ready, expected, strict=True):
            assert (sequence, attempts, barred) == (message.sequence, message.attempts, message.barred)
            assert payload is None or payload == message.payload
        for identity, link in self.links.items():
            consumer = self.machine.consumers.by_id[identity]
            assert (consumer.next, consumer.limit) == (link.next, link.limit)
            line = consumer.in_flight
            held = [
                (key + index, sequence, payload)
                for key, run in zip(line.keys[line.head :], line.runs[line.head :], strict=True)
                for index, (sequence, payload) in enumerate(messages_of(run))
            ]
            assert held == sorted(
                (m.number or 0, m.sequence, m.payload) for m in self.live.values() if m.holder == identity
            )

    @invariant()
    def everything_can_be_found(self) -> None:
        for run in self.machine._all_runs():
            place = run.batch.place
            for sequence in range(run.sequence, run.end):
                area = self.live[sequence].area
                assert (place is None) == (area is None)
                if place is not None and area is not None:
                    assert place.segment == area.segment
                    assert place.offset <= area.offset
                    assert place.offset + place.length >= area.offset + area.length


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
