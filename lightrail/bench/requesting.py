"""A process of requesters: each sends a request, waits for the reply to it, and sends the next one.

A reply belongs to a request when its correlation-id is the request's message-id, as in applications; the
check is that its body is the request's as well.

Replies: the request's reply-to, message-id and body are its address, correlation-id and body.

::

    [header 00 53 70 c0 02 01 41]                      when durable (spec 3.2.1)
    00 53 73 list  to (field 2), correlation-id (5)    properties (spec 3.2.4)
    00 53 75 a0 len | 00 53 75 b0 len4                 data section (spec 3.2.6), as in the request

A process of responders: each receives requests, accepts them, and sends replies to their reply-to.
"""

import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from lightrail.bench import board as words
from lightrail.bench.arrivals import Arrivals
from lightrail.bench.board import Board
from lightrail.bench.engine import ACCEPTED, OUTCOMES, Connection, ffi, lib
from lightrail.bench.histogram import Histogram
from lightrail.bench.message import MalformedMessageError, Parsed, data_section, descriptor, skip
from lightrail.bench.numbered import message_id
from lightrail.bench.plan import ReceiverResult, RequesterResult, ResponderResult, SenderResult, Share
from lightrail.bench.receiving import Receiver, Receiving
from lightrail.bench.sending import Sender, Sending
from lightrail.bench.values import NULL, listed

PROPERTIES: Final = 0x73
MESSAGE_ID: Final = 0
TO: Final = 2
REPLY_TO: Final = 4
CORRELATION_ID: Final = 5
"""Indexes in the list of properties."""
_DURABLE_HEADER: Final = bytes.fromhex("005370c00201" + "41")
_PROPERTIES: Final = bytes.fromhex("005373")


@dataclass(frozen=True, slots=True)
class Reply:
    """A message and its address."""

    address: str
    octets: bytes


def properties(message: bytes | bytearray) -> list[bytes]:
    """The fields of a message's properties, each as it is encoded; raises MalformedMessageError."""
    position, end = 0, len(message)
    while position < end:
        code, start = descriptor(message, position)
        stop = skip(message, start)
        if code == PROPERTIES:
            return _fields(message, start, stop)
        if code > PROPERTIES:
            break
        position = stop
    return []


def _fields(message: bytes | bytearray, start: int, stop: int) -> list[bytes]:
    if message[start] == 0x45:
        return []
    position = start + (3 if message[start] == 0xC0 else 9)
    fields = []
    while position < stop:
        end = skip(message, position)
        fields.append(bytes(message[position:end]))
        position = end
    return fields


def text_of(fields: list[bytes], index: int) -> str | None:
    """A field that is a text; None when it is missing or something else."""
    field = fields[index] if index < len(fields) else NULL
    if field[0] == 0xA1:
        return field[2:].decode()
    return field[5:].decode() if field[0] == 0xB1 else None


def reply_to(request: bytearray, parsed: Parsed, durable: bool) -> Reply:
    """The reply to a request; raises MalformedMessageError when the request asks for none."""
    fields = properties(request)
    address = text_of(fields, REPLY_TO)
    if address is None or fields[MESSAGE_ID] == NULL:
        raise MalformedMessageError("expected a request with a message-id and a reply-to, found none")
    sent = [NULL] * (CORRELATION_ID + 1)
    sent[TO], sent[CORRELATION_ID] = fields[REPLY_TO], fields[MESSAGE_ID]
    body = bytes(request[parsed.body : parsed.body + parsed.size])
    head = _DURABLE_HEADER if durable else b""
    return Reply(address, head + _PROPERTIES + listed(sent) + data_section(len(body)) + body)


LATE_DUPLICATES_NS: Final = 100_000_000
"""How long requesters go on after all replies have arrived, to find duplicates."""


class Replies(Receiver):
    """The link by which a requester receives replies."""

    __slots__ = ("awaited", "origin")

    def __init__(
        self, connection: Connection, link: Any, share: Share, arrivals: Arrivals, histogram: Histogram
    ):
        super().__init__(connection, link, share, arrivals, histogram)
        self.origin = 0
        """The origin of the requester."""
        self.awaited: int | None = None
        """The request that waits for its reply."""

    def _rare(self, whole: bytearray, now_ns: int, measure_from_ns: int) -> None:
        """Read a reply; each has a form of its own."""
        found = self.stamp_of(whole)
        if found is None:
            return
        parsed, origin, sequence, sent_ns = found
        if origin != self.origin or text_of(properties(whole), CORRELATION_ID) != message_id(
            origin, sequence
        ):
            self.arrivals.note_misdirected(self.origin, origin, sequence)
            return
        if sent_ns >= measure_from_ns > 0:
            self.histogram.record(now_ns - sent_ns)
        if parsed.redelivered:
            self.arrivals.note_redelivered(origin, sequence)
        else:
            self.arrivals.note(self.last_of, origin, sequence, sequence + 1)
        if sequence == self.awaited:
            self.awaited = None


class Requester(Sender):
    """Sends a request as soon as the one before has its reply."""

    __slots__ = ("replies",)

    def __init__(
        self, connection: Connection, number: int, share: Share, histogram: Histogram, replies: Replies
    ) -> None:
        super().__init__(connection, number, share, histogram, share.options.reply_address_of(number))
        self.replies = replies
        replies.origin = self.origin

    def send(self, now_ns: int, most: int) -> int:
        """Pass a request to the engine if none is open; the number of requests."""
        if self.replies.awaited is not None:
            return 0
        number = super().send(now_ns, min(most, 1))
        if number:
            self.replies.awaited = self.sequence - 1
        return number

    def may_send(self) -> bool:
        """Whether only its pace delays the next message."""
        return self.replies.awaited is None and super().may_send()

    def _is_final(self, handle: Any, sequence: int) -> bool:
        """As of `Sender`; a request that was not accepted gets no reply."""
        final = super()._is_final(handle, sequence)
        if final and sequence == self.replies.awaited:
            self.replies.awaited = None
        return final


class Requesting(Sending):
    """The loop, with the replies."""

    def __init__(self, share: Share, board: Board) -> None:
        self.arrivals = Arrivals()
        self.round_trips = Histogram()
        self.replies: dict[Connection, list[Replies]] = {}
        self.received = 0
        super().__init__(share, board)

    def sender(self, connection: Connection, number: int) -> Sender:
        """One of the requesters."""
        share, options = self.share, self.share.options
        name = f"bench-{share.run:x}-replies-{number}"
        link = connection.attach_receiver(name, options.reply_address_of(number), options.pre_settled)
        replies = Replies(connection, link, share, self.arrivals, self.round_trips)
        replies.open_credit()
        self.replies.setdefault(connection, []).append(replies)
        return Requester(connection, number, share, self.accepted_after, replies)

    def take_replies(self, connection: Connection, now_ns: int) -> None:
        """Read the replies that have arrived, and count them on the board."""
        shared, worker = self.board.words, self.share.worker
        taken = 0
        for replies in self.replies[connection]:
            number = replies.take(now_ns, shared[words.MEASURE_FROM])
            taken += number
            if not number:
                connection.check_link(replies.link)
        if taken:
            self.received += taken
            shared[self.board.index(worker, words.RECEIVED)] = self.received - self._foreign()
            shared[self.board.index(worker, words.LAST_NS)] = now_ns

    def is_answered(self) -> bool:
        """Whether no requester waits for a reply."""
        return all(one.awaited is None for several in self.replies.values() for one in several)

    def run(self) -> RequesterResult:
        """Send requests until the count is reached or the board asks for the end, then wait for the
        replies."""
        requests = super().run()
        foreign = self._foreign()
        replies = ReceiverResult(self.arrivals, self.received - foreign, foreign, self.round_trips)
        return RequesterResult(requests.senders, requests.accepted_after, replies)

    def _foreign(self) -> int:
        return sum(one.foreign for several in self.replies.values() for one in several)

    def _close(self) -> SenderResult:
        end = time.monotonic_ns() + LATE_DUPLICATES_NS
        while (now := time.monotonic_ns()) < end:
            for fileno, _ in self.waiter.wait(end, spin_ns=0):
                connection = self.connection_of[fileno]
                connection.receive()
                self.take_replies(connection, now)
                connection.flush()
        return super()._close()


ANONYMOUS_RELAY: Final = "ANONYMOUS-RELAY"
"""Capability of brokers that have the anonymous terminus (Anonymous Terminus for Message Routing 1.0)."""
_TAG: Final = struct.Struct(">I")


class Replier:
    """Sends the replies of one responder, and counts their outcomes.

    As client libraries do: by the anonymous terminus where the broker has it, else by a link for each queue.
    """

    def __init__(self, connection: Connection, number: int, share: Share) -> None:
        options = share.options
        self.settled, self.durable = options.pre_settled, options.durable
        name = f"bench-{share.run:x}-replier-{number}"
        self.anonymous: Any = None
        self.links: dict[str, Any] = {}
        if connection.offers(ANONYMOUS_RELAY):
            self.anonymous = connection.attach_sender(name, None, self.settled)
        else:
            for requester in range(options.senders):
                address = options.reply_address_of(requester)
                self.links[address] = connection.attach_sender(f"{name}-{requester}", address, self.settled)
        self.connection = connection
        self.waiting: deque[Reply] = deque()
        """Replies for which there is no credit yet."""
        self.unsettled: deque[Any] = deque()
        self.not_accepted: dict[str, int] = {}
        self.sent = 0
        self.tag: Any = ffi.new("char[]", _TAG.size)

    def link_to(self, address: str) -> Any:
        """The link for a reply; None when no requester of this run waits there."""
        return self.links.get(address) if self.anonymous is None else self.anonymous

    def send(self) -> None:
        """Pass replies to the engine as far as there is credit."""
        while self.waiting:
            reply = self.waiting[0]
            link = self.link_to(reply.address)
            if lib.pn_link_credit(link) <= 0:
                self.connection.check_link(link)
                return
            self.waiting.popleft()
            _TAG.pack_into(ffi.buffer(self.tag), 0, self.sent & 0xFFFFFFFF)
            handle = lib.pn_delivery(link, (_TAG.size, self.tag))
            lib.pn_link_send(link, reply.octets, len(reply.octets))
            self.sent += 1
            if self.settled:
                lib.pn_delivery_settle(handle)
            else:
                self.unsettled.append(handle)
                lib.pn_link_advance(link)

    def collect(self) -> None:
        """Settle the oldest replies that have outcomes."""
        while self.unsettled:
            handle = self.unsettled[0]
            state = lib.pn_delivery_remote_state(handle)
            if state != ACCEPTED:
                if not lib.pn_delivery_settled(handle) and state in (0, 0x23):
                    return
                name = OUTCOMES.get(state, "settled without an outcome")
                self.not_accepted[name] = self.not_accepted.get(name, 0) + 1
            lib.pn_delivery_settle(handle)
            self.unsettled.popleft()


class Responder(Receiver):
    """One link of requests."""

    __slots__ = ("replier",)

    def __init__(
        self,
        connection: Connection,
        link: Any,
        share: Share,
        arrivals: Arrivals,
        histogram: Histogram,
        replier: Replier,
    ) -> None:
        super().__init__(connection, link, share, arrivals, histogram)
        self.replier = replier

    def take(self, now_ns: int, measure_from_ns: int) -> int:
        """Receive, accept and answer the requests that have arrived; the number of messages, foreign ones
        included."""
        taken = super().take(now_ns, measure_from_ns)
        self.replier.collect()
        self.replier.send()
        return taken

    def _rare(self, whole: bytearray, now_ns: int, measure_from_ns: int) -> None:
        """Queue the reply to a request; each request has a form of its own."""
        found = self.stamp_of(whole)
        if found is None:
            return
        try:
            reply = reply_to(whole, found[0], self.replier.durable)
        except MalformedMessageError:
            self.foreign += 1
            return
        if self.replier.link_to(reply.address) is None:
            self.foreign += 1
            return
        self.replier.waiting.append(reply)


class Responding(Receiving):
    """The loop."""

    counter = words.ANSWERED

    def receiver(self, connection: Connection, link: Any, number: int) -> Receiver:
        """The responder at a link."""
        replier = Replier(connection, number, self.share)
        return Responder(connection, link, self.share, self.arrivals, self.histogram, replier)

    def run(self) -> ResponderResult:
        """Answer until the board asks for the end."""
        done = super().run()
        not_accepted: dict[str, int] = {}
        for receiver in self.receivers:
            assert isinstance(receiver, Responder)
            for name, count in receiver.replier.not_accepted.items():
                not_accepted[name] = not_accepted.get(name, 0) + count
        return ResponderResult(done.arrivals, done.received, done.foreign, done.latency, not_accepted)
