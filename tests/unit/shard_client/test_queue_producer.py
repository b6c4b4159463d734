"""Queue producer: batches of one or several frames, refusals of them, and what is known at a time-out."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from lightrail.shard_client.peers.shards import ConnectionState
from lightrail.shard_client.sending.queue_producer import BatchAnswer, QueueProducer
from lightrail.shard_client.sending.window import MAYBE_STORED, NOT_STORED, Attributes
from lightrail.wire.bodies import ProducerOpen, Refusal
from lightrail.wire.frames import AFRESH, DURABLE, HEADER_SIZE, IDENTITY, Kind
from tests.support.shard.fake_shards import FULL, FakePeer

BEHIND = Refusal(FULL.condition, "a batch before this one was refused")
LONG_MS = 60_000
DURABLY = Attributes(True, 4, 0, 0)
TRANSIENT = Attributes(False, 4, 0, 0)


class Rig:
    """A producer at a shard that answers as the test says."""

    def __init__(self, **options: Any) -> None:
        self.peer = FakePeer()
        self.producer = QueueProducer(self.peer, 3, sequences=True, **options)  # type: ignore[arg-type]

    async def send(
        self, *parts: tuple[Attributes, list[bytes]], wait_ms: int = LONG_MS
    ) -> "asyncio.Task[BatchAnswer]":
        task = asyncio.create_task(self.producer.send(parts, wait_ms))
        await asyncio.sleep(0)
        return task

    def sent(self) -> list[tuple[int, int, int]]:
        """(flags, messages, number) of the frames since the last look."""
        return self.peer.said(Kind.ENQUEUE)


def run(check: Callable[[Rig], Awaitable[None]], **options: Any) -> None:
    async def within() -> None:
        await check(Rig(**options))

    asyncio.run(within())


def test_the_link_opens_with_the_first_batch() -> None:
    async def check(rig: Rig) -> None:
        assert rig.peer.parts == []
        task = await rig.send((DURABLY, [b"a", b"b"]), (TRANSIENT, [b"c"]))
        assert ProducerOpen.decode(rig.peer.parts[0][HEADER_SIZE:]) == ProducerOpen("q", True, label="me")
        assert rig.sent() == [(DURABLE | AFRESH, 2, 1), (0, 1, 2)]
        rig.producer.stored(1, 10)
        rig.producer.stored(2, 12)
        assert await task == BatchAnswer(3, 3, 10, None, False)
        assert rig.producer.is_idle

    run(check, label="me")


def test_a_batch_is_stored_up_to_its_refused_frame_and_batches_behind_it_are_sent_again() -> None:
    async def check(rig: Rig) -> None:
        first = await rig.send((DURABLY, [b"a", b"b"]), (TRANSIENT, [b"c", b"d"]), (DURABLY, [b"e"]))
        second = await rig.send((DURABLY, [b"f"]), (TRANSIENT, [b"g"]))
        rig.sent()
        rig.producer.stored(1, 10)
        rig.producer.refused(2, Refusal(FULL.condition, "full", 1))
        late = await rig.send((DURABLY, [b"h"]))
        for number in (3, 4, 5):
            assert rig.sent() == []
            rig.producer.refused(number, BEHIND)
        assert await first == BatchAnswer(3, 2, 10, Refusal(FULL.condition, "full", 1), False)
        assert rig.sent() == [(DURABLE | AFRESH, 1, 6), (0, 1, 7), (DURABLE, 1, 8)]
        for number in (6, 7, 8):
            rig.producer.stored(number, number)
        assert (await second).refusal is None
        assert (await late).sequence == 8

    run(check)


def test_a_refused_batch_whose_caller_has_left_holds_back_what_comes_before_the_last_answer() -> None:
    async def check(rig: Rig) -> None:
        left = await rig.send((DURABLY, [b"a"]))
        behind = await rig.send((DURABLY, [b"b"]))
        left.cancel()
        await asyncio.sleep(0)
        rig.sent()
        rig.producer.refused(1, FULL)
        late = await rig.send((DURABLY, [b"c"]))
        assert rig.sent() == []
        rig.producer.refused(2, BEHIND)
        assert rig.sent() == [(DURABLE | AFRESH, 1, 3), (DURABLE, 1, 4)]
        rig.producer.answered(3, 2)
        assert [(await each).refusal for each in (behind, late)] == [None, None]

    run(check)


def test_a_batch_that_reached_no_shard_in_time_is_not_stored() -> None:
    async def check(rig: Rig) -> None:
        rig.peer.state = ConnectionState.GREETING
        task = asyncio.create_task(rig.producer.send([(DURABLY, [b"a"])], 1))
        rig.peer.open_producer = lambda producer: None  # type: ignore[method-assign]
        assert (await task).refusal is NOT_STORED
        assert rig.producer.is_idle

    run(check)


def test_a_batch_without_an_answer_may_be_stored_when_time_or_the_link_ends() -> None:
    async def check(rig: Rig) -> None:
        assert (await (await rig.send((DURABLY, [b"a"]), wait_ms=1))).refusal is MAYBE_STORED
        task = await rig.send((DURABLY, [b"b"]))
        rig.producer.close()
        assert (await task).refusal is MAYBE_STORED
        assert rig.producer.is_closed
        assert rig.peer.producers == {}

    run(check)


def test_a_named_producer_opens_at_its_first_unanswered_frame_unless_one_was_refused() -> None:
    async def check(rig: Rig) -> None:
        task = await rig.send((DURABLY, [b"a"]), (TRANSIENT, [b"b"]), (DURABLY, [b"c"]))
        assert rig.peer.said(Kind.PRODUCER_OPEN) == [(0, 0, 7)]
        rig.producer.stored(7, 1)
        rig.producer.reopen()
        assert rig.peer.said(Kind.PRODUCER_OPEN) == [(0, 0, 8)]
        rig.producer.refused(8, FULL)
        rig.producer.reopen()
        assert rig.peer.said(Kind.PRODUCER_OPEN) == [(0, 0, 0)]
        rig.producer.refused(9, BEHIND)
        assert (await task).stored == 1

    run(check, identity=IDENTITY | 1, first=7)


def test_what_was_given_back_as_not_stored_is_not_sent_by_a_shard_that_is_back_in_the_same_turn() -> None:
    async def check(rig: Rig) -> None:
        task = await rig.send((DURABLY, [b"a"]))
        rig.sent()
        rig.producer.disconnected()
        rig.peer.state = ConnectionState.GREETING
        sending = next(iter(rig.producer._window)).sending
        rig.producer._late(sending)
        rig.peer.state = ConnectionState.SERVING
        rig.producer.reopen()
        assert rig.sent() == []
        assert (await task).refusal in (NOT_STORED, MAYBE_STORED)

    run(check)
