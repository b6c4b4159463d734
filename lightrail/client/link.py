"""The base class of senders and receivers."""

import asyncio
from typing import TYPE_CHECKING

from lightrail.amqp.events import Event
from lightrail.amqp.link import Link as EngineLink
from lightrail.amqp.performatives import AmqpError
from lightrail.amqp.session import Session
from lightrail.client.errors import ClosedError

if TYPE_CHECKING:
    from lightrail.client.connection import Connection
    from lightrail.client.wire import Wire


class Link:
    """A sender or receiver, and the context of its link of the engine."""

    def __init__(self, connection: "Connection", address: str | None, name: str, *, presettled: bool) -> None:
        self._connection = connection
        self.address = address
        self.name = name
        self._presettled = presettled
        self._wire: Wire | None = None
        self._link: EngineLink | None = None
        self._attached = False
        self._opened: asyncio.Future[None] = connection.loop.create_future()
        self._closed: Exception | None = None
        self._awaiting: dict[asyncio.Future[None], None] = {}
        """Calls of `_until_attached`, in order."""

    @property
    def what(self) -> str:
        """Description for error texts."""
        raise NotImplementedError

    # --- for the application -----------------------------------------------------------------------------

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _enter(self) -> None:
        try:
            await self.opened()
        except asyncio.CancelledError:
            # The `async with` block does not begin, so its exit does not close the link.
            if self._attached:
                # The broker's attach was handled in the same turn, and credit may be granted already.
                await self.close()
            else:
                self.end(ClosedError(f"the opening of {self.what} was cancelled"))
            raise

    async def opened(self) -> None:
        """Returns when the broker has first opened the link. Raises LinkError if the broker refused it."""
        await asyncio.shield(self._opened)

    async def _until_attached(self) -> None:
        """Returns when the link is attached, now or after a loss. Raises the error that has ended it."""
        while not self._attached:
            if self._closed is not None:
                raise self._closed.with_traceback(None)
            waiter: asyncio.Future[None] = self._connection.loop.create_future()
            self._awaiting[waiter] = None
            try:
                await waiter
            finally:
                self._awaiting.pop(waiter, None)

    @property
    def closed(self) -> bool:
        """Whether the link has ended and is not attached again."""
        return self._closed is not None

    @property
    def healthy(self) -> bool:
        """Whether the link is attached now."""
        return self._attached

    @property
    def resumes(self) -> bool:
        """Whether the broker keeps the state of the link over the loss of a connection: see `resume`."""
        return False

    async def close(self) -> None:
        """Detaches."""
        raise NotImplementedError

    # --- for the connection ------------------------------------------------------------------------------

    @property
    def was_opened(self) -> bool:
        """Whether the broker has opened the link before, or it has failed."""
        return self._opened.done()

    def attach(self, wire: "Wire", session: Session) -> None:
        """Attaches on a new connection, or again on the same one."""
        raise NotImplementedError

    def lost(self) -> None:
        """Resets the link after the loss of the connection."""
        raise NotImplementedError

    def end(self, error: Exception) -> None:
        """Ends the link: the application closed it, the broker refused it, or the connection ended."""
        raise NotImplementedError

    # --- for the wire ------------------------------------------------------------------------------------

    def attached(self) -> None:
        """The broker has answered our attach; its detach may follow at once, with the reason."""
        raise NotImplementedError

    def detached(self, error: AmqpError | None) -> None:
        """The broker has ended the link, or refused it."""
        raise NotImplementedError

    def handle(self, event: Event) -> None:
        """Transfers, Outcome, Credit, Drained, Resumed or SenderSettled."""
        raise NotImplementedError

    def flush(self) -> None:
        """Passes collected messages and outcomes to the engine, at the end of a turn."""
        raise NotImplementedError

    # --- inside ------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if not self._opened.done():
            self._opened.set_result(None)
        self._wake_awaiting()

    def _wake_awaiting(self) -> None:
        awaiting, self._awaiting = self._awaiting, {}
        for waiter in awaiting:
            if not waiter.done():
                waiter.set_result(None)

    def _fail_opening(self, error: Exception) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)
            # Mark the exception as retrieved: there may be no waiter.
            self._opened.exception()
        self._wake_awaiting()

    def _touch(self) -> None:
        """Requests a call of `flush` at the end of this turn."""
        if self._wire is not None:
            self._wire.touch(self)
