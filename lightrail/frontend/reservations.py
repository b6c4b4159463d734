"""Reservations: room for single messages that are larger than what their link may be sent ahead.

A shard reports such a message instead of sending it (LARGER), and its link gets credit for the message when
there is room. The links of a connection share one room for that. A message that finds no place there is
charged to what the outflow has left: one at a time for each connection. It may be half of that, and of any
size while there is no other, or none of a connection that has read such a message and this one has.
Connections wait in line, each with its links in line; those that have read such a message go first.

Whoever waits must not wait for clients that do not read: credit that brought no message is taken back, and a
connection that reads less than a minimum of the message that it was sent is closed. Both happen only while
others wait.
"""

from typing import TYPE_CHECKING, Final

from lightrail.model import limits

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.deliveries import ConsumerLink
    from lightrail.frontend.outflow import Outflow

SHARE: Final = 2
"""A message may be at most this part of the bytes that are left, while others have some of them."""


class Charged:
    """A message that is charged to the outflow, of the one link of its connection that has such a message."""

    __slots__ = ("link", "looks", "size", "taken")

    def __init__(self, link: "ConsumerLink", size: int) -> None:
        self.link = link
        self.size = size
        self.looks = 0
        """Looks since it was charged, or since its client last read enough of it."""
        self.taken = 0
        """What the socket had taken of the connection's bytes then."""


class Reservations:
    """One per frontend."""

    __slots__ = ("_charged", "_is_looking", "_line", "_outflow", "_own")

    def __init__(self, outflow: "Outflow") -> None:
        self._outflow = outflow
        self._own: dict[ClientConnection, dict[ConsumerLink, int]] = {}
        """Bytes of messages in the room of their connection."""
        self._charged: dict[ClientConnection, Charged] = {}
        self._line: dict[ClientConnection, dict[ConsumerLink, int]] = {}
        """Links that wait, with the bytes of their message."""
        self._is_looking = False

    @property
    def charged_bytes(self) -> int:
        """Bytes of all messages that are charged to the outflow."""
        return sum(each.size for each in self._charged.values())

    def reserve(self, link: "ConsumerLink", size: int) -> bool:
        """Room for a message; where there is none, the link waits in line until its `reserved` is called."""
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
        self._look_later(connection)
        return False

    def release(self, link: "ConsumerLink") -> None:
        """The link needs no room (any more), and waits for none."""
        connection = link.connection
        self._leave_line(link)
        own = self._own.get(connection)
        if own is not None and own.pop(link, None) is not None and not own:
            del self._own[connection]
        charged = self._charged.get(connection)
        if charged is not None and charged.link is link:
            self._uncharge(connection)
        self._serve_later(connection)

    def read(self, connection: "ClientConnection") -> None:
        """The socket of a connection may be free: what came before was read, and others have their turn."""
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

    def forget(self, connection: "ClientConnection") -> None:
        """The socket is closed."""
        self._own.pop(connection, None)
        self._line.pop(connection, None)
        if connection in self._charged:
            self._uncharge(connection)
            self._serve_later(connection)

    def serve(self) -> None:
        """There may be room for those at the head of the line."""
        while (connection := self._next()) is not None:
            link, size = next(iter(self._line[connection].items()))
            if not self._charge(link, size):
                return
            self._leave_line(link)
            link.reserved(size)

    def _serve_later(self, connection: "ClientConnection") -> None:
        if self._line:
            connection.frontend.later(0, self.serve)

    def _next(self) -> "ClientConnection | None":
        """The connection whose turn it is: of those that have read such a message, if there are any.

        Those whose socket is full leave the line: their links ask again when it is not.
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

    def _fits_own(self, connection: "ClientConnection", size: int) -> bool:
        if size > connection.room:
            return False
        own = self._own.get(connection)
        return own is None or sum(own.values()) + size <= connection.room

    def _charge(self, link: "ConsumerLink", size: int) -> bool:
        beside = self._charged
        if link.connection.has_read_large and not any(each.has_read_large for each in beside):
            # A place for clients that have read a large message, which clients that do not read never get.
            pass
        elif beside and size * SHARE > self._outflow.free_bytes:
            return False
        self._outflow.free_bytes -= size
        self._charged[link.connection] = Charged(link, size)
        return True

    def _uncharge(self, connection: "ClientConnection") -> None:
        self._outflow.free_bytes += self._charged.pop(connection).size
        if connection in self._line:
            # Others have their turn before its next one.
            self._line[connection] = self._line.pop(connection)

    def _leave_line(self, link: "ConsumerLink") -> None:
        links = self._line.get(link.connection)
        if links is not None and links.pop(link, None) is not None and not links:
            del self._line[link.connection]

    # --- those that have room and do not use it ---------------------------------------------------------

    def _look_later(self, connection: "ClientConnection") -> None:
        if not self._is_looking:
            self._is_looking = True
            connection.frontend.later(limits.OUTFLOW_LOOK_MS, self.look)

    def look(self) -> None:
        """Some wait: room that is not used is taken back, from those that do not read by closing them."""
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
            elif charged.looks == 1 or taken - charged.taken >= limits.LARGE_READ_BYTES:
                charged.looks = 1
                charged.taken = taken
            elif charged.looks == 1 + limits.LARGE_READ_LOOKS:
                connection.cut(
                    f"expected {limits.LARGE_READ_BYTES} bytes of a large message to be read in "
                    f"{limits.LARGE_READ_LOOKS} s, found fewer, and other clients wait for its memory",
                )
        self.serve()
        if self._line:
            self._look_later(next(iter(self._line)))
