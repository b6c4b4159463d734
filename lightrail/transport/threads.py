"""Threads for calls that wait for a disk or a server."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Value = TypeVar("Value")


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
        future = asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def close(self) -> None:
        """Ends the threads after their present calls."""
        self._executor.shutdown()
