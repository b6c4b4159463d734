"""Values of variable width as octets: texts and lists (spec 1.6)."""

import struct
from collections.abc import Sequence
from typing import Final

NULL: Final = b"\x40"


def text(value: str) -> bytes:
    """A text as str8, or str32 where it is too long for that."""
    octets = value.encode()
    if len(octets) < 256:
        return b"\xa1" + bytes([len(octets)]) + octets
    return b"\xb1" + struct.pack(">I", len(octets)) + octets


def listed(fields: Sequence[bytes], wide: bool = False) -> bytes:
    """A list of encoded values as list8, or list32 where it is asked for or too long for list8."""
    octets = b"".join(fields)
    if wide or len(octets) > 254:
        return b"\xd0" + struct.pack(">II", len(octets) + 4, len(fields)) + octets
    return b"\xc0" + bytes((len(octets) + 1, len(fields))) + octets
