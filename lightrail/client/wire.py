"""One TCP connection to a broker: moves bytes to and from the AMQP engine, and passes on its events.

The engine (lightrail.amqp, in the client's role) implements the protocol. This module has the socket and the
clock, and writes all output of a turn of the loop at once.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from lightrail.amqp import events
from lightrail.amqp.connection import Connection as Engine
from lightrail.amqp.performatives import AmqpError
from lightrail.amqp.session import Session
from lightrail.amqp.settings import ConnectionSettings

if TYPE_CHECKING:
    from lightrail.client.link import Link

END_S: Final = 5.0
"""How long the socket of a connection that has ended may stay open."""


class Wire(asyncio.Protocol):
    """One socket.

    Args:
        negotiate: called with events of SASL and open, which the caller answers.
        lost: called once, with the reason, when either side has ended the connection or its session, whatever
            becomes of the socket: from then on no command to a link has an effect.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: ConnectionSettings,
        negotiate: Callable[["Wire", events.Event], None],
        lost: Callable[["Wire", str], None],
    ) -> None:
        self._loop = loop
        self.engine = Engine(settings, _now_ms())
        self._negotiate = negotiate
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None
        """Ends the socket of a connection that has ended."""
        self._flushes = False
        self._is_lost = False
        self.why = ""
        """Why the connection ends; empty before."""
        self.dirty: dict[Link, None] = {}
        """Links to flush at the end of this turn."""
        self.paused = False
        """Whether the buffer of the socket is full."""

    # --- asyncio.Protocol --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._flush()
        self._tick()

    def data_received(self, data: bytes) -> None:
        engine = self.engine
        self._dispatch(engine.feed(data, _now_ms()))
        while engine.has_more:
            self._dispatch(engine.feed(b"", _now_ms()))
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for timer in (self._timer, self._ending):
            if timer is not None:
                timer.cancel()
        self.why = self.why or (f"the socket was closed: {exc}" if exc else "the broker closed the socket")
        self._lose()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    # --- for the connection and its links ----------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether both sides have opened the connection, and neither closed it."""
        if self._is_lost or self._transport is None:
            return False
        return self.engine.opened and not self._transport.is_closing()

    def touch(self, owner: "Link | None" = None) -> None:
        """Writes at the end of this turn of the loop, after flushing the link."""
        if owner is not None:
            self.dirty[owner] = None
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)

    def continue_engine(self) -> None:
        """Makes the engine continue after an answer that it waited for."""
        self.data_received(b"")

    def close(self, why: str = "") -> None:
        """Sends a close, which the broker answers."""
        self.why = self.why or why
        self.engine.close()
        self._flush()
        self._tick()

    def fileno(self) -> int:
        """The number of the socket; -1 once it is closed."""
        found = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if found is None else int(found.fileno())

    def abort(self, why: str) -> None:
        """Closes the socket at once."""
        self.why = self.why or why
        if self._transport is not None:
            self._transport.abort()

    # --- inside ------------------------------------------------------------------------------------------

    def _dispatch(self, found: list[events.Event]) -> None:
        is_over = False
        for event in found:
            kind = type(event)
            if kind is events.Transfers or kind is events.Outcome or kind is events.Credit:
                event.link.context.handle(event)  # type: ignore[attr-defined]
            elif isinstance(event, events.Attached):
                if event.link.context is None:
                    event.link.refuse("amqp:not-allowed", "a client accepts no links that it did not attach")
                else:
                    event.link.context.attached()
            elif isinstance(event, events.Drained | events.Resumed | events.SenderSettled):
                if event.link.context is not None:
                    event.link.context.handle(event)
            elif isinstance(event, events.Detached):
                if event.link.context is not None:
                    event.link.context.detached(event.error)
            elif isinstance(event, events.Ended):
                # All links ended with it, also those that the broker has not answered.
                if event.by_peer and event.error is not None:
                    _refuse_by_end(event.session, event.error)
                is_over = True
                self.abort(with_reason("the broker ended the session", event.error))
            elif isinstance(event, events.Closed):
                is_over = True
                if event.by_peer:
                    self.why = self.why or with_reason("the broker closed the connection", event.error)
                else:
                    # The broker was silent or violated the protocol: do not wait for its close.
                    self.why = self.why or with_reason("the connection was closed", event.error)
                    self._loop.call_soon(self.abort, self.why)
            elif isinstance(event, events.HeaderRejected):
                self.why = f"expected a broker that speaks AMQP 1.0, found one that answers {event.found!r}"
            else:
                if kind is events.Opened:
                    # From now on the idle time-outs of both sides apply; before, the time-out of the open.
                    self._loop.call_soon(self._tick)
                self._negotiate(self, event)
        if is_over:
            self._lose()

    def _lose(self) -> None:
        """Calls `lost`, once."""
        if not self._is_lost:
            self._is_lost = True
            self._lost(self, self.why)

    def _flush(self) -> None:
        self._flushes = False
        while self.dirty:
            dirty, self.dirty = self.dirty, {}
            for owner in dirty:
                owner.flush()
            if self.engine.events:
                # A command may end its link, which its owner has to know before the next one.
                self._dispatch(self.engine.feed(b"", _now_ms()))
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        output = self.engine.output
        if output:
            transport.write(b"".join(output))
            output.clear()
        if self.engine.closed:
            transport.close()
            # What waits for the socket, and the end of TLS, depend on the broker's machine.
            self._ending = self._loop.call_later(END_S, transport.abort)

    def _tick(self) -> None:
        """Sends a heartbeat, or closes a silent connection, when due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ms = _now_ms()
        due_ms = self.engine.tick(now_ms)
        self._dispatch(self.engine.feed(b"", now_ms))
        self._flush()
        if due_ms is not None and self._transport is not None:
            self._timer = self._loop.call_later(max(1, due_ms - now_ms) / 1000, self._tick)


def _refuse_by_end(session: Session, error: AmqpError) -> None:
    """Detaches the link because of which the broker ended a session, if there is one.

    Some brokers end the session of a link that they refuse (RabbitMQ's plugin does, for an unknown node).
    They handle frames in order, so it is the first link whose attach has no answer; attached again with the
    others it would end each session. Errors of sessions and connections have conditions of their own (2.8.16,
    2.8.17), and concern no link.
    """
    if str(error.condition).startswith(("amqp:session:", "amqp:connection:")):
        return
    for link in session.outputs.values():
        if link.attach is None:
            if link.context is not None:
                link.context.detached(error)
            return


def with_reason(what: str, error: AmqpError | None) -> str:
    """A reason, with the broker's description."""
    if error is None:
        return what
    return f"{what}: {error.description or 'it gave no reason'} ({error.condition})"


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
