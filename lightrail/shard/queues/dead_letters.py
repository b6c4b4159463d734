"""Messages that are moved to another queue, or to another place: dead letters, and scheduled ones.

Dead letters are annotated with the reason, the source and the time; all other bytes are unchanged.

The fields that queue machines and filters of consumers need of messages are read here as well.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from lightrail.amqp.dead_letters import COUNT, REASON, count_of, history_of
from lightrail.amqp.decoder import decode
from lightrail.amqp.lifetime import expiry_from
from lightrail.amqp.sections import with_annotations
from lightrail.amqp.values import DecodeError, Symbol, Timestamp, UInt
from lightrail.filters.filter import compile_filter
from lightrail.filters.matcher import BASE, Looks
from lightrail.filters.message import MessageView, extract
from lightrail.filters.path import parse_path
from lightrail.shard.queue.values.effects import DeadLetter
from lightrail.shard.queue.values.runs import Batch, Run, batch_of


def field_reader(path: str) -> Callable[[bytes], Any]:
    """A function that reads the field `path` of an encoded message; None if it is missing, or can't be read.

    Raises:
        FilterError: there is no such field.
    """
    found = parse_path(path)
    return lambda message: extract(message, found)


def selector(spec: Mapping[str, Any], looks: Looks) -> Callable[[bytes], bool | None]:
    """A function that returns whether a message matches a filter; it never raises for a message.

    It returns None if the looks of this step are used up.

    Raises:
        FilterError: the filter is invalid; the text says what was expected, what was found, and where.
    """
    filter = compile_filter(spec)
    matches = filter.matches
    weight = BASE + 2 * filter.weight

    def selects(message: bytes) -> bool | None:
        if looks.left <= 0:
            return None
        view = MessageView(message)
        chosen = matches(view)
        looks.left -= weight + view.spent + (len(message) >> 9)
        return chosen

    return selects


ANNOTATIONS_BYTES_MAX: Final[int] = 64 * 1024
"""Bytes of all message-annotations of a message after consumers added theirs with modified or rejected."""
SOURCE: Final = Symbol("x-opt-dead-letter-source")
TIME: Final = Symbol("x-opt-dead-letter-time")
CONDITION: Final = Symbol("x-opt-dead-letter-condition")
DESCRIPTION: Final = Symbol("x-opt-dead-letter-description")


def dead_letter_batch(run: Run, source: str, effect: DeadLetter, now_ms: int) -> Batch:
    """The messages of a run for the dead-letter queue of `source`; they do not expire there."""
    notes: dict[Symbol, object] = {REASON: Symbol(effect.reason), SOURCE: source, TIME: Timestamp(now_ms)}
    error: dict[Symbol, object] = {}
    if effect.condition:
        error[CONDITION] = Symbol(effect.condition)
    if effect.description:
        error[DESCRIPTION] = effect.description
    batch = run.batch
    messages = run.messages()
    if effect.annotations and not batch.message_format:
        messages = [merge_annotations(message, effect.annotations) for message in messages]
    return batch_of(
        [
            _annotated(
                message, _with_history(message, notes, error, batch.message_format), batch.message_format
            )
            for message in messages
        ],
        durable=batch.durable,
        priority=batch.priority,
        enqueued_at_ms=now_ms,
        message_format=batch.message_format,
    )


def due_batch(run: Run, max_age_ms: int | None, now_ms: int) -> Batch:
    """A scheduled message that is due, as it is enqueued: its time to live begins now (`expiry_from`).

    Args:
        run: one message.
        max_age_ms: of the queue.
    """
    batch = run.batch
    message = batch.message(run.first)
    try:
        own = expiry_from(message, now_ms)
    except DecodeError:
        own = None
    ends = [] if own is None else [own]
    if max_age_ms is not None:
        ends.append(now_ms + max_age_ms)
    if batch.expires_at_ms is not None:
        # As long as it might have lived since it came, with the max_age of a router.
        ends.append(now_ms + max(1, batch.expires_at_ms - batch.enqueued_at_ms))
    return batch_of(
        [message],
        durable=batch.durable,
        priority=batch.priority,
        expires_at_ms=min(ends, default=None),
        enqueued_at_ms=now_ms,
        message_format=batch.message_format,
    )


def _with_history(
    message: bytes, notes: Mapping[Symbol, object], error: Mapping[Symbol, object], message_format: int
) -> dict[Symbol, object]:
    """The annotations of one message: the first error stays, and dead-letterings are counted.

    A message that was redriven from a dead-letter queue and failed again keeps its first error.
    """
    earlier = history_of(message, message_format)
    found = dict(notes)
    if CONDITION not in earlier and DESCRIPTION not in earlier:
        found.update(error)
    found[COUNT] = UInt(count_of(earlier) + 1)
    return found


def merge_annotations(message: bytes, annotations: bytes) -> bytes:
    """A message with the annotations of a receiver's outcome (messaging 3.4.5), which are an encoded map.

    The message is unchanged if its annotations would exceed `ANNOTATIONS_BYTES_MAX`.
    """
    notes, _end = decode(annotations, 0, len(annotations))
    return _annotated(message, notes, bytes_max=ANNOTATIONS_BYTES_MAX)


def _annotated(
    message: bytes, notes: Mapping[Symbol, Any], message_format: int = 0, bytes_max: int | None = None
) -> bytes:
    """The message with more annotations; unchanged if it has none of AMQP's sections.

    The sections after the header were not checked when the message was sent, and must not cause its loss.
    """
    if message_format:
        return message
    try:
        return with_annotations(message, notes, bytes_max)
    except (DecodeError, ValueError):
        return message
