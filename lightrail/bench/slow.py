"""Receivers that are slow: each works on one message at a time, for a fixed time, before it settles it."""

from typing import Any

from lightrail.bench.arrivals import Arrivals
from lightrail.bench.engine import Connection, lib
from lightrail.bench.histogram import Histogram
from lightrail.bench.plan import SLOW_CREDIT, Share
from lightrail.bench.receiving import Receiver, Receiving


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
