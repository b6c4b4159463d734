"""The ends of a connection point: its senders, the batches that are being passed, and its listeners."""

from bisect import bisect_right
from dataclasses import InitVar, dataclass, field
from typing import Final

from lightrail.model.links import Ending
from lightrail.shard.effects.peers import Peer
from lightrail.shard.queue.values.commands import UNBOUNDED
from lightrail.wire.bodies import ConsumerOpen, SettleDetail
from lightrail.wire.frames import ENQUEUE_COLUMNS, ENQUEUE_ENDS, HEADER_SIZE, Kind, OutcomeCode, Part, frame


@dataclass(slots=True, eq=False, repr=False)
class RelaySender:
    """The link of a sender: the numbers of messages that it may send and has sent."""

    peer: Peer
    link: int
    used_ms: int
    """Time at which it last sent a message, or was opened."""
    granted: int = 0
    """Number of messages that it may send, counted from its opening."""
    sent: int = 0

    @property
    def open(self) -> int:
        """Number of messages that it may still send."""
        return max(self.granted - self.sent, 0)

    def grant(self, granted: int) -> None:
        """Sends a GRANT if the number has changed."""
        if granted != self.granted:
            self.granted = granted
            self.peer.out.append(frame(Kind.GRANT, link=self.link, number=granted))

    def outcome(self, number: int, first: int, messages: int, code: int, body: bytes) -> None:
        """Sends the outcome of messages of one of its batches."""
        self.peer.out.append(
            frame(
                Kind.OUTCOME,
                flags=code,
                epoch=first,
                link=self.link,
                count=messages,
                number=number,
                body=body,
            )
        )


class Sent:
    """The messages of one batch of a sender that no listener has received yet."""

    __slots__ = (
        "_base",
        "_ends",
        "_part",
        "count",
        "expires_at_ms",
        "first",
        "message_format",
        "number",
        "sender",
    )

    def __init__(self, sender: RelaySender, part: Part, messages: int, number: int) -> None:
        self.sender = sender
        self.number = number
        self.count = messages
        self.first = 0
        """Index of the next message."""
        self.expires_at_ms, self.message_format, _size = ENQUEUE_COLUMNS.unpack_from(part, HEADER_SIZE)
        self._part = part
        self._base = ENQUEUE_ENDS + 4 * messages
        self._ends = memoryview(part)[ENQUEUE_ENDS : self._base].cast("I")

    @property
    def size(self) -> int:
        """Bytes in memory, which are used until its last message is passed on."""
        return len(self._part)

    @property
    def left(self) -> int:
        """Number of remaining messages."""
        return self.count - self.first

    def fitting(self, last: int, room: int) -> int:
        """The end of the messages before `last` that have at most `room` bytes together."""
        return bisect_right(self._ends, self._start + room, self.first, last)

    def size_to(self, last: int) -> int:
        """Bytes of the messages from the next one to before `last`."""
        size: int = self._ends[last - 1] - self._start
        return size

    def take(self, last: int) -> tuple[int, memoryview, memoryview]:
        """Removes the messages before `last`; returns the offset from which their ends count, the ends, and
        the bytes."""
        start, first = self._start, self.first
        self.first = last
        blob = memoryview(self._part)[self._base + start : self._base + self._ends[last - 1]]
        return start, self._ends[first:last], blob

    def release(self) -> None:
        """Releases the remaining messages, which return to their sender."""
        if self.left:
            self.sender.outcome(self.number, self.first, self.left, OutcomeCode.RELEASED, b"")
            self.first = self.count

    @property
    def _start(self) -> int:
        return self._ends[self.first - 1] if self.first else 0


EVERYTHING: Final = 1 << 62
"""A number above every delivery number."""


@dataclass(slots=True, eq=False, repr=False)
class DeliveredPart:
    """Messages of a sender's batch that a listener has received and not settled."""

    sender: RelaySender
    batch: int
    first: int
    count: int


@dataclass(slots=True, eq=False, repr=False)
class Listener:
    """The link of a listener: its credit, and its unsettled messages by delivery number."""

    peer: Peer
    link: int
    options: InitVar[ConsumerOpen]
    limit: int = field(init=False)
    """Credit: delivery numbers below this one may be sent."""
    next: int = field(init=False)
    """The next delivery number."""
    presettled: bool = field(init=False)
    _default: int = field(init=False)
    _numbers: list[int] = field(default_factory=list)
    _parts: list[DeliveredPart] = field(default_factory=list)
    _room: int = UNBOUNDED
    """Bytes that may be sent to it before its next CREDIT."""
    _exact: int = 0
    """Half of the bytes of that CREDIT; 0 if one message may exceed the remaining bytes."""
    is_full: bool = False
    """Whether the next message exceeds the remaining bytes."""
    draining: bool = False
    expects_window: bool = False
    """Whether its client has given credit beyond `limit`, for which another CREDIT follows."""

    def __post_init__(self, options: ConsumerOpen) -> None:
        self.limit = self.next = options.first
        self.presettled = options.presettled
        self._default = options.default_outcome

    def outcome(self, ending: Ending) -> tuple[int, bytes]:
        """Code and body of the outcome of its unsettled messages when it ends.

        A listener that failed may have worked on any of them: no queue has them, and each sender decides
        whether it sends its message again, so all of them have failed (messaging 3.4.4 and 3.4.5).
        """
        if ending is Ending.FAILED:
            return OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True).encode()
        if ending is Ending.BY_CLIENT and self._default <= OutcomeCode.REJECTED:
            return self._default, SettleDetail().encode() if self._default else b""
        return OutcomeCode.RELEASED, b""

    @property
    def credit(self) -> int:
        """Number of messages that it has credit for, of any size."""
        return self.limit - self.next

    @property
    def is_ready(self) -> bool:
        return self.limit > self.next and not self.is_full

    @property
    def is_used_up(self) -> bool:
        """Whether the messages or the bytes of its CREDIT are used up."""
        return self.next >= self.limit or self.is_full

    def allow(self, limit: int, size: int, *, exact: bool, more: bool) -> None:
        """Sets its credit: up to the delivery number `limit`, and `size` bytes; `more` if the client has
        further credit."""
        self.limit = max(limit, self.next)
        self.expects_window = more
        self._room = size
        self._exact = size >> 1 if exact else 0
        self.is_full = False

    def fitting(self, sent: Sent, last: int) -> int:
        """The end of the messages before `last` that may be sent now; reports one that is too large."""
        found = sent.fitting(last, self._room)
        if found > sent.first:
            return found
        if not self._exact and self._room > 0:
            return sent.first + 1
        self.is_full = True
        # A listener that has used half of its bytes gets new credit without a report.
        if self._room > self._exact or self.draining:
            kib = -(-sent.size_to(sent.first + 1) >> 10)
            self.peer.out.append(frame(Kind.LARGER, link=self.link, count=kib, number=self.next))
        return sent.first

    def used(self, size: int) -> None:
        """Subtracts `size` bytes from its credit."""
        self._room -= size

    def hold(self, part: DeliveredPart) -> None:
        """Adds sent messages to the unsettled ones."""
        if not self.presettled:
            self._numbers.append(self.next)
            self._parts.append(part)
        self.next += part.count

    def settle(self, first: int, last: int, code: int, body: bytes) -> None:
        """Sends the outcome of delivery numbers from `first` to before `last` to their senders."""
        numbers, parts = self._numbers, self._parts
        low = max(bisect_right(numbers, first) - 1, 0)
        high = low
        kept: list[tuple[int, DeliveredPart]] = []
        while high < len(numbers) and numbers[high] < last:
            number, part = numbers[high], parts[high]
            high += 1
            start, stop = max(first, number), min(last, number + part.count)
            if start >= stop:
                kept.append((number, part))
                continue
            part.sender.outcome(part.batch, part.first + start - number, stop - start, code, body)
            if number < start:
                kept.append((number, DeliveredPart(part.sender, part.batch, part.first, start - number)))
            if stop < number + part.count:
                left = number + part.count - stop
                kept.append((stop, DeliveredPart(part.sender, part.batch, part.first + stop - number, left)))
        numbers[low:high] = [number for number, _ in kept]
        parts[low:high] = [part for _, part in kept]
