"""The outflow: bounds the bytes that wait for clients to read them, or are on their way from shards.

Each connection has a room: so many bytes may wait for its socket before its shards get no more credit, and
twice as many may be on their way from them. A room begins small and doubles each time that a receiver uses
up half of what shards may send ahead, as long as the process has bytes left; it is never more than a part of
what is left, so that later connections get some as well (the dynamic threshold of shared-memory switches,
Choudhury and Hahne, 1998). Answers to a peer that does not read are lent room from the same bytes.

Nothing here is done per message or write. A room is reconsidered when half of a window has been delivered,
and when a buffer has passed its mark.
"""

from collections.abc import Callable
from typing import Final, Protocol

from lightrail.frontend.reservations import LargeReceiver, Reservations
from lightrail.model import limits

ROOMS: Final = 2 + 2 * limits.DELIVERY_WINDOW_BYTES // limits.WRITE_HIGH_WATER
"""What a connection may use, in rooms: one in the socket's buffer, a window on the way from its shards, one
for messages that are larger than their link's part of the window (reservations.py), and a piece as large as a
window of which the kernel has accepted all but the end: it stays in memory whole."""
SHARE: Final = 2
"""What a room would cost may be at most this part of the bytes that are left."""
LENT_AT_ONCE: Final = 512 * 1024
"""Bytes for answers that a connection gets in one step."""


class Receiver(LargeReceiver, Protocol):
    """A connection, as the outflow writes to it."""

    lent_bytes: int
    """Bytes of answers that may wait beyond the room; kept by the outflow."""

    def set_room(self, room: int) -> None:
        """Changes how many bytes may wait for the socket."""

    def delivered(self) -> int:
        """Messages that its links were sent from queues: rises as long as they get any."""

    def waiting_bytes(self) -> int:
        """Bytes that wait for the socket."""

    def narrow(self) -> None:
        """Takes credit back from its shards, after the room has shrunk."""


class Outflow:
    """One per frontend."""

    __slots__ = ("_grown", "_is_short", "_later", "free_bytes", "reservations")

    def __init__(self, later: Callable[[int, Callable[[], None]], None]) -> None:
        self._later = later
        self.free_bytes = limits.FRONTEND_UNREAD_BYTES
        """Of FRONTEND_UNREAD_BYTES, what no connection has beyond its smallest room."""
        self.reservations = Reservations(self, later)
        """For messages that are larger than what their link may be sent ahead."""
        self._grown: dict[Receiver, int] = {}
        """Connections with more than the smallest room, and messages each had received at the latest look."""
        self._is_short = False
        """A room could not grow since the latest look: another look is scheduled."""

    def grow(self, connection: Receiver) -> bool:
        """More room for a connection whose receivers use what they have; False where there is none."""
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
        """Lets more answers wait for a peer that sends and does not read; False where it has to wait."""
        most = limits.WRITE_HIGH_WATER - limits.WRITE_ROOM_MIN + limits.WRITE_ANSWERS_BYTES
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
        """A room could not grow: connections that received nothing since the look before give theirs up."""
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
