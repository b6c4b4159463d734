"""Router and Dealer: the two ends of connections by ZeroMQ, on the event loop."""

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final

import zmq

from lightrail.wire.sockets.counts import SocketCounts
from lightrail.wire.sockets.zeromq import LoopSocket, allow_ipv6
from lightrail.wire.sockets.zmtp import PART_BYTES_MAX, Receive

log = logging.getLogger("lightrail.wire.sockets.zeromq_ends")

RECONNECT_MS: Final = 20
"""Pause after the loss of a connection and after an attempt that failed; doubled after each attempt."""
RECONNECT_MS_MAX: Final = 500
HALF_SENT_MS: Final = 500
"""How long at least a socket that has a connection sends before it is closed.

If the socket of a message that is sent in part were closed at once, and the connection broke before ZeroMQ's
threads had agreed on the close, libzmq would abort the process (session_base.cpp, `clean_pipes`).
"""

_NEVER_MS: Final = 3_600_000
"""When ZeroMQ itself would connect a socket again, which has been replaced long before."""
_CONNECTED: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_EVENTS: Final = _CONNECTED | int(zmq.EVENT_DISCONNECTED) | int(zmq.EVENT_CONNECT_RETRIED)
"""The end of a connection or of a handshake is DISCONNECTED; an attempt to connect that failed is
CONNECT_RETRIED."""
_EVENT: Final = Struct("=HI")
"""Event and value, the first part of a message of ZeroMQ's monitor."""

_numbers = itertools.count(1)
"""For the names of monitors."""


def bind(socket: "zmq.Socket[bytes]", address: str) -> str:
    """Binds; returns the address with the port that the system chose. Raises zmq.ZMQError, OSError."""
    if address.startswith("ipc://"):
        # A socket file that a killed process left behind; this process has the lock of the directory.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address.removeprefix("ipc://"))
    allow_ipv6(socket, address)
    socket.bind(address)
    bound: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
    return bound.rstrip(b"\0").decode()


class Router:
    """The listening end.

    A connection with the name of an earlier one replaces it (ZMQ_ROUTER_HANDOVER).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        receive: Callable[[bytes, list[Any]], None],
        after: Callable[[], None],
        guard: "Callable[[zmq.Socket[bytes]], None]",
        counts: SocketCounts,
        *,
        send_max: int,
        receive_max: int,
    ) -> None:
        """Binds. Raises zmq.ZMQError, or OSError: there is a directory at the path.

        Args:
            guard: called with the socket before it is bound.
            send_max: messages that may wait for one connection; those beyond are dropped. 0: any number.
            receive_max: messages of one connection that may wait to be received.
        """
        socket = context.socket(zmq.ROUTER)
        try:
            guard(socket)
            socket.setsockopt(zmq.SNDHWM, send_max)
            socket.setsockopt(zmq.RCVHWM, receive_max)
            # Errors in place of silence for who is not there; a full connection is silent, too.
            socket.setsockopt(zmq.ROUTER_MANDATORY, 0 if send_max else 1)
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
            socket.setsockopt(zmq.MAXMSGSIZE, PART_BYTES_MAX)
            self.address = bind(socket, address)
        except (zmq.ZMQError, OSError):
            socket.close(0)
            raise
        self._socket = LoopSocket(
            loop, socket, lambda parts: receive(parts[0], parts[1:]), after, counts=counts
        )

    def reads(self, per_turn: int, *, copies: bool) -> None:
        """See LoopSocket."""
        self._socket.messages_per_turn = per_turn
        self._socket.copies = copies

    @property
    def is_paused(self) -> bool:
        """Whether messages are left in the socket; see `resume`."""
        return self._socket.is_paused

    @is_paused.setter
    def is_paused(self, paused: bool) -> None:
        self._socket.is_paused = paused

    def send(self, name: bytes, parts: Sequence[bytes]) -> bool:
        """Sends a message to the connection of this name; False if it is lost."""
        return self._socket.send([name, *parts])

    def resume(self) -> None:
        """Reads the messages that arrived while the socket was paused."""
        self._socket.resume()

    def close(self, linger_ms: int = 0) -> None:
        """Ends all connections; what was sent has `linger_ms` to be transmitted."""
        self._socket.close(linger_ms)


class Dealer(LoopSocket):
    """The end that connects, and connects again whenever the connection is lost.

    A ZeroMQ socket has one connection here, and is replaced when the connection has ended. ZeroMQ could
    connect the same socket again, in two ways, and neither is usable:

    - With ZMQ_IMMEDIATE, the end of a connection discards what the socket has not read yet. The socket does
      so when it next looks at its commands, which is after every 100 parts that were read. If that is between
      two parts of a message, libzmq aborts the process (`Assertion failed: !_more`, fq.cpp).
    - Without it, ZeroMQ stores messages while there is no connection, and sends them to the process that
      listens next at the address.

    `is_open` is False while there is no connection.
    """

    __slots__ = (
        "_address",
        "_context",
        "_events",
        "_name",
        "_on_open",
        "_pause_ms",
        "_timer",
        "_waiting_max",
        "was_open",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        receive: Receive,
        after: Callable[[], None],
        *,
        receive_max: int,
        send_max: int = 0,
        name: bytes = b"",
        on_open: Callable[[], None] | None = None,
        counts: SocketCounts | None = None,
    ) -> None:
        """Connects, now or as soon as the other end listens. Raises zmq.ZMQError.

        Args:
            receive_max: messages that may wait to be received.
            send_max: messages that may wait to be sent; 0: any number.
            name: of the connection, for the ROUTER at the other end; empty: ZeroMQ draws one.
            on_open: called whenever a connection was made.
        """
        self._context = context
        self._address = address
        self._waiting_max = send_max, receive_max
        self._name = name
        self._on_open = on_open
        self._pause_ms = RECONNECT_MS
        self._timer: asyncio.TimerHandle | None = None
        self.was_open = False
        """Whether there has been a connection."""
        socket, events = self._connect()
        LoopSocket.__init__(
            self, loop, socket, receive, after, is_open=False, counts=counts or SocketCounts()
        )
        self._events = LoopSocket(loop, events, self._happened, _nothing)

    def close(self, linger_ms: int = 0) -> None:
        """Ends the connection; what was sent has `linger_ms`, or HALF_SENT_MS, to be transmitted."""
        if self._closed:
            return
        # If the connection is lost already, nothing has to be waited for.
        self._events._drain()
        if self._timer is not None:
            self._timer.cancel()
        self._forget_events()
        was_open = self.is_open
        self._lost()
        LoopSocket.close(self, max(linger_ms, HALF_SENT_MS) if was_open else 0)

    def _connect(self) -> "tuple[zmq.Socket[bytes], zmq.Socket[bytes]]":
        """A socket that connects, and one that receives what happens to its connection. Raises ZMQError."""
        events_address = f"inproc://lightrail.dealer-{next(_numbers)}"
        socket = self._context.socket(zmq.DEALER)
        try:
            events = self._context.socket(zmq.PAIR)
        except zmq.ZMQError:
            socket.close(0)
            raise
        send_max, receive_max = self._waiting_max
        try:
            socket.setsockopt(zmq.SNDHWM, send_max)
            socket.setsockopt(zmq.RCVHWM, receive_max)
            socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
            socket.setsockopt(zmq.MAXMSGSIZE, PART_BYTES_MAX)
            if self._name:
                socket.setsockopt(zmq.ROUTING_ID, self._name)
            allow_ipv6(socket, self._address)
            socket.monitor(events_address, _EVENTS)
            events.connect(events_address)
            socket.connect(self._address)
        except zmq.ZMQError:
            socket.monitor(None, 0)
            events.close(0)
            socket.close(0)
            raise
        return socket, events

    def _forget_events(self) -> None:
        # In this order: an event that has no receiver would block all sockets of the context.
        self._socket.monitor(None, 0)
        self._events.close()

    def _happened(self, parts: list[bytes]) -> None:
        event, _ = _EVENT.unpack(parts[0])
        if event == _CONNECTED:
            self.is_open = self.was_open = True
            self._pause_ms = RECONNECT_MS
            self.counts.connections += 1
            if self._on_open is not None:
                self._on_open()
        elif self._timer is None:
            self._lost()
            self._pause()

    def _lost(self) -> None:
        if self.is_open:
            self.is_open = False
            self.counts.connections -= 1

    def _pause(self) -> None:
        """Messages that arrived before the connection was lost are read meanwhile."""
        self._timer = self._loop.call_later(self._pause_ms / 1000, self._connect_again)
        self._pause_ms = min(2 * self._pause_ms, RECONNECT_MS_MAX)

    def _connect_again(self) -> None:
        if self._scheduled:
            # More messages of the lost connection wait to be read than fit into a turn.
            self._timer = self._loop.call_later(0, self._connect_again)
            return
        try:
            socket, events = self._connect()
        except zmq.ZMQError as error:
            log.warning("no socket can be made to connect to %s: %s", self._address, error)
            self._pause()
            return
        self._timer = None
        self._forget_events()
        self._loop.remove_reader(self._fd)
        self._socket.close(0)
        self._socket = socket
        self._events = LoopSocket(self._loop, events, self._happened, _nothing)
        self._watch()


def _nothing() -> None:
    """Nothing is to be done at the end of a turn."""
