"""Requests to a shard: what their callers learn, and when they end."""

import asyncio

import pytest

from lightrail.shard_client.peers.requests import Requests, ShardDownError
from lightrail.wire.bodies import encode_request
from lightrail.wire.frames import HEADER, Kind, frame


def asked(posted: list[bytes]) -> Requests:
    return Requests(asyncio.get_running_loop(), 0, posted.append, lambda _: None)


def answer_to(posted: bytes) -> tuple[int, bytes]:
    number = HEADER.unpack_from(posted)[6]
    return number, frame(Kind.RESPONSE, number=number, body=encode_request({"found": number}))


def test_a_caller_that_is_cancelled_in_the_turn_of_its_answer_is_cancelled() -> None:
    # It goes on to settle what others have by then, if its cancellation is lost.
    async def check() -> None:
        posted: list[bytes] = []
        requests = asked(posted)
        caller = asyncio.create_task(requests.ask(b"", 10_000))
        await asyncio.sleep(0)
        requests.answered(*answer_to(posted[0]))
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert len(requests) == 0

    asyncio.run(check())


def test_an_answer_after_the_end_of_its_caller_is_passed_over() -> None:
    async def check() -> None:
        posted: list[bytes] = []
        requests = asked(posted)
        with pytest.raises(ShardDownError, match="did not answer within 1 ms"):
            await requests.ask(b"", 1)
        requests.answered(*answer_to(posted[0]))
        caller = asyncio.create_task(requests.ask(b"", 10_000))
        await asyncio.sleep(0)
        caller.cancel()
        requests.answered(*answer_to(posted[1]))
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert len(requests) == 0

    asyncio.run(check())
