"""A process of senders: one loop over all its connections.

The hot path is ``Sender.send``: pack the stamp in place, then three calls of the C engine; and
``Sender.collect``: two calls per outcome. Together with encoding and the socket about 1.1 µs per message.
"""

import select
import time
from dataclasses import replace
from typing import Any, Final

from lightrail.bench import board as words
from lightrail.bench.application import sizes
from lightrail.bench.board import Board
from lightrail.bench.engine import ACCEPTED, OUTCOMES, Connection, ffi, lib
from lightrail.bench.histogram import Histogram
from lightrail.bench.message import STAMP, Template, build, origin_of
from lightrail.bench.pacing import SPIN_NS, Pace, Waiter
from lightrail.bench.plan import Options, SenderResult, Sent, Share

BATCH_MESSAGES: Final = 128
"""Messages sent by one sender in one turn."""
BATCH_BYTES: Final = 256 * 1024
BACKLOG_POLL_NS: Final = 300_000
"""How often a sender that waits for the receivers reads their counters."""
OUTGOING_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes that may wait in a session: with the broker's credit alone, large messages could fill the memory."""


class Form:
    """A message that is overwritten in place, with pointers of the engine to its octets and its
    delivery-tag."""

    __slots__ = ("buffer", "digits", "length", "stamp_at", "start", "tag")

    def __init__(self, template: Template) -> None:
        self.buffer, self.stamp_at, self.digits = template.buffer, template.stamp_at, template.digits
        self.length = len(self.buffer)
        self.start: Any = ffi.from_buffer("char[]", self.buffer)
        tag = ffi.new("pn_bytes_t *")
        tag.start = self.start + self.stamp_at + 12  # the lower half of the sequence number
        tag.size = 4
        self.tag: Any = tag[0]


def pace_of(options: Options, number: int) -> Pace | None:
    """The pace of a sender; None: as fast as credit allows."""
    slow = options.slow
    if number < slow:
        return Pace(options.slow_rate * slow, slow, number)
    return None if options.rate is None else Pace(options.rate, options.senders - slow, number - slow)


class Sender:
    """One link, and the messages on it that have no outcome yet."""

    __slots__ = (
        "accepted_after", "batch_max", "batches", "connection", "count", "forms", "is_numbered", "length",
        "link", "origin", "outcomes", "pace", "sequence", "settled", "unsettled", "unsettled_max",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        number: int,
        share: Share,
        histogram: Histogram,
        reply_to: str | None = None,
    ) -> None:
        """``reply_to`` is written into each message."""
        options = share.options
        self.connection = connection
        self.origin = origin_of(share.run, number)
        self.link = connection.attach_sender(
            f"bench-{share.run:x}-sender-{number}", options.target_of(number), options.pre_settled
        )
        self.count = options.count_of(number)
        self.settled = options.pre_settled
        self.unsettled_max = options.unsettled_max
        body_sizes = sizes(self.origin) if options.application else [options.size]
        numbered = replace(options.numbered, reply_to=reply_to)
        self.forms = [Form(build(size, options.durable, numbered, self.origin)) for size in body_sizes]
        self.is_numbered = bool(self.forms[0].digits)
        self.length = max(form.length for form in self.forms)
        self.batch_max = max(1, min(BATCH_MESSAGES, BATCH_BYTES // self.length))
        self.pace = pace_of(options, number)
        self.sequence = 0
        self.unsettled: list[Any] = []
        """Deliveries in the order of sending; the first one's number is sequence - len."""
        self.batches: list[tuple[int, int]] = []
        """(sequence after the batch, ns it was sent) of what is unsettled."""
        self.outcomes: dict[str, list[tuple[int, int]]] = {}
        self.accepted_after = histogram

    def send(self, now_ns: int, most: int) -> int:
        """Pass the messages that are due to the engine, ``most`` at most; their number."""
        number: int = min(lib.pn_link_credit(self.link), self.batch_max, most)
        first = self.sequence
        if self.count is not None:
            number = min(number, self.count - first)
        if self.pace is not None:
            number = min(number, self.pace.due(now_ns))
        if self.unsettled_max:
            number = min(number, self.unsettled_max - len(self.unsettled))
        if number <= 0:
            return 0
        if number * self.length > 65_536 and (
            lib.pn_session_outgoing_bytes(self.connection.session) > OUTGOING_BYTES_MAX
        ):
            return 0
        delivery, write, finish = lib.pn_delivery, lib.pn_link_send, lib.pn_link_advance
        form = self.forms[0]
        pack, buffer, at, origin = STAMP.pack_into, form.buffer, form.stamp_at, self.origin
        link, tag, start, length = self.link, form.tag, form.start, form.length
        keep = self.unsettled.append
        intended = now_ns
        pace = self.pace
        if self.is_numbered:
            self._send_numbered(first, number, now_ns)
        elif self.settled:
            settle = lib.pn_delivery_settle
            for sequence in range(first, first + number):
                if pace is not None:
                    intended = pace.intended_ns(sequence)
                pack(buffer, at, origin, sequence, intended)
                handle = delivery(link, tag)
                write(link, start, length)
                settle(handle)
        elif pace is not None:
            for sequence in range(first, first + number):
                pack(buffer, at, origin, sequence, pace.intended_ns(sequence))
                keep(delivery(link, tag))
                write(link, start, length)
                finish(link)
        else:
            for sequence in range(first, first + number):
                pack(buffer, at, origin, sequence, intended)
                keep(delivery(link, tag))
                write(link, start, length)
                finish(link)
        self.sequence = first + number
        if pace is not None:
            pace.sent += number
        if not self.settled:
            self.batches.append((self.sequence, now_ns))
        return number

    def _send_numbered(self, first: int, number: int, now_ns: int) -> None:
        """As ``send``, for messages with digits to overwrite."""
        forms = self.forms
        for sequence in range(first, first + number):
            intended = now_ns if self.pace is None else self.pace.intended_ns(sequence)
            form = forms[sequence % len(forms)]
            STAMP.pack_into(form.buffer, form.stamp_at, self.origin, sequence, intended)
            for each in form.digits:
                each.write(form.buffer, sequence)
            handle = lib.pn_delivery(self.link, form.tag)
            lib.pn_link_send(self.link, form.start, form.length)
            if self.settled:
                lib.pn_delivery_settle(handle)
            else:
                self.unsettled.append(handle)
                lib.pn_link_advance(self.link)

    def collect(self, now_ns: int, measure: bool) -> int:
        """Settle the oldest messages that have outcomes; their number."""
        state, settle = lib.pn_delivery_remote_state, lib.pn_delivery_settle
        unsettled = self.unsettled
        done = 0
        for handle in unsettled:
            if state(handle) != ACCEPTED and not self._is_final(
                handle, self.sequence - len(unsettled) + done
            ):
                break
            settle(handle)
            done += 1
        if done:
            before = self.sequence - len(unsettled)
            del unsettled[:done]
            self._count_batches(before, before + done, now_ns, measure)
        return done

    def _is_final(self, handle: Any, sequence: int) -> bool:
        """Whether a message that was not accepted has its final outcome, which is then recorded."""
        state = lib.pn_delivery_remote_state(handle)
        if not lib.pn_delivery_settled(handle) and state in (0, 0x23):
            return False
        name = OUTCOMES.get(state, "settled without an outcome")
        ranges = self.outcomes.setdefault(name, [])
        if ranges and ranges[-1][1] == sequence - 1:
            ranges[-1] = (ranges[-1][0], sequence)
        else:
            ranges.append((sequence, sequence))
        return True

    def _count_batches(self, before: int, after: int, now_ns: int, measure: bool) -> None:
        batches = self.batches
        while batches:
            end, sent_ns = batches[0]
            part = min(end, after) - before
            if measure and part:
                self.accepted_after.record(now_ns - sent_ns, part)
            before += part
            if end > after:
                return
            del batches[0]

    def may_send(self) -> bool:
        """Whether only its pace delays the next message."""
        if self.unsettled_max and len(self.unsettled) >= self.unsettled_max:
            return False
        return bool(lib.pn_link_credit(self.link) > 0)

    @property
    def finished(self) -> bool:
        """Whether all of its messages were sent."""
        return self.count is not None and self.sequence >= self.count

    def result(self) -> Sent:
        """The outcomes of all messages, at the end."""
        if self.unsettled:
            first = self.sequence - len(self.unsettled)
            self.outcomes["unanswered"] = [(first, self.sequence - 1)]
        return Sent(self.sequence, self.outcomes)


class Sending:
    """The loop."""

    def __init__(self, share: Share, board: Board) -> None:
        self.share = share
        self.board = board
        self.accepted_after = Histogram()
        self.sent = self.settled = 0
        self._blocked: set[int] = set()
        """Sockets with unwritten output; they are watched for room as well."""
        options = share.options
        self.connections = [
            Connection(options.url, f"bench-{share.run:x}-senders-{share.worker}-{i}")
            for i in range(share.connections)
        ]
        self.senders: list[Sender] = []
        for i, number in enumerate(share.links):
            connection = self.connections[i % share.connections]
            sender = self.sender(connection, number)
            connection.links.append(sender)
            self.senders.append(sender)
        self.waiter = Waiter()
        self.connection_of = {connection.fileno: connection for connection in self.connections}
        for connection in self.connections:
            connection.socket.setblocking(False)
            self.waiter.register(connection.fileno)

    def sender(self, connection: Connection, number: int) -> Sender:
        """One of the senders."""
        return Sender(connection, number, self.share, self.accepted_after)

    def take_replies(self, connection: Connection, now_ns: int) -> None:
        """Read messages of other links of the connection; senders have none."""

    def is_answered(self) -> bool:
        """Whether no reply is outstanding."""
        return True

    def run(self) -> SenderResult:
        """Send until the count is reached or the board asks for the end, then wait for the outcomes."""
        shared = self.board.words
        sent_at = self.board.index(self.share.worker, words.SENT)
        settled_at = self.board.index(self.share.worker, words.SETTLED)
        last_at = self.board.index(self.share.worker, words.LAST_NS)
        backlog_max = 0 if self.share.slow else self.share.options.backlog_max
        spin_ns = 0 if self.share.slow else SPIN_NS
        self._wait_for_start()
        next_tick = 0
        active = list(self.senders)
        while True:
            now = time.monotonic_ns()
            measure = 0 < shared[words.MEASURE_FROM] <= now
            stop = shared[words.SENDERS_STOP]
            most = 1 << 62
            if backlog_max:
                most = backlog_max - (self.board.fast(words.SENT) - self.board.fast(words.RECEIVED))
            if stop:
                active = []
            number = self._send(active, now, most)
            if number:
                self.sent += number
                shared[sent_at] = self.sent
                shared[last_at] = now
            elif active and active[-1].finished:
                active = [sender for sender in active if not sender.finished]
            if (not active and self.settled >= self.sent and self.is_answered()) or stop == 2:
                break
            if number:
                events = self.waiter.wait(0)
            elif most <= 0:
                events = self.waiter.wait(now + BACKLOG_POLL_NS, spin_ns=0)
            else:
                events = self.waiter.wait(self._wake_ns(active, now), spin_ns)
            now = self._receive(events, now, measure)
            shared[settled_at] = self.settled
            if now >= next_tick:
                next_tick = now + 1_000_000_000
                for connection in self.connections:
                    connection.tick(now // 1_000_000)
        return self._close()

    def _wait_for_start(self) -> None:
        start_ns = self.board.words[words.START]
        for sender in self.senders:
            if sender.pace is not None:
                sender.pace.start_ns = start_ns
        self.waiter.sleep_until(start_ns)

    def _send(self, active: list[Sender], now_ns: int, most: int) -> int:
        """Send what is due of the active senders, ``most`` messages at most; the number of messages."""
        left = most
        for sender in active:
            connection = sender.connection
            if connection.unsent:
                continue
            number = sender.send(now_ns, left)
            if number:
                left -= number
                if not connection.flush():
                    self._blocked.add(connection.fileno)
                    self.waiter.register(connection.fileno, select.EPOLLIN | select.EPOLLOUT)
        return most - left

    def _receive(self, events: list[tuple[int, int]], now_ns: int, measure: bool) -> int:
        """Read the sockets that have input, and collect outcomes; returns the time at the end."""
        for fileno, event in events:
            connection = self.connection_of[fileno]
            if event & ~select.EPOLLOUT:
                connection.receive()
            now_ns = time.monotonic_ns()
            for sender in connection.links:
                done = sender.collect(now_ns, measure)
                self.settled += done
                if not done:
                    connection.check_link(sender.link)
            self.take_replies(connection, now_ns)
            if connection.flush() and fileno in self._blocked:
                self._blocked.discard(fileno)
                self.waiter.register(fileno)
        if self.share.options.pre_settled and not any(each.unsent for each in self.connections):
            self.settled = self.sent
        return now_ns

    def _wake_ns(self, active: list[Sender], now_ns: int) -> int:
        """Time of the next work even if no socket has events."""
        wake = now_ns + 100_000_000
        for sender in active:
            pace = sender.pace
            if pace is not None and sender.may_send():
                wake = min(wake, pace.intended_ns(pace.sent))
        return wake

    def _close(self) -> SenderResult:
        senders = {sender.origin: sender.result() for sender in self.senders}
        for connection in self.connections:
            connection.close()
        return SenderResult(senders, self.accepted_after)
