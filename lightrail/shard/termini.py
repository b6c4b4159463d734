"""Termini: the state of links that clients may resume, while attached and for a time after (2.6.13).

A terminus has the delivery-tags of stored messages that the client may not have settled. Tags arrive before
their batch, and count when the batch is answered, so no tag of a message that is not stored is announced to a
client. If the client does not settle (receiver-settle-mode first), the latest tags are kept, because it may
have missed the outcome.

Termini are not in the journal: they are lost when the shard restarts.
"""

from collections.abc import Callable, Iterator
from typing import Final

from lightrail.model import limits
from lightrail.shard.peers import Peer, Producer
from lightrail.shard.shard_queue import Queue
from lightrail.shard.waiting import Waiter
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import CLOSED, HEADER, HEADER_SIZE, KEPT, Kind, frame
from lightrail.wire.tags import decode_tags, encode_tags

LAST: Final = 1 << 62
"""A number above every number of a batch."""


class Terminus:
    """One link of a client at one queue."""

    __slots__ = ("client_link", "is_closed", "queue", "suspended_ms", "tags", "until_ms")

    def __init__(self, queue: Queue, client_link: str, suspended_ms: int) -> None:
        self.queue = queue
        self.client_link = client_link
        self.suspended_ms = suspended_ms
        """Milliseconds that it is kept without a link."""
        self.tags: dict[bytes, None] = {}
        """Delivery-tags in the order of storing."""
        self.is_closed = False
        """Whether its client has closed the link."""
        self.until_ms = 0
        """While suspended: the time of its deletion; 0 until the next tick."""


class ResumableProducer(Producer):
    """A link to one queue that its client may resume."""

    __slots__ = ("_arriving", "termini", "terminus")

    terminus: Terminus | None
    termini: "Termini"

    def begin(self, termini: "Termini", terminus: Terminus | None) -> None:
        """Sets the terminus; called once. Without a terminus no tags are kept."""
        self.termini = termini
        self.terminus = terminus
        self._arriving: dict[int, list[bytes]] = {}

    def expect(self, number: int, tags: list[bytes]) -> None:
        """Notes the tags of the next batch."""
        if self.terminus is not None:
            self._arriving[number] = tags

    def accept(self, number: int) -> None:
        """See Producer."""
        super().accept(number)
        self._stored(number, LAST)

    def refuse(self, number: int, refusal: Refusal) -> None:
        """See Numbered."""
        super().refuse(number, refusal)
        self._stored(number, refusal.accepted)

    def left(self) -> None:
        """Ends the link; of a partially stored batch the tags of the first messages are kept."""
        if self.part:
            self._stored(self.last_number, self.part)

    def _stored(self, number: int, count: int) -> None:
        tags = self._arriving.pop(number, ())
        if tags and self.terminus is not None:
            self.termini.store(self.terminus, tags[:count])


class Termini:
    """The termini of all queues of a shard."""

    __slots__ = ("_by_queue", "_count", "_suspended", "_tags")

    def __init__(self) -> None:
        self._by_queue: dict[Queue, dict[str, Terminus]] = {}
        self._count = 0
        self._tags = 0
        self._suspended: dict[Terminus, None] = {}
        """Suspended termini, the longest suspended first."""

    def __len__(self) -> int:
        return self._count

    # --- links -----------------------------------------------------------------------------------------

    def attach(self, queue: Queue, client_link: str, suspended_ms: int) -> Terminus | None:
        """The terminus of a link that is opened; None if it is new and there are TERMINI_MAX already."""
        terminus = self._by_queue.get(queue, {}).get(client_link)
        if terminus is None:
            if self._count >= limits.TERMINI_MAX:
                return None
            terminus = self.add(queue, client_link, suspended_ms)
        self._suspended.pop(terminus, None)
        terminus.suspended_ms = suspended_ms
        return terminus

    def add(self, queue: Queue, client_link: str, suspended_ms: int) -> Terminus:
        """Adds a new terminus."""
        terminus = Terminus(queue, client_link, suspended_ms)
        self._by_queue.setdefault(queue, {})[client_link] = terminus
        self._count += 1
        return terminus

    def detach(self, producer: ResumableProducer) -> None:
        """Suspends the terminus of a link that has ended, unless the client has closed the link."""
        producer.left()
        if producer.terminus is not None:
            self.suspend(producer.terminus)

    def suspend(self, terminus: Terminus) -> None:
        """Suspends a terminus without a link; its time begins at the next tick."""
        if terminus.is_closed or not terminus.suspended_ms:
            self._end(terminus)
        else:
            terminus.until_ms = 0
            self._suspended[terminus] = None

    def tick(self, now_ms: int) -> None:
        """Deletes termini whose time has ended."""
        for terminus in [*self._suspended]:
            if not terminus.until_ms:
                terminus.until_ms = now_ms + terminus.suspended_ms
            elif terminus.until_ms <= now_ms:
                self._end(terminus)

    # --- frames ----------------------------------------------------------------------------------------

    def expect(self, peer: Peer, part: bytes, now_ms: int) -> None:
        """Applies a TAGS frame."""
        _, _, _, _, link, _, number = HEADER.unpack_from(part)
        producer = peer.producers.get(link)
        if isinstance(producer, ResumableProducer):
            producer.expect(number, decode_tags(memoryview(part)[HEADER_SIZE:]))

    def forget_tags(self, peer: Peer, part: bytes, now_ms: int) -> None:
        """Applies a FORGET frame: the client has settled deliveries, or closed the link."""
        _, flags, _, _, link, _, _ = HEADER.unpack_from(part)
        producer = peer.producers.get(link)
        if not isinstance(producer, ResumableProducer) or producer.terminus is None:
            return
        tags = producer.terminus.tags
        before = len(tags)
        for tag in decode_tags(memoryview(part)[HEADER_SIZE:]):
            tags.pop(tag, None)
        self._tags -= before - len(tags)
        if flags & CLOSED:
            producer.terminus.is_closed = True

    def store(self, terminus: Terminus, tags: list[bytes]) -> None:
        """Adds tags of stored messages, and drops the oldest ones if there are too many."""
        if not self._has(terminus):
            return
        kept = terminus.tags
        before = len(kept)
        for tag in tags:
            kept.pop(tag, None)
            kept[tag] = None
        while len(kept) > limits.UNSETTLED_TAGS_MAX:
            del kept[next(iter(kept))]
        self._tags += len(kept) - before
        while self._tags > limits.TERMINI_TAGS_MAX and self._suspended:
            self._end(next(iter(self._suspended)))

    # --- queues ----------------------------------------------------------------------------------------

    def of(self, queue: Queue) -> Iterator[Terminus]:
        """The termini of a queue, which move with it."""
        yield from self._by_queue.get(queue, {}).values()

    def suspend_all(self, queue: Queue) -> None:
        """Suspends the termini of a queue whose links have ended and may open again."""
        for terminus in [*self.of(queue)]:
            self.suspend(terminus)

    def forget(self, queue: Queue) -> None:
        """Deletes the termini of a queue that is no longer at this shard."""
        for terminus in [*self.of(queue)]:
            self._end(terminus)

    def arrive(self, queue: Queue, termini: list[tuple[str, int, list[bytes]]]) -> None:
        """Adds the termini of a queue that moved here: digest of the link, its time, its tags."""
        for client_link, suspended_ms, tags in termini:
            terminus = self.attach(queue, client_link, suspended_ms)
            if terminus is not None:
                self.store(terminus, tags)
                self.suspend(terminus)

    def _has(self, terminus: Terminus) -> bool:
        return self._by_queue.get(terminus.queue, {}).get(terminus.client_link) is terminus

    def _end(self, terminus: Terminus) -> None:
        if not self._has(terminus):
            return
        found = self._by_queue[terminus.queue]
        del found[terminus.client_link]
        if not found:
            del self._by_queue[terminus.queue]
        self._suspended.pop(terminus, None)
        self._count -= 1
        self._tags -= len(terminus.tags)


class Resumption:
    """Sends the list of unsettled deliveries to an opened link when all of them are on disk; a Waiter."""

    __slots__ = ("_producer",)

    def __init__(self, producer: ResumableProducer) -> None:
        self._producer = producer

    def accept(self, number: int) -> None:
        """See Waiter."""
        producer = self._producer
        if not producer.is_open:
            return
        terminus = producer.terminus
        flags, tags = (0, {}) if terminus is None else (KEPT, terminus.tags)
        producer.peer.out += (
            frame(Kind.UNSETTLED, flags=flags, link=producer.link, count=len(tags), body=encode_tags(tags)),
            frame(Kind.PRODUCER_READY, link=producer.link),
        )


WhenSynced = Callable[[Waiter, int], None]
