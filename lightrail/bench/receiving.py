"""A process of receivers: one loop over all its connections.

The hot path is ``Receiver.take``: four calls of the C engine per message, one unpack and four comparisons.
Together with decoding, dispositions and the socket about 1.1 µs per message.

Receivers that are slow: each works on one message at a time, for a fixed time, before it settles it.
"""

import select
import struct
import time
from typing import Any, Final

from lightrail.bench import board as words
from lightrail.bench.arrivals import Arrivals
from lightrail.bench.board import Board
from lightrail.bench.engine import ACCEPTED, Connection, ffi, lib
from lightrail.bench.histogram import Histogram
from lightrail.bench.message import (
    MARKER,
    SEQUENCE_MAX,
    SIZE_MIN,
    STAMP,
    MalformedMessageError,
    Parsed,
    parse,
    run_of,
)
from lightrail.bench.pacing import SPIN_NS, Waiter
from lightrail.bench.plan import SLOW_CREDIT, Options, ReceiverResult, Share

NO_LENGTH: Final = -2
"""Stands for an unknown length: no read of the engine has this size."""
ROOM_BYTES: Final = 65_536
"""Bytes of the buffer beyond a body."""
_NONE: Final = -1
QUIET_NS: Final = 100_000_000
"""The longest wait for events; the board is read at least this often."""


class Incoming:
    """A receiving link: its credit, and whole messages, however many reads of the engine they need.

    Messages are accepted when they are read.
    """

    __slots__ = (
        "buffer",
        "capacity",
        "connection",
        "credit",
        "length",
        "link",
        "owed",
        "pieces",
        "settled",
        "start",
    )

    def __init__(self, connection: Connection, link: Any, options: Options, credit: int) -> None:
        self.connection = connection
        self.link = link
        self.settled = options.pre_settled
        self.credit = credit
        self.capacity = options.size + ROOM_BYTES
        self.buffer = bytearray(self.capacity)
        self.start: Any = ffi.from_buffer("char[]", self.buffer)
        self.length = NO_LENGTH
        """Bytes of a message of the known form; NO_LENGTH: unknown, or a message has arrived in part."""
        self.pieces = bytearray()
        """The part of a message that has arrived."""
        self.owed = 0
        """Messages since the last grant of credit."""

    def open_credit(self) -> None:
        """Grant the first credit."""
        lib.pn_link_flow(self.link, self.credit)

    def give_back(self, taken: int) -> None:
        """Grant credit for the messages read, once they are half of the credit."""
        self.owed += taken
        if self.owed * 2 >= self.credit:
            lib.pn_link_flow(self.link, self.owed)
            self.owed = 0

    def gather(self, size: int) -> bytearray | None:
        """Complete the message of which ``size`` bytes were just read; None when there is none."""
        link = self.link
        while True:
            handle = lib.pn_link_current(link)
            if not handle:
                return None
            if size > 0:
                self.pieces += self.buffer[:size]
                size = lib.pn_link_recv(link, self.start, self.capacity)
                continue
            if size == 0 or lib.pn_delivery_partial(handle):
                self.length = NO_LENGTH
                return None
            break
        whole, self.pieces = self.pieces, bytearray()
        aborted = size != lib.PN_EOS
        if not self.settled and not aborted:
            lib.pn_delivery_update(handle, ACCEPTED)
        lib.pn_delivery_settle(handle)
        return bytearray() if aborted else whole


class Receiver(Incoming):
    """One link and its arrivals."""

    __slots__ = ("arrivals", "foreign", "histogram", "last_of", "layout", "prefix", "received", "run")

    def __init__(
        self,
        connection: Connection,
        link: Any,
        share: Share,
        arrivals: Arrivals,
        histogram: Histogram,
        credit: int | None = None,
    ) -> None:
        """``credit`` replaces that of the options."""
        options = share.options
        super().__init__(connection, link, options, credit or options.credit)
        self.run = None if options.drain_only else share.run
        self.prefix = b""
        self.layout = struct.Struct(">0sQQQ")
        self.received = 0
        self.foreign = 0
        self.last_of: dict[int, int] = {}
        self.arrivals = arrivals
        self.histogram = histogram

    def take(self, now_ns: int, measure_from_ns: int) -> int:
        """Receive and accept the messages that have arrived; their number, foreign ones included."""
        read, current, settle = lib.pn_link_recv, lib.pn_link_current, lib.pn_delivery_settle
        update = lib.pn_delivery_update
        link, start, capacity, buffer = self.link, self.start, self.capacity, self.buffer
        accept = not self.settled
        unpack, prefix, length = self.layout.unpack_from, self.prefix, self.length
        run_origin = _NONE
        run_first = expected = stamp = 0
        same = taken = 0
        while True:
            size = read(link, start, capacity)
            if size == length:
                head, origin, sequence, sent_ns = unpack(buffer)
                if head == prefix:
                    handle = current(link)
                    if accept:
                        update(handle, ACCEPTED)
                    settle(handle)
                    taken += 1
                    if sequence != expected or origin != run_origin:
                        if run_origin != _NONE:
                            self.arrivals.note(self.last_of, run_origin, run_first, expected)
                        run_origin, run_first = origin, sequence
                    expected = sequence + 1
                    if sent_ns == stamp:
                        same += 1
                    else:
                        if same and stamp >= measure_from_ns > 0:
                            self.histogram.record(now_ns - stamp, same)
                        stamp, same = sent_ns, 1
                    continue
            whole = self.gather(size)
            if whole is None:
                break
            taken += 1
            if run_origin != _NONE:
                self.arrivals.note(self.last_of, run_origin, run_first, expected)
                run_origin = _NONE
            self._rare(whole, now_ns, measure_from_ns)
            unpack, prefix, length = self.layout.unpack_from, self.prefix, self.length
        if same and stamp >= measure_from_ns > 0:
            self.histogram.record(now_ns - stamp, same)
        if run_origin != _NONE:
            self.arrivals.note(self.last_of, run_origin, run_first, expected)
        self.give_back(taken)
        self.received += taken
        return taken

    def _rare(self, whole: bytearray, now_ns: int, measure_from_ns: int) -> None:
        """Read a message that differs in form from the one before, and store its form."""
        found = self.stamp_of(whole)
        if found is None:
            return
        parsed, origin, sequence, sent_ns = found
        if sent_ns >= measure_from_ns > 0:
            self.histogram.record(now_ns - sent_ns)
        if parsed.redelivered:
            self.arrivals.note_redelivered(origin, sequence)
            return
        self.arrivals.note(self.last_of, origin, sequence, sequence + 1)
        self.length = len(whole)
        self.prefix = bytes(whole[: parsed.body])
        self.layout = struct.Struct(f">{parsed.body}sQQQ")

    def stamp_of(self, whole: bytearray) -> tuple[Parsed, int, int, int] | None:
        """The offset of the body, origin, sequence number and time of a message of this run.

        None, and counted as foreign, for any other.
        """
        try:
            parsed = parse(whole)
        except (MalformedMessageError, IndexError):
            self.foreign += 1
            return None
        if parsed.size < SIZE_MIN:
            self.foreign += 1
            return None
        origin, sequence, sent_ns = STAMP.unpack_from(whole, parsed.body)
        ours = origin >> 48 == MARKER and (self.run is None or run_of(origin) == self.run)
        if not ours or sequence > SEQUENCE_MAX:
            self.foreign += 1
            return None
        return parsed, origin, sequence, sent_ns


class Receiving:
    """The loop."""

    counter = words.RECEIVED
    """Field of the board that counts received messages."""
    spin_ns = SPIN_NS

    def __init__(self, share: Share, board: Board) -> None:
        self.share = share
        self.board = board
        self.arrivals = Arrivals(ordered=not share.options.priorities)
        self.histogram = Histogram()
        options = share.options
        self.connections = [
            Connection(options.url, f"bench-{share.run:x}-receivers-{share.worker}-{i}")
            for i in range(share.connections)
        ]
        self.receivers: list[Receiver] = []
        for i, number in enumerate(share.links):
            connection = self.connections[i % share.connections]
            link = connection.attach_receiver(
                f"bench-{share.run:x}-receiver-{number}",
                options.address_of(number),
                options.pre_settled,
                options.selector,
            )
            receiver = self.receiver(connection, link, number)
            connection.links.append(receiver)
            self.receivers.append(receiver)
        self.waiter = Waiter()
        self.connection_of = {connection.fileno: connection for connection in self.connections}
        for connection in self.connections:
            self.waiter.register(connection.fileno)

    def receiver(self, connection: Connection, link: Any, number: int) -> Receiver:
        """The receiver at a link."""
        return Receiver(connection, link, self.share, self.arrivals, self.histogram)

    def wake_ns(self, now_ns: int) -> int:
        """When to check again if no socket has events."""
        return now_ns + QUIET_NS

    def take_due(self, now_ns: int, measure_from_ns: int) -> int:
        """Receive messages that receivers had postponed until now; their number."""
        return 0

    def run(self) -> ReceiverResult:
        """Receive until the board asks for the end."""
        shared = self.board.words
        received_at = self.board.index(self.share.worker, self.counter)
        last_at = self.board.index(self.share.worker, words.LAST_NS)
        clock = time.monotonic_ns
        received = foreign = 0
        next_tick = 0
        for receiver in self.receivers:
            receiver.open_credit()
        for connection in self.connections:
            connection.flush()
        blocked: set[int] = set()
        while not shared[words.RECEIVERS_STOP]:
            events = self.waiter.wait(self.wake_ns(clock()), self.spin_ns)
            now = clock()
            taken = self.take_due(now, shared[words.MEASURE_FROM])
            for fileno, event in events:
                connection = self.connection_of[fileno]
                if event & ~select.EPOLLOUT:
                    connection.receive()
                    now = clock()
                    measure_from = shared[words.MEASURE_FROM]
                    for receiver in connection.links:
                        number = receiver.take(now, measure_from)
                        taken += number
                        if not number:
                            connection.check_link(receiver.link)
                if not connection.flush():
                    blocked.add(fileno)
                    self.waiter.register(fileno, select.EPOLLIN | select.EPOLLOUT)
                elif fileno in blocked:
                    blocked.discard(fileno)
                    self.waiter.register(fileno)
            if taken:
                received += taken
                foreign = sum(receiver.foreign for receiver in self.receivers)
                shared[last_at] = now
                shared[received_at] = received - foreign
            if now >= next_tick:
                next_tick = now + 1_000_000_000
                for connection in self.connections:
                    connection.tick(now // 1_000_000)
        for connection in self.connections:
            connection.close()
        return ReceiverResult(self.arrivals, received - foreign, foreign, self.histogram)


class SlowReceiver(Receiver):
    """One link; a message stays in the engine until its time has passed."""

    __slots__ = ("done_ns", "time_ns")

    def __init__(
        self, connection: Connection, link: Any, share: Share, arrivals: Arrivals, histogram: Histogram
    ) -> None:
        credit = min(SLOW_CREDIT, share.options.credit)
        super().__init__(connection, link, share, arrivals, histogram, credit)
        self.time_ns = int(share.options.slow_time_s * 1e9)
        self.done_ns = 0
        """When the current message is done; 0: there is none."""

    def take(self, now_ns: int, measure_from_ns: int) -> int:
        """Begin with the next message, or accept the current one after its time; the number of accepted
        ones."""
        taken = 0
        if self.done_ns and now_ns >= self.done_ns:
            self.done_ns = 0
            whole = self.gather(lib.pn_link_recv(self.link, self.start, self.capacity))
            assert whole is not None, "a slow receiver begins with whole messages"
            taken = 1
            self._rare(whole, now_ns - self.time_ns, measure_from_ns)
            self.give_back(taken)
            self.received += taken
        if not self.done_ns and _is_whole(lib.pn_link_current(self.link)):
            self.done_ns = now_ns + self.time_ns
        return taken


def _is_whole(handle: Any) -> bool:
    return bool(handle) and not lib.pn_delivery_partial(handle)


class SlowReceiving(Receiving):
    """The loop; it wakes whenever a receiver is done with a message, as late as timers are."""

    spin_ns = 0

    def receiver(self, connection: Connection, link: Any, number: int) -> Receiver:
        """The receiver at a link."""
        return SlowReceiver(connection, link, self.share, self.arrivals, self.histogram)

    def wake_ns(self, now_ns: int) -> int:
        """When the next receiver is done."""
        times = [receiver.done_ns for receiver in self.receivers if isinstance(receiver, SlowReceiver)]
        return min(filter(None, [*times, super().wake_ns(now_ns)]))

    def take_due(self, now_ns: int, measure_from_ns: int) -> int:
        """Accept the messages whose time has passed."""
        taken = 0
        for receiver in self.receivers:
            number = receiver.take(now_ns, measure_from_ns)
            if number:
                taken += number
                receiver.connection.flush()
        return taken
