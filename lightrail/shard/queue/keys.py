"""Keys: a total order over the values that a message's field may have.

By kind first: booleans (false before true), numbers (of all widths together; not-a-number after them all),
timestamps, text (characters, strings and symbols together, by code point), uuids, binary and decimals (by
octets: the broker never computes with decimals), then everything composite by what it looks like. What has no
value comes last. Two values that compare equal here are the same key: `1` and `1.0`, string and symbol.
"""

from typing import Any, Final
from uuid import UUID

from lightrail.amqp.types import Timestamp

Key = tuple[int, Any]
"""Rank of the kind, and a value that compares with all others of the kind."""

_NUMBER: Final = 1
MISSING: Final[Key] = (9, 0)


def key_of(value: Any) -> Key:
    """The key of a field's value, None for one that is not there; keys compare with each other and hash."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return 0, value
    if isinstance(value, Timestamp):
        return 3, int(value)
    if isinstance(value, int):
        return _NUMBER, int(value)
    if isinstance(value, float):
        return (_NUMBER, float(value)) if value == value else (2, 0)
    if isinstance(value, str):
        return 4, str(value)
    if isinstance(value, UUID):
        return 5, value.int
    if isinstance(value, bytes | bytearray | memoryview):
        return 6, bytes(value)
    return 7, repr(value)
