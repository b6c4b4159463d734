"""Durable receivers: links on which clients receive, and whose unsettled deliveries are in the store (3.5.5).

A delivery of such a link leaves the shard when its record is on disk. So after a crash the shard knows every
delivery that the client may have, under its number: it stays locked for the client's link, which the client
resumes (resuming.py). The records follow the state of the queue: at the end of a step the deliveries in
flight are compared with the recorded ones.
"""

import logging
from collections.abc import Container, Iterator, Mapping, Sequence

from lightrail.journal.receiver import DeliveryRun, Receiver, ReceiverEvent
from lightrail.model.durability import Durability
from lightrail.shard.effects.peers import Consumer, Peer
from lightrail.shard.journal.kept_receivers import joined, without
from lightrail.shard.journal.store import Store, StoreError
from lightrail.shard.queue.values.commands import Holder
from lightrail.shard.queues.shard_queue import Queue
from lightrail.shard.queues.waiting import CallWhenSynced
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import HEADER

log = logging.getLogger("lightrail.shard.links.durable_receivers")


LinkKey = tuple[Peer, int]
"""Frontend, and number of the link."""


class DurableReceiver:
    """One consumer whose deliveries are recorded, with or without a link."""

    __slots__ = ("client_link", "consumer", "id", "queue", "recorded")

    def __init__(self, queue: Queue, id: int, client_link: bytes) -> None:
        self.queue = queue
        self.id = id
        """Number of the consumer in the queue's machine."""
        self.client_link = client_link
        self.consumer: Consumer | None = None
        """Its latest link, which may have ended."""
        self.recorded: list[DeliveryRun] = []
        """Its deliveries according to the records."""

    @property
    def is_linked(self) -> bool:
        consumer = self.consumer
        return consumer is not None and consumer.peer.consumers.get(consumer.link) is consumer


class WaitingFrames:
    """Frames of one link that wait for commits."""

    __slots__ = ("count", "frames")

    def __init__(self) -> None:
        self.count = 0
        """Number of its waits that have not ended."""
        self.frames: list[bytes] = []
        """Frames that need not wait any longer, in their order."""


class OfQueue:
    """The durable receivers of one queue, by the number of their consumer."""

    __slots__ = ("by_link", "changed", "linked", "locks", "suspended")

    def __init__(self) -> None:
        self.by_link: dict[bytes, DurableReceiver] = {}
        """All of them, by the digits of the client's link."""
        self.linked: dict[int, DurableReceiver] = {}
        """Those with a link, whose deliveries may change in each step."""
        self.suspended: dict[int, DurableReceiver] = {}
        self.changed: set[int] = set()
        """Suspended ones whose deliveries may have changed in this step."""
        self.locks: object = None
        """State of the locks with a time, which end deliveries of suspended ones."""

    def __len__(self) -> int:
        return len(self.by_link)

    def get(self, id: int) -> DurableReceiver | None:
        return self.linked.get(id) or self.suspended.get(id)

    def remove(self, known: DurableReceiver) -> None:
        del self.by_link[known.client_link]
        self.linked.pop(known.id, None)
        self.suspended.pop(known.id, None)

    def to_compare(self, queue: Queue) -> list[DurableReceiver]:
        """Receivers whose deliveries may differ from the recorded ones; notes those whose link has ended."""
        found = [*self.linked.values()]
        for each in found:
            if not each.is_linked:
                self.suspended[each.id] = self.linked.pop(each.id)
        heap = queue.view.locks
        locks, changed = (len(heap), *heap[:1]), self.changed
        if locks != self.locks:
            found += self.suspended.values()
        elif changed:
            found += [self.suspended[id] for id in changed if id in self.suspended]
        self.locks, self.changed = locks, set()
        # One whose link has ended in this step is among those with a link, and among the suspended ones.
        return [*dict.fromkeys(found)] if self.suspended else found


class DurableReceivers:
    """The durable receivers of all queues of a shard."""

    __slots__ = ("_counts", "_store", "_when_synced", "by_queue", "dirty", "waiting")

    def __init__(self, store: Store, counts: ShardCounts, when_synced: CallWhenSynced) -> None:
        self._store = store
        self._counts = counts
        self._when_synced = when_synced
        self.by_queue: dict[Queue, OfQueue] = {}
        self.dirty: dict[Queue, None] = {}
        """Queues whose deliveries may have changed in this step."""
        self.waiting: dict[LinkKey, WaitingFrames] = {}

    def __len__(self) -> int:
        return sum(map(len, self.by_queue.values()))

    # --- their links -----------------------------------------------------------------------------------

    def durability(self, opening: ConsumerOpen) -> Durability:
        """The durability that an opened link may have in this store: all of its state, or none of it."""
        is_durable = opening.durability >= Durability.UNSETTLED_STATE and opening.suspended_ms
        return Durability.UNSETTLED_STATE if is_durable and self._store.outlives else Durability.NONE

    def is_durable(self, consumer: Consumer) -> bool:
        """Whether deliveries of this consumer are recorded."""
        found = self.by_queue.get(consumer.queue)
        return found is not None and found.get(consumer.id) is not None

    def begin(self, consumer: Consumer, now_ms: int) -> None:
        """Notes that a consumer has a link from now on; called before the link gets messages."""
        opened, queue = consumer.opened, consumer.queue
        if opened is None or not opened.client_link:
            return
        link = bytes.fromhex(opened.client_link)
        found = self.by_queue.get(queue) or OfQueue()
        known = found.get(consumer.id)
        former = found.by_link.get(link)
        if former is not None and (former is not known or not self.durability(opened)):
            # Another consumer of this client's link has ended, or it is not durable any longer.
            self._end(former, now_ms)
        if not self.durability(opened):
            return
        attached = queue.view.consumer(consumer.id)
        assert attached is not None, "a receiver begins when its consumer is attached"
        next_number = attached.next
        if self._write(
            queue, Receiver(queue.id, link, ReceiverEvent.BEGUN, next_number, opened.encode()), now_ms
        ):
            known = known or DurableReceiver(queue, consumer.id, link)
            known.consumer = consumer
            found.suspended.pop(consumer.id, None)
            found.linked[consumer.id] = found.by_link[link] = known
            self.by_queue[queue] = found
            self.dirty[queue] = None

    def restored(self, queue: Queue, id: int, client_link: bytes, runs: Sequence[DeliveryRun]) -> None:
        """Adds a receiver without a link that the store has, with its deliveries in the records."""
        known = DurableReceiver(queue, id, client_link)
        known.recorded = [*runs]
        found = self.by_queue.setdefault(queue, OfQueue())
        found.suspended[id] = found.by_link[client_link] = known
        found.changed.add(id)
        self.dirty[queue] = None

    def ended(self, queue: Queue, id: int) -> None:
        """Notes that a suspended consumer, which may be a durable one, has ended."""
        found = self.by_queue.get(queue)
        if found is not None:
            found.changed.add(id)
            self.dirty[queue] = None

    def forget(self, queue: Queue) -> None:
        """Removes the receivers of a queue that is no longer here; the record of its end ends theirs."""
        self.by_queue.pop(queue, None)

    def records(self, queue: Queue, holder: Holder, opening: ConsumerOpen | None) -> Iterator[Receiver]:
        """The record of a consumer of a queue that moves here, if it is durable."""
        if opening is not None and opening.client_link and self.durability(opening):
            yield Receiver(
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
        """Writes the records of a queue; returns the links with new deliveries."""
        arrived: list[tuple[DurableReceiver, Receiver]] = []
        receivers = self.by_queue.get(queue)
        for each in receivers.to_compare(queue) if receivers is not None else ():
            attached = queue.view.consumer(each.id)
            if attached is None:
                self._end(each, now_ms)
                continue
            runs = in_flight(queue, each.id)
            # The ends are written first: the message may be delivered to another one of them since.
            if ended := without(each.recorded, runs):
                self._write(queue, _record_of(each, ReceiverEvent.SETTLED, attached.next, ended), now_ms)
            if new := without(runs, each.recorded):
                arrived.append((each, _record_of(each, ReceiverEvent.DELIVERED, attached.next, new)))
            each.recorded = runs
        links: list[LinkKey] = []
        for each, delivered in arrived:
            if self._write(queue, delivered, now_ms) and each.consumer is not None:
                links.append((each.consumer.peer, each.consumer.link))
        return links

    def _end(self, known: DurableReceiver, now_ms: int) -> None:
        found = self.by_queue[known.queue]
        found.remove(known)
        if not len(found):
            del self.by_queue[known.queue]
        self._write(known.queue, _record_of(known, ReceiverEvent.ENDED, 0, ()), now_ms)

    def _write(self, queue: Queue, record: Receiver, now_ms: int) -> bool:
        """Appends a record; False if the store did not accept it."""
        try:
            self._store.append(record, now_ms)
        except StoreError as error:
            # Deliveries are made without it: after a restart their messages are ready.
            self._counts.store_failures += 1
            log.error("deliveries of queue %s could not be written: %s", queue.name, error)
            return False
        return True


class _Release:
    """Ends a wait; a Waiter."""

    __slots__ = ("_parts", "_waiting")

    def __init__(self, waiting: WaitingFrames, parts: list[bytes]) -> None:
        self._waiting = waiting
        self._parts = parts

    def accept(self, number: int) -> None:
        """See Waiter: the records of these frames are on disk."""
        self._waiting.count -= 1
        self._waiting.frames += self._parts


def in_flight(queue: Queue, id: int) -> list[DeliveryRun]:
    """The unsettled deliveries of a consumer of a queue's machine, in the order of their numbers."""
    attached = queue.view.consumer(id)
    if attached is None:
        return []
    line = attached.in_flight
    pairs = zip(line.keys[line.head :], line.runs[line.head :], strict=True)
    return joined([(number, run.sequence, run.count) for number, run in pairs if run.count])


def _record_of(
    known: DurableReceiver, event: ReceiverEvent, next_number: int, runs: Sequence[DeliveryRun]
) -> Receiver:
    return Receiver(known.queue.id, known.client_link, event, next_number, b"", runs)


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
