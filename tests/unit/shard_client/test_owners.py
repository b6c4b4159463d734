"""Owners: links that follow their queue, what is said again, what waits, and what is given up."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from lightrail.amqp.events import ACCEPTED, RELEASED, Credit, Outcome
from lightrail.amqp.performatives import Modified
from lightrail.frontend.links.relays import RelayLink
from lightrail.model import conditions, limits
from lightrail.shard_client.owners import owners, queue_links
from lightrail.shard_client.owners.timers import OWNER_LATE_MS
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.wire.bodies import ConsumerOpen, Refusal
from lightrail.wire.frames import DRAIN, EXACT, Kind
from tests.support.amqp.frontend_fakes import FakeLink
from tests.support.shard.model_shard import ModelQueue
from tests.support.shard.owner_scene import OwnerReceiver, OwnerScene, OwnerSender

Play = Callable[[Callable[[OwnerScene], Awaitable[None]]], None]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    def run(check: Callable[[OwnerScene], Awaitable[None]]) -> None:
        async def main() -> None:
            scene = OwnerScene(monkeypatch, 2, shard_wait_ms=60_000)
            await scene.settle()
            await check(scene)
            scene.owners.close()

        asyncio.run(main())

    return run


def kinds(scene: OwnerScene, shard: int) -> list[Kind]:
    return [said.kind for said in scene.said(shard)]


def move(scene: OwnerScene, queue: ModelQueue, to: int) -> None:
    """The whole of a move, but for what the frontend hears of it by the wire."""
    scene.shards[1 - to].freeze(queue.name)
    scene.shards[to].open(queue, queue.epoch + 1)
    scene.resolver.soon[queue.name] = (to, queue.epoch)


def take(receiver: OwnerReceiver, limit: int, drain: bool = False) -> None:
    receiver.consumer.credit(Credit(receiver.link, limit, drain))  # type: ignore[arg-type]


def settle(receiver: OwnerReceiver, first: int, last: int, state: Any = ACCEPTED) -> None:
    receiver.consumer.outcome(Outcome(receiver.link, first, last, state, True))  # type: ignore[arg-type]


async def holding(scene: OwnerScene, count: int) -> tuple[ModelQueue, OwnerSender, OwnerReceiver]:
    """A queue, who has sent it so many messages, and who holds all of them."""
    queue = scene.queue("q")
    sender, receiver = scene.sender(), scene.receiver()
    await scene.settle()
    sender.send(count)
    take(receiver, count)
    await scene.settle()
    return queue, sender, receiver


# --- following -----------------------------------------------------------------------------------------


def test_everything_is_said_at_the_new_shard_in_the_new_epoch_and_nothing_at_the_former(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        queue = scene.queue("q")
        sender, receiver = scene.sender(), scene.receiver()
        await scene.settle()
        sender.send(3)
        sender.send(2)
        scene.up(0)
        move(scene, queue, 1)
        scene.said(0)
        scene.down(0)
        assert kinds(scene, 0) == []
        said = scene.said(1)
        assert [each.kind for each in said] == [
            Kind.PRODUCER_OPEN,
            Kind.ENQUEUE,
            Kind.ENQUEUE,
            Kind.CONSUMER_OPEN,
            Kind.CREDIT,
        ]
        assert {each.epoch for each in said if "OPEN" in each.kind.name} == {2}
        assert [each.number for each in said if each.kind == Kind.ENQUEUE] == [1, 2]
        assert ConsumerOpen.decode(said[3].body).resume
        await scene.settle()
        assert sender.outcomes() == dict.fromkeys(range(5), ACCEPTED)
        assert len(queue.stored) == 5
        assert receiver.link.sent == []

    play(check)


def test_where_the_placement_is_what_it_was_links_are_said_again_more_and_more_slowly(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        scene.resolver.placements["q"] = (0, 1)
        scene.sender()
        times = []
        for _ in range(400):
            await scene.settle()
            times += [scene.now_ms for kind in kinds(scene, 0) if kind == Kind.PRODUCER_OPEN]
            scene.tick(5)
        waits = [after - before for before, after in pairwise(times)]
        assert waits[:7] == [10, 20, 40, 80, 160, 320, 500]
        # At once when it is known to be elsewhere.
        scene.shards[1].open(ModelQueue("q"), 2)
        scene.placed("q", 1, 2)
        assert kinds(scene, 1) == [Kind.PRODUCER_OPEN]

    play(check)


def test_a_frozen_source_is_not_sent_links_that_it_refuses_until_the_queue_is_placed_anew(
    play: Play,
) -> None:
    async def check(scene: OwnerScene) -> None:
        queue = scene.queue("q")
        scene.sender()
        await scene.settle()
        scene.said(0)
        scene.resolver.frozen.add(("q", 1))
        scene.shards[0].freeze("q")
        for _ in range(40):
            scene.tick(10)
            await scene.settle()
        assert kinds(scene, 0) == []
        scene.shards[1].open(queue, 2)
        scene.placed("q", 1, 2)
        assert kinds(scene, 1) == [Kind.PRODUCER_OPEN]
        assert kinds(scene, 0) == []

    play(check)


def test_a_shard_that_may_have_thawed_the_queue_is_tried_after_the_longest_pause(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        queue = scene.queue("q")
        scene.sender()
        await scene.settle()
        scene.said(0)
        scene.resolver.frozen.add(("q", 1))
        scene.shards[0].freeze("q")
        await scene.settle()
        scene.shards[0].open(queue, 1)
        since_ms = scene.now_ms
        while not kinds(scene, 0):
            scene.tick(10)
            await scene.settle()
        assert scene.now_ms - since_ms == limits.OWNER_RETRY_MS_MAX

    play(check)


def test_a_link_that_no_shard_had_taken_is_attached_once_and_by_the_new_one(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        scene.resolver.placements["q"] = (0, 1)
        sender, receiver = scene.sender(), scene.receiver()
        await scene.settle()
        assert scene.connection.accepted == []
        scene.shards[1].open(ModelQueue("q"), 2)
        scene.placed("q", 1, 2)
        await scene.settle()
        assert scene.connection.accepted == [sender.link, receiver.link]

    play(check)


def test_what_a_consumer_holds_stays_its_own(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        queue, _, receiver = await holding(scene, 4)
        assert len(receiver.link.sent) == 4
        move(scene, queue, 1)
        await scene.settle()
        assert receiver.consumer.settlements.count == 4
        settle(receiver, 0, 2)
        settle(receiver, 3, 3, RELEASED)
        take(receiver, 5)
        await scene.settle()
        assert sorted(queue.accepted.values()) == [1, 1, 1]
        assert receiver.link.sent[3:] == [b"<1:000003>"] * 2

    play(check)


def test_a_former_shard_that_goes_before_it_has_answered_takes_what_is_held_with_it(play: Play) -> None:
    """A settlement that was on its way to it or back would be waited for at the new one for ever."""

    async def check(scene: OwnerScene) -> None:
        queue, _, receiver = await holding(scene, 2)
        move(scene, queue, 1)
        scene.down(0)
        assert receiver.consumer.settlements.count == 2
        before = scene.peers[1].greetings
        scene.lose(0)
        await scene.settle()
        assert scene.peers[1].greetings == before + 1
        assert receiver.consumer.settlements.count == 0

    play(check)


def test_a_former_shard_that_has_answered_what_was_sent_last_takes_nothing_with_it(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        queue, _, receiver = await holding(scene, 2)
        move(scene, queue, 1)
        await scene.settle()
        before = scene.peers[1].greetings
        scene.lose(0)
        await scene.settle()
        assert scene.peers[1].greetings == before
        assert receiver.consumer.settlements.count == 2

    play(check)


def test_settlements_and_closes_that_no_shard_is_there_for_are_said_behind_the_links(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        queue = scene.queue("q")
        sender = scene.sender()
        stays, goes = scene.receiver(), scene.receiver()
        await scene.settle()
        sender.send(4)
        await scene.settle()
        take(stays, 2)
        await scene.settle()
        take(goes, 2)
        await scene.settle()
        assert (len(stays.link.sent), len(goes.link.sent)) == (2, 2)
        scene.shards[0].freeze("q")
        await scene.settle()
        settle(stays, 0, 0)
        settle(goes, 0, 0)
        goes.consumer.close()
        scene.said(1)
        scene.shards[1].open(queue, 2)
        scene.placed("q", 1, 2)
        said = scene.said(1)
        assert [each.kind for each in said][-3:] == [Kind.SETTLE, Kind.SETTLE, Kind.CONSUMER_CLOSE]
        await scene.settle()
        assert sum(queue.accepted.values()) == 2
        assert list(queue.consumers) == [stays.number]
        assert len(queue.ready) == 1
        assert kinds(scene, 1) == []

    play(check)


def test_what_is_held_for_closed_links_is_sent_behind_the_next_link(play: Play) -> None:
    """The next link may be opened while the shard is being asked whether it owns the queue."""

    async def check(scene: OwnerScene) -> None:
        queue = scene.queue("q")
        sender = scene.sender()
        first = scene.receiver()
        await scene.settle()
        sender.send(3)
        await scene.settle()
        take(first, 3)
        await scene.settle()
        assert len(first.link.sent) == 3
        sender.producer.close()
        await scene.settle()
        scene.shards[0].freeze("q")
        await scene.settle()
        settle(first, 0, 1)
        first.consumer.close()
        scene.shards[1].open(queue, queue.epoch + 1)
        scene.placed("q", 1, queue.epoch)
        second = scene.receiver()
        await scene.settle()
        take(second, 10)
        await scene.settle()
        assert [queue.accepted[body] for body in queue.stored] == [1, 1, 0]
        assert len(second.link.sent) == 1

    play(check)


def test_what_comes_back_of_a_link_that_is_closed_goes_on_to_the_new_shard(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        queue, sender, receiver = await holding(scene, 2)
        sender.producer.close()
        await scene.settle()
        move(scene, queue, 1)
        settle(receiver, 0, 0)
        receiver.consumer.close()
        assert len(scene.owners) == 0
        await scene.settle()
        assert dict(queue.accepted) == {b"<1:000000>": 1}
        assert list(queue.ready) == [b"<1:000001>"]
        assert queue.consumers == {}
        assert len(scene.owners) == 0

    play(check)


def test_a_drain_that_has_no_answer_is_asked_of_the_new_shard(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        queue = scene.queue("q")
        receiver = scene.receiver()
        await scene.settle()
        take(receiver, 5, drain=True)
        move(scene, queue, 1)
        scene.down(0)
        (credit,) = [each for each in scene.said(1) if each.kind == Kind.CREDIT]
        assert (credit.number, credit.flags) == (5, EXACT | DRAIN)
        await scene.settle()
        assert receiver.link.drains == 1

    play(check)


@pytest.mark.parametrize("options", [{"presettled": True}, {"browse": True}])
def test_other_receivers_go_on_with_the_number_that_they_have(play: Play, options: dict[str, Any]) -> None:
    async def check(scene: OwnerScene) -> None:
        queue = scene.queue("q")
        sender, receiver = scene.sender(), scene.receiver(**options)
        await scene.settle()
        sender.send(2)
        take(receiver, 3)
        await scene.settle()
        move(scene, queue, 1)
        scene.said(1)
        scene.down(0)
        (opened,) = [each for each in scene.said(1) if each.kind == Kind.CONSUMER_OPEN]
        opening = ConsumerOpen.decode(opened.body)
        assert (opening.resume, opening.first) == (True, 2)

    play(check)


def test_a_sender_that_is_gone_brings_its_batches_to_the_new_shard_and_abandons_them(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        queue = scene.queue("q")
        sender = scene.sender()
        await scene.settle()
        scene.shards[0].freeze("q")
        await scene.settle()
        sender.send(2, settled=True)
        sender.producer.close()
        scene.shards[1].open(queue, 2)
        scene.said(1)
        scene.placed("q", 1, 2)
        assert kinds(scene, 1) == [Kind.PRODUCER_OPEN, Kind.ENQUEUE, Kind.PRODUCER_ABANDON]
        await scene.settle()
        assert len(queue.stored) == 2
        assert kinds(scene, 1) == [Kind.PRODUCER_CLOSE]
        assert len(scene.owners) == 0

    play(check)


def test_a_relay_releases_what_has_no_outcome(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        queue = scene.queue("q")
        owner = scene.owner()
        link = FakeLink()
        relay = RelayLink(scene.connection, link, owner, number=scene.next_link(), name="q")  # type: ignore[arg-type]
        owner.open_producer(relay)
        await scene.settle()
        relay._passing[1] = Passing = type("P", (), {})()  # noqa: N806 - what is under way
        Passing.first_id, Passing.count, Passing.size, Passing.settled, Passing.open = 0, 1, 0, False, 1
        move(scene, queue, 1)
        await scene.settle()
        assert link.settled == [(0, 0, RELEASED)]

    play(check)


def test_a_link_that_is_answered_late_is_not_said_again_before(play: Play) -> None:
    """The answer to its first opening would be taken for that to its second."""

    async def check(scene: OwnerScene) -> None:
        scene.resolver.placements["q"] = (0, 1)
        scene.sender()
        scene.up(0)
        scene.receiver()
        scene.down(0)
        scene.tick(10)
        # Only the one that was answered.
        assert kinds(scene, 0) == [Kind.PRODUCER_OPEN, Kind.CONSUMER_OPEN, Kind.CREDIT, Kind.PRODUCER_OPEN]
        scene.shards[0].open(ModelQueue("q"), 1)
        await scene.settle()
        assert len(scene.connection.accepted) == 2
        assert scene.owner().confirmed is not None

    play(check)


# --- shards that come and go -----------------------------------------------------------------------------


def test_where_the_shard_died_before_it_said_so_consumers_begin_anew(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        queue = scene.queue("q")
        sender, receiver = scene.sender(), scene.receiver()
        await scene.settle()
        sender.send(1)
        take(receiver, 1)
        await scene.settle()
        moved = scene.shards[0].freeze("q")
        scene.shards[0].out.clear()
        scene.lose(0)
        scene.shards[1].open(moved, 2)
        scene.said(1)
        scene.placed("q", 1, 2)
        (opened,) = [each for each in scene.said(1) if each.kind == Kind.CONSUMER_OPEN]
        assert not ConsumerOpen.decode(opened.body).resume
        await scene.settle()
        assert receiver.consumer.settlements.count == 0
        assert len(queue.ready) == 1

    play(check)


def test_a_shard_that_stands_still_is_left_after_a_while(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        queue = scene.queue("q")
        sender = scene.sender()
        await scene.settle()
        scene.shards[0].freeze("q")
        scene.shards[1].open(queue, 2)
        scene.shards[0].up = False
        sender.send(1)
        scene.placed("q", 1, 2)
        scene.tick(OWNER_LATE_MS - 1)
        assert kinds(scene, 1) == []
        scene.tick(1)
        assert kinds(scene, 1) == [Kind.PRODUCER_OPEN, Kind.ENQUEUE]
        await scene.settle()
        assert sender.outcomes() == {0: ACCEPTED}
        scene.shards[0].up = True
        await scene.settle()
        assert scene.owner().shard == 1

    play(check)


@pytest.mark.parametrize("ends", ["lost", "removed"])
def test_what_was_settled_at_a_silent_shard_that_was_left_comes_back_when_that_shard_is_lost(
    play: Play, ends: str
) -> None:
    """The settlement never reached anybody: the new shard would wait for it as long as the link lives."""

    async def check(scene: OwnerScene) -> None:
        queue, _, receiver = await holding(scene, 2)
        scene.shards[0].freeze("q")
        scene.shards[1].open(queue, 2)
        scene.shards[0].up = False
        settle(receiver, 0, 0)
        scene.placed("q", 1, 2)
        scene.tick(OWNER_LATE_MS)
        await scene.settle()
        assert receiver.consumer.settlements.count == 1
        assert list(queue.consumers) == [receiver.number]
        assert len(queue.ready) == 0
        if ends == "lost":
            scene.lose(0)
        else:
            scene.owners.removed(scene.peers[0])
        await scene.settle()
        assert receiver.consumer.settlements.count == 0
        assert len(queue.ready) == 2

    play(check)


def test_links_wait_for_a_shard_that_nobody_knows_yet(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        scene.resolver.placements["q"] = (2, 1)
        sender = scene.sender()
        scene.tick(1_000)
        scene.shards.append(type(scene.shards[0])(2))
        scene.shards[2].open(ModelQueue("q"), 1)
        scene.add_peer(2)
        await scene.settle()
        assert scene.connection.accepted == [sender.link]

    play(check)


def test_links_end_when_their_queue_is_nowhere_by_the_coordinators_word(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        scene.resolver.placements["q"] = (0, 1)
        sender, receiver = scene.sender(), scene.receiver()
        for _ in range(2 * limits.OWNER_LOST_MS // 50):
            await scene.settle()
            scene.tick(50)
        assert scene.connection.refused == []
        scene.resolver.gone = Refusal(conditions.RESOURCE_DELETED, "gone")
        for _ in range(limits.OWNER_LOST_MS // 50 + 20):
            await scene.settle()
            scene.tick(50)
        assert [link for link, _, _ in scene.connection.refused] == [sender.link, receiver.link]
        assert len(scene.owners) == 0

    play(check)


# --- senders that wait -----------------------------------------------------------------------------------


def test_senders_get_their_messages_back_when_their_shard_is_away_for_too_long(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        queue = scene.queue("q")
        sender = scene.sender()
        await scene.settle()
        sender.send(2)
        sender.send(1, settled=True)
        scene.lose(0)
        sender.send(3)
        scene.tick(59_999)
        assert sender.outcomes() == {}
        assert sender.link.credit
        scene.tick(1)
        outcomes = sender.outcomes()
        assert [outcomes[number] for number in (3, 4, 5)] == [RELEASED] * 3
        for number in (0, 1):
            # It may be in the journal of the shard.
            assert isinstance(outcomes[number], Modified)
            assert outcomes[number].delivery_failed
        assert 2 not in outcomes
        assert sender.link.credit == 0
        assert scene.connection.refused == []
        scene.said(0)
        scene.revive(0)
        await scene.settle()
        # What was sent settled was told nothing, and still goes; the rest is never said again.
        assert queue.stored == [b"<1:000002>"]
        assert sender.link.credit > 0
        sender.send(1)
        await scene.settle()
        assert sender.outcomes()[6] is ACCEPTED

    play(check)


def test_a_shard_that_stands_still_is_as_good_as_away(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        scene.queue("q")
        sender = scene.sender()
        await scene.settle()
        scene.shards[0].up = False
        sender.send(2)
        for _ in range(61):
            scene.now_ms += 1_000
            scene.beats.ring()
        assert {str(state) for state in sender.outcomes().values()} == {str(Modified(delivery_failed=True))}
        assert sender.link.credit == 0
        scene.shards[0].up = True
        await scene.settle()
        scene.beats.ring()
        assert sender.link.credit > 0
        sender.send(1)
        await scene.settle()
        assert sender.outcomes()[2] is ACCEPTED

    play(check)


def test_messages_wait_for_ever_where_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        scene = OwnerScene(monkeypatch, 1)
        await scene.settle()
        scene.queue("q")
        sender = scene.sender()
        await scene.settle()
        scene.lose(0)
        sender.send(3)
        for _ in range(10):
            scene.tick(600_000)
        assert sender.outcomes() == {}
        scene.revive(0)
        await scene.settle()
        assert sender.outcomes() == dict.fromkeys(range(3), ACCEPTED)
        scene.owners.close()

    asyncio.run(main())


# --- requests --------------------------------------------------------------------------------------------


def test_a_request_follows_the_queue(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        queue = scene.queue("q")
        scene.shards[0].freeze("q")
        asked = asyncio.ensure_future(scene.owners.request("q", "queue", {}))
        await scene.settle()
        assert not asked.done()
        scene.shards[1].open(queue, 2)
        scene.placed("q", 1, 2)
        await scene.settle()
        assert (await asked).fields == {"ready": 0}

    play(check)


def test_a_request_does_not_follow_for_ever(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        scene.resolver.placements["q"] = (0, 1)
        asked = asyncio.ensure_future(scene.owners.request("q", "queue", {}, wait_ms=50))
        while not asked.done():
            await scene.settle()
        with pytest.raises(ShardDownError, match="moving"):
            await asked
        other = asyncio.ensure_future(scene.peers[0].request("queue", {"queue": "q"}))
        await scene.settle()
        with pytest.raises(ShardRefusedError, match="moved"):
            await other

    play(check)


def test_a_late_request_is_sent_when_a_shard_serves_the_queue_again(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        queue = scene.queue("q")
        scene.receiver()
        await scene.settle()
        scene.lose(0)
        scene.owner().ask_late("queue", {})
        await scene.settle()
        assert scene.owners.late.count == 1
        scene.shards[1].open(queue, 2)
        scene.placed("q", 1, 2)
        await scene.settle()
        assert scene.owners.late.count == 0
        scene.lose(1)
        scene.owner().ask_late("queue", {})
        await scene.settle()
        assert scene.owners.late.count == 1
        scene.revive(1)
        await scene.settle()
        assert scene.owners.late.count == 0

    play(check)


def test_a_late_request_is_sent_again_when_a_shard_that_stood_still_goes_on(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        scene.queue("q")
        scene.receiver()
        await scene.settle()
        scene.shards[0].up = False
        scene.owner().ask_late("queue", {})
        await scene.settle()
        # The answer does not arrive in time.
        scene.peers[0]._requests.lost("it stands still")
        for _ in range(20):
            scene.now_ms += 1_000
            scene.beats.ring()
        await scene.settle()
        assert scene.owners.late.count == 1
        scene.shards[0].up = True
        await scene.settle()
        scene.beats.ring()
        await scene.settle()
        assert scene.owners.late.count == 0

    play(check)


def test_a_late_request_does_not_place_a_queue_that_was_deleted_meanwhile(play: Play) -> None:
    async def check(scene: OwnerScene) -> None:
        scene.queue("q")
        scene.receiver()
        await scene.settle()
        scene.lose(0)
        scene.owner().ask_late("queue", {})
        await scene.settle()
        del scene.resolver.placements["q"]
        scene.resolver.gone = Refusal(conditions.RESOURCE_DELETED, "it was deleted")
        scene.revive(0)
        await scene.settle()
        assert scene.owners.late.count == 0
        assert "q" not in scene.resolver.placements

    play(check)


# --- bounds --------------------------------------------------------------------------------------------


def test_at_most_so_many_settlements_are_held_for_a_shard_and_the_log_says_so_once(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_links, "OWNER_HELD_MAX", 3)

    async def check(scene: OwnerScene) -> None:
        queue, _, receiver = await holding(scene, 10)
        scene.shards[0].freeze("q")
        await scene.settle()
        for number in range(10):
            settle(receiver, number, number)
        scene.shards[1].open(queue, 2)
        scene.placed("q", 1, 2)
        await scene.settle()
        # Those beyond are not settled there: the shard still has them for the consumer, or anew.
        assert sum(queue.accepted.values()) == 3

    play(check)
    assert len([each for each in caplog.messages if "3 settlements wait for the shard of q" in each]) == 1


def test_at_most_so_many_last_words_are_remembered(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "OWNER_LAST_MAX", 2)

    async def check(scene: OwnerScene) -> None:
        for number in range(5):
            scene.owners.sent_last(scene.peers[0], b"%d" % number)
        assert [part for _, part in scene.owners._sent_last] == [b"3", b"4"]

    play(check)
