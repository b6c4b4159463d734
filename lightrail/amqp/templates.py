"""Templates: the bytes that all transfer frames of a sending link share (transport 2.7.5)."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Protocol

from lightrail.amqp.serial import WIRE


@lru_cache(maxsize=1024)
def _pack(first: int, tag: int, last: int) -> Callable[..., bytes]:
    return Struct(f">I{first}sI{tag}sI{last}s").pack


class Template:
    """The constant bytes around delivery-id and payload; the delivery-tag ends with the delivery-id."""

    __slots__ = ("first_part", "last_part", "message_format", "overhead", "pack", "settled", "state", "tag")

    def __init__(
        self,
        channel: int,
        handle: bytes,
        settled: bool,
        message_format: int,
        state: Any = None,
        encoded_state: bytes = b"",
        tag_prefix: bytes = b"",
    ) -> None:
        """`encoded_state` has at most 100 bytes: what a transaction's id and an outcome take."""
        last = (b"\x43" if message_format == 0 else b"\x70" + message_format.to_bytes(4, "big")) + (
            b"\x41" if settled else b"\x42"
        )
        count = 5
        if state is not None:
            # more is false, rcv-settle-mode that of the link.
            last += b"\x42\x40" + encoded_state
            count = 8
        size = 1 + len(handle) + 5 + 6 + len(tag_prefix) + len(last)
        fixed = bytes((0x00, 0x53, 0x14, 0xC0, size, count))
        self.first_part = b"\x02\x00" + channel.to_bytes(2, "big") + fixed + handle + b"\x70"
        self.tag = bytes((0xA0, 4 + len(tag_prefix))) + tag_prefix
        self.last_part = last
        self.settled = settled
        self.state = state
        self.message_format = message_format
        self.overhead = 4 + len(self.first_part) + 4 + len(self.tag) + 4 + len(last)
        self.pack = _pack(len(self.first_part), len(self.tag), len(last))

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
        tag = self.tag
        last_part = self.last_part
        overhead = self.overhead
        append = output.append
        first = wire
        for end in ends:
            end -= base
            size = end - start
            if size > most:
                break
            append(pack(size + overhead, first_part, wire, tag, wire, last_part))
            append(blob[start:end])
            start = end
            wire += 1
        return wire - first


class Numbered(Protocol):
    """What sends deliveries by numbers of its own."""

    transmitted: int
    """The number of the next one."""


class NumberedTemplate(Template):
    """The same for a link that may be resumed: the delivery-tag ends with the link's own number.

    The loop of `put` is here once more, so that other links, whose tag is the id, pay nothing for it.
    """

    __slots__ = ("numbered",)

    numbered: Numbered

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
        """See Template."""
        first = wire
        number = self.numbered.transmitted
        for end in ends:
            end -= base
            size = end - start
            if size > most:
                break
            output.append(
                self.pack(
                    size + self.overhead, self.first_part, wire, self.tag, number & WIRE, self.last_part
                )
            )
            output.append(blob[start:end])
            start = end
            wire += 1
            number += 1
        return wire - first
