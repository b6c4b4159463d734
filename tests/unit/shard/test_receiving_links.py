"""Receiving links: what ends, hands over or moves several of them, or one of them twice, in one step."""

from typing import Any

import pytest

from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.sections import Properties
from lightrail.journal.record import ReceiverChange, ReceiverEvent
from lightrail.model import conditions, limits
from lightrail.model.links import Durability, Ending
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import FOR_GOOD, Kind, frame
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore, numbered_messages
from tests.unit.shard.fake_map import FakeMap

ONE, TWO = "1" * 32, "2" * 32
MINUTE = 60_000
WAIT_MS = limits.PEER_SILENCE_MS


class Outliving(SmallStore):
    """In memory, though it is taken for a store that outlives the process."""

    outlives = True  # type: ignore[misc]  # a store in memory is none of these

    def receivers(self) -> list[ReceiverEvent]:
        return [ReceiverEvent(record.event) for record in self.records if isinstance(record, ReceiverChange)]


class Story:
    """A shard with the queues q, which may be frozen, and r, which stays; both have messages."""

    def __init__(self, store: SmallStore | None = None, messages: int = 6, **policy: Any) -> None:
        self.map = FakeMap(q=(0, 3), r=(0, 3))
        self.names = EveryName()
        for name in ("q", "r"):
            self.names.give(name, Policy.parse({"role": "queue", **policy}))
        self.scene = Scene(store, map=self.map, names=self.names)
        self.peer = self.scene.peer("frontend-0", boot=7)
        self.second = self.scene.peer("frontend-1", boot=8)
        self.other = self.scene.peer("shard-1", boot=50)
        for link, name in enumerate(("q", "r"), 100):
            self.peer.produce(link, name)
            self.peer.send(link, 1, numbered_messages(messages))
        self.scene.settle_down()

    def freeze(self, epoch: int = 3) -> None:
        self.other.ask("freeze", queue="q", epoch=epoch)
        self.scene.settle_down()

    def thaw(self, epoch: int = 4) -> None:
        self.map.give("q", 0, epoch)
        self.scene.refresh()
        self.scene.settle_down()

    def drop(self) -> None:
        self.names.drop("q")
        self.map.forget("q")
        self.scene.refresh()
        self.scene.settle_down()

    def pass_time(self, wait_ms: int) -> None:
        """Frontends are heard all the time."""
        for _ in range(0, wait_ms, 1_000):
            for peer in [*self.scene.peers.values()]:
                peer.ping()
            self.scene.tick(1_000)
        self.scene.settle_down()

    def attach(self, peer: Peer, link: int, credit: int, queue: str = "q", **options: Any) -> None:
        given: dict[str, Any] = {"client_link": ONE, "steals": True, "suspended_ms": MINUTE, "recovers": True}
        peer.consume(link, queue, **given | options)
        self.scene.settle_down()
        if credit:
            peer.credit(link, peer.recovered[link][1] + credit)
            self.scene.settle_down()


# --- one step releases several ------------------------------------------------------------------------


def test_a_link_whose_time_ends_as_another_one_takes_its_room_is_released_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both are due at once: the one that moved is suspended then, and the user has room for one."""
    monkeypatch.setattr(limits, "SUSPENDED_CONSUMERS_MAX", 2)
    story = Story()
    story.attach(story.peer, 2, 1)
    story.attach(story.peer, 3, 1, "r", client_link=TWO, suspended_ms=WAIT_MS + 500)
    story.freeze()
    story.thaw()
    story.peer.close_consumer(3)
    for _ in range(WAIT_MS // 1_000 - 1):
        story.pass_time(1_000)
    story.scene.tick(2_000)
    assert [story.scene.queue(name)["in_flight"] for name in "qr"] == [1, 0]
    story.pass_time(MINUTE)
    assert story.scene.queue("q")["in_flight"] == 0


# --- sessions ------------------------------------------------------------------------------------------


def test_the_record_of_a_durable_link_ends_with_its_session() -> None:
    store = Outliving()
    story = Story(store, groups=True)
    peer = story.peer
    peer.send(100, 2, [write_message(Message(Properties(group_id="a"), body="a"))])
    story.attach(peer, 2, 1, any_session=True, durability=Durability.UNSETTLED_STATE)
    assert len(peer.delivered.get(2, [])) == 1
    peer.close_consumer(2)
    story.scene.settle_down()
    assert story.scene.queue("q")["in_flight"] == 1
    story.names.give("q", Policy.parse({"role": "queue"}))
    story.scene.refresh()
    story.scene.settle_down()
    assert story.scene.queue("q")["in_flight"] == 0
    assert store.receivers()[-1] is ReceiverEvent.ENDED
    assert len(story.scene.engine._links.durable) == 0


def test_a_queue_waits_for_the_link_that_lost_its_session_as_the_queue_moved() -> None:
    story = Story(groups=True, lifetime="last_consumer")
    peer = story.peer
    peer.consume(2, "q", 1, any_session=True)
    story.scene.settle_down()
    story.freeze()
    story.names.give("q", Policy.parse({"role": "queue", "lifetime": "last_consumer"}))
    story.thaw()
    story.scene.tick(1)
    assert story.scene.wishes == []
    story.pass_time(2 * WAIT_MS)
    assert set(story.scene.wishes) == {"q"}


# --- queues that are kept ---------------------------------------------------------------------------------


def disowned_after_a_restart() -> tuple[Scene, FakeMap, EveryName]:
    """A shard that was killed with a durable link, and whose queue is at another shard by its map."""
    files, names = FakeFiles(), EveryName()
    names.give("q", Policy.parse({"role": "queue"}))
    journal = Journal(files, "test", 0)
    scene = Scene(journal, journal.recover(1 << 30, 1), names=names, map=FakeMap(q=(0, 3)))
    peer = scene.peer()
    peer.produce(1, "q", epoch=3)
    peer.send(1, 1, numbered_messages(2))
    peer.consume(
        2,
        "q",
        1,
        epoch=3,
        client_link=ONE,
        steals=True,
        suspended_ms=MINUTE,
        recovers=True,
        durability=Durability.UNSETTLED_STATE,
    )
    scene.settle_down()
    assert len(peer.delivered[2]) == 1
    files = files.after_crash(0, "all")
    journal = Journal(files, "test", 0)
    map = FakeMap(q=(1, 2))
    return Scene(journal, journal.recover(1 << 30, 1), names=names, map=map), map, names


@pytest.mark.parametrize("after", ["frozen", "deleted", "attached"])
def test_a_queue_that_is_claimed_has_no_link_of_before(after: str) -> None:
    scene, map, names = disowned_after_a_restart()
    scene.tick(1)
    map.give("q", 0, 5)
    scene.refresh()
    scene.settle_down()
    assert scene.queue("q") == {"ready": 2, "in_flight": 0}
    assert scene.unattached == []
    if after == "frozen":
        scene.peer("shard-1", boot=50).ask("freeze", queue="q", epoch=5)
        scene.settle_down()
        map.give("q", 0, 6)
    elif after == "deleted":
        names.drop("q")
    else:
        peer = scene.peer("frontend-1", boot=8)
        peer.consume(5, "q", epoch=5, client_link=ONE, steals=True, suspended_ms=MINUTE, recovers=True)
        scene.settle_down()
        assert peer.recovered[5][1:] == (0, [])
    scene.refresh()
    scene.settle_down()
    scene.tick(2 * MINUTE)
    assert scene.unattached == []
    assert len(scene.engine._links.receiving) == 0


def test_a_frozen_queue_that_is_disowned_sends_its_links_away_once() -> None:
    story = Story()
    story.attach(story.peer, 2, 1)
    story.freeze()
    story.peer.take()
    story.map.lose("q", 1, 4)
    story.scene.refresh()
    story.scene.settle_down()
    assert [each for each in story.peer.take(Kind.MOVED, Kind.GONE) if each.link == 2] == []
    assert story.scene.unattached == []


def test_a_frozen_queue_that_was_unknown_for_a_time_has_its_links_when_it_is_served_again() -> None:
    story = Story()
    peer = story.peer
    story.attach(peer, 2, 1)
    story.attach(peer, 3, 1, client_link=TWO)
    peer.close_consumer(3)
    story.freeze()
    history, story.names.history = story.names.history, "second"
    story.names.drop("q")
    story.scene.refresh()
    story.names.history = history
    story.names.give("q", Policy.parse({"role": "queue"}))
    story.thaw()
    peer.consume(2, "q", first=1, epoch=4, resume=True, client_link=ONE, suspended_ms=MINUTE, recovers=True)
    peer.settle(2, 0, 1)
    story.scene.settle_down()
    assert story.scene.queue("q")["in_flight"] == 1
    story.pass_time(MINUTE + WAIT_MS)
    assert story.scene.queue("q")["in_flight"] == 0


# --- one link, several times in a step --------------------------------------------------------------------


def opening(link: int, *, credit: int = 0, **options: Any) -> list[bytes]:
    """The frames of an attach, which do not wait for an answer."""
    given: dict[str, Any] = {"client_link": ONE, "steals": True, "suspended_ms": MINUTE, "recovers": True}
    body = ConsumerOpen("q", **given | options).encode()
    return [
        frame(Kind.CONSUMER_OPEN, epoch=3, link=link, body=body),
        frame(Kind.CREDIT, link=link, number=credit),
    ]


def test_of_the_attaches_of_one_step_the_last_one_is_answered_and_has_the_deliveries() -> None:
    """Also where it was closed between them."""
    store = Outliving()
    story = Story(store)
    peer = story.peer
    peer.consumed |= {2, 3, 4, 5}
    durable = Durability.UNSETTLED_STATE
    peer.say(
        *opening(2, credit=2, durability=durable),
        *opening(3, credit=2, durability=durable),
        frame(Kind.CONSUMER_CLOSE, flags=Ending.FAILED, link=3),
        *opening(4, credit=2, durability=durable),
        *opening(5, credit=2, durability=durable),
    )
    story.scene.settle_down()
    assert [each.link for each in peer.take(Kind.CONSUMER_READY)] == [5]
    assert [(link, why.condition) for link, _, why in peer.refusals] == [
        (2, conditions.STOLEN),
        (4, conditions.STOLEN),
    ]
    assert [each.number for each in peer.delivered[5]] == [0, 1]
    assert story.scene.unattached == []
    assert store.receivers()[-1] is ReceiverEvent.DELIVERED


def test_the_end_of_a_durable_link_in_the_step_of_its_delivery_is_the_last_record() -> None:
    store = Outliving()
    story = Story(store)
    peer = story.peer
    story.attach(peer, 2, 0, durability=Durability.UNSETTLED_STATE)
    peer.say(frame(Kind.CREDIT, link=2, number=2))
    peer.say(frame(Kind.CONSUMER_CLOSE, flags=Ending.BY_CLIENT | FOR_GOOD, link=2))
    story.scene.settle_down()
    assert story.scene.queue("q") == {"ready": 6, "in_flight": 0}
    assert store.receivers()[-1] is ReceiverEvent.ENDED
    assert len(story.scene.engine._links.durable) == 0


def test_a_durable_link_that_is_closed_and_given_up_in_one_step_ends_once() -> None:
    store = Outliving()
    story = Story(store)
    peer = story.peer
    story.attach(peer, 2, 1, durability=Durability.UNSETTLED_STATE)
    peer.say(
        frame(Kind.CONSUMER_CLOSE, flags=Ending.BY_CLIENT, link=2),
        *opening(3, recovers=False, suspended_ms=None),
    )
    story.scene.settle_down()
    assert story.scene.queue("q") == {"ready": 6, "in_flight": 0}
    assert store.receivers().count(ReceiverEvent.ENDED) == 1
    assert len(story.scene.engine._links.durable) == 0


def test_a_link_counts_to_the_share_of_the_user_that_had_it_as_it_was_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SUSPENDED_CONSUMERS_MAX", 4)
    story = Story()
    peer = story.peer
    for link, user in enumerate(("ann", "bob", "ann", "bob"), 10):
        story.attach(peer, link, 1, user=user)
        peer.close_consumer(link)
    assert story.scene.queue("q")["in_flight"] == 4
    story.attach(peer, 3, 1, client_link=TWO, user="ann")
    peer.close_consumer(3)
    assert story.scene.queue("q")["in_flight"] == 5


# --- a queue that ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["away", "awaited", "suspended"])
def test_a_deleted_queue_leaves_nothing_of_links_that_no_frontend_has(state: str) -> None:
    """Frames of these links may still come."""
    story = Story()
    peer = story.peer
    story.attach(peer, 2, 1)
    story.attach(peer, 3, 1, client_link=TWO)
    peer.close_consumer(3)
    if state != "suspended":
        story.freeze()
    if state == "awaited":
        story.thaw()
    story.drop()
    for link in (2, 3):
        peer.settle(link, 0, 1)
        peer.close_consumer(link)
    story.pass_time(2 * MINUTE)
    assert not story.scene.has_queue("q")
    assert story.scene.engine._performer.links == {}
    assert len(story.scene.engine._links.receiving) == 0


# --- memory -----------------------------------------------------------------------------------------------


def test_only_links_that_get_messages_share_the_room_for_unsettled_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story()
    counted: list[int] = []
    house = story.scene.engine._house
    monkeypatch.setattr(type(house), "bound_consumers", lambda _house, _work, count: counted.append(count))
    story.attach(story.peer, 2, 1)
    story.attach(story.peer, 3, 1, "r", client_link=TWO)
    story.peer.close_consumer(3)
    house.memory.unsettled_max = -1
    story.scene.turn()
    assert counted[-1] == 1


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_queue_that_is_disowned_has_no_records_of_its_durable_links(is_closed: bool) -> None:
    """Another link gets their messages when it is claimed; a restart would lock them for these."""
    store = Outliving()
    story = Story(store)
    story.attach(story.peer, 2, 1, durability=Durability.UNSETTLED_STATE)
    if is_closed:
        story.peer.close_consumer(2)
        story.scene.settle_down()
    assert store.receivers()[-1] is ReceiverEvent.DELIVERED
    story.map.give("q", 1, 2)
    story.scene.refresh()
    story.scene.settle_down()
    assert store.receivers()[-1] is ReceiverEvent.ENDED
    assert len(story.scene.engine._links.durable) == 0
    story.map.give("q", 0, 5)
    story.scene.refresh()
    story.scene.settle_down()
    assert story.scene.queue("q") == {"ready": 6, "in_flight": 0}
    assert store.receivers().count(ReceiverEvent.ENDED) == 1
