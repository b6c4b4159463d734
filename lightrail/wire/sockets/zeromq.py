"""A plain ZeroMQ socket on an asyncio loop: read until empty, written at once, never `zmq.asyncio`.

The FD of a ZeroMQ socket is edge-triggered and only indicates that EVENTS may have changed: every send and
receive may use up the edge, so after each of them EVENTS is read again. `zmq.asyncio` makes a future and a
callback per message, which costs more than the message does here.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import zmq

from lightrail.wire.sockets.counts import SocketCounts
from lightrail.wire.sockets.zmtp import Receive

log = logging.getLogger("lightrail.wire.sockets.zeromq")

Parts = list[Any]

WITHOUT_COPY_BYTES: Final = 512 * 1024
"""Parts of at least this size are sent without a copy; below, ZeroMQ's book-keeping costs more."""
MESSAGES_PER_TURN: Final = 256
"""Messages that are read before the loop continues with its other work."""
# Plain numbers: pyzmq's flags are members of an enumeration; joining two costs more than sending a message.
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_POLLIN: Final = int(zmq.POLLIN)


def allow_ipv6(socket: "zmq.Socket[bytes]", address: str) -> None:
    """Call it before the socket is bound to the address, or connected."""
    # Only for IPv6 addresses: with it ZeroMQ uses the IPv6 address of a name that has both.
    if address.startswith("tcp://["):
        socket.setsockopt(zmq.IPV6, 1)


@dataclass(slots=True, eq=False, repr=False)
class LoopSocket:
    """One ZeroMQ socket: `receive` is called with each message, and `after` once at the end of a turn.

    Errors of both are logged, and the next message is read. A callback that counts messages, or their
    frames, must not raise: it has to report to the other end that a message was not applied.
    """

    _loop: asyncio.AbstractEventLoop
    _socket: "zmq.Socket[bytes]"
    _receive: Receive
    _after: Callable[[], None]
    _scheduled: bool = False
    _closed: bool = False
    is_open: bool = True
    """Whether messages can be sent; False when the socket is closed, and while a Dealer has no connection."""
    is_paused: bool = False
    """Set to leave messages in the socket; see `resume`."""
    copies: bool = True
    """False: large parts are views of memory that ZeroMQ received, which lives as long as they."""
    messages_per_turn: int = MESSAGES_PER_TURN
    counts: SocketCounts = field(default_factory=SocketCounts)
    _fd: int = field(init=False)

    def __post_init__(self) -> None:
        self._watch()

    def _watch(self) -> None:
        """Adds the socket to the loop."""
        self._fd = self._socket.getsockopt(zmq.FD)  # type: ignore[assignment]
        self._loop.add_reader(self._fd, self._drain)
        if not self._scheduled:
            self._schedule()

    def send(self, parts: Sequence[bytes]) -> bool:
        """Sends the parts as one ZeroMQ message.

        Returns:
            False if the other end does not listen (the caller sends again after the greeting).
        """
        if not self.is_open:
            return False
        send = self._socket.send
        copies = len(parts[-1]) < WITHOUT_COPY_BYTES
        try:
            for part in parts[:-1]:
                send(part, _MORE, copies)
            send(parts[-1], _NOBLOCK, copies)
        except (zmq.Again, zmq.error.ZMQError) as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                sent = False
            else:
                raise
        else:
            sent = True
            self.counts.sent += 1
        if not self._scheduled and not self.is_paused and self._has_more():
            self._schedule()
        return sent

    def resume(self) -> None:
        """Reads the messages that arrived while the socket was paused."""
        if self.is_paused:
            self.is_paused = False
            if not self._scheduled and not self._closed:
                self._schedule()

    def close(self, linger_ms: int = 0) -> None:
        """Removes the socket from the loop; messages that were sent have `linger_ms` to be transmitted.

        0 is for sockets whose messages are sent as one part: see HALF_SENT_MS in dealer.py.
        """
        if not self._closed:
            self._closed = True
            self.is_open = False
            self._loop.remove_reader(self._fd)
            self._socket.close(linger_ms)

    def _received(self) -> Parts:
        """One message; large parts are not copied if `copies` is False. Raises zmq.Again."""
        receive = self._socket.recv
        copies = self.copies
        parts: Parts = []
        while True:
            # A frame knows whether another part follows; with bytes that needs a call, which costs more.
            frame = receive(_NOBLOCK, copy=False)
            parts.append(frame.bytes if copies or len(frame) < WITHOUT_COPY_BYTES else frame.buffer)
            if not frame.more:
                return parts

    def _has_more(self) -> bool:
        """Whether a message waits; if not, the FD becomes readable with the next one."""
        return bool(self._socket.getsockopt(zmq.EVENTS) & _POLLIN)  # type: ignore[operator]

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._drain)

    def _rests(self) -> bool:
        """Whether the socket is paused; then the edge is used up, or the loop would spin."""
        if self.is_paused:
            self._socket.getsockopt(zmq.EVENTS)
        return self.is_paused

    def _drain(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        if self._rests():
            return
        receive = self._receive
        got = 0
        most = self.messages_per_turn
        is_empty = False
        while got < most and not self.is_paused:
            if got == 1 and not self._has_more():
                # Most turns have one message: this check costs half as much as the exception.
                is_empty = True
                break
            try:
                parts = self._received()
            except zmq.Again:
                is_empty = True
                break
            got += 1
            try:
                receive(parts)
            except Exception:
                # The edge is used up: without another check the messages behind this one are never read.
                log.exception("a message of %d parts could not be applied", len(parts))
        if got:
            self.counts.received += got
            try:
                self._after()
            except Exception:
                log.exception("a turn could not be ended")
        if self._closed or self._scheduled:
            return
        if self._rests():
            return
        # If the socket was empty, its FD becomes readable with the next message: ZeroMQ reads all signals
        # before it reports an empty socket, and each send of this turn has read EVENTS.
        if not is_empty:
            self._schedule()
