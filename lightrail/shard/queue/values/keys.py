"""Keys: a total order over the values that a message's field may have.

By kind first: booleans (false before true), numbers (of all widths together; not-a-number after them all),
timestamps, text (characters, strings and symbols together, by code point), uuids, binary and decimals (by
octets: the broker never computes with decimals), then composite values by their text. Messages without a
value are last. Two values that compare equal here are the same key: `1` and `1.0`, string and symbol. If a
text or binary has more than `KEY_BYTES_MAX`, only its beginning is compared, and then a digest of all
of it.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final
from uuid import UUID

from lightrail.amqp.values import Timestamp

KEY_BYTES_MAX: Final[int] = 256
"""Characters or bytes of a key. Longer keys are sorted by their beginning and distinguished by a digest."""

Look = Callable[[str], Callable[[bytes], Any]]
"""Gives for a path such as `message-id` what reads that field from an encoded message; None for no such
field."""
Key = tuple[int, Any]
"""Rank of the kind, and a value that compares with all others of the kind."""

_NUMBER: Final = 1
TEXT: Final = 4
"""The rank of characters, strings and symbols."""
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
        return TEXT, _shortened(str(value))
    if isinstance(value, UUID):
        return 5, value.int
    if isinstance(value, bytes | bytearray | memoryview):
        octets = bytes(value)
        if len(octets) > KEY_BYTES_MAX:
            octets = octets[:KEY_BYTES_MAX] + blake2b(octets, digest_size=16).digest()
        return 6, octets
    return 7, _shortened(repr(value))


def size_of(key: Key) -> int:
    """Approximate bytes of memory that a key uses beyond those of a number."""
    kind, value = key
    if kind == 6 or (kind in (4, 7) and value.isascii()):
        return len(value)
    return 4 * len(value) if kind in (4, 7) else 0


def _shortened(text: str) -> str:
    if len(text) <= KEY_BYTES_MAX:
        return text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return text[:KEY_BYTES_MAX] + digest
