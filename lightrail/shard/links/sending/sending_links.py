"""Sending links: the links on which clients send to a queue, and what outlives them.

A link is open from its opening to its end here. What a client or a frontend needs to go on later stays, and
moves with the queue:

- The number of its last batch, by which repeated ones are recognised. A link that opens again continues after
  it. A frontend's link to a router, which has no queue of its own, has such a number, too.
- Its terminus, if its client may resume it (termini.py).
- The number of the latest attach of each client's link. A frontend whose shard was lost opens its links
  again, and repeats their unanswered batches. The client may have attached the link elsewhere meanwhile, sent
  these messages again, and used their delivery-tags for others; that attach may have ended, or its frontend
  may be greeted later. A repeated batch that is stored then would be in the broker's map of unsettled
  deliveries, under the tag of a message that the broker never got. So only the latest attach is opened again.
  Its number is kept like that of a producer's last batch: it is on disk before the attach is answered.
"""

import logging
from dataclasses import InitVar, dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from lightrail.journal.record import Numbers
from lightrail.model import conditions, limits
from lightrail.shard.effects.peers import Peer, Producer, RouteProducer
from lightrail.shard.journal.store import Recovered, Store, StoreBusyError, StoreFullError
from lightrail.shard.links.sending.termini import Termini
from lightrail.shard.links.sending.terminus import ResumableProducer
from lightrail.shard.queues.shard_queue import CallWhenSynced, Queue
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import ProducerOpen, Refusal
from lightrail.wire.frames import IDENTITY, Kind, frame

if TYPE_CHECKING:
    from lightrail.shard.links.client_links import ClientLinks
    from lightrail.shard.links.ingress.admission import Admission

SEQUENCE_PRODUCERS_KEPT: Final[int] = 1_024
"""Closed producers of this kind that are remembered."""

log = logging.getLogger("lightrail.shard.links.sending.sending_links")

RECORD_BYTES: Final = 128
"""More than the record of one number."""


class Known(NamedTuple):
    """The last batches of producers, by producer id."""

    numbers: dict[int, int]
    """Number of the last batch, by producer id (boot << 32 | link)."""
    parts: dict[int, int]
    """Number of messages stored from each partially accepted last batch, by producer id."""
    sequences: dict[int, dict[int, int]]
    """The first sequence of each batch, for producers that requested sequences."""


@dataclass(slots=True, eq=False, repr=False)
class SendingLinks:
    """The open sending links of all queues, and the numbers of closed ones."""

    _client_links: "ClientLinks"
    _admission: "Admission"
    recovered: InitVar[Recovered]
    _when_synced: CallWhenSynced
    _store: Store
    _counts: ShardCounts
    _by_queue: dict[Queue, dict[Producer, None]] = field(default_factory=dict)
    """Open links."""
    _sequences: dict[int, dict[int, int]] = field(default_factory=dict)
    """The first sequence of each batch, for closed producers that requested sequences."""
    termini: Termini = field(init=False)
    _parts: dict[int, int] = field(init=False)
    """Number of messages stored from each partially accepted last batch, by producer id."""
    _numbers: dict[int, int] = field(init=False)
    """Last batch number of closed producers, the least recently active first."""

    def __post_init__(self, recovered: Recovered) -> None:
        self.termini = Termini(self._store, self._counts)
        self._parts = dict(recovered.parts)
        self._numbers = dict(recovered.producers)

    # --- they open ---------------------------------------------------------------------------------------

    def attach(self, queue: Queue, peer: Peer, link: int, opening: ProducerOpen, now_ms: int) -> int | None:
        """Ends the frontend's earlier link of this number, and numbers the attach; see `_number_attach`."""
        earlier = peer.producers.get(link)
        if earlier is not None:
            self.leave(earlier)
        return self._number_attach(queue, opening, now_ms)

    def _number_attach(self, queue: Queue, opening: ProducerOpen, now_ms: int) -> int | None:
        """The number of the attach for which a link is opened, or opened again; 0 if no attach is numbered.

        Returns:
            None if the client has attached the link again since, or the number is no longer known.

        Raises:
            StoreBusyError: nothing has changed.
        """
        if opening.suspended_ms is None or not opening.client_link:
            return 0
        text = f"{queue.name}\0{opening.client_link}".encode(errors="surrogatepass")
        key = int.from_bytes(blake2b(text, digest_size=8, person=b"attach").digest()) | IDENTITY
        latest = self.known_number(key)
        if opening.steals:
            # Numbers that were dropped, the longest unused first, were below the time.
            return self._begin_attach(queue, key, max(latest + 1, now_ms), now_ms)
        # Frontends of a former version do not send it.
        return opening.attach if opening.attach in (0, latest) else None

    def _begin_attach(self, queue: Queue, key: int, number: int, now_ms: int) -> int:
        """On a full disk the number is in memory only, since the rest of the space is for settlements."""
        record = Numbers(queue.id, queue.view.next_sequence, [(key, number, 0)])
        try:
            self._store.reserve(RECORD_BYTES, now_ms)
            self._store.append(record, now_ms)
        except StoreBusyError:
            raise
        except StoreFullError as error:
            self._counts.store_failures += 1
            log.error("an attach of a link at queue %s could not be written: %s", queue.name, error)
        self.note_number(key, number)
        return number

    def open(
        self,
        queue: Queue,
        peer: Peer,
        link: int,
        opening: ProducerOpen,
        next_number: int,
        attach: int,
        now_ms: int,
    ) -> None:
        """Opens a link to a queue; `next_number` as in `NumberedLink`, `attach` as from `attach`."""
        id = opening.identity or peer.boot << 32 | link
        if opening.identity:
            self._take_over(queue, id)
        number, part = self._numbers.pop(id, 0), self._parts.pop(id, 0)
        producer = self.termini.kind_of(opening)(peer, link, queue, id, number, part)
        peer.producers[link] = producer
        producer.next_number = next_number
        producer.sent_below = opening.sent_below
        producer.is_routed = opening.routed
        if opening.sequences:
            producer.stored = {} if producer.is_named else self._sequences.pop(id, {})
        self._by_queue.setdefault(queue, {})[producer] = None
        producer.client_link = opening.client_link
        self._client_links.add(queue, opening.client_link, producer)
        if isinstance(producer, ResumableProducer):
            self.termini.open(producer, opening, attach, self._when_synced, now_ms)
        else:
            peer.out.append(frame(Kind.PRODUCER_READY, link=link))

    def _take_over(self, queue: Queue, id: int) -> None:
        """Closes the former link of a named producer that opens again.

        So its batches have one order. Batches that wait for room are dropped and sent again; batches in
        records that wait for a commit are still answered, and their number is stored.
        """
        for former in [each for each in self._by_queue.get(queue, ()) if each.id == id]:
            self.leave(former)
            refusal = Refusal(conditions.STOLEN, "the same producer has sent another request")
            former.peer.end_link(former.link, refusal)

    def open_router(self, peer: Peer, link: int, body: ProducerOpen, next_number: int) -> None:
        """Opens a frontend's link that sends to sets of queues; `next_number` as in `NumberedLink`."""
        earlier = peer.routers.get(link)
        if earlier is not None:
            self._keep_number(earlier)
        id = peer.boot << 32 | link
        number, part = self._numbers.pop(id, 0), self._parts.pop(id, 0)
        producer = peer.routers[link] = RouteProducer(peer, link, id, number, part)
        producer.next_number = next_number
        producer.sent_below = body.sent_below
        peer.out.append(frame(Kind.PRODUCER_READY, link=link))

    # --- they end ----------------------------------------------------------------------------------------

    def close(self, peer: Peer, link: int) -> None:
        """Closes a producer whose frontend has all answers and does not use the number of this link again.

        The last number of a producer that its client named is kept: the client may continue on another link.
        """
        producer = peer.producers.pop(link, None)
        if producer is not None:
            self._drop(producer)
            self._admission.drop(producer)
            if producer.is_named:
                self._keep_number(producer)
                self._forget_silent()
        peer.routers.pop(link, None)

    def abandon(self, peer: Peer, link: int) -> None:
        """Ends the waits of a producer's batches, because its client has disconnected.

        `Routes.abandon` does it for a router's link.
        """
        producer = peer.producers.get(link)
        if producer is not None:
            self._admission.abandon(producer)

    def leave(self, producer: Producer) -> None:
        """Removes a closed producer, which may open again after its frontend's HELLO."""
        producer.peer.producers.pop(producer.link, None)
        self._drop(producer)
        self._admission.drop(producer)
        self._keep(producer)

    def _drop(self, producer: Producer) -> None:
        """Removes a link that is no longer attached to its queue."""
        self._client_links.drop(producer.queue, producer.client_link, producer)
        if isinstance(producer, ResumableProducer):
            self.termini.detach(producer)
        attached = self._by_queue.get(producer.queue)
        if attached is not None:
            attached.pop(producer, None)
            if not attached:
                del self._by_queue[producer.queue]

    def forget_peer(self, peer: Peer) -> None:
        """Ends all links of a lost frontend, and keeps their numbers."""
        for producer in [*peer.producers.values()]:
            self.leave(producer)
        for router in peer.routers.values():
            self._keep_number(router)
        peer.routers.clear()
        peer.acking.clear()
        self._forget_silent()

    # --- their queue moves, or ends ----------------------------------------------------------------------

    def send_away(self, queue: Queue) -> None:
        """The queue is frozen: its frontends look for its owner."""
        for producer in self._by_queue.get(queue, ()):
            peer, link = producer.peer, producer.link
            self._admission.drop(producer)
            self._keep(producer)
            peer.producers.pop(link, None)
            peer.send_away(link, queue.name, queue.epoch, consumer=False)

    def serve(self, queue: Queue) -> None:
        """The queue is served here again; its frontends open their links anew."""
        self._by_queue.pop(queue, None)
        self.termini.suspend_all(queue)

    def end_all(self, queue: Queue, refusal: Refusal | None) -> None:
        """Ends the links of a queue that is at another shard or deleted; open ones get the refusal."""
        for producer in self._by_queue.pop(queue, ()):
            if producer.is_open and refusal is not None:
                self._admission.drop(producer)
                del producer.peer.producers[producer.link]
                producer.peer.end_link(producer.link, refusal)
        self.termini.forget(queue)

    def numbers_of(self, queue: Queue) -> Known:
        """The numbers that the next owner of this queue needs: of its producers, and of all closed ones.

        It is not known to which queue a closed producer sent.
        """
        numbers = dict(self._numbers)
        parts = dict(self._parts)
        sequences = dict(self._sequences)
        for producer in self._by_queue.get(queue, ()):
            if producer.last_number:
                numbers[producer.id] = producer.last_number
                if producer.part:
                    parts[producer.id] = producer.part
                if producer.stored and not producer.is_named:
                    sequences[producer.id] = producer.stored
        return Known(numbers, parts, sequences)

    def count(self, queue: Queue) -> int:
        """Sending links that are attached to a queue."""
        return len(self._by_queue.get(queue, ()))

    # --- numbers -----------------------------------------------------------------------------------------

    def known_number(self, id: int) -> int:
        """The last number of a producer without a link here, such as a coordinator of transactions."""
        return self._numbers.get(id, 0)

    def note_number(self, id: int, number: int) -> None:
        """Stores the last number of a producer without a link here."""
        self._numbers.pop(id, None)
        self._numbers[id] = number
        self._forget_silent()

    def learn(self, found: Known) -> None:
        """Adds the numbers of producers of a queue that moved here, so that repeated batches are
        recognised."""
        for id, number in found.numbers.items():
            if number >= self._numbers.get(id, 0):
                self._numbers.pop(id, None)
                self._numbers[id] = number
                self._parts.pop(id, None)
                if id in found.parts:
                    self._parts[id] = found.parts[id]
                if id in found.sequences:
                    self._sequences[id] = found.sequences[id]
        while len(self._sequences) > SEQUENCE_PRODUCERS_KEPT:
            del self._sequences[next(iter(self._sequences))]
        self._forget_silent()

    def _forget_silent(self) -> None:
        numbers = self._numbers
        while len(numbers) > limits.PRODUCERS_MAX:
            silent = next(iter(numbers))
            del numbers[silent]
            self._parts.pop(silent, None)

    def _keep(self, producer: Producer) -> None:
        """Stores the state that a producer needs when it opens again."""
        self._keep_number(producer)
        if producer.stored and not producer.is_named:
            self._sequences[producer.id] = producer.stored
            if len(self._sequences) > SEQUENCE_PRODUCERS_KEPT:
                del self._sequences[next(iter(self._sequences))]

    def _keep_number(self, producer: Producer | RouteProducer) -> None:
        """Stores the number of a closed link, which may open again after its frontend's HELLO."""
        if producer.last_number:
            self._numbers[producer.id] = producer.last_number
        if producer.part:
            self._parts[producer.id] = producer.part
