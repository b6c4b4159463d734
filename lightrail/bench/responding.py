"""A process of responders: each receives requests, accepts them, and sends replies to their reply-to."""

import struct
from collections import deque
from typing import Any, Final

from lightrail.bench import board as words
from lightrail.bench.arrivals import Arrivals
from lightrail.bench.engine import ACCEPTED, OUTCOMES, Connection, ffi, lib
from lightrail.bench.histogram import Histogram
from lightrail.bench.message import MalformedMessageError
from lightrail.bench.plan import ResponderResult, Share
from lightrail.bench.receiving import Receiver, Receiving
from lightrail.bench.reply import Reply, reply_to

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
