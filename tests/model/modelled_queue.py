"""The model of a queue, one object per message: who may get what, and what has to be handed out.

All limits are set so small that slices, joins, evictions and fetches happen all the time.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest.mock import patch

from hypothesis.stateful import RuleBasedStateMachine

from lightrail.model import limits, orders
from lightrail.shard.queue.changes import contents
from lightrail.shard.queue.lines import merging
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.order import loading, message_keys, order
from lightrail.shard.queue.values.commands import ConsumerOptions, Outcome
from lightrail.shard.queue.values.effects import (
    DeadLetter,
    Deliver,
    Drained,
    Effect,
    Fetch,
    Reason,
    Removed,
)
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location, Run

SMALL_LIMITS = [
    (limits, "JOINED_BYTES", 48),
    (merging, "LOCATION_BYTES", 200),
    (merging, "LOCATION_SPARSE_BYTES", 300),
    (limits, "JOIN_AT_BYTES", 24),
    (contents, "JOIN_BACKLOG_BYTES", 24),
    (limits, "DELIVERY_SLICE_MESSAGES", 4),
    (limits, "DELIVERY_SLICE_BYTES", 40),
    (order, "SELECTOR_LOOKS", 7),
    (message_keys, "KEYED_BYTES", 0),
    (loading, "LOADING_BYTES", 30),
    (limits, "STALE_RANGES_MIN", 2),
    (limits, "STALE_ENTRIES_MIN", 2),
]
SEGMENT_BYTES = 400


@dataclass
class Message:
    """One message and all that may become of it."""

    sequence: int
    payload: bytes
    expires_at_ms: int | None
    durable: bool
    area: Location | None = None
    attempts: int = 0
    barred: set[int] = field(default_factory=set)
    holder: int | None = None
    deferred: Outcome | None = None
    """Settled with this by its former holder, and not read back yet."""
    number: int | None = None
    priority: int = 4
    enqueued_at_ms: int = 0
    delayed: bool = False
    looked_into: bool = False
    """While the queue is building its order: whether the message is part of it."""

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


class ModelledQueue(RuleBasedStateMachine):
    """A queue machine and its model; what the one says has to be what the other allows."""

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
        self.machine.contents.eviction.head_bytes = 30
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
        self.superseded: set[int] = set()
        """While the queue of last values is building: what leaves when it has seen all."""
        self.building = False
        """The queue was given a policy, or restarted, and may have to load what is on disk first."""

    def teardown(self) -> None:
        self.stack.close()

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

    def put_off(self, message: Message) -> None:
        """It came back with annotations, which may ask for a time."""
        special = self.machine.contents.special
        if self.building or special is None or special.delays is None:
            return
        line = special.delays.line
        if line.has(message.sequence):
            # Joined messages of a plain queue share the earliest time of arrival.
            run = line.runs[line.index(message.sequence)]
            assert run.batch.enqueued_at_ms <= message.enqueued_at_ms
            message.enqueued_at_ms = run.batch.enqueued_at_ms
        message.delayed = message.due_ms > self.now

    def wake(self) -> None:
        """What is due becomes ready."""
        for message in sorted(self.live.values(), key=lambda m: (m.due_ms, m.sequence)):
            if message.delayed and message.due_ms <= self.now:
                message.delayed = False
                self.note(message)

    def built(self) -> None:
        """After a restart, or a change of policy: everything was looked into, and has found its position."""
        self.follow_building()
        special = self.machine.contents.special
        if special is not None and special.loading.is_active:
            return
        # The newest of each key may be one that was looked into and has left since.
        self.building = False
        self.owners.clear()
        held = [m for m in self.live.values() if m.holder is not None]
        if self.policy.groups:
            for identity in self.links:
                for message in held:
                    mine = message.holder == identity and message.deferred is None
                    if mine and message.group is not None:
                        self.owners.setdefault(message.group, identity)
        for message in held:
            if self.policy.order == "last_value" and message.key is not None:
                self.newest[message.key] = max(self.newest.get(message.key, -1), message.sequence)
        for message in sorted(self.live.values(), key=lambda m: m.sequence):
            if message.holder is None:
                assert not message.delayed or message.due_ms > self.now
                if not message.delayed:
                    self.note(message)
        for sequence in self.superseded & self.live.keys():
            if self.live[sequence].holder is None and not self.live[sequence].delayed:
                self.replaced.add(sequence)
                del self.live[sequence]
        self.superseded.clear()

    def begin_building(self) -> None:
        """A restart, or a change of policy."""
        self.building = True
        self.newest.clear()
        self.superseded.clear()
        for message in self.live.values():
            message.delayed = message.looked_into = False
        self.built()

    def follow_building(self) -> None:
        """Messages are looked into one after another: some may be delayed, or to be replaced, already."""
        special = self.machine.contents.special
        delays = None if special is None else special.delays
        for message in sorted(self.live.values(), key=lambda m: m.sequence):
            if message.holder is not None:
                continue
            delayed = delays is not None and delays.line.has(message.sequence)
            if delayed and not message.delayed and delays is not None:
                # Joined messages of a plain queue share the earliest time of arrival.
                run = delays.line.runs[delays.line.index(message.sequence)]
                assert run.batch.enqueued_at_ms <= message.enqueued_at_ms
                message.enqueued_at_ms = run.batch.enqueued_at_ms
            message.delayed = delayed
            if special is None or delayed or message.looked_into:
                continue
            if message.sequence >= special.loading.read_to:
                continue
            message.looked_into = True
            if self.policy.order == "last_value" and message.key is not None:
                newest = self.newest.get(message.key, message.sequence)
                self.newest[message.key] = max(newest, message.sequence)
                if newest != message.sequence:
                    self.superseded.add(min(newest, message.sequence))

    def write(self, size: int) -> Location:
        """Room on the model's disk: offsets rise, and other queues write in between."""
        length = size + 8
        if self.offset % SEGMENT_BYTES + length > SEGMENT_BYTES:
            self.offset += SEGMENT_BYTES - self.offset % SEGMENT_BYTES
        location = Location(self.offset // SEGMENT_BYTES, self.offset % SEGMENT_BYTES, length)
        self.offset += length + (size % 3) * 5
        return location

    def journal(self, run: Run, location: Location) -> None:
        for sequence in range(run.sequence, run.end):
            self.live[sequence].area = location

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
                assert effect.run.batch.location is not None
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
        deliveries = self.machine.contents.deliveries
        while deliveries.order is not None and deliveries.order.unfinished:
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
            cursor = self.machine.contents.consumers.by_id[identity].cursor
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
            for run in self.machine.contents.waiting()
            if run.batch.data is None
            for sequence in range(run.sequence, run.end)
        }

    def everything_was_handed_out(self) -> None:
        """After a dispatch nobody with credit waits for something that is in memory."""
        on_disk = self.on_disk()
        if self.building:
            # What consumers hold is looked into as well, and may be all that there is.
            held = {
                sequence
                for consumer in self.machine.contents.consumers
                for run in consumer.in_flight.runs[consumer.in_flight.head :]
                if run.batch.data is None
                for sequence in range(run.sequence, run.end)
            }
            asked = {sequence for sequence in on_disk | held if self.is_asked_for(sequence)}
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
        eviction = self.machine.contents.eviction
        retrying = [(first, eviction.fetching[first]) for _, first in eviction.retries]
        asked = [(run.sequence, run.end) for run in self.fetches]
        more = eviction._more.items()
        return any(first <= sequence < last for first, last in [*asked, *retrying, *more])
