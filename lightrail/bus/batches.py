"""Batches: messages that one call handles together."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from lightrail.bus.context import Context
from lightrail.transport import Clock
from lightrail.transport.clock import Timer

if TYPE_CHECKING:
    from lightrail.bus.handlers import Batch


class Collector:
    """Gathers the messages of several tasks, and calls the handler once for all of them.

    Args:
        call: the handler, with a list of messages and the context of the first.
    """

    def __init__(
        self, batch: "Batch", call: Callable[[list[Any], Context], Awaitable[Any]], clock: Clock
    ) -> None:
        self.batch: Final = batch
        self._call = call
        self._clock = clock
        self._waiting: list[tuple[Context, asyncio.Future[None]]] = []
        self._timer: Timer | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def add(self, context: Context) -> None:
        """Returns when the batch of a message was handled; raises what its handler raised."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((context, done))
        if len(self._waiting) >= self.batch.size:
            self._begin()
        elif self._timer is None:
            self._timer = self._clock.call_at(self._clock.time() + self.batch.wait, self._begin)
        await done

    async def stop(self) -> None:
        """Cancels calls under way, whose messages are released, and waits for their end."""
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        waiting = [(context, done) for context, done in waiting if not done.done()]
        if waiting:
            task = asyncio.create_task(self._run(waiting))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def _run(self, waiting: list[tuple[Context, "asyncio.Future[None]"]]) -> None:
        error: BaseException | None = None
        try:
            # Messages that the handler sends belong to the first message, so they are sent once.
            await self._call([context.message for context, _ in waiting], waiting[0][0])
        except BaseException as raised:
            error = raised
        for _, done in waiting:
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
        if isinstance(error, asyncio.CancelledError):
            raise error
