"""Events of a connection, for applications that watch it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a connection.

    Attributes:
        kind: connected, lost, failed (an attempt), closed, link-lost, link-attached, or lock-lost (locks
            that a receiver with renew_for could not renew in time, outcomes of one with resume that the
            broker may not have stored in time).
        where: the broker's address, or that of the link.
        reason: why, in words.
    """

    kind: str
    where: str
    reason: str = ""


class Reporter:
    """Calls an application's function with events; its exceptions are reported to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_event: Callable[[Event], None] | None) -> None:
        self._loop = loop
        self._on_event = on_event

    def report(self, kind: str, where: str, reason: str = "") -> None:
        """See Event."""
        if self._on_event is None:
            return
        try:
            self._on_event(Event(kind, where, reason))
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": f"on_event of a connection failed for {kind}", "exception": error}
            )
