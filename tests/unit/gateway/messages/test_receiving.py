"""Requests that wait for messages: their order, their credit, their ends, what becomes of late deliveries."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from lightrail.gateway.errors import ProblemError
from lightrail.gateway.messages import receiving
from lightrail.gateway.messages.receiving import STALE_MIN, LockedMessage, Receivers
from lightrail.model.policy import Policy
from lightrail.namespace.records import Name
from lightrail.shard_client.peers.shards import ConnectionState
from lightrail.wire.bodies import ConsumerOpen, Refusal
from lightrail.wire.frames import ASKED, COUNT_MASK, DRAIN, HEADER, REPEATED, Kind, OutcomeCode
from tests.support.shard.fake_shards import FakePeer, FakeShards

LONG_MS = 60_000


def queue(**policy: Any) -> Name:
    return Name("q", Policy.parse({"role": "queue", **policy}))


Check = Callable[[Receivers, FakeShards], Awaitable[None]]


def scene(check: Check) -> None:
    async def run() -> None:
        shards = FakeShards()
        receivers = Receivers(shards, asyncio.get_running_loop())  # type: ignore[arg-type]
        await check(receivers, shards)
        receivers.close()

    asyncio.run(run())


async def turn() -> None:
    """Everything that is due now happens."""
    for _ in range(5):
        await asyncio.sleep(0)


async def gone(peer: FakePeer) -> None:
    while peer.consumers:  # noqa: ASYNC110 - the fake tells nobody
        await asyncio.sleep(0)


def waiting(receivers: Receivers, wait_ms: int = LONG_MS, record: Name | None = None) -> Any:
    return asyncio.create_task(receivers.receive(record or queue(), wait_ms))


def credit(peer: FakePeer) -> list[tuple[int, int]]:
    return [(flags, number) for flags, _, number in peer.said(Kind.CREDIT)]


def test_as_many_deliveries_are_asked_for_as_requests_wait() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        tasks = [waiting(receivers) for _ in range(3)]
        await turn()
        assert credit(shards.peer) == [(0, 3)]
        shards.peer.deliver(0, b"a", b"b", sequence=7)
        await turn()
        assert [task.result().delivery.message for task in tasks[:2]] == [b"a", b"b"]
        assert [task.result().delivery.sequence for task in tasks[:2]] == [7, 8]
        assert receivers.waiting == 1
        assert credit(shards.peer) == []
        tasks[2].cancel()
        await turn()
        assert credit(shards.peer) == [(0, 2)]

    scene(check)


def test_who_waited_longest_is_first_and_who_left_is_passed_over() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        first, second, third = (waiting(receivers) for _ in range(3))
        await turn()
        first.cancel()
        await turn()
        shards.peer.deliver(0, b"a")
        await turn()
        assert second.result().delivery.message == b"a"
        assert not third.done()
        third.cancel()

    scene(check)


def test_a_delivery_that_finds_nobody_is_released_at_once() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        leaving = waiting(receivers)
        await turn()
        leaving.cancel()
        await turn()
        shards.peer.said()
        shards.peer.deliver(0, b"a", b"b")
        assert shards.peer.said(Kind.SETTLE) == [(OutcomeCode.RELEASED, 2, 0)]

    scene(check)


def test_a_request_cancelled_in_the_moment_of_its_delivery_gives_it_back() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        leaving = waiting(receivers)
        await turn()
        shards.peer.deliver(0, b"a")
        leaving.cancel()
        await turn()
        assert leaving.cancelled()
        assert shards.peer.said(Kind.SETTLE) == [(OutcomeCode.RELEASED, 1, 0)]

    scene(check)


def test_a_request_cancelled_in_the_moment_in_which_its_queue_is_deleted_is_counted_once() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        leaving, staying = waiting(receivers), waiting(receivers)
        await turn()
        leaving.cancel()
        shards.peer.consumer.ended(Refusal("amqp:resource-deleted", "it was deleted"))
        await turn()
        assert leaving.cancelled()
        assert isinstance(staying.exception(), ProblemError)
        assert receivers.waiting == 0

    scene(check)


def test_time_outs_ring_in_their_order() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        late, early = waiting(receivers, 60), waiting(receivers, 20)
        rung: list[object] = []
        for each in (late, early):
            each.add_done_callback(rung.append)
        assert await late is None
        assert early.result() is None
        assert rung == [early, late]
        assert receivers.waiting == 0

    scene(check)


def test_who_does_not_want_to_wait_learns_that_there_is_nothing() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        patient, hasty = waiting(receivers), waiting(receivers, 0)
        await turn()
        assert credit(shards.peer) == [(DRAIN, 2)]
        # While the shard drains nothing else is said to it.
        another = waiting(receivers, 0)
        await turn()
        assert credit(shards.peer) == []
        shards.peer.deliver(0, b"a")
        shards.peer.consumer.drained(1)
        await turn()
        assert patient.result().delivery.message == b"a"
        assert hasty.result() is None
        assert credit(shards.peer) == [(DRAIN, 2)]
        shards.peer.consumer.drained(1)
        await turn()
        assert another.result() is None

    scene(check)


def test_a_released_message_is_named_by_its_delivery() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        tasks = [waiting(receivers) for _ in range(2)]
        await turn()
        shards.peer.deliver(0, b"a", b"b")
        _, back = [await task for task in tasks]
        back.release()
        assert shards.peer.said(Kind.SETTLE) == [(OutcomeCode.RELEASED, 1, 1)]

    scene(check)


Removal = Callable[[FakeShards, Any], None]


def lost(shards: FakeShards, consumer: Any) -> None:
    consumer.reopen()


def moved(shards: FakeShards, consumer: Any) -> None:
    shards.peer.resuming = True
    consumer.reopen()
    assert removals(shards.peer) == [(ASKED | REPEATED, 0)]
    consumer.settled(0, 1, True)


def changed(shards: FakeShards, consumer: Any) -> None:
    """The lock_duration is another one: a new consumer receives, and the link of this one ends after it."""
    consumer.close()
    assert not shards.peer.said(Kind.CONSUMER_CLOSE)
    consumer.settled(0, 1, True)
    assert shards.peer.said(Kind.CONSUMER_CLOSE)


def changed_and_lost(shards: FakeShards, consumer: Any) -> None:
    consumer.close()
    shards.peer.said()
    consumer.reopen()
    assert [part[0] for part in shards.peer.parts] == [Kind.CONSUMER_CLOSE]


def removals(peer: FakePeer) -> list[tuple[int, int]]:
    """What they ask for, and their numbers."""
    headers = [HEADER.unpack_from(part) for part in peer.parts if part[0] == Kind.SETTLE]
    peer.parts.clear()
    return [(asked, number) for _, code, asked, _, _, _, number in headers if code == OutcomeCode.ACCEPTED]


@pytest.mark.parametrize(
    ("end", "is_certain"),
    [
        (lambda _, consumer: consumer.settled(0, 1, True), True),
        (lambda _, consumer: consumer.settled(0, 1, False), False),
        (lambda _, consumer: consumer.not_locked(0, 1), False),
        (lambda _, consumer: consumer.ended(Refusal("amqp:resource-deleted", "")), False),
        (lost, False),
        (moved, True),
        (changed, True),
        (changed_and_lost, False),
    ],
)
def test_a_message_is_removed_when_its_shard_has_that_on_disk(end: Removal, is_certain: bool) -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        task, other = waiting(receivers), waiting(receivers)
        await turn()
        shards.peer.deliver(0, b"a")
        consumer, message = shards.peer.consumer, await task
        shards.peer.said()
        removing = asyncio.create_task(message.remove())
        await turn()
        assert removals(shards.peer) == [(ASKED, 0)]
        assert not removing.done()
        end(shards, consumer)
        await turn()
        assert removing.result() is is_certain
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)

    scene(check)


def test_a_message_whose_shard_is_lost_already_is_released_and_not_removed() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        task = waiting(receivers)
        await turn()
        shards.peer.deliver(0, b"a", sequence=4)
        message = await task
        shards.peer.state = ConnectionState.GREETING
        assert not await message.remove()
        released = {"lock": message.lock, "sequence": 4, "outcome": "released"}
        assert shards.peer.late == [("settle", released)]

    scene(check)


def test_a_consumer_counts_for_the_user_whose_request_opened_it() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        tasks = [asyncio.create_task(receivers.receive(queue(), LONG_MS, user)) for user in ("ann", "bob")]
        await turn()
        (opened,) = [part for part in shards.peer.parts if part[0] == Kind.CONSUMER_OPEN]
        assert ConsumerOpen.decode(opened[24:]).user == "ann"
        for task in tasks:
            task.cancel()

    scene(check)


def test_after_a_new_greeting_old_deliveries_are_settled_by_their_lock() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        task, other = waiting(receivers), waiting(receivers)
        await turn()
        shards.peer.deliver(0, b"a", sequence=4)
        delivery: LockedMessage = await task
        shards.peer.said()
        shards.peer.consumer.reopen()
        opened = ConsumerOpen.decode(shards.peer.parts[0][24:])
        assert opened.lock_key != delivery.key
        assert opened.first == 0
        assert credit(shards.peer) == [(0, 1)]
        delivery.release()
        await turn()
        assert shards.peer.late == [
            # A message that has not arrived is locked for nobody.
            ("return_unsent", {"locks": [f"{delivery.key}-1"]}),
            ("settle", {"lock": delivery.lock, "sequence": 4, "outcome": "released"}),
        ]
        shards.peer.deliver(0, b"b")
        assert (await other).delivery.message == b"b"

    scene(check)


def test_what_a_request_left_while_the_shard_is_lost_is_released_when_it_serves_again() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        leaving, done = waiting(receivers), waiting(receivers)
        await turn()
        shards.peer.deliver(0, b"a", b"b", sequence=4)
        leaving.cancel()
        shards.peer.state = ConnectionState.GREETING
        await turn()
        message = done.result()
        released = {"lock": f"{message.key}-0", "sequence": 4, "outcome": "released"}
        assert shards.peer.late == [("settle", released)]
        message.keep()
        shards.peer.said()
        receivers.close()
        assert shards.peer.late[1:] == [("return_unsent", {"locks": [f"{message.key}-2"]})]

    scene(check)


def test_what_is_on_its_way_to_a_consumer_that_closes_returns() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        task = waiting(receivers)
        await turn()
        shards.peer.deliver(0, b"a")
        (await task).keep()
        shards.peer.said()
        receivers.close()
        kinds = [HEADER.unpack_from(part)[0] for part in shards.peer.parts]
        assert kinds == [Kind.CREDIT, Kind.SETTLE, Kind.CONSUMER_CLOSE]
        assert shards.peer.said(Kind.CREDIT, Kind.SETTLE) == [
            (0, 0, 1),
            (OutcomeCode.RELEASED, COUNT_MASK, 1),
        ]
        assert shards.peer.late == []

    scene(check)


def test_a_refused_consumer_is_said_to_everybody_who_waits() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        tasks = [waiting(receivers) for _ in range(2)]
        await turn()
        shards.peer.consumer.ended(Refusal("amqp:resource-locked", "somebody else has it"))
        for task in tasks:
            with pytest.raises(ProblemError) as raised:
                await task
            assert raised.value.status == 409
        assert receivers.waiting == 0

    scene(check)


def test_a_queue_that_was_made_again_has_a_consumer_of_its_own() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        before = waiting(receivers)
        await turn()
        old = shards.peer.consumer
        after = waiting(receivers, record=replace(queue(), created=queue().created + 1))
        await turn()
        assert len(shards.peer.consumers) == 2
        old.ended(Refusal("amqp:resource-deleted", "q was dropped and made again"))
        with pytest.raises(ProblemError):
            await before
        assert not after.done()
        after.cancel()

    scene(check)


def test_the_lock_is_as_long_as_the_policy_says_and_follows_it() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        task = waiting(receivers, record=queue(lock_duration=1.5))
        await turn()
        opened = ConsumerOpen.decode(shards.peer.parts[0][24:])
        assert opened.lock_ms == 1_500
        shards.peer.said()
        receivers.changed([queue(lock_duration=2)])
        assert ConsumerOpen.decode(shards.peer.parts[3][24:]).lock_ms == 2_000
        receivers.changed([queue(lock_duration=2, max_length=5)])
        await turn()
        # That of the former consumer ends.
        assert credit(shards.peer) == [(0, 0), (0, 1)]
        shards.peer.deliver(0, b"a")
        assert (await task).locked_until_ms == 1_002_000

    scene(check)


def test_a_lock_ends_as_the_shard_counts_however_late_the_gateway_reads_of_it() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        task = waiting(receivers, record=queue(lock_duration=1.5))
        await turn()
        shards.peer.deliver(0, b"a", at_ms=shards.now_ms() - 700)
        assert (await task).locked_until_ms == shards.now_ms() + 800

    scene(check)


def test_a_consumer_that_keeps_others_out_goes_with_the_last_who_waits() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        task = waiting(receivers, 10, queue(exclusive=True))
        assert await task is None
        await turn()
        assert shards.peer.said(Kind.CONSUMER_CLOSE)

    scene(check)


def test_an_idle_consumer_goes_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "RECEIVER_IDLE_MS", 10)

    async def check(receivers: Receivers, shards: FakeShards) -> None:
        task = waiting(receivers)
        await turn()
        shards.peer.deliver(0, b"a")
        delivery = await task
        # What was handed out is not answered yet.
        receivers._receivers["q"]._close_idle()
        assert shards.peer.consumers
        delivery.keep()
        await asyncio.wait_for(gone(shards.peer), 10)

    scene(check)


def test_with_the_shard_away_only_the_hasty_are_refused() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        shards.peer.state = ConnectionState.GREETING
        with pytest.raises(ProblemError) as raised:
            await receivers.receive(queue(), 0)
        assert raised.value.status == 503
        assert await receivers.receive(queue(), 10) is None

    scene(check)


def test_waiting_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "RECEIVERS_MAX", 1)

    async def check(receivers: Receivers, shards: FakeShards) -> None:
        task = waiting(receivers)
        await turn()
        with pytest.raises(ProblemError) as raised:
            await receivers.receive(queue(), LONG_MS)
        assert raised.value.status == 503
        task.cancel()

    scene(check)


def test_the_line_does_not_grow_with_those_who_left() -> None:
    async def check(receivers: Receivers, shards: FakeShards) -> None:
        for _ in range(10):
            tasks = [waiting(receivers) for _ in range(100)]
            await turn()
            for task in tasks:
                task.cancel()
            await turn()
        receiver = receivers._receivers["q"]
        assert len(receiver._line._waiters) <= STALE_MIN + 1
        assert len(receiver._line._deadlines) <= STALE_MIN + 1

    scene(check)
