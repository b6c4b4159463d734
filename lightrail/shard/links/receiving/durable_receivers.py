"""Durable receivers: links on which clients receive, and whose unsettled deliveries are in the store (3.5.5).

A delivery of such a link leaves the shard when its record is on disk. So after a crash the shard knows every
delivery that the client may have, under its number: it stays locked for the client's link, which the client
resumes (resuming.py). The records follow the state of the queue: at the end of a step the deliveries in
flight are compared with the recorded ones.

A link with `removes_first` has no unsettled deliveries: they leave when the removal of their messages is on
disk, so that no crash delivers one of them again. One that was on its way is lost with its connection. Where
the client bounds the size of messages, the link is not presettled: the shard accepts those that certainly fit
as it delivers them, and the frontend settles the others once it has sent them, or has not.
"""

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lightrail.journal.record import DeliveryRun, ReceiverChange, ReceiverEvent
from lightrail.model.links import Durability
from lightrail.shard.effects.peers import Consumer, Peer
from lightrail.shard.effects.receiving_link import ReceivingLink, ReceivingState
from lightrail.shard.journal.kept_links import joined, without
from lightrail.shard.journal.store import Store, StoreError
from lightrail.shard.queue.values.commands import ACCEPTED, Command, Holder, Settle
from lightrail.shard.queue.values.runs import Run
from lightrail.shard.queues.shard_queue import CallWhenSynced, Queue
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import HEADER

log = logging.getLogger("lightrail.shard.links.receiving.durable_receivers")


LinkKey = tuple[Peer, int]
"""Frontend, and number of the link."""


@dataclass(slots=True, eq=False, repr=False)
class WaitingFrames:
    """Frames of one link that wait for commits."""

    count: int = 0
    """Number of its waits that have not ended."""
    frames: list[bytes] = field(default_factory=list)
    """Frames that need not wait any longer, in their order."""


@dataclass(slots=True, eq=False, repr=False)
class OfQueue:
    """The durable receivers of one queue; also those that have ended, until this is recorded."""

    by_client_link: dict[str, ReceivingLink] = field(default_factory=dict)
    """All of them."""
    linked: dict[ReceivingLink, Consumer] = field(default_factory=dict)
    """Those that a frontend has, whose deliveries may change in each step."""
    changed: dict[ReceivingLink, None] = field(default_factory=dict)
    """Others whose deliveries may have changed in this step."""
    locks: object = None
    """State of the locks with a time, which end deliveries of suspended ones."""
    removing: dict[ReceivingLink, int] = field(default_factory=dict)
    """Links that remove messages first, with the next delivery number after the last step."""

    def remove(self, link: ReceivingLink) -> None:
        del self.by_client_link[link.opened.client_link]
        self.linked.pop(link, None)
        self.changed.pop(link, None)

    def to_compare(self, queue: Queue) -> dict[ReceivingLink, Consumer | None]:
        """Receivers whose deliveries may differ from the recorded ones, with the frontend's link that has
        them, or had them in the last step."""
        locks, changed = queue.view.lock_state, self.changed
        if locks != self.locks:
            changed = dict.fromkeys(self.by_client_link.values())
        found = {**changed, **self.linked}
        for link in [link for link in self.linked if link.state is not ReceivingState.ATTACHED]:
            del self.linked[link]
        self.locks, self.changed = locks, {}
        return found


@dataclass(slots=True, eq=False, repr=False)
class DurableReceivers:
    """The durable receivers of all queues of a shard.

    Args:
        links: receiving links by the number of their consumer.
        apply: applies a command to a queue, and performs its effects.
    """

    _links: Mapping[int, ReceivingLink]
    _store: Store
    _counts: ShardCounts
    _when_synced: CallWhenSynced
    _apply: Callable[[Queue, Command, int], object]
    by_queue: dict[Queue, OfQueue] = field(default_factory=dict)
    dirty: dict[Queue, None] = field(default_factory=dict)
    """Queues whose deliveries may have changed in this step."""
    waiting: dict[LinkKey, WaitingFrames] = field(default_factory=dict)
    accepting: dict[Queue, dict[ReceivingLink, int]] = field(default_factory=dict)
    """Links that remove messages first and are not presettled, with the first delivery number that `accept`
    has not seen."""

    def __len__(self) -> int:
        return sum(len(found.by_client_link) for found in self.by_queue.values())

    # --- their links -----------------------------------------------------------------------------------

    def begin_removing(self, consumer: Consumer) -> None:
        """Notes a link whose deliveries wait for the removal of their messages; called as `begin` is."""
        link = self._links.get(consumer.id)
        if link is not None and self._store.outlives:
            found = self.by_queue.setdefault(link.queue, OfQueue())
            found.removing[link] = link.opened.first
            if link.opened.removed_bytes_max:
                self.accepting.setdefault(link.queue, {})[link] = link.opened.first

    def durability(self, opening: ConsumerOpen) -> Durability:
        """The durability that an opened link may have in this store: all of its state, or none of it."""
        wanted = opening.durability >= Durability.UNSETTLED_STATE and opening.suspended_ms
        is_durable = wanted and opening.client_link and self._store.outlives
        return Durability.UNSETTLED_STATE if is_durable else Durability.NONE

    def is_durable(self, consumer: Consumer) -> bool:
        """Whether deliveries of this consumer are recorded."""
        found = self._links.get(consumer.id)
        return found is not None and found.recorded is not None

    def begin(self, consumer: Consumer, now_ms: int) -> None:
        """Notes that a consumer has a link from now on; called before the link gets messages."""
        link = self._links.get(consumer.id)
        if link is None or not link.opened.client_link:
            return
        queue, durability = link.queue, self.durability(link.opened)
        found = self.by_queue.get(queue) or OfQueue()
        former = found.by_client_link.get(link.opened.client_link)
        if former is not None and (former is not link or not durability):
            # Another consumer of this client's link has ended, or it is not durable any longer.
            self._end(former, now_ms)
        if not durability:
            return
        attached = queue.view.consumer(consumer.id)
        assert attached is not None, "a receiver begins when its consumer is attached"
        begun = _record_of(link, ReceiverEvent.BEGUN, attached.next, (), link.opened.encode())
        if self._write(queue, begun, now_ms):
            link.recorded = link.recorded or []
            found.linked[link] = consumer
            found.by_client_link[link.opened.client_link] = link
            self.by_queue[queue] = found
            self.dirty[queue] = None

    def restored(self, link: ReceivingLink, runs: Sequence[DeliveryRun]) -> None:
        """Adds a receiver without a frontend that the store has, with its deliveries in the records."""
        link.recorded = [*runs]
        found = self.by_queue.setdefault(link.queue, OfQueue())
        found.by_client_link[link.opened.client_link] = link
        self.changed(link)

    def changed(self, link: ReceivingLink) -> None:
        """Notes that the deliveries of a link that no frontend has may have changed, or that it has ended."""
        if link.recorded is not None:
            self.by_queue[link.queue].changed[link] = None
            self.dirty[link.queue] = None

    def end_all(self, queue: Queue, now_ms: int) -> None:
        """Ends the receivers of a queue that is kept here, and not served any more: their links end."""
        found = self.by_queue.get(queue)
        for link in [*found.by_client_link.values()] if found is not None else ():
            self._end(link, now_ms)

    def forget(self, queue: Queue) -> None:
        """Removes the receivers of a queue that is no longer here; the record of its end ends theirs."""
        self.accepting.pop(queue, None)
        for link in self.by_queue.pop(queue, OfQueue()).by_client_link.values():
            link.recorded = None

    def record(self, queue: Queue, holder: Holder, opening: ConsumerOpen) -> ReceiverChange:
        """The record of a durable consumer of a queue that moves here."""
        return ReceiverChange(
            queue.id,
            bytes.fromhex(opening.client_link),
            ReceiverEvent.BEGUN,
            holder.next,
            opening.encode(),
            holder.deliveries,
        )

    # --- steps -----------------------------------------------------------------------------------------

    def touched(self, queues: Mapping[Queue, None]) -> None:
        """Notes queues that are dispatched in this step."""
        few, many = sorted((queues, self.by_queue), key=len)
        self.dirty.update((queue, None) for queue in few if queue in many)

    def accept(self, queue: Queue, now_ms: int) -> bool:
        """Accepts what a dispatch has delivered to links of `accepting`; whether there was any of it.

        It is called before anything of the queue is evicted, so that the sizes are known.
        """
        numbers = self.accepting.get(queue, {})
        found = False
        for link, before in [*numbers.items()]:
            attached = queue.view.consumer(link.id)
            if attached is None:
                del numbers[link]
            elif attached.next != before:
                numbers[link] = attached.next
                line = attached.in_flight
                index = line.index(before)
                new = zip(line.keys[index:], line.runs[index:], strict=True)
                for first, last in _up_to(link.opened.removed_bytes_max, new):
                    found = True
                    self._apply(queue, Settle(link.id, first, last, ACCEPTED), now_ms)
        if not numbers:
            self.accepting.pop(queue, None)
        return found

    def hold(self, now_ms: int) -> None:
        """Records what has changed, and keeps the frames of links back whose records are not on disk.

        All frames of such a link wait, so that their order stays: the end of a drain, or a move of the queue,
        is behind the deliveries.
        """
        dirty, self.dirty = self.dirty, {}
        recorded: dict[LinkKey, None] = {}
        for queue in dirty:
            recorded.update((link, None) for link in self._record(queue, now_ms))
        by_peer: dict[Peer, set[int]] = {}
        for peer, link in (*self.waiting, *recorded):
            by_peer.setdefault(peer, set()).add(link)
        for peer, links in by_peer.items():
            for link, parts in _take_out(peer, links).items():
                self._wait((peer, link), parts, is_recorded=(peer, link) in recorded)

    def _wait(self, link: LinkKey, parts: list[bytes], *, is_recorded: bool) -> None:
        waiting = self.waiting.setdefault(link, WaitingFrames())
        if is_recorded or waiting.count:
            waiting.count += 1
            self._when_synced(_Release(waiting, parts), 0)
        else:
            waiting.frames += parts

    def send(self) -> None:
        """Adds frames that need not wait any longer to the output, which is sent at the end of this step."""
        for (peer, link), waiting in [*self.waiting.items()]:
            peer.out += waiting.frames
            waiting.frames = []
            if not waiting.count:
                del self.waiting[peer, link]

    def _record(self, queue: Queue, now_ms: int) -> list[LinkKey]:
        """Writes the records of a queue; returns the frontends' links with new deliveries."""
        arrived: list[tuple[Consumer | None, ReceiverChange]] = []
        receivers = self.by_queue.get(queue)
        for link, consumer in receivers.to_compare(queue).items() if receivers is not None else ():
            attached = queue.view.consumer(link.id)
            if attached is None or link.recorded is None:
                self._end(link, now_ms)
                continue
            runs = in_flight(queue, link.id)
            # The ends are written first: the message may be delivered to another one of them since.
            if ended := without(link.recorded, runs):
                self._write(queue, _record_of(link, ReceiverEvent.SETTLED, attached.next, ended), now_ms)
            if new := without(runs, link.recorded):
                arrived.append((consumer, _record_of(link, ReceiverEvent.DELIVERED, attached.next, new)))
            link.recorded = runs
        links = [] if receivers is None else self._removed(queue, receivers)
        for consumer, delivered in arrived:
            if self._write(queue, delivered, now_ms) and consumer is not None:
                links.append((consumer.peer, consumer.link))
        return links

    def _removed(self, queue: Queue, receivers: OfQueue) -> list[LinkKey]:
        """The frontends' links to which this step delivered messages that it removed."""
        links: list[LinkKey] = []
        for link, before in [*receivers.removing.items()]:
            attached, consumer = queue.view.consumer(link.id), link.consumer
            if attached is None:
                del receivers.removing[link]
            elif attached.next != before and consumer is not None:
                receivers.removing[link] = attached.next
                links.append((consumer.peer, consumer.link))
        if not (receivers.by_client_link or receivers.removing):
            self.by_queue.pop(queue, None)
        return links

    def _end(self, link: ReceivingLink, now_ms: int) -> None:
        found = self.by_queue[link.queue]
        found.remove(link)
        if not (found.by_client_link or found.removing):
            del self.by_queue[link.queue]
        link.recorded = None
        self._write(link.queue, _record_of(link, ReceiverEvent.ENDED, 0, ()), now_ms)

    def _write(self, queue: Queue, record: ReceiverChange, now_ms: int) -> bool:
        """Appends a record; False if the store did not accept it."""
        try:
            self._store.append(record, now_ms)
        except StoreError as error:
            # Deliveries are made without it: after a restart their messages are ready.
            self._counts.store_failures += 1
            log.error("deliveries of queue %s could not be written: %s", queue.name, error)
            return False
        return True


@dataclass(slots=True, eq=False, repr=False)
class _Release:
    """Ends a wait; a Waiter."""

    _waiting: WaitingFrames
    _parts: list[bytes]

    def accept(self, number: int) -> None:
        """See Waiter: the records of these frames are on disk."""
        self._waiting.count -= 1
        self._waiting.frames += self._parts


def _up_to(bytes_max: int, deliveries: Iterable[tuple[int, Run]]) -> list[tuple[int, int]]:
    """Ranges (first, behind the last) of the numbers of deliveries with messages up to this size."""
    ranges: list[tuple[int, int]] = []
    for key, run in deliveries:
        is_small = run.size <= bytes_max
        for piece in [run] if is_small else [run.cut(each, each + 1) for each in range(run.count)]:
            if is_small or piece.size <= bytes_max:
                first = key + piece.sequence - run.sequence
                start = ranges.pop()[0] if ranges and ranges[-1][1] == first else first
                ranges.append((start, first + piece.count))
    return ranges


def in_flight(queue: Queue, id: int) -> list[DeliveryRun]:
    """The unsettled deliveries of a consumer of a queue's machine, in the order of their numbers."""
    attached = queue.view.consumer(id)
    if attached is None:
        return []
    line = attached.in_flight
    pairs = zip(line.keys[line.head :], line.runs[line.head :], strict=True)
    return joined([(number, run.sequence, run.count) for number, run in pairs if run.count])


def _record_of(
    link: ReceivingLink,
    event: ReceiverEvent,
    next_number: int,
    runs: Sequence[DeliveryRun],
    opening: bytes = b"",
) -> ReceiverChange:
    client_link = bytes.fromhex(link.opened.client_link)
    return ReceiverChange(link.queue.id, client_link, event, next_number, opening, runs)


def _take_out(peer: Peer, links: Container[int]) -> dict[int, list[bytes]]:
    """Removes the frames of these links from the output of a frontend; returns them by link."""
    frames: dict[int, list[bytes]] = {}
    rest: list[bytes] = []
    for part in peer.out:
        link = HEADER.unpack_from(part)[4]
        if link in links:
            frames.setdefault(link, []).append(part)
        else:
            rest.append(part)
    peer.out = rest
    return frames
