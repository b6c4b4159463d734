"""Lifetime: until when a message may wait whose time to live begins at a later time than it was sent."""

from typing import Final

from lightrail.amqp.decoder import Buffer
from lightrail.amqp.sections import attributes, decode_properties

TTL_MAX: Final = (1 << 32) - 1
"""The ttl of a message whose time to live, in milliseconds, does not fit into its field: 49.7 days."""
_LATEST_MS: Final = (1 << 63) - 1
"""The latest timestamp (types 1.6.17)."""


def life_of(message: Buffer) -> int | None:
    """How long a message lives, in milliseconds; None if it has no ttl. Raises DecodeError."""
    _, _, ttl, expiry = attributes(message)
    return None if ttl is None else _life(message, ttl, expiry)


def expiry_from(message: Buffer, begin_ms: int) -> int | None:
    """The end of a message's time to live that begins at `begin_ms`, in milliseconds since 1970.

    Clients that write a ttl also write an absolute-expiry-time, counted from the creation of the message: it
    is used only without a ttl.

    Returns None for a message that does not expire. Raises DecodeError.
    """
    _, _, ttl, expiry = attributes(message)
    if ttl is None:
        return None if expiry is None else max(1, expiry)
    return min(begin_ms + _life(message, ttl, expiry), _LATEST_MS)


def _life(message: Buffer, ttl: int, expiry: int | None) -> int:
    """A ttl, or the time between creation and expiry, if it does not fit into the field ttl."""
    if ttl == TTL_MAX and expiry is not None:
        created = decode_properties(message).creation_time
        if created is not None:
            return max(ttl, expiry - created)
    return ttl
