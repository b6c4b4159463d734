"""Threads for calls that wait for a disk or a server."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

Value = TypeVar("Value")


async def call_in_thread(call: Callable[[], Value], executor: Executor | None = None) -> Value:
    """The result of a call in a thread, by default one of the loop's, with the context of the caller.

    A thread can't be stopped: a cancellation, and each further one, waits for the end of the call. So nothing
    that the call uses, such as a transaction, ends before the call does.
    """
    future = asyncio.get_running_loop().run_in_executor(executor, contextvars.copy_context().run, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        raise


class Threads:
    """Calls functions in separate threads; with one thread, one call after the other.

    Args:
        count: of threads.
        name: of the threads, for debugging.
    """

    def __init__(self, count: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def call(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """The result of a call. A cancellation waits for the end of the call, which can't be stopped."""
        return await call_in_thread(partial(function, *arguments), self._executor)

    def close(self) -> None:
        """Ends the threads after their present calls."""
        self._executor.shutdown()
