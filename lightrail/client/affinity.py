"""Affinity: a connection belongs to the process and the event loop that opened it."""

import asyncio
import os

from lightrail.client.errors import ClientError


def other_process(pid: int) -> str:
    """The error text for an object of the process `pid` in this one."""
    return (
        f"expected to be used by process {pid}, which opened it, and is used by {os.getpid()}: "
        "open a connection after the fork"
    )


def check_loop(loop: asyncio.AbstractEventLoop, pid: int) -> None:
    """Raises ClientError outside of the loop, and in another process than `pid`."""
    try:
        running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        return
    if os.getpid() != pid:
        raise ClientError(other_process(pid))
    raise ClientError(
        "expected to be used on the event loop that opened it, and is used "
        + ("outside of a loop" if running is None else "on another one")
        + ": open a connection there, or use lightrail.client.sync, whose objects any thread may use"
    )
