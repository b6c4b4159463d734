"""The history of dead letters: annotations that a message keeps from one dead-lettering to the next."""

from collections.abc import Mapping
from typing import Any, Final

from lightrail.amqp.sections import decode_annotations
from lightrail.amqp.values import DecodeError, Symbol

REASON: Final = Symbol("x-opt-dead-letter-reason")
COUNT: Final = Symbol("x-opt-dead-letter-count")
"""Number of times that the message was dead-lettered."""
HOPS: Final = Symbol("x-opt-dead-letter-hops")
"""Times that a gateway forwarded the message as a dead letter, from the third dead-lettering on."""

_MARK: Final = b"x-opt-dead-letter-"
"""A message without these bytes was never dead-lettered, so its annotations need not be decoded. After a
redrive a message has only its history, without a reason."""
COUNT_MAX: Final = (1 << 32) - 1
"""Largest number that is counted, of an uint; it is followed by 1."""


def history_of(message: bytes, message_format: int) -> dict[Any, Any]:
    """The annotations of a message that may have been a dead letter; none if it never was one."""
    if message_format or _MARK not in message:
        return {}
    try:
        return dict(decode_annotations(message))
    except (DecodeError, ValueError):
        return {}


def count_of(history: Mapping[Any, Any], key: Symbol = COUNT) -> int:
    """Number of times that a message was dead-lettered, or forwarded; 0 for what is no number."""
    found = history.get(key, 1 if key == COUNT and REASON in history else 0)
    return found if isinstance(found, int) and 0 <= found < COUNT_MAX else 0
