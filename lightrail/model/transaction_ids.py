"""Ids of transactions over several shards: UUIDs of version 7, which have the time of their birth.

By this time a shard refuses to commit what is older than the aborts that it remembers (ADR 38). It is that of
the frontend's clock, and is compared with the times of other ids alone. Frontends of former versions make
random ids, which have no time.
"""

import secrets

ID_BYTES = 16
_TIME_BYTES = 6


def new_id(now_ms: int) -> bytes:
    """An id that is born now, in milliseconds since 1970 (RFC 9562 5.7)."""
    id = bytearray(now_ms.to_bytes(_TIME_BYTES, "big") + secrets.token_bytes(ID_BYTES - _TIME_BYTES))
    id[6] = 0x70 | id[6] & 0x0F
    id[8] = 0x80 | id[8] & 0x3F
    return bytes(id)


def born_ms(id: bytes) -> int | None:
    """The time of its birth in milliseconds since 1970; None for an id without one."""
    if id[6] >> 4 != 7 or id[8] >> 6 != 2:
        return None
    return int.from_bytes(id[:_TIME_BYTES], "big")
