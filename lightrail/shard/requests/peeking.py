"""Peeking and recalling: messages of a queue as the answer to a request, without a delivery.

Messages that are only on disk are read first.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from lightrail.amqp.sections import decode_header
from lightrail.model.attempts import failures
from lightrail.model.orders import PRIORITY_MIXED
from lightrail.shard.effects.answers import Fields
from lightrail.shard.effects.performer import Performer
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.lines.line import GONE
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.effects import Peeked, PeekedState
from lightrail.shard.queue.values.runs import Batch, Run
from lightrail.shard.queues.shard_queue import Queue

LOCKED: Final = "locked"
READ_AT_ONCE_BYTES: Final[int] = 16 * 1024 * 1024
"""Bytes that are read at once to delete messages that are only on disk."""


class PeekedRun(NamedTuple):
    """Messages that are peeked at."""

    run: Run
    state: str
    lock_ends: Sequence[int]
    """The end of the lock of each; see View.lock_ends. They may be settled while they are read."""


Seen = Callable[[Fields, bytes], None]
"""Called with the fields and the blob of the answer."""


def peek(queue: Queue, performer: Performer, start: int, count: int, size: int, seen: Seen) -> None:
    """Peeks messages of a queue by sequence.

    Args:
        start: the lowest sequence.
        count: number of messages at most.
        size: bytes of the messages at most, if there is more than one.
    """
    left = size
    chosen: list[PeekedRun] = []
    for each in _runs(queue, start, count):
        if left <= 0:
            break
        left -= each.run.size
        chosen.append(each)
    runs = [each.run for each in chosen]
    performer.read_all(queue, runs, lambda pieces: seen(*_peeked(queue, chosen, pieces, size)))


def _runs(queue: Queue, start: int, count: int) -> list[PeekedRun]:
    """Up to `count` messages from a sequence on, in order of their sequences."""
    found: list[tuple[Run, str, Consumer | None, int]] = []
    for effect in queue.machine.apply(commands.Peek(start, count), 0):
        if isinstance(effect, Peeked):
            found += [
                (run, str(state), None, 0) for run, state in zip(effect.runs, effect.states, strict=True)
            ]
    for run, consumer, key in queue.view.locked_runs(start, count):
        found.append((run, LOCKED, consumer, key))
    found.sort(key=lambda each: each[0].sequence)
    within: list[PeekedRun] = []
    for run, state, holder, key in found:
        if not count:
            break
        run = run.cut(0, min(run.count, count))
        count -= run.count
        ends = [0] * run.count if holder is None else queue.view.lock_ends(holder, key, run.count)
        within.append(PeekedRun(run, state, ends))
    return within


def _peeked(
    queue: Queue, chosen: list[PeekedRun], pieces: list[list[Run]], size: int
) -> tuple[Fields, bytes]:
    """The answer to a peek: the messages in memory of each chosen run, up to `size` bytes."""
    messages: list[Fields] = []
    blob: list[bytes] = []
    for (run, state, lock_ends), found in zip(chosen, pieces, strict=True):
        due_ms = None
        for piece in found:
            batch = piece.batch
            for index in range(piece.count):
                if state == PeekedState.DELAYED:
                    due_ms = queue.view.due_ms(piece.cut(index, index + 1))
                message = batch.message(piece.first + index)
                if messages and len(message) > size:
                    return {"messages": messages, "next": piece.sequence + index}, b"".join(blob)
                size -= len(message)
                blob.append(message)
                until_ms = lock_ends[piece.sequence + index - run.sequence]
                messages.append(
                    _row(batch, message, piece.sequence + index, run.attempts)
                    | ({"locked_until_ms": until_ms} if until_ms else {})
                    | {
                        "state": state,
                        "deferred": run.is_deferred,
                        "due_ms": due_ms,
                        "priority": _priority(batch, message),
                        "durable": batch.durable,
                    }
                )
    next_sequence = queue.view.next_sequence
    end = chosen[-1].run.end if chosen else next_sequence
    return {"messages": messages, "next": end if end < next_sequence else None}, b"".join(blob)


def delete(
    queue: Queue, performer: Performer, count: int, before_ms: int, done: Callable[[int], None]
) -> None:
    """Removes the first `count` ready messages at most that were enqueued before a time.

    Messages that are only on disk are read for the time of each, some at a time; those that have been
    delivered meanwhile stay.

    Args:
        done: called with the number of removed messages, when their records are appended.
    """
    start = deleted = 0

    def go_on() -> None:
        nonlocal start
        chosen: list[Run] = []
        wanted, size = count - deleted, 0
        ready = queue.view.ready
        for index in range(ready.index(start), len(ready.runs)):
            run = ready.runs[index]
            if wanted <= 0 or size >= READ_AT_ONCE_BYTES:
                break
            if run.end <= start or run is GONE:
                continue
            run = run.cut(max(0, start - run.sequence), run.count)
            run = run.cut(0, min(run.count, wanted))
            chosen.append(run)
            wanted -= run.count
            size += run.size if run.batch.evicted else 0
        if chosen:
            start = chosen[-1].end
            performer.read_all(queue, chosen, came)
        else:
            done(deleted)

    def came(pieces: list[list[Run]]) -> None:
        nonlocal deleted
        before = queue.view.counters.purged
        # It may have moved to another shard meanwhile.
        goes_on = queue.is_serving
        for piece in chain.from_iterable(pieces):
            # The time rises with the sequence.
            goes_on = goes_on and piece.batch.enqueued_at_ms < before_ms
            if goes_on:
                performer.apply(queue, commands.Delete(piece.sequence, piece.end), 0)
        deleted += queue.view.counters.purged - before
        if goes_on:
            go_on()
        else:
            done(deleted)

    go_on()


def recall(
    queue: Queue, performer: Performer, runs: list[Run], came: Callable[[list[Fields], bytes], None]
) -> None:
    """Returns deferred messages that were locked by their sequences; one that can't be read stays locked
    until its lock ends.

    Args:
        runs: runs of one message each.
        came: called with a row per message that could be read, and the messages one after another.
    """

    def answer(pieces: list[list[Run]]) -> None:
        rows: list[Fields] = []
        blob: list[bytes] = []
        for run, found in zip(runs, pieces, strict=True):
            for piece in found:
                message = piece.batch.message(piece.first)
                blob.append(message)
                rows.append(_row(piece.batch, message, run.sequence, run.attempts))
        came(rows, b"".join(blob))

    performer.read_all(queue, runs, answer)


def _row(batch: Batch, message: bytes, sequence: int, attempts: int) -> Fields:
    """What every answer has of a message."""
    return {
        "sequence": sequence,
        "attempts": failures(attempts),
        "enqueued_at_ms": batch.enqueued_at_ms,
        "expires_at_ms": batch.expires_at_ms,
        "message_format": batch.message_format,
        "size": len(message),
    }


def _priority(batch: Batch, message: bytes) -> int:
    if batch.priority != PRIORITY_MIXED:
        return batch.priority
    priority: int = decode_header(message).priority
    return priority
