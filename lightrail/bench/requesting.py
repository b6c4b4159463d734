"""A process of requesters: each sends a request, waits for the reply to it, and sends the next one.

A reply belongs to a request when its correlation-id is the request's message-id, as in applications; the
check is that its body is the request's as well.
"""

import time
from typing import Any, Final

from lightrail.bench import board as words
from lightrail.bench.arrivals import Arrivals
from lightrail.bench.board import Board
from lightrail.bench.engine import Connection
from lightrail.bench.histogram import Histogram
from lightrail.bench.numbered import message_id
from lightrail.bench.plan import ReceiverResult, RequesterResult, SenderResult, Share
from lightrail.bench.receiving import Receiver
from lightrail.bench.reply import CORRELATION_ID, properties, text_of
from lightrail.bench.sending import Sender, Sending

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
