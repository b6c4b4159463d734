"""The outflow: bounds the bytes that wait for clients to read them, or are in transit from shards.

Each connection has a room: the number of bytes that may wait for its socket before its shards get no more
credit; twice as many may be in transit from them. A room begins small and doubles each time that a receiver
uses half of its window, as long as the process has bytes left; it is never more than a part of the rest, so
that later connections have room as well (the dynamic threshold of shared-memory switches, Choudhury and
Hahne, 1998). Answers to a peer that does not read are lent room from the same bytes.

No work here is done per message or write. A room is reconsidered when half of a window has been delivered,
and when a buffer has passed its mark.

Reservations: room for single messages that are larger than the window of their link.

A shard reports such a message instead of sending it (LARGER), and its link gets credit for the message when
there is room. The links of a connection share one room for that. A message that does not fit there is charged
to the remaining bytes of the outflow: one at a time for each connection. It may be half of these bytes. It
may have any size while no other message is charged, or if this connection has read such a message before and
the charged ones have not.
Connections wait in line, each with its links in line; those that have read such a message precede the others.

The line does not wait for clients that do not read: credit that brought no message is withdrawn, and a
connection that reads less than a minimum of its message is closed. Both happen only while others wait.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.model import limits

if TYPE_CHECKING:
    from lightrail.frontend.client_socket import ClientSocket
    from lightrail.frontend.links.deliveries import ConsumerLink

LARGE_READ_BYTES: Final[int] = 512 * 1024
"""Bytes of a message charged to FRONTEND_UNREAD_BYTES that a client has to read per LARGE_READ_LOOKS while
others wait for these bytes; the connection of a slower client is closed."""
LARGE_READ_LOOKS: Final[int] = 10
"""Time for LARGE_READ_BYTES, in units of OUTFLOW_LOOK_MS."""
SHARE: Final = 2
"""A message may be at most this part of the remaining bytes while others are charged."""


@dataclass(slots=True, eq=False, repr=False)
class Charged:
    """A message that is charged to the outflow; each connection has at most one."""

    link: "ConsumerLink"
    size: int
    looks: int = 0
    """Checks since the message was charged, or since its client last read enough of it."""
    taken: int = 0
    """Bytes of the connection that the socket had accepted at that time."""


@dataclass(slots=True, eq=False, repr=False)
class Reservations:
    """One per frontend."""

    _budget: "Outflow"
    _later: Callable[[int, Callable[[], None]], None]
    _own: "dict[ClientSocket, dict[ConsumerLink, int]]" = field(default_factory=dict)
    """Bytes of messages in the room of their connection."""
    _charged: "dict[ClientSocket, Charged]" = field(default_factory=dict)
    _line: "dict[ClientSocket, dict[ConsumerLink, int]]" = field(default_factory=dict)
    """Waiting links, with the bytes of their message."""
    _is_looking: bool = False

    @property
    def charged_bytes(self) -> int:
        """Bytes of all messages that are charged to the outflow."""
        return sum(each.size for each in self._charged.values())

    def reserve(self, link: "ConsumerLink", size: int) -> bool:
        """Reserves room for a message; without room, the link waits in line until `reserved` is called."""
        connection = link.connection
        if self._fits_own(connection, size):
            self._leave_line(link)
            self._own.setdefault(connection, {})[link] = size
            return True
        self._line.setdefault(connection, {})[link] = size
        is_next = self._next() is connection and next(iter(self._line[connection])) is link
        if is_next and self._charge(link, size):
            self._leave_line(link)
            return True
        self._look_later()
        return False

    def release(self, link: "ConsumerLink") -> None:
        """Releases the room of a link, and removes it from the line."""
        connection = link.connection
        self._leave_line(link)
        own = self._own.get(connection)
        if own is not None and own.pop(link, None) is not None and not own:
            del self._own[connection]
        charged = self._charged.get(connection)
        if charged is not None and charged.link is link:
            self._uncharge(connection)
        self._serve_later()

    def read(self, connection: "ClientSocket") -> None:
        """The socket of a connection may be free: releases the room of large messages that were read."""
        if connection.paused:
            return
        own = self._own.get(connection)
        for link in [] if own is None else [each for each in own if each.has_large]:
            link.large_was_read()
        charged = self._charged.get(connection)
        if charged is not None and charged.link.has_large:
            charged.link.large_was_read()
        links = self._line.get(connection)
        while links:
            link, size = next(iter(links.items()))
            if not self._fits_own(connection, size):
                break
            self._leave_line(link)
            self._own.setdefault(connection, {})[link] = size
            link.reserved(size)

    def forget(self, connection: "ClientSocket") -> None:
        """The socket is closed."""
        self._own.pop(connection, None)
        self._line.pop(connection, None)
        if connection in self._charged:
            self._uncharge(connection)
            self._serve_later()

    def serve(self) -> None:
        """Reserves room for the head of the line while there is room."""
        while (connection := self._next()) is not None:
            link, size = next(iter(self._line[connection].items()))
            if not self._charge(link, size):
                return
            self._leave_line(link)
            link.reserved(size)

    def _serve_later(self) -> None:
        if self._line:
            self._later(0, self.serve)

    def _next(self) -> "ClientSocket | None":
        """The next connection: one that has read such a message, if there is any.

        Connections whose socket is full leave the line: their links enter it again when the socket is free.
        """
        first = None
        for connection in list(self._line) if self._line else ():
            if connection.paused:
                del self._line[connection]
            elif connection not in self._charged:
                if connection.has_read_large:
                    return connection
                first = first or connection
        return first

    def _fits_own(self, connection: "ClientSocket", size: int) -> bool:
        if size > connection.room:
            return False
        own = self._own.get(connection)
        return own is None or sum(own.values()) + size <= connection.room

    def _charge(self, link: "ConsumerLink", size: int) -> bool:
        beside = self._charged
        if link.connection.has_read_large and not any(each.has_read_large for each in beside):
            # Room for clients that have read a large message; clients that do not read never use it.
            pass
        elif beside and size * SHARE > self._budget.free_bytes:
            return False
        self._budget.free_bytes -= size
        self._charged[link.connection] = Charged(link, size)
        return True

    def _uncharge(self, connection: "ClientSocket") -> None:
        self._budget.free_bytes += self._charged.pop(connection).size
        if connection in self._line:
            # Others have their turn before the next one of this connection.
            self._line[connection] = self._line.pop(connection)

    def _leave_line(self, link: "ConsumerLink") -> None:
        links = self._line.get(link.connection)
        if links is not None and links.pop(link, None) is not None and not links:
            del self._line[link.connection]

    # --- room that is reserved and not used -------------------------------------------------------------

    def _look_later(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._later(limits.OUTFLOW_LOOK_MS, self.relieve)

    def relieve(self) -> None:
        """While links wait, releases unused room, and closes connections that do not read."""
        self._is_looking = False
        if not self._line:
            return
        for connection in list(self._line):
            for link in list(self._own.get(connection, ())):
                if link.awaits_large:
                    link.take_back()
            self.read(connection)
        for connection, charged in list(self._charged.items()):
            charged.looks += 1
            taken = connection.taken_bytes()
            if charged.link.awaits_large:
                if charged.looks > 1:
                    charged.link.take_back()
            elif charged.looks == 1 or taken - charged.taken >= LARGE_READ_BYTES:
                charged.looks = 1
                charged.taken = taken
            elif charged.looks == 1 + LARGE_READ_LOOKS:
                connection.cut(
                    f"expected {LARGE_READ_BYTES} bytes of a large message to be read in "
                    f"{LARGE_READ_LOOKS} s, found fewer, and other clients wait for its memory",
                )
        self.serve()
        if self._line:
            self._look_later()


FRONTEND_UNREAD_BYTES: Final[int] = 128 * 1024 * 1024
"""Bytes of a frontend that wait for clients that do not read, beyond WRITE_ROOM_MIN of each, or are on the
way to them; beyond, buffers and windows stay small."""
WRITE_ANSWERS_BYTES: Final[int] = 4 * 1024 * 1024
"""Bytes of answers that may wait, beyond WRITE_HIGH_WATER, for a peer that keeps sending; they count in
FRONTEND_UNREAD_BYTES. Beyond, the peer's socket is not read until the peer reads."""
ROOMS: Final = 2 + 2 * limits.DELIVERY_WINDOW_BYTES // limits.WRITE_HIGH_WATER
"""Bytes that a connection may use, in rooms: one in the socket's buffer, a window in transit from its shards,
one for messages that are larger than their link's part of the window (`Reservations`), and a piece as large
as a window of which the kernel has accepted all but the end: it stays in memory whole."""
"""The cost of a room may be at most this part of the remaining bytes."""
LENT_AT_ONCE: Final = 512 * 1024
"""Bytes for answers that a connection gets in one step."""


class Outflow:
    """One per frontend."""

    __slots__ = ("_grown", "_is_short", "_later", "free_bytes", "reservations")

    def __init__(self, later: Callable[[int, Callable[[], None]], None]) -> None:
        self._later = later
        self.free_bytes = FRONTEND_UNREAD_BYTES
        """The part of FRONTEND_UNREAD_BYTES that no connection has beyond its smallest room."""
        self.reservations = Reservations(self, later)
        """Room for messages that are larger than the window of their link."""
        self._grown: dict[ClientSocket, int] = {}
        """Connections with more than the smallest room, and their messages up to the last check."""
        self._is_short = False
        """Whether a room could not grow since the latest check, so that another check is scheduled."""

    def grow(self, connection: "ClientSocket") -> bool:
        """Enlarges the room of a connection whose receivers use it; returns False if there are no bytes."""
        room = connection.room
        if room >= limits.WRITE_HIGH_WATER:
            return False
        more = min(room, limits.WRITE_HIGH_WATER - room)
        if ROOMS * (room + more) * SHARE > self.free_bytes:
            if not self._is_short:
                self._is_short = True
                self._later(limits.OUTFLOW_LOOK_MS, self.reduce_rooms)
            return False
        self.free_bytes -= ROOMS * more
        self._grown.setdefault(connection, -1)
        connection.set_room(room + more)
        return True

    def lend(self, connection: "ClientSocket") -> bool:
        """Lets more answers wait for a peer that sends and does not read; returns False if it has to wait."""
        most = limits.WRITE_HIGH_WATER - limits.WRITE_ROOM_MIN + WRITE_ANSWERS_BYTES
        more = min(LENT_AT_ONCE, most - connection.lent_bytes)
        if more <= 0 or more * SHARE > self.free_bytes:
            return False
        self.free_bytes -= more
        connection.lent_bytes += more
        return True

    def give_back(self, connection: "ClientSocket") -> None:
        """The peer has read: the bytes lent for its answers are free."""
        self.free_bytes += connection.lent_bytes
        connection.lent_bytes = 0

    def forget(self, connection: "ClientSocket") -> None:
        """The socket is closed."""
        self.give_back(connection)
        self.reservations.forget(connection)
        self._shrink(connection)

    def reduce_rooms(self) -> None:
        """A room could not grow: reduces the rooms of connections without messages since the last check."""
        self._is_short = False
        for connection, before in list(self._grown.items()):
            delivered = connection.links.delivered()
            if delivered != before:
                self._grown[connection] = delivered
            elif not connection.paused and connection.waiting_bytes() <= limits.WRITE_ROOM_MIN:
                self._shrink(connection)
                for link in connection.links:
                    link.narrow()

    def _shrink(self, connection: "ClientSocket") -> None:
        if self._grown.pop(connection, None) is not None:
            self.free_bytes += ROOMS * (connection.room - limits.WRITE_ROOM_MIN)
            connection.set_room(limits.WRITE_ROOM_MIN)
