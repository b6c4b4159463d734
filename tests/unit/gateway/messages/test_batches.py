"""A numbered batch on its way to one queue: frames, what becomes of them, what the request is told."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lightrail.gateway.errors import ProblemError
from lightrail.gateway.messages.batches import BatchMessage, RequestBatch, store
from lightrail.model import conditions
from lightrail.wire.bodies import ProducerOpen, Refusal
from lightrail.wire.frames import AFRESH, DURABLE, HEADER_SIZE, IDENTITY, UNKNOWN_SEQUENCE, Kind
from tests.support.shard.fake_shards import FULL, FakePeer

FIRST = 8 << 16
"""The number of the first frame of batch 7."""


def plain(text: str, durable: bool = True) -> BatchMessage:
    return BatchMessage(text.encode(), durable, 4, None, None)


MIXED = RequestBatch("user", "p", 7, [plain("a"), plain("b"), plain("c", durable=False), plain("d")])


def sent(
    check: Callable[[FakePeer, "asyncio.Task[int]"], Awaitable[None]], wait_ms: int = 60_000
) -> FakePeer:
    """A batch is sent, and what the check makes the shard say is heard."""

    async def run() -> FakePeer:
        owner = FakePeer()
        storing = store(owner, 3, MIXED, now_ms=1_000_000, wait_ms=wait_ms)  # type: ignore[arg-type]
        task = asyncio.create_task(storing)
        await asyncio.sleep(0)
        await check(owner, task)
        return owner

    return asyncio.run(run())


def test_runs_of_like_messages_are_frames_with_numbers_of_their_own() -> None:
    async def check(owner: FakePeer, task: "asyncio.Task[int]") -> None:
        opened = ProducerOpen.decode(owner.parts[0][HEADER_SIZE:])
        assert (opened.queue, opened.sequences, opened.identity) == ("q", True, MIXED.identity("q"))
        assert opened.identity & IDENTITY
        assert owner.said(Kind.ENQUEUE) == [
            (DURABLE | AFRESH, 2, FIRST),
            (0, 1, FIRST + 1),
            (DURABLE, 1, FIRST + 2),
        ]
        owner.producer.stored(FIRST, UNKNOWN_SEQUENCE)
        owner.producer.stored(FIRST + 1, 10)
        owner.producer.stored(FIRST + 2, 11)
        assert await task == 2
        assert owner.producers == {}

    sent(check)


def test_a_shard_that_is_there_again_hears_what_has_no_answer() -> None:
    async def check(owner: FakePeer, task: "asyncio.Task[int]") -> None:
        owner.producer.stored(FIRST, 1)
        owner.said()
        owner.producer.reopen()
        assert [number for _, _, number in owner.said(Kind.ENQUEUE)] == [FIRST + 1, FIRST + 2]
        owner.producer.answered(FIRST + 1, 2)
        assert await task == 2

    sent(check)


def test_a_refusal_says_how_many_are_stored() -> None:
    async def check(owner: FakePeer, task: "asyncio.Task[int]") -> None:
        owner.producer.stored(FIRST, 1)
        owner.producer.refused(FIRST + 1, FULL)
        owner.producer.refused(FIRST + 2, Refusal(FULL.condition, "a batch before this one was refused"))
        with pytest.raises(ProblemError, match="the first 2 of 4 messages are stored in q") as caught:
            await task
        assert (caught.value.status, caught.value.members["stored"]) == (503, 2)
        assert owner.producers == {}

    sent(check)


@pytest.mark.parametrize(
    ("condition", "status", "said"),
    [
        (conditions.STOLEN, 503, "another request of the producer 'p' reached q"),
        (conditions.NOT_FOUND, 404, "q was dropped"),
    ],
)
def test_a_producer_that_is_gone_is_told_why(condition: str, status: int, said: str) -> None:
    async def check(owner: FakePeer, task: "asyncio.Task[int]") -> None:
        owner.producer.ended(Refusal(condition, "q was dropped"))
        with pytest.raises(ProblemError, match=said) as caught:
            await task
        assert caught.value.status == status

    sent(check)


def test_a_shard_that_does_not_answer_leaves_it_open() -> None:
    async def check(owner: FakePeer, task: "asyncio.Task[int]") -> None:
        with pytest.raises(ProblemError, match="may or may not be stored; send it again, under the same"):
            await task

    sent(check, wait_ms=1)


def test_identities_tell_users_producers_and_queues_apart() -> None:
    others = [MIXED._replace(user="other"), MIXED._replace(producer="q")]
    found = {MIXED.identity("q"), MIXED.identity("r"), *(other.identity("q") for other in others)}
    assert len(found) == 4
    assert MIXED._replace(number=8).identity("q") == MIXED.identity("q")
