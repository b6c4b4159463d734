"""Unix sockets on the event loop that speak ZMTP: one connection, and what both ends of it share.

Between processes of one machine ZeroMQ's threads are most of what a message that comes alone costs: each
message wakes one at either end (docs/adr/0080-zmtp-on-the-loop.md has the measurement).
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final, Protocol

from lightrail.wire.sockets.counts import SocketCounts
from lightrail.wire.sockets.zmtp import ZmtpError, ZmtpReader, encode, ready

log = logging.getLogger("lightrail.wire.sockets.unix")

READ_BYTES: Final = 256 * 1024
"""Octets that are read of one connection before the loop continues with its other work."""
BUFFER_BYTES: Final = 1024 * 1024
"""Requested for what a connection has sent and the other end has not read; the system may grant less."""
HANDSHAKE_S: Final = 10.0
"""How long the other end of a connection has to greet."""
CHUNKS_AT_ONCE: Final = 512
"""Pieces that one system call sends; Linux takes 1,024 (IOV_MAX)."""
IS_SUPPORTED: Final = hasattr(socket, "SO_PEERCRED")
"""Whether the system tells who is at the other end of a unix socket."""

_CREDENTIALS: Final = struct.Struct("iII")
"""struct ucred of unix(7): pid, uid, gid."""


def is_admitted(connected: socket.socket) -> bool:
    """Whether the process at the other end belongs to the user of this one, or to root."""
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(found)[1] in (os.geteuid(), 0)


class ConnectionOwner(Protocol):
    """The socket that a connection belongs to."""

    is_paused: bool

    def opened(self, connection: "UnixConnection") -> None:
        """The other end has greeted."""

    def arrived(self, connection: "UnixConnection") -> None:
        """There are messages in `connection.messages`, in order; the owner removes them."""

    def paused(self, connection: "UnixConnection") -> None:
        """The connection is not read any more, since the owner is paused; see `UnixConnection.resume`."""

    def ended(self, connection: "UnixConnection") -> None:
        """The connection has ended; all that arrived before was passed."""


class UnixConnection:
    """One connection, of either end."""

    __slots__ = (
        "_fault",
        "_fd",
        "_greeting",
        "_is_broken",
        "_is_lingering",
        "_loop",
        "_owner",
        "_reader",
        "_socket",
        "_unsent",
        "counts",
        "is_closed",
        "messages",
        "name",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connected: socket.socket,
        kind: bytes,
        owner: ConnectionOwner,
        counts: SocketCounts,
        *,
        name: bytes = b"",
        copies: bool = True,
    ) -> None:
        """Greets the other end.

        Args:
            kind: of the socket at this end: ROUTER or DEALER.
            name: of this end, for the other one.
            copies: False: large parts are views of the memory into which they were received.
        """
        self._loop = loop
        self._socket = connected
        self._fd = connected.fileno()
        self._owner = owner
        self._reader = ZmtpReader(kind, copies=copies)
        self._unsent: deque[bytes | memoryview] = deque()
        self._is_broken = False
        """Whether nothing can be sent any more; what has arrived may still be read."""
        self._is_lingering = False
        self._fault: OSError | ZmtpError | None = None
        """What ends the connection once its messages are removed."""
        self.counts = counts
        self.is_closed = False
        self.name = b""
        """Of the other end, once it has greeted."""
        self.messages = self._reader.messages
        connected.setblocking(False)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        counts.connections += 1
        self._greeting: asyncio.TimerHandle | None = loop.call_later(HANDSHAKE_S, self._is_mute)
        loop.add_reader(self._fd, self._read)
        self._write([ready(kind, name)])

    @property
    def waiting(self) -> int:
        """Pieces of messages that the system has not accepted yet."""
        return len(self._unsent)

    def send(self, parts: Sequence[bytes]) -> bool:
        """Sends a message; False if the connection is lost."""
        if self._is_broken or self.is_closed:
            return False
        chunks = encode(parts)
        self.counts.sent += 1
        if self._unsent:
            self._unsent.extend(chunks)
            return True
        return self._write(chunks)

    def resume(self) -> None:
        """Reads again, after the owner was paused."""
        if not self.is_closed:
            self._loop.add_reader(self._fd, self._read)
            if self._fault is not None:
                # The other end may send nothing more that would make the loop call `_read`.
                self._read()

    def linger(self) -> bool:
        """Reads nothing more, and ends when all that waits was sent; False if nothing waits: it has ended."""
        if not self._unsent or self._is_broken or self.is_closed:
            self.close()
            return False
        self._leave()
        self._is_lingering = True
        return True

    def close(self) -> None:
        """Ends the connection at once; what the system has accepted arrives."""
        if self.is_closed:
            return
        self._leave()
        self.is_closed = True
        self.counts.connections -= 1
        self._loop.remove_writer(self._fd)
        self._unsent.clear()
        self._socket.close()

    def finish(self, until: float) -> None:
        """Sends what waits, without the loop, and closes the connection.

        Args:
            until: monotonic seconds; what was not accepted by then is lost.
        """
        if not self.is_closed and not self._is_broken:
            try:
                while self._unsent:
                    if (left_s := until - time.monotonic()) <= 0:
                        raise TimeoutError("the time is over")
                    self._socket.settimeout(left_s)
                    self._socket.sendall(self._unsent[0])
                    self._unsent.popleft()
            except OSError as error:
                log.info("%d pieces of messages are not sent at the end: %s", len(self._unsent), error)
        self.close()

    def _leave(self) -> None:
        """Nothing is read any more."""
        if self._greeting is not None:
            self._greeting.cancel()
            self._greeting = None
        self._loop.remove_reader(self._fd)

    # --- writing ----------------------------------------------------------------------------------------

    def _write(self, chunks: Sequence[bytes | memoryview]) -> bool:
        """Sends pieces, as nothing else waits; False if the connection is lost."""
        try:
            if len(chunks) == 1:
                sent = self._socket.send(chunks[0])
                if sent == len(chunks[0]):
                    return True
            else:
                sent = self._socket.sendmsg(chunks[:CHUNKS_AT_ONCE])
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._breaks(error)
            return False
        for chunk in chunks:
            if sent >= len(chunk):
                sent -= len(chunk)
            else:
                self._unsent.append(memoryview(chunk)[sent:] if sent else chunk)
                sent = 0
        if self._unsent:
            self._loop.add_writer(self._fd, self._write_on)
        return True

    def _breaks(self, error: OSError) -> None:
        """Nothing can be sent any more. What arrived before is still read; then the end is found."""
        log.debug("a connection can't be written: %s", error)
        self._is_broken = True
        # Not every error comes with an end, as ENOBUFS: without one the connection would stay, and be mute.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _write_on(self) -> None:
        """The system accepts more."""
        unsent = self._unsent
        try:
            sent = self._socket.sendmsg(list(islice(unsent, CHUNKS_AT_ONCE)))
        except BlockingIOError:
            return
        except OSError as error:
            self._breaks(error)
            unsent.clear()
            sent = 0
        while sent:
            size = len(unsent[0])
            if sent < size:
                unsent[0] = memoryview(unsent[0])[sent:]
                return
            sent -= size
            unsent.popleft()
        if not unsent:
            self._loop.remove_writer(self._fd)
            if self._is_lingering:
                self.close()

    # --- reading ----------------------------------------------------------------------------------------

    def _read(self) -> None:
        # The greeting is read all the same, or the other end would count as mute.
        if self._owner.is_paused and self._greeting is None:
            self._loop.remove_reader(self._fd)
            self._owner.paused(self)
            return
        reader = self._reader
        before = len(self.messages)
        end = self._fault
        try:
            if end is not None:
                raise end
            room = reader.room()
            if room is None:
                data = self._socket.recv(READ_BYTES)
                size = len(data)
                if size:
                    reader.receive(data)
            else:
                size = self._socket.recv_into(room)
                if size:
                    reader.filled(size)
            if size and self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._is_broken = True
        except BlockingIOError:
            return
        except (OSError, ZmtpError) as error:
            end, size = error, 0
        if self._is_broken and size and not self.is_closed:
            # The other end has ended without having read everything. uvloop reports such an error once, and
            # then watches the socket no longer; removed with its writer, and added anew, it is watched again.
            self._unsent.clear()
            self._loop.remove_writer(self._fd)
            self._loop.remove_reader(self._fd)
            self._loop.add_reader(self._fd, self._read)
        if reader.is_ready and self._greeting is not None:
            self._greeting.cancel()
            self._greeting = None
            self.name = reader.name
            self._owner.opened(self)
        if reader.answers:
            answers = b"".join(reader.answers)
            reader.answers.clear()
            self._send_octets(answers)
        if self.messages and not self.is_closed:
            self.counts.received += len(self.messages) - before
            self._owner.arrived(self)
        if not size and not self.is_closed:
            if self.messages:
                # The owner was paused: the end follows them.
                self._fault = end
                self._loop.remove_reader(self._fd)
                self._owner.paused(self)
            else:
                self._end(end)

    def _send_octets(self, data: bytes) -> None:
        if self._unsent:
            self._unsent.append(data)
        elif not self._is_broken and not self.is_closed:
            self._write([data])

    def _is_mute(self) -> None:
        self._greeting = None
        self._end(ZmtpError(f"expected a greeting within {HANDSHAKE_S:g} s"))

    def _end(self, reason: Exception | None) -> None:
        if isinstance(reason, ZmtpError):
            self.counts.refused += 1
            log.warning("a connection of a process of this machine is closed: %s", reason)
        self.close()
        self._owner.ended(self)
