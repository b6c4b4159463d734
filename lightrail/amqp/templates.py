"""Templates: the bytes that all transfer frames of a sending link share (transport 2.7.5)."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct


@lru_cache(maxsize=1024)
def _pack(first: int, last: int) -> Callable[..., bytes]:
    return Struct(f">I{first}sI2sI{last}s").pack


class Template:
    """The constant bytes around delivery-id and payload; the delivery-tag repeats the delivery-id."""

    __slots__ = ("first_part", "last_part", "message_format", "overhead", "pack", "settled")

    def __init__(self, channel: int, handle: bytes, settled: bool, message_format: int) -> None:
        last = (b"\x43" if message_format == 0 else b"\x70" + message_format.to_bytes(4, "big")) + (
            b"\x41" if settled else b"\x42"
        )
        size = 1 + len(handle) + 5 + 6 + len(last)
        fixed = bytes((0x00, 0x53, 0x14, 0xC0, size, 5))
        self.first_part = b"\x02\x00" + channel.to_bytes(2, "big") + fixed + handle + b"\x70"
        self.last_part = last
        self.settled = settled
        self.message_format = message_format
        self.overhead = 4 + len(self.first_part) + 4 + 2 + 4 + len(last)
        self.pack = _pack(len(self.first_part), len(last))

    def put(
        self,
        output: list[bytes | memoryview],
        ends: Sequence[int],
        blob: bytes | memoryview,
        base: int,
        start: int,
        wire: int,
        most: int,
    ) -> int:
        """Append transfer frames for the messages that `ends` delimits until one is larger than `most` bytes.

        Returns the number of messages written. The first begins at blob[start], message i ends at
        ends[i] - base. `wire` is the delivery-id of the first, and must not wrap within this call.
        """
        pack = self.pack
        first_part = self.first_part
        last_part = self.last_part
        overhead = self.overhead
        append = output.append
        first = wire
        for end in ends:
            end -= base
            size = end - start
            if size > most:
                break
            append(pack(size + overhead, first_part, wire, b"\xa0\x04", wire, last_part))
            append(blob[start:end])
            start = end
            wire += 1
        return wire - first
