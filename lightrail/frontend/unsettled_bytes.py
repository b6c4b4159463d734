"""Unsettled bytes: what a connection may have unsettled, and how much of that one receiving link has."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Final

from lightrail.model import limits

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.amqp.session import Session
    from lightrail.frontend.connection import ClientConnection

UNSETTLED_SLICE_BYTES: Final[int] = 1_024
"""Bytes that a slice of a batch counts for besides its messages until they are settled: objects of its
shard."""


RUNS_COUNTED_EVERY_MS: Final[int] = 20
SESSIONS_COUNTED: Final[int] = 16
"""Sessions whose runs are counted for each delivery; of more they are counted every RUNS_COUNTED_EVERY_MS."""


@dataclass(slots=True, eq=False, repr=False)
class UnsettledRuns:
    """Runs of unsettled deliveries of all sessions of a connection, whose memory counts, too."""

    _runs: int = 0
    """As last counted."""
    _counted_ms: int = 0

    def exceed(self, sessions: "Mapping[int, Session]", size: int, now_ms: int) -> bool:
        """Whether bytes of unsettled messages and runs of these sessions are above the connection's bound.

        A client of a thousand entities has as many sessions: while it is far below the bound, its runs are
        counted now and then, and not for each delivery. A link that has to wait is judged by a new count,
        since the client may have settled everything, and sends nothing more until it gets messages.
        """
        most = limits.CONNECTION_UNSETTLED_BYTES
        if (
            len(sessions) > SESSIONS_COUNTED
            and 0 <= now_ms - self._counted_ms < RUNS_COUNTED_EVERY_MS
            and size + self._runs * limits.UNSETTLED_RUN_BYTES <= most
        ):
            return False
        self._counted_ms = now_ms
        self._runs = sum(len(session.outgoing.ranges) for session in sessions.values())
        return size + self._runs * limits.UNSETTLED_RUN_BYTES > most


@dataclass(slots=True, eq=False, repr=False)
class UnsettledBytes:
    """The unsettled messages of a link, whose deliveries are numbered from 0 over its lifetime."""

    _connection: "ClientConnection"
    _link: "Link"
    _: KW_ONLY
    count: int = 0
    """Number of messages that the client has not settled."""
    _bytes: int = 0
    """Bytes of these messages, including the overhead of their slices."""
    _base: int = 0
    """Deliveries below this number are from a shard process that has ended since."""
    _lapsed: int = 0
    """Deliveries below this number no longer count: their locks have ended (`lapse`)."""

    def add(self, count: int, size: int) -> None:
        """Counts a slice that was sent unsettled."""
        self.count += count
        size += UNSETTLED_SLICE_BYTES
        self._bytes += size
        self._connection.unsettled_bytes += size

    def _remove(self, count: int) -> None:
        """Subtracts `count` settled messages; the bytes of each are not known, only their sum."""
        if count < self.count:
            size = self._bytes * count // self.count
        else:
            count, size = self.count, self._bytes
        self.count -= count
        self._bytes -= size
        self._connection.unsettled_bytes -= size

    def exceeds_share(self) -> bool:
        """Whether the link has more than its share of the bytes that its connection may have unsettled.

        Without shares a link whose client settles nothing would stop all others of the connection. The runs
        of the session are those of all its links: of them this link has at most one for each message.
        """
        runs = min(self.count, len(self._link.session.outgoing.ranges))
        size = self._bytes + runs * limits.UNSETTLED_RUN_BYTES
        return size * self._connection.consumers > limits.CONNECTION_UNSETTLED_BYTES

    # --- locks that have ended -------------------------------------------------------------------------

    def lapse(self, before: int) -> None:
        """The locks of deliveries numbered below `before` have ended: their messages are in the queue again.

        A client may never settle such a delivery, so it must not count for ever.
        """
        if before > self._lapsed:
            unsettled = self._link.session.outgoing
            self._remove(unsettled.count_numbered(self._link, self._lapsed, before - 1))
            self._lapsed = before

    def recount(self, first: int, last: int) -> None:
        """Deliveries that lapsed count again: the client settles them, and `_remove` subtracts them."""
        lapsed = min(last + 1, self._lapsed) - max(first, self._base)
        if lapsed > 0:
            size = self._bytes * lapsed // self.count if self.count else 0
            self.count += lapsed
            self._bytes += size
            self._connection.unsettled_bytes += size

    def _remove_range(self, first: int, last: int) -> None:
        """Subtracts a range of settled messages, of which those that lapsed are subtracted already."""
        self._remove(max(0, last + 1 - max(first, self._lapsed)))
