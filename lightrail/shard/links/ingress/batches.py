"""Batches: ENQUEUE frames, which are stored in their queue."""

from dataclasses import dataclass

from lightrail.journal.record import SPILLED
from lightrail.model import conditions, limits
from lightrail.shard.effects.answers import Answers
from lightrail.shard.effects.peers import Peer, Producer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.store import Store, StoreBusyError, StoreFullError
from lightrail.shard.links.ingress.admission import Admission
from lightrail.shard.links.relaying.relay import Relays
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.runs import Batch
from lightrail.shard.queues.memory import Memory
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import (
    AFRESH,
    DURABLE,
    ENQUEUE_COLUMNS,
    ENQUEUE_ENDS,
    HEADER,
    HEADER_SIZE,
    WHOLE,
    Part,
)


@dataclass(slots=True, eq=False, repr=False)
class Batches:
    """Stores the batches of producers."""

    _store: Store
    _performer: Performer
    _admission: Admission
    _relays: Relays
    _memory: Memory
    _answers: Answers
    _counts: ShardCounts

    def enqueue(self, peer: Peer, part: Part, now_ms: int) -> int:
        """Stores a batch.

        Returns:
            Number of its messages that the queue has read.

        Raises:
            NumberMissingError: batches before this one were lost between frontend and shard.
            StoreBusyError: the batch has to wait for the commit under way; nothing has changed.
        """
        _kind, flags, priority, _epoch, link, count, number = HEADER.unpack_from(part)
        producer = peer.producers.get(link)
        if producer is None:
            self._relays.send(peer, part, now_ms)
            return 0
        durable = bool(flags & DURABLE)
        if self._answers.failure is not None or self._is_answered(producer, number, count, flags):
            return 0
        queue = producer.queue
        view = queue.view
        # `batch_in` inlined: the call would cost 1 % of the shard's CPU for batches of one message.
        expires, message_format, size = ENQUEUE_COLUMNS.unpack_from(part, HEADER_SIZE)
        base = ENQUEUE_ENDS + 4 * count
        ends = memoryview(part)[ENQUEUE_ENDS:base].cast("I")
        batch = Batch(
            part, ends, count, size, base, durable, priority, expires or None, now_ms, None, message_format
        )
        reads = view.reads_messages
        if (
            view.policy.guarded
            or queue.parked
            or producer.part
            or producer.keeps_tags
            or (reads and count > limits.LOOKED_INTO_AT_ONCE)
            or (self._memory.index > self._memory.index_max and self._memory.must_wait(queue))
        ):
            if self._admission.enqueue(producer, number, batch, now_ms, whole=bool(flags & WHOLE)):
                return limits.LOOKED_INTO_AT_ONCE
            return count if view.policy.examines else 0
        waits = durable
        if durable or queue.captured:
            if not self._append(producer, number, batch, now_ms):
                return 0
            waits = durable or self._performer.capture_lags
        producer.last_number = number
        producer.entered += count
        if producer.stored is not None:
            producer.note(number, view.next_sequence)
        self._answers.accept(producer, number, waits)
        self._performer.apply(queue, commands.Enqueue(batch), now_ms)
        return count if reads else 0

    def _is_answered(self, producer: Producer, number: int, count: int, flags: int) -> bool:
        """Answers a batch that is stored already, or follows a refused one; False for any other batch."""
        if number == producer.next_number:
            producer.next_number = number + 1
        elif number > producer.next_number:
            producer.missed(number)
        if number <= producer.last_number and not (producer.part and number == producer.last_number):
            self._counts.batches_duplicate += 1
            # A producer that attaches again by name must wait for the commit under way with its batches, and
            # the client of a durable terminus for the ends of tags that it has settled.
            waits = bool(flags & DURABLE) or producer.is_named or producer.keeps_tags
            self._answers.accept(producer, number, waits)
            return True
        if producer.refusing:
            if not flags & AFRESH:
                refusal = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "a batch before this one was refused")
                self._answers.refuse(producer, number, refusal, producer.keeps_tags)
                return True
            producer.refusing = False
        if number < producer.sent_below:
            producer.queue.repeated(count)
        return False

    def _append(self, producer: Producer, number: int, batch: Batch, now_ms: int) -> bool:
        """Appends the record of a batch; False if the batch was refused. Raises StoreBusyError."""
        queue = producer.queue
        record = Append([(queue.id, queue.view.next_sequence)], producer.id, number, batch, 0, batch.count)
        if not batch.durable:
            record.flags = SPILLED
        try:
            batch.location = self._store.append(record, now_ms)
        except StoreBusyError:
            raise
        except (StoreFullError, ValueError) as error:
            # There is no room, or the batch exceeds the size of a record.
            self._counts.store_failures += 1
            producer.refusing = True
            self._answers.refuse(producer, number, Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, str(error)))
            return False
        if batch.durable:
            self._performer.messages_unsynced += batch.count
        else:
            self._performer.captured_bytes += batch.size
        return True
