"""A client connection on the broker's own AMQP engine: a socket, the engine, and one step at a time.

Fast enough to keep a broker busy from one thread. What it proves about the protocol is little, since both
ends share the engine; the interoperability tests are for that.
"""

import contextlib
import select
import socket
import time
from types import TracebackType
from typing import Any, Self

from lightrail.amqp import events
from lightrail.amqp.connection import Connection
from lightrail.amqp.link import ATTACHED, Link
from lightrail.amqp.performatives import Source, Target
from lightrail.amqp.session import Session
from lightrail.amqp.settings import ConnectionSettings

READ_BYTES = 256 * 1024


class LostError(Exception):
    """The connection is gone: why, as the broker or the system said it; `condition` when the broker did."""

    def __init__(self, reason: str, condition: str | None = None) -> None:
        super().__init__(reason)
        self.condition = condition


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def split(address: str) -> tuple[str, int]:
    """``HOST:PORT`` as socket functions want it."""
    host, _, port = address.rpartition(":")
    return host, int(port)


class Client:
    """One connection; leaving the ``with`` block closes the socket, without a close frame."""

    def __init__(self, address: str, *, deadline_s: float = 5.0, idle_time_out_ms: int = 0) -> None:
        self.socket = socket.create_connection(split(address), deadline_s)
        if self.socket.getsockname() == self.socket.getpeername():
            self.socket.close()
            raise LostError("the system connected the socket to itself: nobody listens")
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.amqp = Connection(
            ConnectionSettings(container_id="client", is_server=False, idle_time_out_ms=idle_time_out_ms),
            now_ms(),
        )
        self.amqp.open()
        self.unwritten = b""
        self._poll = select.poll()
        self._mask = 0

    def step(self, wait_s: float = 0.0) -> list[events.Event]:
        """Writes what there is, waits for input at most so long, and gives what came of it. Raises
        LostError."""
        self._write()
        mask = select.POLLIN | (select.POLLOUT if self.unwritten else 0)
        if mask != self._mask:
            self._poll.register(self.socket, mask)
            self._mask = mask
        for _, ready in self._poll.poll(wait_s * 1000):
            if ready & ~select.POLLOUT:
                return self._read()
        self.amqp.tick(now_ms())
        return []

    def _read(self) -> list[events.Event]:
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise LostError(f"read: {error.strerror}") from error
        if not data:
            raise LostError("the broker closed the socket")
        found = self.amqp.feed(data, now_ms())
        for event in found:
            if isinstance(event, events.Closed):
                with contextlib.suppress(LostError):
                    self._write()
                why = event.error
                condition = None if why is None else str(why.condition)
                raise LostError(f"close: {condition} {'' if why is None else why.description}", condition)
        return found

    def _write(self) -> None:
        output = self.amqp.output
        if output:
            self.unwritten += b"".join(output)
            output.clear()
        while self.unwritten:
            try:
                sent = self.socket.send(self.unwritten)
            except BlockingIOError:
                return
            except OSError as error:
                # What the broker said before it went is more telling than that it went.
                with contextlib.suppress(BlockingIOError, OSError):
                    while data := self.socket.recv(READ_BYTES):
                        for event in self.amqp.feed(data, now_ms()):
                            if isinstance(event, events.Closed) and event.error is not None:
                                condition = str(event.error.condition)
                                raise LostError(f"close: {condition}", condition) from None
                raise LostError(f"write: {error.strerror}") from error
            self.unwritten = self.unwritten[sent:]

    def until(self, kind: type[events.Event], deadline_s: float = 10.0) -> Any:
        """The next event of a kind; others are dropped. Raises LostError at the deadline, too."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            for event in self.step(0.05):
                if isinstance(event, kind):
                    return event
        raise LostError(f"no {kind.__name__} within {deadline_s:.0f} s")

    def session(self, deadline_s: float = 10.0) -> Session:
        """Opens the connection and begins a session."""
        self.until(events.Opened, deadline_s)
        return self.amqp.begin()

    def attach(
        self, session: Session, name: str, queue: str, *, sender: bool, deadline_s: float = 15.0
    ) -> Link:
        """Attaches and waits for the answer. Raises LostError when it is a refusal."""
        link = session.attach(name, sender, source=Source(address=queue), target=Target(address=queue))
        end = time.monotonic() + deadline_s
        while True:
            for event in self.step(0.05):
                if isinstance(event, events.Detached) and event.link is link:
                    condition = None if event.error is None else str(event.error.condition)
                    raise LostError(f"attach of {queue} refused: {event.error}", condition)
            terminus = link.target if sender else link.source
            if link.state == ATTACHED and terminus is not None:
                return link
            if time.monotonic() > end:
                raise LostError(f"no answer to attach of {queue} within {deadline_s:.0f} s")

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
