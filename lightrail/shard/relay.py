"""A relay: what the senders of a connection point send goes straight to its listeners; nothing is stored.

The listeners' credit is all there is: it is granted to the senders in fair shares, each message uses up some
of a sender's grant and some of a listener's credit, and the listener's outcome goes back to the sender. A
grant that is not used goes to those who wait for one. What comes without credit, because a listener went or
took its credit back while the message was on its way, is given back as released.

A listener's credit ends with so many bytes as well, so that one that does not read fills nobody's memory, and
its frontend passes the credit of its client on a window at a time. What comes for it meanwhile, for which its
client had given credit, waits here in its order; a message that is larger
than those bytes is reported, and comes when its frontend has made room. All that waits counts as parked in
this shard, as what waits for room in queues does; beyond that it is released, too.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

from lightrail.model import conditions, limits
from lightrail.namespace.records import Name
from lightrail.shard.memory import Memory
from lightrail.shard.peers import Peer
from lightrail.shard.queue.commands import UNBOUNDED
from lightrail.wire.bodies import ConsumerOpen, Refusal, SettleDetail
from lightrail.wire.frames import (
    ENQUEUE_COLUMNS,
    ENQUEUE_ENDS,
    HEADER_SIZE,
    Kind,
    OutcomeCode,
    deliver,
    frame,
)

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


class Sent:
    """What one batch of a sender has of messages that no listener has got."""

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

    def __init__(self, sender: Sender, part: bytes, messages: int, number: int) -> None:
        self.sender = sender
        self.number = number
        self.count = messages
        self.first = 0
        """The next message."""
        self.expires_at_ms, self.message_format, _size = ENQUEUE_COLUMNS.unpack_from(part, HEADER_SIZE)
        self._part = part
        self._base = ENQUEUE_ENDS + 4 * messages
        self._ends = memoryview(part)[ENQUEUE_ENDS : self._base].cast("I")

    @property
    def size(self) -> int:
        """Bytes that it takes in memory as long as one message is left."""
        return len(self._part)

    @property
    def left(self) -> int:
        """Messages."""
        return self.count - self.first

    def fitting(self, last: int, room: int) -> int:
        """The end of those messages before `last` that have at most `room` bytes."""
        return bisect_right(self._ends, self._start + room, self.first, last)

    def size_to(self, last: int) -> int:
        """Bytes of the messages from the next one to before `last`."""
        size: int = self._ends[last - 1] - self._start
        return size

    def take(self, last: int) -> tuple[int, memoryview, memoryview]:
        """Takes the messages before `last`: what their ends count from, these, and their bytes."""
        start, first = self._start, self.first
        self.first = last
        blob = memoryview(self._part)[self._base + start : self._base + self._ends[last - 1]]
        return start, self._ends[first:last], blob

    def release(self) -> None:
        """The sender has what is left back."""
        if self.left:
            self.sender.outcome(self.number, self.first, self.left, OutcomeCode.RELEASED, b"")
            self.first = self.count

    @property
    def _start(self) -> int:
        return self._ends[self.first - 1] if self.first else 0


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

    __slots__ = (
        "_exact",
        "_numbers",
        "_parts",
        "_room",
        "default",
        "draining",
        "expects_window",
        "is_full",
        "limit",
        "link",
        "next",
        "peer",
        "presettled",
        "relay",
    )

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
        self._room = UNBOUNDED
        """Bytes that it may be sent before its next CREDIT."""
        self._exact = 0
        """Half of the bytes of that CREDIT; 0 where a message may go beyond them."""
        self.is_full = False
        """Whether what it would get next goes beyond them."""
        self.draining = False
        self.expects_window = False
        """Whether its client has given credit beyond `limit`, for which another CREDIT comes."""

    @property
    def credit(self) -> int:
        """Messages that it would take, whatever their size."""
        return self.limit - self.next

    @property
    def is_ready(self) -> bool:
        return self.limit > self.next and not self.is_full

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is left of the messages or the bytes of its CREDIT."""
        return self.next >= self.limit or self.is_full

    def allow(self, limit: int, size: int, *, exact: bool, more: bool) -> None:
        """Credit: up to a delivery number, and so many bytes; `more` credit of the client follows later."""
        self.limit = max(limit, self.next)
        self.expects_window = more
        self._room = size
        self._exact = size >> 1 if exact else 0
        self.is_full = False

    def fitting(self, sent: Sent, last: int) -> int:
        """The end of those messages before `last` that it may be sent now; reports one that is too large."""
        found = sent.fitting(last, self._room)
        if found > sent.first:
            return found
        if not self._exact and self._room > 0:
            return sent.first + 1
        self.is_full = True
        # One that was sent half of its bytes gets new credit without a report.
        if self._room > self._exact or self.draining:
            kib = -(-sent.size_to(sent.first + 1) >> 10)
            self.peer.out.append(frame(Kind.LARGER, link=self.link, count=kib, number=self.next))
        return sent.first

    def used(self, size: int) -> None:
        """It was sent so many bytes."""
        self._room -= size

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

    __slots__ = ("_memory", "_sequence", "_waiting", "listeners", "name", "record", "senders")

    def __init__(self, record: Name, memory: Memory) -> None:
        self.name = record.name
        self.record = record
        self.listeners: deque[Listener] = deque()
        self.senders: deque[Sender] = deque()
        self._memory = memory
        self._sequence = count()
        self._waiting: deque[Sent] = deque()
        """For listeners that have credit and no room, in the order in which it came."""

    @property
    def credit(self) -> int:
        """Messages that the listeners would take now, beyond those that wait."""
        return sum(listener.credit for listener in self.listeners) - sum(sent.left for sent in self._waiting)

    def send(self, sender: Sender, part: bytes, messages: int, number: int, now_ms: int) -> None:
        """A batch goes to those with credit, in turn; what nobody has credit for is released."""
        sender.came += messages
        sender.used_ms = now_ms
        sent = Sent(sender, part, messages, number)
        if not self._waiting and self._pass_on(sent, now_ms):
            return
        memory = self._memory
        would = self._waiting or any(
            listener.credit or listener.expects_window for listener in self.listeners
        )
        # One message waits however large it is.
        if would and (not memory.parked or memory.parked + sent.size <= memory.parked_max):
            memory.park(sent.size)
            self._waiting.append(sent)
        else:
            sent.release()

    def go_on(self, now_ms: int) -> None:
        """Something may have changed: what waits goes to those who have room, or back where nobody listens.

        Credit that is taken back is no reason: a frontend does so while its client does not read.
        """
        if not self.listeners:
            self._give_back(lambda sent: True)
        while self._waiting and self._pass_on(self._waiting[0], now_ms):
            self._memory.park(-self._waiting.popleft().size)

    def _pass_on(self, sent: Sent, now_ms: int) -> bool:
        """Gives what is left of a batch to those with credit and room, in turn; True if nothing is left."""
        sender, messages = sent.sender, sent.count
        ready = [listener for listener in self.listeners if listener.is_ready]
        share = -(-sent.left // max(len(ready), 1))
        while sent.left and ready:
            for listener in ready:
                first = sent.first
                last = min(messages, first + min(share, listener.credit))
                if first == last or (last := listener.fitting(sent, last)) == first:
                    continue
                listener.used(sent.size_to(last))
                base, ends, blob = sent.take(last)
                listener.peer.out.append(
                    deliver(
                        listener.link,
                        1,
                        listener.next,
                        last - first,
                        now_ms,
                        next(self._sequence),
                        0,
                        sent.expires_at_ms,
                        now_ms,
                        sent.message_format,
                        base,
                        ends,
                        blob,
                    )
                )
                listener.hold(Part(sender, sent.number, first, last - first))
                if listener.presettled:
                    sender.outcome(sent.number, first, last - first, OutcomeCode.ACCEPTED, b"")
            ready = [listener for listener in ready if listener.is_ready]
        if len(self.listeners) > 1:
            self.listeners.rotate(-1)
        return not sent.left

    def share(self, now_ms: int) -> None:
        """Grants the senders what the listeners would take, in fair shares.

        When there is less credit than was granted, or some have none, grants that were not used for a while
        are taken back; what was sent meanwhile finds credit or comes back as released.
        """
        senders = self.senders
        if not senders:
            return
        credit = max(self.credit, 0)
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

    def forget(self, sender: Sender) -> None:
        """A sender goes: what waits of it has nobody who waits for its outcome."""
        self.senders.remove(sender)
        self._give_back(lambda sent: sent.sender is sender)

    def _give_back(self, which: Callable[[Sent], bool]) -> None:
        kept: deque[Sent] = deque()
        for sent in self._waiting:
            if which(sent):
                sent.release()
                self._memory.park(-sent.size)
            else:
                kept.append(sent)
        self._waiting = kept

    def end(self, refusal: Refusal) -> None:
        """The name is no connection point any more, or at another shard: all its links end here."""
        body = b"" if refusal.condition == conditions.MOVED else refusal.encode()
        self._give_back(lambda sent: True)
        kind = Kind.GONE if body else Kind.MOVED
        for listener in list(self.listeners):
            self.leave(listener, OutcomeCode.RELEASED, b"")
            listener.peer.listeners.pop(listener.link, None)
            listener.peer.out.append(frame(kind, link=listener.link, body=body))
        for sender in self.senders:
            sender.peer.senders.pop(sender.link, None)
            sender.peer.out.append(frame(kind, link=sender.link, body=body))
        self.senders.clear()
