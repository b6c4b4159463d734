"""Waiting inside a loop without a clock: turns of the loop until something holds."""

import asyncio
from collections.abc import Callable

TURNS_MAX = 20_000


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop turn; fails when it never comes to be."""
    for _ in range(TURNS_MAX):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to be")
