"""Messages on their way to a dead-letter queue: the same bytes, annotated with why, whence and when."""

from typing import Final

from lightrail.amqp.sections import with_annotations
from lightrail.amqp.types import Symbol, Timestamp, decode
from lightrail.shard.queue.effects import DeadLetter
from lightrail.shard.queue.runs import Batch, Run, batch_of

REASON: Final = Symbol("x-opt-dead-letter-reason")
SOURCE: Final = Symbol("x-opt-dead-letter-source")
TIME: Final = Symbol("x-opt-dead-letter-time")
CONDITION: Final = Symbol("x-opt-dead-letter-condition")
DESCRIPTION: Final = Symbol("x-opt-dead-letter-description")


def dead_letter_batch(run: Run, source: str, effect: DeadLetter, now_ms: int) -> Batch:
    """The messages of a run as they stand in the dead-letter queue of `source`; they do not expire there."""
    notes: dict[Symbol, object] = {
        REASON: Symbol(effect.reason),
        SOURCE: source,
        TIME: Timestamp(now_ms),
    }
    if effect.condition:
        notes[CONDITION] = Symbol(effect.condition)
    if effect.description:
        notes[DESCRIPTION] = effect.description
    batch = run.batch
    return batch_of(
        [with_annotations(message, notes) for message in run.messages()],
        durable=batch.durable,
        priority=batch.priority,
        enqueued_at_ms=now_ms,
        message_format=batch.message_format,
    )


def merge_annotations(message: bytes, annotations: bytes) -> bytes:
    """A message with the annotations of a modified outcome (messaging 3.4.5), which are an encoded map."""
    notes, _end = decode(annotations, 0, len(annotations))
    return with_annotations(message, notes)
