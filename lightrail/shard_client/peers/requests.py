"""Requests: a process's unanswered requests to a shard. None is repeated.

Watch: the events of the connections to shards, for followers.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from lightrail.model.conditions import LATE
from lightrail.wire.bodies import Answer, decode_request
from lightrail.wire.frames import DUE, HEADER, Kind, Part, frame

Peer = TypeVar("Peer")


class Watch(Generic[Peer]):
    """Base of followers of a process's connections to shards (owners.py); it ignores all events."""

    def lost(self, peer: Peer) -> None:
        """The shard no longer serves; links stay, and are opened again when it serves."""

    def welcomed(self, peer: Peer) -> None:
        """The shard was greeted, and every link has been opened again."""

    def silent(self, peer: Peer, silent_ms: int) -> None:
        """The shard has sent nothing for `silent_ms`, and has not been restarted as far as is known."""

    def spoke(self, peer: Peer) -> None:
        """A shard that was silent sends again."""

    def opened(self, peer: Peer, link: int) -> None:
        """The shard opened a producer or consumer."""

    def ended(self, peer: Peer, link: int) -> None:
        """The shard ended a producer or consumer, whose `ended` is called after this."""

    def moved(self, peer: Peer, link: int) -> None:
        """The shard does not own the queue of a link, or not in the epoch that the link named."""

    def ponged(self, peer: Peer, ping: int) -> None:
        """The shard has answered a PING (see ShardPeer.ping): nothing sent before it is missing."""

    def bounced(self, peer: Peer, queue: str, part: bytes) -> None:
        """The shard returned a settlement or close, which is for the shard that owns the queue now."""


REQUESTS_MAX: Final[int] = 20_000
"""Requests of one process that wait for one shard."""


class ShardDownError(Exception):
    """The shard does not serve, or was lost before it answered: the request may have been executed."""


class LateError(ShardDownError):
    """The shard received the request too late, and did not execute it."""


class ShardRefusedError(Exception):
    """The shard's answer to a request was an error."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


@dataclass(slots=True, eq=False, repr=False)
class Requests:
    """At most REQUESTS_MAX at once.

    Args:
        post: sends a frame to the shard.
        due: until when the shard executes a request whose caller waits so many milliseconds, in the form of
            DUE; None if that is unknown.
    """

    _loop: asyncio.AbstractEventLoop
    _shard: int
    _post: Callable[[bytes], None]
    _due: Callable[[int], int | None]
    _waiting: dict[int, asyncio.Future[Answer]] = field(default_factory=dict)
    _last: int = 0

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, body: bytes, wait_ms: int) -> Answer:
        """Raises ShardDownError or ShardRefusedError."""
        if not wait_ms:
            raise LateError(f"the time of the request was over before it was sent to shard {self._shard}")
        if len(self._waiting) >= REQUESTS_MAX:
            raise ShardDownError(f"{REQUESTS_MAX} requests wait for shard {self._shard} already; try again")
        number = self._last = self._last + 1
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[number] = answer
        due = self._due(wait_ms)
        self._post(
            frame(Kind.REQUEST, flags=DUE * (due is not None), epoch=due or 0, number=number, body=body)
        )
        try:
            # Not wait_for, which in Python 3.11 loses a cancellation in the turn of the answer.
            async with asyncio.timeout(wait_ms / 1000):
                return await answer
        except TimeoutError:
            raise ShardDownError(
                f"shard {self._shard} did not answer within {wait_ms} ms; it may have executed the request, "
                "or not; try again"
            ) from None
        finally:
            self._waiting.pop(number, None)

    def answered(self, number: int, part: Part, apart: memoryview | None = None) -> None:
        """The shard's RESPONSE to a request; `apart` is its blob if that is a separate part."""
        waiting = self._waiting.get(number)
        if waiting is None or waiting.done():
            return
        fields, blob = decode_request(memoryview(part)[HEADER.size :])
        error = fields.get("error")
        if error is not None and error["condition"] == LATE:
            waiting.set_exception(LateError(f"shard {self._shard}: {error['description']}"))
        elif error is not None:
            waiting.set_exception(ShardRefusedError(str(error["condition"]), str(error["description"])))
        else:
            waiting.set_result(Answer(fields, blob if apart is None else apart))

    def lost(self, why: str) -> None:
        """The shard was lost before it answered."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ShardDownError(f"shard {self._shard} was lost ({why}); try again"))
