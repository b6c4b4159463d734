"""Requests: a process's unanswered requests to a shard. None is repeated."""

import asyncio
from collections.abc import Callable
from typing import Final

from lightrail.wire.bodies import Answer, decode_request
from lightrail.wire.frames import HEADER, Kind, frame

REQUESTS_MAX: Final[int] = 20_000
"""Requests of one process that wait for one shard."""


class ShardDownError(Exception):
    """The shard does not serve, or was lost before it answered: the request may have been executed."""


class ShardRefusedError(Exception):
    """The shard's answer to a request was an error."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


class Requests:
    """At most REQUESTS_MAX at once.

    Args:
        post: sends a frame to the shard.
    """

    __slots__ = ("_last", "_loop", "_post", "_shard", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, shard: int, post: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._shard = shard
        self._post = post
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, body: bytes, wait_ms: int) -> Answer:
        """Raises ShardDownError or ShardRefusedError."""
        if len(self._waiting) >= REQUESTS_MAX:
            raise ShardDownError(f"{REQUESTS_MAX} requests wait for shard {self._shard} already; try again")
        number = self._last = self._last + 1
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[number] = answer
        self._post(frame(Kind.REQUEST, number=number, body=body))
        try:
            return await asyncio.wait_for(answer, wait_ms / 1000)
        except TimeoutError:
            raise ShardDownError(
                f"shard {self._shard} did not answer within {wait_ms} ms; try again"
            ) from None
        finally:
            self._waiting.pop(number, None)

    def answered(self, number: int, part: bytes, apart: memoryview | None = None) -> None:
        """The shard's RESPONSE to a request; `apart` is its blob if that is a separate part."""
        waiting = self._waiting.get(number)
        if waiting is None or waiting.done():
            return
        fields, blob = decode_request(memoryview(part)[HEADER.size :])
        error = fields.get("error")
        if error is not None:
            waiting.set_exception(ShardRefusedError(str(error["condition"]), str(error["description"])))
        else:
            waiting.set_result(Answer(fields, blob if apart is None else apart))

    def lost(self, why: str) -> None:
        """The shard was lost before it answered."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ShardDownError(f"shard {self._shard} was lost ({why}); try again"))
