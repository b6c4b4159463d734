"""Delivery-ids: serial numbers of 32 bits on the wire (RFC 1982), rising integers inside.

Inside, and in events, a number goes on rising past 2**32 ("unwrapped"): the wire's number is its low 32 bits,
and a number from the wire means the integer nearest to the expected one. So ranges compare like integers.
"""

from typing import Final

WIRE: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000


def unwrap(wire: int, near: int) -> int:
    """The integer closest to `near` whose low 32 bits are `wire` (RFC 1982 with SERIAL_BITS 32)."""
    return near + ((wire - near + _HALF) & WIRE) - _HALF


def signed(wire_difference: int) -> int:
    """A difference of two serial numbers, below zero when the first is behind the second."""
    return ((wire_difference + _HALF) & WIRE) - _HALF
