"""The event loop of a process for lightrail.client.sync, in a thread of its own."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from lightrail.client.connection import other_process
from lightrail.client.errors import ClientError, ForkError

Found = TypeVar("Found")
Arguments = ParamSpec("Arguments")


class ThreadLoop:
    """A loop in a thread that ends with the process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="lightrail.client.sync", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, work: Coroutine[Any, Any, Found]) -> Found:
        """Runs a coroutine on the loop, and waits for its result; an interrupted wait cancels it."""
        if self.pid != os.getpid():
            work.close()
            raise ForkError(other_process(self.pid))
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError("expected to be called outside of the client's loop, which it would block")
        waiting: Future[Found] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()
            raise

    def make(
        self, make: Callable[Arguments, Found], *given: Arguments.args, **named: Arguments.kwargs
    ) -> Found:
        """Calls a function on the loop, for objects that may only be made there; see `call`."""

        async def made() -> Found:
            return make(*given, **named)

        return self.call(made())

    def iterate(self, source: AsyncIterator[Found]) -> Iterator[Found]:
        """The items of an asynchronous iterator, which runs on the loop."""
        while True:
            try:
                item = self.call(_next_of(source))
            except _ExhaustedError:
                return
            yield item


class _ExhaustedError(Exception):
    """The iterator ended; a future can't carry StopAsyncIteration."""


async def _next_of(source: AsyncIterator[Found]) -> Found:
    try:
        return await anext(source)
    except StopAsyncIteration:
        raise _ExhaustedError from None


_lock = threading.Lock()
_loop: ThreadLoop | None = None


def loop_of_process() -> ThreadLoop:
    """The loop of this process; the first call starts it."""
    global _loop
    with _lock:
        if _loop is None or _loop.pid != os.getpid():
            _loop = ThreadLoop()
        return _loop


def _after_fork() -> None:
    """Replaces the lock in the child: a thread of the parent may have locked it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
