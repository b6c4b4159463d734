"""Admission: stores batches in queues whose policy bounds or changes them; parks those that wait for room.

A policy bounds the life of messages and says whether they are durable, which of them are duplicates, how
many fit, and what becomes of the others. Batches that wait are parked per queue in the order of their
arrival and get no answer meanwhile, so that their senders run out of credit. Batches for plain queues do not
pass through here.

A batch that was stored in part is remembered with its producer (in a Taken record if it is durable), so that
the rest of it is neither lost nor stored twice when it is sent again after a crash.
"""

import logging
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from lightrail.journal.record import CONTINUED, SPILLED, Ids, Taken, Terminus
from lightrail.model import conditions, limits
from lightrail.shard.effects.answers import Answers
from lightrail.shard.effects.peers import Producer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.journal.record import Append, Record, size_of
from lightrail.shard.journal.store import Store, StoreBrokenError, StoreBusyError, StoreError
from lightrail.shard.links.ingress.parking import Parked, Parking, waits_until
from lightrail.shard.links.ingress.selection import (
    Chosen,
    conform,
    index_full,
    never_fits,
    queue_full,
    send_disabled,
    too_large,
)
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.counters import TurnWork
from lightrail.shard.queue.values.policy import (
    DISCARD_EXISTING,
    DISCARD_INCOMING,
    FLOW_CONTROL,
    REJECT,
    Policy,
    first_too_large,
    is_full,
    refuses_batches,
    room_for,
)
from lightrail.shard.queue.values.runs import Batch, Location
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.shard_queue import Queue
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import Refusal

log = logging.getLogger("lightrail.shard.links.ingress.admission")

ADMITTED: Final = 8
"""Units of work (queue/values/counters.py) for admitting a batch."""
EXAMINED: Final = 12
"""Units for each of its messages that is read, beyond that."""


class AdmissionProgress(Enum):
    """How far a batch is."""

    DONE = auto()
    """It is answered, or will be with the commit."""
    WAITS = auto()
    """The rest of it waits for room."""
    GOES_ON = auto()
    """The rest of it is for the next turn: more would take too long at once."""


@dataclass(slots=True, eq=False, repr=False)
class Admission:
    """Admits batches to guarded queues."""

    _store: Store
    _performer: Performer
    _memory: Memory
    _counts: ShardCounts
    _answers: Answers
    _work: TurnWork
    unfinished: dict[Queue, None] = field(default_factory=dict)
    """Queues with room for parked batches that wait for the next step, as this one's work is used up."""
    _parking: Parking = field(init=False)

    def __post_init__(self) -> None:
        self._parking = Parking(self._memory)

    def enqueue(
        self, producer: Producer, number: int, batch: Batch, now_ms: int, *, whole: bool = False
    ) -> bool:
        """Admits a batch, parks it or refuses it; one that was stored in part goes on where it stopped.

        Args:
            whole: the batch is stored as a whole or not at all.

        Returns:
            Whether the caller has to repeat the call in the next turn, for the rest of the batch.
        """
        queue = producer.queue
        policy = queue.view.policy
        conform(policy, batch, now_ms)
        done = producer.part if number == producer.last_number else 0
        entry = Parked(producer, number, batch, done, waits_until(policy, now_ms), whole=whole)
        is_back = done and not (producer.goes_on or producer.is_named)
        if is_back and refuses_batches(policy) and _acts_at_once(policy):
            # It was refused before the connection was lost, or was about to be. A producer that attaches
            # again by name knows that, and wants the rest stored.
            self._turn_away(queue, entry, done, queue_full(queue))
            return False
        progress = AdmissionProgress.WAITS if queue.parked else self._admit(queue, entry, now_ms)
        if progress is AdmissionProgress.WAITS:
            self._park(queue, entry)
        producer.goes_on = progress is AdmissionProgress.GOES_ON
        return producer.goes_on

    def resume(self, queue: Queue, now_ms: int) -> None:
        """Admits parked batches in order, as far as there is room.

        Reading messages counts as work of the step; what exceeds it is left to the next one.
        """
        policy, work = queue.view.policy, self._work
        while (entry := self._parking.first(queue)) is not None:
            is_refused = policy.send_disabled and not entry.producer.is_routed
            if entry.waits(now_ms) and not is_refused and is_full(policy, queue.held, queue.held_bytes):
                return
            if work.left <= 0:
                self.unfinished[queue] = None
                return
            self._parking.begin(queue)
            done = entry.done
            progress = self._admit(queue, entry, now_ms)
            work.left -= ADMITTED
            if policy.examines:
                work.left -= EXAMINED * (entry.done - done)
            if progress is AdmissionProgress.DONE:
                self._parking.end(entry)
                continue
            self._parking.put_back(queue, entry)
            if progress is AdmissionProgress.WAITS:
                return

    def drop(self, producer: Producer) -> None:
        """Drops a producer's parked batches unanswered: it is closed, or sends all of them again."""
        if self._parking.remove(producer):
            # Batches parked behind it may have room.
            self._performer.touch(producer.queue)

    def abandon(self, producer: Producer) -> None:
        """Refuses parked batches of a sender whose link was closed, so that they are not stored hours
        later."""
        parked = self._parking.remove(producer)
        if not parked:
            return
        queue = producer.queue
        refusal = Refusal(
            conditions.RESOURCE_LIMIT_EXCEEDED,
            f"the sender's link to queue {queue.name} was closed while this waited for room",
        )
        self._turn_away(queue, parked[0], parked[0].done, refusal)
        self._turn_away_behind(queue, producer, parked[1:])
        # Batches parked behind it may have room.
        self._performer.touch(queue)

    def _park(self, queue: Queue, entry: Parked) -> None:
        size = entry.batch.size
        if self._memory.parked + size > self._memory.parked_max:
            refusal = index_full(queue) if self._memory.must_wait(queue) else queue_full(queue)
            refusal.description += f"; {self._memory.parked} bytes wait in this shard already"
            self._turn_away(queue, entry, entry.done, refusal)
            return
        self._parking.park(queue, entry)
        self._performer.touch(queue)

    def _admit(self, queue: Queue, entry: Parked, now_ms: int) -> AdmissionProgress:
        """Stores as many messages of a batch as fit and may be read at once."""
        if queue.view.policy.send_disabled and not entry.producer.is_routed:
            self._turn_away(queue, entry, entry.done, send_disabled(queue))
            return AdmissionProgress.DONE
        if self._memory.must_wait(queue):
            self._memory.waiting[queue] = None
            if self._memory.index_reports(now_ms):
                log.warning(
                    "senders to queue %s wait: it has %d messages with an index, and the indexes of all "
                    "queues (delay, groups, order) have %d bytes, %d are their share. Receive from the "
                    "queues with a backlog, or give the shard a larger memory_mark",
                    *(queue.name, queue.view.held, self._memory.index, self._memory.index_max),
                )
            return AdmissionProgress.WAITS
        policy = queue.view.policy
        batch = entry.batch
        waits = entry.waits(now_ms)
        large = first_too_large(policy, batch, entry.done)
        if entry.whole and large is not None:
            self._turn_away(queue, entry, entry.done, too_large(queue, batch, large))
            return AdmissionProgress.DONE
        end = batch.count if large is None else large
        if policy.examines and not entry.whole:
            end = min(end, entry.done + limits.LOOKED_INTO_AT_ONCE)
        chosen = Chosen(queue, batch, entry.done, end, now_ms)
        wanted = fits = chosen.stop - chosen.first
        if refuses_batches(policy) or (waits and policy.overflow == DISCARD_EXISTING):
            fits = room_for(policy, queue.held, queue.held_bytes, chosen.source, chosen.first)
            fits = min(fits, wanted)
        dropped = 0
        if entry.whole and fits < wanted and policy.overflow != DISCARD_INCOMING:
            refusal = (
                never_fits(queue, chosen.source, chosen.first, wanted) if refuses_batches(policy) else None
            )
            if refusal is not None or not waits:
                self._turn_away(queue, entry, entry.done, refusal or queue_full(queue))
                return AdmissionProgress.DONE
            return AdmissionProgress.WAITS
        if fits < wanted and not waits and policy.overflow == DISCARD_INCOMING:
            dropped = wanted - fits
        done = end if dropped else chosen.after(fits, end)
        if fits or done > entry.done:
            error = self._take(queue, entry, chosen, fits, done, now_ms)
            if error is not None:
                return self._not_stored(queue, entry, error)
            queue.machine.not_stored(duplicates=done - entry.done - fits - dropped, dropped=dropped)
            entry.done = done
        if done == batch.count:
            waits = not batch.durable and queue.captured and self._performer.capture_lags
            self._answers.accept(
                entry.producer, entry.number, batch.durable or waits or entry.producer.keeps_tags
            )
        elif done == large:
            self._turn_away(queue, entry, done, too_large(queue, batch, large))
        elif done == end:
            # Even if all of these were duplicates, for which no record is written.
            entry.producer.last_number = entry.number
            entry.producer.part = done
            return AdmissionProgress.GOES_ON
        elif waits:
            return AdmissionProgress.WAITS
        else:
            self._turn_away(queue, entry, done, queue_full(queue))
        return AdmissionProgress.DONE

    def _not_stored(self, queue: Queue, entry: Parked, error: Exception) -> AdmissionProgress:
        """The store did not take a batch: it waits for the commit under way, or its sender is refused."""
        if isinstance(error, StoreBrokenError):
            return AdmissionProgress.WAITS
        if isinstance(error, StoreBusyError):
            self.unfinished[queue] = None
            return AdmissionProgress.WAITS
        self._counts.store_failures += 1
        self._turn_away(queue, entry, entry.done, Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, str(error)))
        return AdmissionProgress.DONE

    def _take(
        self, queue: Queue, entry: Parked, chosen: Chosen, count: int, done: int, now_ms: int
    ) -> Exception | None:
        """Stores the first `count` chosen messages; then the batch is done up to `done`."""
        producer, number = entry.producer, entry.number
        whole = done == entry.batch.count
        if count:
            batch = chosen.cut(count)
            if number < producer.sent_below:
                queue.repeated(count)
            digests = [digest for digest in (chosen.digests or ())[:count] if digest is not None]
            until_ms = now_ms + (queue.view.policy.duplicate_window_ms or 0)
            if batch.durable:
                ids = Ids(queue.id, until_ms, b"".join(digests)) if digests else None
                try:
                    batch.location = self._append(queue, entry, batch, ids, done, now_ms)
                except (StoreError, ValueError) as error:
                    return error
                self._performer.messages_unsynced += count
            elif queue.captured:
                target = (queue.id, queue.view.next_sequence)
                try:
                    batch.location = self._store.append(
                        Append([target], producer.id, number, batch, 0, count, 0, SPILLED), now_ms
                    )
                except (StoreError, ValueError) as error:
                    return error
                self._performer.captured_bytes += batch.size
            if producer.stored is not None:
                producer.note(number, queue.view.next_sequence)
            queue.machine.remember(digests, until_ms)
            self._performer.apply(queue, commands.Enqueue(batch), now_ms)
        elif producer.keeps_tags and entry.batch.durable:
            # All of these messages were duplicates, or dropped: they are accepted without being stored.
            try:
                for record in self._tags(entry, done):
                    self._store.append(record, now_ms)
            except StoreError as refused:
                return refused
        if count or whole or producer.last_number == number:
            producer.last_number = number
            producer.part = 0 if whole else done
        return None

    def _append(
        self, queue: Queue, entry: Parked, batch: Batch, ids: Ids | None, done: int, now_ms: int
    ) -> Location | None:
        """Appends stored messages; then the parked batch is done up to `done`. Returns their location.

        The records are one group, whole or not at all after a crash.
        """
        producer, number = entry.producer, entry.number
        target = (queue.id, queue.view.next_sequence)
        records: list[Record] = [Append([target], producer.id, number, batch, 0, batch.count)]
        if ids is not None:
            records.append(ids)
        if producer.keeps_tags:
            records += self._tags(entry, done)
        if done != entry.batch.count:
            records.append(Taken(producer.id, number, done))
        for record in records[:-1]:
            record.flags |= CONTINUED
        if len(records) > 1:
            # No room for the last record means no room for the messages: without their ids or tags, a client
            # that sends them again would send them twice.
            self._store.reserve(size_of(records), now_ms)
        location, *_ = [self._store.append(record, now_ms) for record in records]
        return location

    def _tags(self, entry: Parked, done: int) -> list[Terminus]:
        """The record of the delivery-tags of a batch's messages up to `done`; none if it was sent settled."""
        return entry.producer.records_of_tags(entry.number, entry.done, done)

    def _turn_away(self, queue: Queue, entry: Parked, done: int, refusal: Refusal) -> None:
        """Refuses the rest of a batch, and all later batches of its producer that are parked."""
        producer = entry.producer
        queue.machine.not_stored(refused=entry.batch.count - done)
        refusal.accepted = done
        producer.refusing = True
        # A client of a durable terminus may use the tags again that it has settled before.
        waits = producer.keeps_tags or (entry.batch.durable and done > 0)
        self._answers.refuse(producer, entry.number, refusal, waits)
        self._turn_away_behind(queue, producer, self._parking.remove(producer))

    def _turn_away_behind(self, queue: Queue, producer: Producer, parked: list[Parked]) -> None:
        """Refuses batches that were parked behind a refused one."""
        for behind in parked:
            queue.machine.not_stored(refused=behind.batch.count)
            refusal = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "a batch before this one was refused")
            self._answers.refuse(producer, behind.number, refusal, producer.keeps_tags)


def _acts_at_once(policy: Policy) -> bool:
    """Whether messages that do not fit are refused without waiting."""
    if policy.overflow == REJECT:
        return not policy.enqueue_timeout_ms
    return policy.overflow == FLOW_CONTROL and policy.enqueue_timeout_ms == 0
