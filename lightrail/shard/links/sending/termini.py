"""Termini: the state of links that clients may resume, while attached and for a time after (2.6.13).

A terminus has the delivery-tags of stored messages that the client may not have settled. Tags arrive before
their batch, and count when the batch is answered, so no tag of a message that is not stored is announced to a
client. Only deliveries that the broker settles after their sender has settled (receiver-settle-mode second)
have tags here: any other tag is free as soon as the outcome leaves the broker, and its next use would be
announced as stored (transport 2.6.12).

If the links of a user have more tags than the user's share, those with most are lost: their next attach is
answered like that of links which can't be resumed, since by an empty map their clients would take stored
messages for lost ones. The links of other users keep their tags (shard/queues/memory.py).

A terminus is durable if its client requests it and the store outlives the process. Then the tags of a batch
are in one group of records with its messages: after a crash there are tags of all stored messages, and of no
others. While it is suspended, its time begins again when the shard starts.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from lightrail.journal.record import Terminus as TerminusRecord
from lightrail.journal.record import TerminusEvent
from lightrail.model.clock import Timetable
from lightrail.model.links import Durability
from lightrail.shard.effects.peers import Peer, Producer
from lightrail.shard.journal.kept_links import RecoveredTerminus
from lightrail.shard.journal.store import Store, StoreError
from lightrail.shard.links.sending.terminus import LAST, DurableProducer, ResumableProducer, Terminus
from lightrail.shard.queues.memory import UserShares
from lightrail.shard.queues.shard_queue import CallWhenSynced, Queue
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import ProducerOpen
from lightrail.wire.columns import decode_tags, encode_tags
from lightrail.wire.frames import CLOSED, DURABILITY_SHIFT, HEADER, HEADER_SIZE, KEPT, Kind, Part, frame

TERMINI_MAX: Final[int] = 20_000
"""Links of a shard that may be resumed, attached or suspended; those beyond the share of their user
(shard/queues/memory.py) can't be resumed."""
TERMINI_TAGS_MAX: Final[int] = 1_000_000
"""Delivery-tags of all of these links; beyond the share of a user, its links with most of them can't be
resumed any more."""

log = logging.getLogger("lightrail.shard.links.sending.termini")


@dataclass(slots=True, eq=False, repr=False)
class Termini:
    """The termini of all queues of a shard."""

    _store: Store
    _counts: ShardCounts
    _now_ms: int = 0
    _by_queue: dict[Queue, dict[str, Terminus]] = field(default_factory=dict)
    _links: UserShares = field(default_factory=UserShares)
    _tags: UserShares = field(default_factory=UserShares)
    _suspended: dict[Terminus, None] = field(default_factory=dict)
    """Termini that were suspended since the last tick; their time begins with the next one."""
    _due: Timetable[Terminus] = field(default_factory=Timetable)
    """When each of the other suspended ones is deleted."""

    def __len__(self) -> int:
        return self._links.total

    # --- links -----------------------------------------------------------------------------------------

    def durability(self, opening: ProducerOpen) -> Durability:
        """The durability that an opened link may have in this store."""
        wanted = opening.durability if self._store.outlives and opening.suspended_ms else 0
        return Durability(min(wanted, Durability.UNSETTLED_STATE))

    def kind_of(self, opening: ProducerOpen) -> type[Producer]:
        """The class of an opened link."""
        if opening.suspended_ms is None or not opening.client_link:
            return Producer
        is_durable = self.durability(opening) == Durability.UNSETTLED_STATE
        return DurableProducer if is_durable else ResumableProducer

    def open(
        self,
        producer: ResumableProducer,
        opening: ProducerOpen,
        attach: int,
        when_synced: CallWhenSynced,
        now_ms: int,
    ) -> None:
        """Begins an opened link, whose opening is answered when all earlier records are on disk."""
        producer.begin(self.store, self.attach(producer.queue, opening, now_ms), attach)
        # A link that is only opened again may have batches on their way whose tags have no record.
        durability = self.durability(opening) if opening.steals else Durability.NONE
        when_synced(Resumption(self, producer, durability, when_synced), 0)

    def attach(self, queue: Queue, opening: ProducerOpen, now_ms: int) -> Terminus | None:
        """The terminus of a link that is opened; None if it was lost, or is new beyond its user's share.

        A terminus that was less durable becomes as durable as requested by `Resumption`.
        """
        self._now_ms = now_ms
        suspended_ms, durability = opening.suspended_ms or 0, self.durability(opening)
        terminus = self._by_queue.get(queue, {}).get(opening.client_link)
        if terminus is not None and opening.steals:
            if terminus.lost or (terminus.bare and durability != Durability.CONFIGURATION):
                self._end(terminus)
                return None
            terminus.bare = False
        if terminus is None:
            if not self._links.has_room(opening.user, TERMINI_MAX, 1):
                return None
            terminus = Terminus(queue, opening.client_link, suspended_ms, user=opening.user)
            self._put(terminus)
            if durability:
                self.store_state(terminus, durability)
            return terminus
        self._resume(terminus)
        had, now = (terminus.suspended_ms, terminus.user), (suspended_ms, opening.user)
        terminus.suspended_ms = suspended_ms
        self._count(terminus, -1)
        terminus.user = opening.user
        self._count(terminus, 1)
        if durability < terminus.durability:
            self._write(terminus, TerminusEvent.ENDED)
            terminus.durability = 0
        elif now != had:
            self._write(terminus, TerminusEvent.BEGUN)
        return terminus

    def store_state(self, terminus: Terminus, durability: Durability) -> None:
        """Makes a terminus durable; if there is no room for its record, it stays what it is."""
        before, terminus.durability = terminus.durability, durability
        if not self._write(terminus, TerminusEvent.BEGUN, [*terminus.tags]):
            terminus.durability = before

    def detach(self, producer: ResumableProducer) -> None:
        """Suspends the terminus of a link that has ended, unless the client has closed the link."""
        producer.left()
        if producer.terminus is not None:
            self.suspend(producer.terminus)

    def suspend(self, terminus: Terminus) -> None:
        """Suspends a terminus without a link; its time begins at the next tick."""
        if terminus.closed or not terminus.suspended_ms:
            self._end(terminus)
        else:
            self._suspended[terminus] = None

    def tick(self, now_ms: int) -> None:
        """Deletes termini whose time has ended."""
        self._now_ms = now_ms
        for terminus in self._due.take_due(now_ms):
            self._end(terminus)
        for terminus in self._suspended:
            self._due.set(terminus, now_ms + terminus.suspended_ms)
        self._suspended.clear()

    def _resume(self, terminus: Terminus) -> None:
        self._suspended.pop(terminus, None)
        self._due.drop(terminus)

    # --- frames ----------------------------------------------------------------------------------------

    def expect(self, peer: Peer, part: Part, now_ms: int) -> None:
        """Applies a TAGS frame: a stored delivery whose tag a new one has is no longer unsettled.

        Raises StoreError: nothing has changed.
        """
        _, _, _, _, link, _, number = HEADER.unpack_from(part)
        producer = peer.producers.get(link)
        if not isinstance(producer, ResumableProducer):
            return
        tags, terminus = decode_tags(memoryview(part)[HEADER_SIZE:]), producer.terminus
        if terminus is not None:
            before = terminus.before(tags, number, producer.last_number)
            self._settled(terminus, before, now_ms)
            terminus.settle(before)
        producer.expect(number, tags)

    def forget_tags(self, peer: Peer, part: Part, now_ms: int) -> None:
        """Applies a FORGET frame: the client has settled deliveries, or closed the link.

        It concerns the batches before the next one, of which some may have no answer yet. Raises StoreError:
        nothing has changed.
        """
        _, flags, _, _, link, _, next_number = HEADER.unpack_from(part)
        producer = peer.producers.get(link)
        if not isinstance(producer, ResumableProducer) or producer.terminus is None:
            return
        terminus = producer.terminus
        if flags & CLOSED:
            terminus.closed = True
            return
        tags, number = decode_tags(memoryview(part)[HEADER_SIZE:]), next_number or LAST
        before = terminus.before(tags, number, producer.last_number)
        arriving = terminus.arriving_before(tags, number)
        # A tag of an unanswered batch may be in a record; one that is stored is that of a later batch.
        self._settled(terminus, before, now_ms, [tag for tag in arriving if tag not in terminus.tags])
        terminus.settle(before, arriving, number)

    def _settled(
        self, terminus: Terminus, stored: list[bytes], now_ms: int, arriving: Sequence[bytes] = ()
    ) -> None:
        """Writes which tags are settled; their client may use them again when this is on disk."""
        if (stored or arriving) and terminus.durability >= Durability.UNSETTLED_STATE:
            record = terminus.record(TerminusEvent.SETTLED, [*stored, *arriving])
            self._store.append(record, now_ms)
        self._tags.add(terminus.user, -len(stored))

    def store(self, terminus: Terminus, tags: list[bytes], number: int) -> None:
        """Adds tags of stored messages of a batch; see Terminus.store."""
        if not self._has(terminus) or terminus.lost:
            return
        before = len(terminus.tags)
        terminus.store(tags, number)
        self._tags.add(terminus.user, len(terminus.tags) - before)
        if not self._tags.has_room(terminus.user, TERMINI_TAGS_MAX):
            self._make_room(terminus.user)

    def _make_room(self, user: str) -> None:
        """Drops the tags of the user's links that have most, until a sixteenth of its share is free."""
        share = self._tags.share(user, TERMINI_TAGS_MAX)
        every = [terminus for known in self._by_queue.values() for terminus in known.values()]
        own = [terminus for terminus in every if terminus.user == user]
        for terminus in sorted(own, key=lambda terminus: -len(terminus.tags)):
            if self._tags.of(user) <= share * 15 // 16:
                break
            name, count = terminus.queue.name, len(terminus.tags)
            log.warning(
                "a link at queue %s can't be resumed: %d of %d unsettled tags of user %a, who may have %d "
                "here, a half of what others leave of %d; its clients should settle earlier",
                name,
                count,
                self._tags.of(user),
                user,
                share,
                TERMINI_TAGS_MAX,
            )
            self._tags.add(user, -count)
            terminus.tags.clear()
            terminus.lost = True
            if terminus.durability:
                self._write(terminus, TerminusEvent.ENDED)
                terminus.durability = Durability.CONFIGURATION
                self._write(terminus, TerminusEvent.BEGUN)

    # --- queues ----------------------------------------------------------------------------------------

    def of(self, queue: Queue) -> Iterator[Terminus]:
        """The termini of a queue, which move with it."""
        yield from self._by_queue.get(queue, {}).values()

    def suspend_all(self, queue: Queue) -> None:
        """Suspends the termini of a queue whose links have ended and may open again."""
        for terminus in [*self.of(queue)]:
            self.suspend(terminus)

    def forget(self, queue: Queue) -> None:
        """Deletes the termini of a queue that is no longer at this shard.

        The record of the queue's end is theirs, too.
        """
        for terminus in [*self.of(queue)]:
            self._remove(terminus)

    def restore(self, queue: Queue, termini: list[RecoveredTerminus]) -> None:
        """Adds the termini of a queue that the store has, and suspends them.

        Users that came later have made shares smaller: so what there is stays, and only those beyond
        TERMINI_MAX, which the source of a queue that moved here had, end.
        """
        for each in termini:
            durability = each.durability if self._store.outlives else 0
            terminus = Terminus(queue, each.link.hex(), each.suspended_ms, durability, each.user)
            terminus.bare = each.durability == Durability.CONFIGURATION
            if self._links.total >= TERMINI_MAX:
                self._write(terminus, TerminusEvent.ENDED)
            else:
                self._put(terminus)
                self.store(terminus, each.tags, 0)
                self.suspend(terminus)

    def records(self, queue: Queue, termini: list[RecoveredTerminus]) -> Iterator[TerminusRecord]:
        """Records of the durable termini among those of a queue that moves here."""
        for link, durability, suspended_ms, tags, user in termini:
            if durability and self._store.outlives:
                kept = tags if durability == Durability.UNSETTLED_STATE else []
                yield TerminusRecord(
                    queue.id, link, TerminusEvent.BEGUN, durability, suspended_ms, kept, user=user
                )

    def _put(self, terminus: Terminus) -> None:
        self._by_queue.setdefault(terminus.queue, {})[terminus.client_link] = terminus
        self._count(terminus, 1)

    def _count(self, terminus: Terminus, sign: int) -> None:
        """Counts a terminus with its tags towards the share of its user; -1: no longer."""
        self._links.add(terminus.user, sign)
        self._tags.add(terminus.user, sign * len(terminus.tags))

    def _has(self, terminus: Terminus) -> bool:
        return self._by_queue.get(terminus.queue, {}).get(terminus.client_link) is terminus

    def _end(self, terminus: Terminus) -> None:
        if self._has(terminus):
            self._remove(terminus)
            self._write(terminus, TerminusEvent.ENDED)

    def _remove(self, terminus: Terminus) -> None:
        found = self._by_queue[terminus.queue]
        del found[terminus.client_link]
        if not found:
            del self._by_queue[terminus.queue]
        self._resume(terminus)
        self._count(terminus, -1)

    def _write(self, terminus: Terminus, event: TerminusEvent, tags: Sequence[bytes] = ()) -> bool:
        """Appends a record if the terminus is durable; False if the store did not accept it."""
        if not terminus.durability:
            return True
        if terminus.durability < Durability.UNSETTLED_STATE:
            tags = ()
        try:
            self._store.append(terminus.record(event, tags), self._now_ms)
        except StoreError as error:
            # After a restart it has tags that its client has settled, or is kept once more, for its time.
            self._counts.store_failures += 1
            log.error("a link's state at queue %s could not be written: %s", terminus.queue.name, error)
            return False
        return True


@dataclass(slots=True, eq=False, repr=False)
class Resumption:
    """Sends the list of unsettled deliveries to an opened link when all of them are on disk; a Waiter.

    Args:
        durability: of the terminus, if the client has attached the link and requests it. A terminus that was
            less durable is written when all batches of earlier links are answered.
    """

    _termini: Termini
    _producer: ResumableProducer
    _durability: Durability
    _when_synced: CallWhenSynced

    def accept(self, number: int) -> None:
        """See Waiter."""
        producer, terminus = self._producer, self._producer.terminus
        if not producer.is_open:
            return
        if terminus is not None and terminus.durability < self._durability:
            self._termini.store_state(terminus, self._durability)
            self._durability = Durability.NONE
            self._when_synced(self, 0)
            return
        flags, tags = 0, dict[bytes, int]()
        if terminus is not None:
            flags, tags = KEPT | terminus.durability << DURABILITY_SHIFT, terminus.tags
        link, body = producer.link, encode_tags(tags)
        producer.peer.out += (
            frame(Kind.UNSETTLED, flags=flags, link=link, number=producer.attach, count=len(tags), body=body),
            frame(Kind.PRODUCER_READY, link=link),
        )
