"""A relay: what the senders of a connection point send goes straight to its listeners; nothing is stored.

The listeners' credit is all there is: it is granted to the senders in fair shares, each message uses up some
of a sender's grant and some of a listener's credit, and the listener's outcome goes back to the sender. A
grant that is not used goes to those who wait for one. What comes without credit, because a listener went or
took its credit back while the message was on its way, is given back as released.
"""

from bisect import bisect_right
from collections import deque
from itertools import count
from typing import Final

from lightrail.model import conditions, limits
from lightrail.namespace.records import Name
from lightrail.shard.peers import Peer
from lightrail.wire.frames import (
    ENQUEUE_COLUMNS,
    ENQUEUE_ENDS,
    HEADER_SIZE,
    Kind,
    OutcomeCode,
    deliver,
    frame,
)
from lightrail.wire.messages import ConsumerOpen, Refusal, SettleDetail

EVERYTHING: Final = 1 << 62
"""Beyond every delivery number."""


class Sender:
    """A sending link: how many messages it may send, and how many came."""

    __slots__ = ("came", "granted", "link", "peer", "relay", "used_ms")

    def __init__(self, relay: "Relay", peer: Peer, link: int, now_ms: int) -> None:
        self.relay = relay
        self.peer = peer
        self.link = link
        self.granted = 0
        """Messages that it may have sent since it was opened."""
        self.came = 0
        self.used_ms = now_ms
        """When it last sent something, or came."""

    @property
    def open(self) -> int:
        """Messages that it may still send."""
        return max(self.granted - self.came, 0)

    def grant(self, granted: int) -> None:
        """Tells it where it stands, where that is news."""
        if granted != self.granted:
            self.granted = granted
            self.peer.out.append(frame(Kind.GRANT, link=self.link, number=granted))

    def outcome(self, number: int, first: int, messages: int, code: int, body: bytes) -> None:
        """What became of messages of one of its batches."""
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


class Part:
    """Messages of a sender's batch that a listener has and has not settled."""

    __slots__ = ("batch", "count", "first", "sender")

    def __init__(self, sender: Sender, batch: int, first: int, messages: int) -> None:
        self.sender = sender
        self.batch = batch
        self.first = first
        self.count = messages


class Listener:
    """A receiving link: its credit, and what it has not settled, by delivery number."""

    __slots__ = ("_numbers", "_parts", "default", "limit", "link", "next", "peer", "presettled", "relay")

    def __init__(self, relay: "Relay", peer: Peer, link: int, options: ConsumerOpen) -> None:
        self.relay = relay
        self.peer = peer
        self.link = link
        self.limit = self.next = options.first
        self.presettled = options.presettled
        self.default = (
            options.default_outcome,
            SettleDetail(delivery_failed=options.default_failed).encode()
            if options.default_outcome in (OutcomeCode.REJECTED, OutcomeCode.MODIFIED)
            else b"",
        )
        self._numbers: list[int] = []
        self._parts: list[Part] = []

    @property
    def credit(self) -> int:
        return self.limit - self.next

    def hold(self, part: Part) -> None:
        """It was sent these messages."""
        if not self.presettled:
            self._numbers.append(self.next)
            self._parts.append(part)
        self.next += part.count

    def settle(self, first: int, last: int, code: int, body: bytes) -> None:
        """Delivery numbers from `first` to before `last` have their outcome: their senders are told."""
        numbers, parts = self._numbers, self._parts
        low = max(bisect_right(numbers, first) - 1, 0)
        high = low
        kept: list[tuple[int, Part]] = []
        while high < len(numbers) and numbers[high] < last:
            number, part = numbers[high], parts[high]
            high += 1
            start, stop = max(first, number), min(last, number + part.count)
            if start >= stop:
                kept.append((number, part))
                continue
            part.sender.outcome(part.batch, part.first + start - number, stop - start, code, body)
            if number < start:
                kept.append((number, Part(part.sender, part.batch, part.first, start - number)))
            if stop < number + part.count:
                left = number + part.count - stop
                kept.append((stop, Part(part.sender, part.batch, part.first + stop - number, left)))
        numbers[low:high] = [number for number, _ in kept]
        parts[low:high] = [part for _, part in kept]


class Relay:
    """A connection point: its listeners in turn, and its senders in turn."""

    __slots__ = ("_sequence", "listeners", "name", "record", "senders")

    def __init__(self, record: Name) -> None:
        self.name = record.name
        self.record = record
        self.listeners: deque[Listener] = deque()
        self.senders: deque[Sender] = deque()
        self._sequence = count()

    @property
    def credit(self) -> int:
        """Messages that the listeners would take now."""
        return sum(listener.credit for listener in self.listeners)

    def send(self, sender: Sender, part: bytes, messages: int, number: int, now_ms: int) -> None:
        """A batch goes to those with credit, in turn; what nobody has credit for is released."""
        sender.came += messages
        sender.used_ms = now_ms
        expires, message_format, _size = ENQUEUE_COLUMNS.unpack_from(part, HEADER_SIZE)
        base = ENQUEUE_ENDS + 4 * messages
        ends = memoryview(part)[ENQUEUE_ENDS:base].cast("I")
        first = 0
        ready = [listener for listener in self.listeners if listener.credit]
        share = -(-messages // max(len(ready), 1))
        while first < messages and ready:
            for listener in ready:
                last = min(messages, first + min(share, listener.credit))
                if first == last:
                    continue
                start = ends[first - 1] if first else 0
                listener.peer.out.append(
                    deliver(
                        listener.link,
                        1,
                        listener.next,
                        last - first,
                        next(self._sequence),
                        0,
                        expires,
                        now_ms,
                        message_format,
                        start,
                        ends[first:last],
                        memoryview(part)[base + start : base + ends[last - 1]],
                    )
                )
                listener.hold(Part(sender, number, first, last - first))
                if listener.presettled:
                    sender.outcome(number, first, last - first, OutcomeCode.ACCEPTED, b"")
                first = last
            ready = [listener for listener in ready if listener.credit]
        if len(self.listeners) > 1:
            self.listeners.rotate(-1)
        if first < messages:
            sender.outcome(number, first, messages - first, OutcomeCode.RELEASED, b"")

    def share(self, now_ms: int) -> None:
        """Grants the senders what the listeners would take, in fair shares.

        When there is less credit than was granted, or some have none, grants that were not used for a while
        are taken back; what was sent meanwhile finds credit or comes back as released.
        """
        senders = self.senders
        if not senders:
            return
        credit = self.credit
        granted = sum(sender.open for sender in senders)
        if granted > credit:
            for sender in senders:
                if granted <= credit:
                    break
                back = min(sender.open, granted - credit)
                granted -= back
                sender.grant(sender.granted - back)
        fair = max(credit // len(senders), 1)
        if granted >= credit and any(not sender.open for sender in senders):
            for sender in senders:
                if sender.open and now_ms - sender.used_ms >= limits.RELAY_IDLE_MS:
                    granted -= sender.open
                    sender.grant(sender.came)
                    sender.used_ms = now_ms  # It stands at the end of those that wait.
        free = credit - granted
        for sender in sorted(senders, key=lambda each: each.open):
            if free <= 0:
                break
            more = min(free, fair - sender.open)
            # Topped up when half of it is used, so that not every message costs a grant.
            if more > 0 and 2 * sender.open <= fair:
                free -= more
                sender.grant(max(sender.granted, sender.came) + more)
                senders.remove(sender)
                senders.append(sender)

    def leave(self, listener: Listener, code: int, body: bytes) -> None:
        """A listener goes: what it has not settled gets this outcome."""
        self.listeners.remove(listener)
        listener.settle(0, EVERYTHING, code, body)

    def end(self, refusal: Refusal) -> None:
        """The name is no connection point any more, or at another shard: all its links end here."""
        body = b"" if refusal.condition == conditions.MOVED else refusal.encode()
        kind = Kind.GONE if body else Kind.MOVED
        for listener in list(self.listeners):
            self.leave(listener, OutcomeCode.RELEASED, b"")
            listener.peer.listeners.pop(listener.link, None)
            listener.peer.out.append(frame(kind, link=listener.link, body=body))
        for sender in self.senders:
            sender.peer.senders.pop(sender.link, None)
            sender.peer.out.append(frame(kind, link=sender.link, body=body))
        self.senders.clear()
