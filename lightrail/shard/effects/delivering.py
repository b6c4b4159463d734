"""Sends slices of queues to consumers as DELIVER frames."""

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lightrail.shard.effects.held_turns import HeldTurns
from lightrail.shard.effects.peers import Consumer
from lightrail.shard.queue.values import effects
from lightrail.shard.queue.values.runs import Run
from lightrail.shard.queues.shard_queue import Queue
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.frames import deliver

if TYPE_CHECKING:
    from lightrail.shard.effects.receiving_link import ReceivingLink

JOINED_SLICES: Final[int] = 64
"""Most slices that are joined to one."""
WAITS_SAMPLED_EVERY: Final = 8
"""Number of slices of which one has its waiting time measured, which costs 0.1 us per slice."""


@dataclass(slots=True, eq=False, repr=False)
class Delivering:
    """Encodes the deliveries of a shard; ends and bytes are copied unchanged from the batch."""

    _links: dict[int, "ReceivingLink"]
    _counts: ShardCounts
    _held_turns: HeldTurns
    _deliveries: int = 0

    def deliver_row(self, queue: Queue, row: list[effects.Deliver], now_ms: int) -> None:
        """Sends slices of small batches that follow each other as one frame.

        Senders that wait for each answer make batches of one message, and a frame for each batch would cost
        the shard and the frontend more than the messages do.
        """
        first = row[0]
        if len(row) == 1:
            self.deliver(queue, first, now_ms)
            return
        found = self._links.get(first.consumer)
        if found is None or (consumer := found.consumer) is None:
            return
        if self._held_turns.position.is_shared:
            for effect in row:
                self._held_turns.delivered(effect.run.batch)
        ends = array("I")
        pieces: list[memoryview] = []
        size = 0
        for effect in row:
            run = effect.run
            if queue.captured:
                _note_delivered(queue, consumer, run)
            for index in range(run.first, run.last):
                piece = run.batch.blob(index, index + 1)
                size += len(piece)
                ends.append(size)
                pieces.append(piece)
        oldest = first.run.batch
        self._sample_wait(first.run, now_ms)
        consumer.peer.out.append(
            deliver(
                consumer.link,
                queue.epoch,
                first.first_number,
                len(ends),
                now_ms,
                first.run.sequence,
                first.run.attempts,
                oldest.expires_at_ms or 0,
                oldest.enqueued_at_ms,
                oldest.message_format,
                0,
                ends,
                b"".join(pieces),
                oldest.durable,
            )
        )

    def _sample_wait(self, run: Run, now_ms: int) -> None:
        self._deliveries += 1
        if not self._deliveries % WAITS_SAMPLED_EVERY and not run.attempts:
            self._counts.wait_seconds.observe(max(0, now_ms - run.batch.enqueued_at_ms) / 1000)

    def deliver(self, queue: Queue, effect: effects.Deliver, now_ms: int) -> None:
        """Sends one slice."""
        found = self._links.get(effect.consumer)
        if found is None or (consumer := found.consumer) is None:
            return
        run = effect.run
        attempts = run.attempts
        if run.sequence < queue.redelivered_before:
            if run.end > queue.redelivered_before:
                self._deliver_apart(queue, effect, queue.redelivered_before - run.sequence, now_ms)
                return
            # A delivery before the restart is marked for the consumer and not counted as failed (ADR 5).
            attempts = attempts or 1
        batch = run.batch
        first, last = run.first, run.last
        if self._held_turns.position.is_shared:
            self._held_turns.delivered(batch)
        if queue.captured:
            _note_delivered(queue, consumer, run)
        ends = batch.ends
        data = batch.data
        assert ends is not None
        assert data is not None
        base = ends[first - 1] if first else 0
        start = batch.base + base
        self._sample_wait(run, now_ms)
        consumer.peer.out.append(
            deliver(
                consumer.link,
                queue.epoch,
                effect.first_number,
                last - first,
                now_ms,
                run.sequence,
                attempts,
                batch.expires_at_ms or 0,
                batch.enqueued_at_ms,
                batch.message_format,
                base,
                ends[first:last],
                memoryview(data)[start : batch.base + ends[last - 1]],
                batch.durable,
            )
        )

    def _deliver_apart(self, queue: Queue, effect: effects.Deliver, count: int, now_ms: int) -> None:
        """Sends the first `count` messages and the others as two frames."""
        head, tail = effect.run.split(count)
        self.deliver(queue, effect._replace(run=head), now_ms)
        behind = effects.Deliver(effect.consumer, effect.first_number + count, tail)
        self.deliver(queue, behind, now_ms)


def follows(row: list[effects.Deliver], effect: effects.Deliver) -> bool:
    """Whether a slice continues a row, by its numbers, its sequences, and the common fields of a frame."""
    last = row[-1]
    before, run = last.run, effect.run
    old, new = before.batch, run.batch
    return (
        effect.consumer == last.consumer
        and run.sequence == before.sequence + before.last - before.first
        and effect.first_number == last.first_number + before.last - before.first
        and run.attempts == before.attempts
        and new.enqueued_at_ms == old.enqueued_at_ms
        and new.expires_at_ms == old.expires_at_ms
        and new.message_format == old.message_format
        and new.durable == old.durable
        and len(row) < JOINED_SLICES
    )


def _note_delivered(queue: Queue, consumer: Consumer, run: Run) -> None:
    """Notes a delivery for the Delivered record of this step; copies for a browser have none."""
    if consumer.opened is not None and consumer.opened.browse:
        return
    key = consumer.peer.boot << 32 | consumer.link
    ranges = queue.delivered.get(key)
    if ranges is None:
        queue.delivered[key] = [(run.sequence, run.end)]
    elif ranges[-1][1] == run.sequence:
        ranges[-1] = (ranges[-1][0], run.end)
    else:
        ranges.append((run.sequence, run.end))
