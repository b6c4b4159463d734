"""Wiring: makes the sockets of a process, and chooses by what they work.

Between processes of one machine (`ipc://`) it is LightRail's own ZMTP on the event loop (unix_ends.py),
between machines (`tcp://`) it is ZeroMQ, with the key of the wire if there is one. Both speak the same
protocol: a process that uses one of them has connections to processes that use the other.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import zmq

from lightrail.model import limits
from lightrail.wire.sockets.counts import WireCounts
from lightrail.wire.sockets.keys import Admission, WireKey, context
from lightrail.wire.sockets.unix import IS_SUPPORTED, UnixConnection
from lightrail.wire.sockets.unix_ends import UnixDealer, UnixRouter
from lightrail.wire.sockets.zeromq_ends import Dealer, Router
from lightrail.wire.sockets.zmtp import Receive

LINGER_S: Final = 0.5
"""How long the end of a process waits at most until what it has sent is transmitted."""
IPC: Final = "ipc://"


class Listening(Protocol):
    """A socket that others connect to, whose connections have names."""

    address: str
    """With the port that the system chose."""
    is_paused: bool
    """Set to leave messages in the socket; see `resume`."""

    def send(self, name: bytes, parts: Sequence[bytes]) -> bool:
        """Sends a message to the connection of this name; False if it is lost."""

    def resume(self) -> None:
        """Reads the messages that arrived while the socket was paused."""

    def close(self, linger_ms: int = 0) -> None:
        """Ends all connections; what was sent has `linger_ms` to be transmitted."""


class Connecting(Protocol):
    """A socket with one connection, which is made again whenever it is lost."""

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent."""

    @property
    def was_open(self) -> bool:
        """Whether there has been a connection."""

    def send(self, parts: Sequence[bytes]) -> bool:
        """Sends a message; False if the other end does not listen."""

    def close(self, linger_ms: int = 0) -> None:
        """Ends the connection; what was sent has `linger_ms` to be transmitted."""


def nothing() -> None:
    """Nothing is to be done at the end of a turn."""


class Wiring:
    """Makes sockets, on one loop.

    Args:
        key: of the wire: both ends of every connection prove that they have it.
        on_loop: whether sockets between processes of one machine do without ZeroMQ, if the system allows it.
        counts: of the process; None: its own.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        key: WireKey | None = None,
        *,
        on_loop: bool = True,
        counts: WireCounts | None = None,
    ) -> None:
        self._loop = loop
        self._key = key
        # The own sockets have no encryption; a directory that only one user may enter needs none.
        self._on_loop = on_loop and IS_SUPPORTED and key is None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._admission: Admission | None = None
        self._lingering: set[UnixConnection] = set()
        self.counts = counts or WireCounts()

    def listen(
        self,
        address: str,
        receive: Callable[[bytes, list[Any]], None],
        after: Callable[[], None] = nothing,
        *,
        send_max: int = 0,
        receive_max: int = limits.WIRE_MESSAGES_AHEAD,
        per_turn: int = limits.WIRE_MESSAGES_AHEAD,
        copies: bool = True,
    ) -> Listening:
        """Binds. Raises OSError: the address can't be bound.

        Args:
            receive: called with the name of a connection and the parts of its message.
            after: called at the end of each turn of the loop in which messages arrived.
            send_max: about how many messages may wait for one connection; 0: any number. Those beyond are
                dropped.
            receive_max: messages of one connection that may wait to be received; sockets on the loop bound
                their octets instead.
            per_turn: messages that are read before the loop continues with its other work, likewise.
            copies: False: large parts are views of the memory into which they were received.
        """
        if self._on_loop and address.startswith(IPC):
            path = address.removeprefix(IPC)
            return UnixRouter(
                self._loop,
                path,
                receive,
                after,
                self._linger,
                self.counts.loop,
                send_max=send_max,
                copies=copies,
            )
        try:
            made = Router(
                self._loop,
                self._zeromq(),
                address,
                receive,
                after,
                self._guard,
                self.counts.zeromq,
                send_max=send_max,
                receive_max=receive_max,
            )
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from None
        made.reads(per_turn, copies=copies)
        return made

    def connect(
        self,
        address: str,
        receive: Receive,
        after: Callable[[], None] = nothing,
        *,
        send_max: int = 0,
        receive_max: int = limits.WIRE_MESSAGES_AHEAD,
        name: bytes = b"",
        copies: bool = True,
        on_open: Callable[[], None] = nothing,
    ) -> Connecting:
        """Connects, now or as soon as the other end listens. Raises OSError.

        Args:
            name: of the connection, for the other end; empty: the other end draws one.
            on_open: called whenever a connection was made.
            receive, after, send_max, receive_max, copies: see `listen`.
        """
        if self._on_loop and address.startswith(IPC):
            return UnixDealer(
                self._loop,
                address.removeprefix(IPC),
                receive,
                after,
                self._linger,
                self.counts.loop,
                send_max=send_max,
                name=name,
                copies=copies,
                on_open=on_open,
            )
        try:
            made = Dealer(
                self._loop,
                self._zeromq(),
                address,
                receive,
                after,
                receive_max=receive_max,
                send_max=send_max,
                name=name,
                on_open=on_open,
                counts=self.counts.zeromq,
            )
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from None
        made.copies = copies
        return made

    def close(self) -> None:
        """Call it when all sockets are closed: returns when what they have sent was transmitted, or after
        LINGER_S."""
        until = time.monotonic() + LINGER_S
        for connection in self._lingering:
            connection.finish(until)
        self._lingering.clear()
        if self._admission is not None:
            self._admission.close()
        if self._context is not None:
            # Whatever was forgotten would make it wait for ever.
            self._context.destroy(0)
            self._context = None

    def _zeromq(self) -> "zmq.Context[zmq.Socket[bytes]]":
        if self._context is None:
            self._context = context(self._key)
        return self._context

    def _guard(self, socket: "zmq.Socket[bytes]") -> None:
        """Makes a socket that will listen require the key."""
        if self._admission is None:
            self._admission = Admission(self._loop, self._zeromq(), self._key, self.counts.zeromq)
        self._admission.guard(socket)

    def _linger(self, connection: UnixConnection, linger_ms: int) -> None:
        """Ends a connection of a socket that was closed."""
        if not linger_ms:
            connection.close()
        elif connection.linger():
            self._lingering.add(connection)
            self._loop.call_later(linger_ms / 1000, self._ends, connection)

    def _ends(self, connection: UnixConnection) -> None:
        connection.close()
        self._lingering.discard(connection)
