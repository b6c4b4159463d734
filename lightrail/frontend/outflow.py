"""The outflow: bounds the bytes that wait for clients to read them, or are in transit from shards.

Each connection has a room: the number of bytes that may wait for its socket before its shards get no more
credit; twice as many may be in transit from them. A room begins small and doubles each time that a receiver
uses half of its window, as long as the process has bytes left; it is never more than a part of the rest, so
that later connections have room as well (the dynamic threshold of shared-memory switches, Choudhury and
Hahne, 1998). Answers to a peer that does not read are lent room from the same bytes.

No work here is done per message or write. A room is reconsidered when half of a window has been delivered,
and when a buffer has passed its mark.
"""

from collections.abc import Callable
from typing import Final, Protocol

from lightrail.frontend.reservations import LargeReceiver, Reservations
from lightrail.model import limits

FRONTEND_UNREAD_BYTES: Final[int] = 128 * 1024 * 1024
"""Bytes of a frontend that wait for clients that do not read, beyond WRITE_ROOM_MIN of each, or are on the
way to them; beyond, buffers and windows stay small."""
WRITE_ANSWERS_BYTES: Final[int] = 4 * 1024 * 1024
"""Bytes of answers that may wait, beyond WRITE_HIGH_WATER, for a peer that keeps sending; they count in
FRONTEND_UNREAD_BYTES. Beyond, the peer's socket is not read until the peer reads."""
ROOMS: Final = 2 + 2 * limits.DELIVERY_WINDOW_BYTES // limits.WRITE_HIGH_WATER
"""Bytes that a connection may use, in rooms: one in the socket's buffer, a window in transit from its shards,
one for messages that are larger than their link's part of the window (reservations.py), and a piece as large
as a window of which the kernel has accepted all but the end: it stays in memory whole."""
SHARE: Final = 2
"""The cost of a room may be at most this part of the remaining bytes."""
LENT_AT_ONCE: Final = 512 * 1024
"""Bytes for answers that a connection gets in one step."""


class Receiver(LargeReceiver, Protocol):
    """The interface of a connection for the outflow."""

    lent_bytes: int
    """Bytes of answers that may wait beyond the room; set by the outflow."""

    def set_room(self, room: int) -> None:
        """Changes how many bytes may wait for the socket."""

    def delivered(self) -> int:
        """Messages that were sent from queues over its links."""

    def waiting_bytes(self) -> int:
        """Bytes that wait for the socket."""

    def narrow(self) -> None:
        """Withdraws credit from its shards after the room has shrunk."""


class Outflow:
    """One per frontend."""

    __slots__ = ("_grown", "_is_short", "_later", "free_bytes", "reservations")

    def __init__(self, later: Callable[[int, Callable[[], None]], None]) -> None:
        self._later = later
        self.free_bytes = FRONTEND_UNREAD_BYTES
        """The part of FRONTEND_UNREAD_BYTES that no connection has beyond its smallest room."""
        self.reservations = Reservations(self, later)
        """Room for messages that are larger than the window of their link."""
        self._grown: dict[Receiver, int] = {}
        """Connections with more than the smallest room, and their messages up to the last check."""
        self._is_short = False
        """Whether a room could not grow since the latest check, so that another check is scheduled."""

    def grow(self, connection: Receiver) -> bool:
        """Enlarges the room of a connection whose receivers use it; returns False if there are no bytes."""
        room = connection.room
        if room >= limits.WRITE_HIGH_WATER:
            return False
        more = min(room, limits.WRITE_HIGH_WATER - room)
        if ROOMS * (room + more) * SHARE > self.free_bytes:
            if not self._is_short:
                self._is_short = True
                self._later(limits.OUTFLOW_LOOK_MS, self.look)
            return False
        self.free_bytes -= ROOMS * more
        self._grown.setdefault(connection, -1)
        connection.set_room(room + more)
        return True

    def lend(self, connection: Receiver) -> bool:
        """Lets more answers wait for a peer that sends and does not read; returns False if it has to wait."""
        most = limits.WRITE_HIGH_WATER - limits.WRITE_ROOM_MIN + WRITE_ANSWERS_BYTES
        more = min(LENT_AT_ONCE, most - connection.lent_bytes)
        if more <= 0 or more * SHARE > self.free_bytes:
            return False
        self.free_bytes -= more
        connection.lent_bytes += more
        return True

    def give_back(self, connection: Receiver) -> None:
        """The peer has read: the bytes lent for its answers are free."""
        self.free_bytes += connection.lent_bytes
        connection.lent_bytes = 0

    def forget(self, connection: Receiver) -> None:
        """The socket is closed."""
        self.give_back(connection)
        self.reservations.forget(connection)
        self._shrink(connection)

    def look(self) -> None:
        """A room could not grow: reduces the rooms of connections without messages since the last check."""
        self._is_short = False
        for connection, before in list(self._grown.items()):
            delivered = connection.delivered()
            if delivered != before:
                self._grown[connection] = delivered
            elif not connection.paused and connection.waiting_bytes() <= limits.WRITE_ROOM_MIN:
                self._shrink(connection)
                connection.narrow()

    def _shrink(self, connection: Receiver) -> None:
        if self._grown.pop(connection, None) is not None:
            self.free_bytes += ROOMS * (connection.room - limits.WRITE_ROOM_MIN)
            connection.set_room(limits.WRITE_ROOM_MIN)
