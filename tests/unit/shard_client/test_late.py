"""LateRequests: what links leave to be asked when their shard serves again."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.shard_client.owners import late
from lightrail.shard_client.owners.late import LateRequests
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError


class Shards:
    """Answers with the errors of `errors`, one after the other, then with success."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.asked: list[tuple[str, str, int]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.late = LateRequests(self.ask, lambda work: self.tasks.append(asyncio.ensure_future(work)))

    async def ask(self, queue: str, operation: str, fields: dict[str, Any]) -> None:
        self.asked.append((queue, operation, fields["n"]))
        await asyncio.sleep(0)
        self.meanwhile()
        if self.errors:
            raise self.errors.pop(0)

    async def done(self) -> None:
        while self.tasks:
            await self.tasks.pop(0)


def test_requests_are_sent_in_the_order_of_their_queue() -> None:
    async def check() -> None:
        shards = Shards()
        for number, queue in enumerate(("q", "r", "q")):
            shards.late.add(queue, "settle", {"n": number})
        await shards.done()
        assert shards.asked == [("q", "settle", 0), ("r", "settle", 1), ("q", "settle", 2)]
        assert shards.late.count == 0

    asyncio.run(check())


@pytest.mark.parametrize("error", [ShardDownError("it starts"), CoordinatorError("etcd is away")], ids=repr)
def test_requests_wait_until_a_shard_serves_again(error: Exception) -> None:
    async def check() -> None:
        shards = Shards(error, error)
        for number in range(2):
            shards.late.add("q", "settle", {"n": number})
        await shards.done()
        shards.late.retry()
        await shards.done()
        assert (len(shards.asked), shards.late.count) == (2, 2)
        shards.late.retry()
        await shards.done()
        assert [number for _, _, number in shards.asked] == [0, 0, 0, 1]
        assert shards.late.count == 0

    asyncio.run(check())


def test_a_shard_that_serves_again_while_a_request_fails_is_asked_again() -> None:
    async def check() -> None:
        shards = Shards(ShardDownError("it starts"))
        shards.meanwhile = lambda: shards.late.retry() if shards.errors else None
        shards.late.add("q", "settle", {"n": 1})
        await shards.done()
        assert (len(shards.asked), shards.late.count) == (2, 0)

    asyncio.run(check())


def test_a_refused_request_is_not_repeated() -> None:
    async def check() -> None:
        shards = Shards(ShardRefusedError("amqp:not-found", "no queue"))
        for number in range(2):
            shards.late.add("q", "settle", {"n": number})
        await shards.done()
        assert [number for _, _, number in shards.asked] == [0, 1]
        assert shards.late.count == 0

    asyncio.run(check())


def test_late_requests_have_a_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(late, "LATE_REQUESTS_MAX", 2)

    async def check() -> None:
        shards = Shards(ShardDownError("it starts"))
        for number in range(3):
            shards.late.add("q", "settle", {"n": number})
        await shards.done()
        shards.late.retry()
        await shards.done()
        assert [number for _, _, number in shards.asked] == [0, 0, 1]
        assert "locks of q last until their time" in caplog.text

    asyncio.run(check())
