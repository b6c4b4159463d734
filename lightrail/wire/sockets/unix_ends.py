"""UnixRouter and UnixDealer: the two ends of connections over unix sockets, in place of ZeroMQ's."""

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from lightrail.wire.sockets.counts import SocketCounts
from lightrail.wire.sockets.unix import UnixConnection, is_admitted
from lightrail.wire.sockets.zeromq_ends import RECONNECT_MS, RECONNECT_MS_MAX
from lightrail.wire.sockets.zmtp import Receive, ready

log = logging.getLogger("lightrail.wire.sockets.unix_ends")

WAITING_MAX: Final = 1_024
"""Connections that the system keeps until they are accepted."""
ACCEPTED_AT_ONCE: Final = 64
"""Connections that are accepted before the loop continues with its other work."""
NO_FILE_S: Final = 1.0
"""Pause of accepting, when the process may open no further file."""


class UnixRouter:
    """A listening socket whose connections have names.

    A connection with the name of an earlier one replaces it (ZMQ_ROUTER_HANDOVER).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: str,
        receive: Callable[[bytes, list[Any]], None],
        after: Callable[[], None],
        linger: "Callable[[UnixConnection, int], None]",
        counts: SocketCounts,
        *,
        send_max: int = 0,
        copies: bool = True,
    ) -> None:
        """Binds. Raises OSError.

        Args:
            receive: called with the name of a connection and the parts of its message.
            after: called once at the end of each turn of the loop in which messages arrived.
            linger: keeps a connection for some milliseconds, to send what waits.
            send_max: about how many messages may wait for one connection; those beyond are dropped. 0: any.
        """
        self._loop = loop
        self._receive = receive
        self._after = after
        self._linger = linger
        self._counts = counts
        self._send_max = send_max
        self._copies = copies
        self._connections: dict[bytes, UnixConnection] = {}
        """Those that have greeted."""
        self._unnamed: set[UnixConnection] = set()
        """Those that have not greeted yet."""
        self._resting: list[UnixConnection] = []
        """Those that are not read while the socket is paused."""
        self._is_due = False
        """Whether `_end_turn` is scheduled."""
        self._closed = False
        self.is_paused = False
        """Set to leave messages in the connections; see `resume`."""
        self._path = path
        self.address = f"ipc://{path}"
        # A socket file that a killed process left behind; this process has the lock of the directory.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._listening = socket.socket(socket.AF_UNIX)
        try:
            self._listening.setblocking(False)
            self._listening.bind(path)
            self._listening.listen(WAITING_MAX)
        except OSError:
            self._listening.close()
            raise
        self._inode = os.stat(path).st_ino
        loop.add_reader(self._listening.fileno(), self._accept)

    def send(self, name: bytes, parts: Sequence[bytes]) -> bool:
        """Sends a message to the connection of this name; False if there is none, or it is lost."""
        connection = self._connections.get(name)
        if connection is None or (self._send_max and connection.waiting >= self._send_max):
            return False
        return connection.send(parts)

    def resume(self) -> None:
        """Reads the messages that arrived while the socket was paused."""
        if self.is_paused:
            self.is_paused = False
            self._loop.call_soon(self._go_on)

    def close(self, linger_ms: int = 0) -> None:
        """Ends all connections; what was sent has `linger_ms` to be transmitted."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        # Unless another process has bound the path meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        for connection in [*self._connections.values(), *self._unnamed]:
            self._linger(connection, linger_ms)
        self._connections.clear()
        self._unnamed.clear()
        self._resting.clear()

    # --- connections ------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _address = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                log.warning("no connection can be accepted at %s: %s", self._path, error.strerror)
                self._loop.remove_reader(self._listening.fileno())
                self._loop.call_later(NO_FILE_S, self._accept_again)
                return
            if is_admitted(accepted):
                self._unnamed.add(
                    UnixConnection(self._loop, accepted, b"ROUTER", self, self._counts, copies=self._copies)
                )
            else:
                accepted.close()
                self._counts.refused += 1
                log.warning("a process of another user is refused at %s", self._path)

    def _accept_again(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def opened(self, connection: UnixConnection) -> None:
        """See ConnectionOwner."""
        self._unnamed.discard(connection)
        if not connection.name:
            connection.name = b"\0" + secrets.token_bytes(8)
        former = self._connections.get(connection.name)
        self._connections[connection.name] = connection
        if former is not None:
            former.close()

    def paused(self, connection: UnixConnection) -> None:
        """See ConnectionOwner."""
        self._resting.append(connection)

    def ended(self, connection: UnixConnection) -> None:
        """See ConnectionOwner."""
        self._unnamed.discard(connection)
        if self._connections.get(connection.name) is connection:
            del self._connections[connection.name]

    # --- messages ---------------------------------------------------------------------------------------

    def arrived(self, connection: UnixConnection) -> None:
        """See ConnectionOwner."""
        messages = connection.messages
        read = 0
        for parts in messages:
            if self.is_paused or self._closed or connection.is_closed:
                break
            read += 1
            try:
                self._receive(connection.name, parts)
            except Exception:
                log.exception("a message of %d parts could not be applied", len(parts))
        del messages[:read]
        if read and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_due = False
        if not self._closed:
            try:
                self._after()
            except Exception:
                log.exception("a turn could not be ended")

    def _go_on(self) -> None:
        """The socket was resumed: first what was read already."""
        resting, self._resting = self._resting, []
        # A copy of the list: a message may make its receiver close the socket.
        for connection in [*self._connections.values()]:
            if connection.messages:
                self.arrived(connection)
        if not self._closed:
            for connection in resting:
                connection.resume()


class UnixDealer:
    """Connects to a listening socket, and again whenever the connection is lost."""

    is_paused = False

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: str,
        receive: Receive,
        after: Callable[[], None],
        linger: "Callable[[UnixConnection, int], None]",
        counts: SocketCounts,
        *,
        send_max: int = 0,
        name: bytes = b"",
        copies: bool = True,
        on_open: Callable[[], None] | None = None,
    ) -> None:
        """Connects, now or as soon as the other end listens. Raises ValueError: see `ready` for names.

        Args:
            on_open: called when there is a connection.
        """
        # Otherwise a name that is not allowed would be found by a timer.
        ready(b"DEALER", name)
        self._loop = loop
        self._path = path
        self._receive = receive
        self._after = after
        self._linger = linger
        self._counts = counts
        self._send_max = send_max
        self._name = name
        self._copies = copies
        self._on_open = on_open
        self._pause_ms = RECONNECT_MS
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._connection: UnixConnection | None = None
        self.is_open = False
        """Whether messages can be sent."""
        self.was_open = False
        """Whether there has been a connection."""
        self._connect()

    def send(self, parts: Sequence[bytes]) -> bool:
        """Sends a message; False if the other end does not listen."""
        connection = self._connection
        if not self.is_open or connection is None:
            return False
        if self._send_max and connection.waiting >= self._send_max:
            return False
        return connection.send(parts)

    def close(self, linger_ms: int = 0) -> None:
        """Ends the connection; what was sent has `linger_ms` to be transmitted."""
        if self._closed:
            return
        self._closed = True
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            self._linger(self._connection, linger_ms)

    def _connect(self) -> None:
        self._timer = None
        connecting = None
        try:
            connecting = socket.socket(socket.AF_UNIX)
            connecting.setblocking(False)
            connecting.connect(self._path)
            if not is_admitted(connecting):
                raise PermissionError("a process of another user listens there")
        except OSError as error:
            # EAGAIN: more connections wait to be accepted than the system keeps.
            if not isinstance(error, ConnectionRefusedError | FileNotFoundError | BlockingIOError):
                log.warning("%s can't be reached: %s", self._path, error)
            if connecting is not None:
                connecting.close()
            self._pause()
            return
        self._connection = UnixConnection(
            self._loop, connecting, b"DEALER", self, self._counts, name=self._name, copies=self._copies
        )

    def _pause(self) -> None:
        self._timer = self._loop.call_later(self._pause_ms / 1000, self._connect)
        self._pause_ms = min(2 * self._pause_ms, RECONNECT_MS_MAX)

    def opened(self, connection: UnixConnection) -> None:
        """See ConnectionOwner."""
        self.is_open = self.was_open = True
        self._pause_ms = RECONNECT_MS
        if self._on_open is not None:
            try:
                self._on_open()
            except Exception:
                # Messages may have arrived with the greeting: they are not to wait for the next one.
                log.exception("the opening of a connection to %s could not be handled", self._path)

    def paused(self, connection: UnixConnection) -> None:
        """See ConnectionOwner: never."""

    def ended(self, connection: UnixConnection) -> None:
        """See ConnectionOwner."""
        self._connection = None
        self.is_open = False
        if not self._closed:
            self._pause()

    def arrived(self, connection: UnixConnection) -> None:
        """See ConnectionOwner."""
        messages = connection.messages[:]
        connection.messages.clear()
        for parts in messages:
            if self._closed:
                return
            try:
                self._receive(parts)
            except Exception:
                log.exception("a message of %d parts could not be applied", len(parts))
        try:
            self._after()
        except Exception:
            log.exception("a turn could not be ended")
