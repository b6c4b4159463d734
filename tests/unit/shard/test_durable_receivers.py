"""Durable receivers (3.5.5): which deliveries are locked for a client's link after the end of its shard."""

from typing import Any

import pytest

from lightrail.journal.record import ReceiverChange, ReceiverEvent
from lightrail.model import limits
from lightrail.model.links import Durability
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.delivery_marks import DeliveryMarks
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore, numbered_messages
from tests.unit.shard.fake_map import FakeMap

LINK = "1" * 32
MINUTE = 60_000
BODIES = numbered_messages(6)
UNSETTLED_STATE = Durability.UNSETTLED_STATE


class Outliving(SmallStore):
    """In memory, though it is taken for a store that outlives the process: its records are looked at."""

    outlives = True  # type: ignore[misc]  # a store in memory is none of these

    def events(self) -> list[tuple[ReceiverEvent, list[tuple[int, int, int]]]]:
        return [
            (ReceiverEvent(record.event), [*record.runs])
            for record in self.records
            if isinstance(record, ReceiverChange)
        ]


class Disk:
    """A shard that may be killed and started again on one disk, with a queue of messages."""

    def __init__(self, messages: list[bytes] = BODIES, **policy: Any) -> None:
        self.files = FakeFiles()
        self.policy = policy
        self.scene: Scene
        self.start()
        sender = self.scene.peer("sender", boot=3)
        sender.produce(1, "q")
        sender.send(1, 1, messages)
        self.scene.settle_down()

    def start(self, memory_bytes: int = 1 << 30) -> Scene:
        journal = Journal(self.files, "test", 0, segment_bytes=4_000)
        recovered = journal.recover(memory_bytes, 1)
        names = EveryName()
        names.give("q", Policy.parse({"role": "queue", **self.policy}))
        self.scene = Scene(journal, recovered, names=names)
        return self.scene

    def killed(self, **options: Any) -> Scene:
        """The next process, when everything that was written is on disk."""
        self.scene.settle_down()
        self.files = self.files.after_crash(0, "all")
        return self.start(**options)


def attach(
    peer: Peer, link: int, credit: int = 0, *, durability: int = UNSETTLED_STATE, **options: Any
) -> list[tuple[int, int]]:
    """Opens the link; the unsettled deliveries that the shard announces."""
    given: dict[str, Any] = {"client_link": LINK, "steals": True, "suspended_ms": MINUTE, "recovers": True}
    peer.consume(link, "q", **given | options, durability=durability)
    peer.scene.settle_down()
    _, number, ranges = peer.recovered[link]
    if credit:
        peer.credit(link, number + credit)
        peer.scene.settle_down()
    return ranges


def messages(peer: Peer, link: int) -> list[bytes]:
    return [each.message for each in peer.delivered.pop(link, [])]


def pass_time(scene: Scene, peer: Peer, wait_ms: int) -> None:
    for _ in range(0, wait_ms, 1_000):
        peer.ping()
        scene.tick(1_000)


# --- a restart -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_bytes", [0, 1 << 30], ids=["on disk", "in memory"])
@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"groups": True},
        {"priorities": 3},
        {"order": "last_value", "order_key": "application-properties.symbol"},
        {"delay": True},
        {"max_length": 100},
    ],
    ids=str,
)
def test_deliveries_are_locked_under_their_numbers_after_the_shard_was_killed(
    policy: dict[str, Any], memory_bytes: int
) -> None:
    disk = Disk(**policy)
    peer = disk.scene.peer()
    assert attach(peer, 2, 3) == []
    terminus = peer.recovered[2][0]
    found = {each.number: each.message for each in peer.delivered.pop(2)}
    peer.settle(2, 1, 1)
    scene = disk.killed(memory_bytes=memory_bytes)
    scene.settle_down()
    assert scene.queue("q") == {"ready": 3, "in_flight": 2}
    peer = scene.peer("frontend-9", boot=9)
    assert attach(peer, 5) == [(0, 1), (2, 1)]
    assert peer.recovered[5][:2] == (terminus, 3)
    assert peer.durability[5] == UNSETTLED_STATE
    for number in (0, 2):
        peer.resend(5, (number, 1))
        scene.settle_down()
        (again,) = peer.delivered.pop(5)
        assert (again.number, again.message, again.attempts) == (number, found[number], 0)
    peer.credit(5, 10)
    scene.settle_down()
    assert sorted([*found.values(), *messages(peer, 5)]) == sorted(BODIES)


def test_a_link_that_does_not_request_it_is_lost_with_the_shard() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 2, 3, durability=Durability.NONE)
    scene = disk.killed()
    assert scene.queue("q") == {"ready": 6, "in_flight": 0}


def test_the_time_of_a_suspended_link_begins_anew_at_the_start_of_the_shard() -> None:
    disk = Disk()
    attach(disk.scene.peer(), 2, 3)
    scene = disk.killed()
    peer = scene.peer(boot=8)
    pass_time(scene, peer, MINUTE - 2_000)
    assert scene.queue("q") == {"ready": 3, "in_flight": 3}
    pass_time(scene, peer, 4_000)
    assert scene.queue("q") == {"ready": 6, "in_flight": 0}
    scene = disk.killed()
    assert scene.queue("q") == {"ready": 6, "in_flight": 0}
    assert len(scene.engine._links.durable) == 0


def test_locks_with_a_time_begin_anew_as_well() -> None:
    disk = Disk(lock_duration=10)
    attach(disk.scene.peer(), 2, 3)
    scene = disk.killed()
    peer = scene.peer(boot=8)
    pass_time(scene, peer, 8_000)
    assert scene.queue("q") == {"ready": 3, "in_flight": 3}
    pass_time(scene, peer, 4_000)
    assert scene.queue("q") == {"ready": 6, "in_flight": 0}


def test_a_closed_link_leaves_nothing() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 2, 3)
    peer.settle(2, 0, 3, OutcomeCode.RELEASED)
    peer.close_consumer(2)
    scene = disk.killed()
    assert scene.queue("q") == {"ready": 6, "in_flight": 0}
    assert len(scene.engine._links.durable) == 0


def test_a_released_message_is_not_locked_for_the_link_after_a_restart() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 2, 3)
    peer.close_consumer(2)
    peer = disk.scene.peer("frontend-1", boot=8)
    attach(peer, 2)
    peer.settle(2, 1, 1, OutcomeCode.RELEASED)
    scene = disk.killed()
    assert attach(scene.peer(boot=9), 2) == [(0, 1), (2, 1)]
    assert scene.queue("q") == {"ready": 4, "in_flight": 2}


def test_a_message_that_another_link_gets_is_locked_for_that_one_after_a_restart() -> None:
    disk = Disk(BODIES[:1])
    one, other = disk.scene.peer(), disk.scene.peer("frontend-1", boot=8)
    attach(one, 2, 1)
    attach(other, 3, 1, client_link="2" * 32)
    one.settle(2, 0, 1, OutcomeCode.RELEASED)
    disk.scene.settle_down()
    assert messages(other, 3) == BODIES[:1]
    scene = disk.killed()
    peer = scene.peer(boot=9)
    assert attach(peer, 2) == []
    assert attach(peer, 3, client_link="2" * 32) == [(0, 1)]


def test_a_link_that_selects_messages_selects_them_after_a_restart() -> None:
    texts = [
        b"\x00\x53\x74\xc1\x07\x02\xa1\x01k\xa1\x01" + each + b"\x00\x53\x75\xa0\x00" for each in (b"a", b"b")
    ]
    disk = Disk(texts * 2)
    given: dict[str, Any] = {"filter": {"selector": "k = 'b'"}}
    peer = disk.scene.peer()
    attach(peer, 2, 1, **given)
    assert messages(peer, 2) == [texts[1]]
    scene = disk.killed()
    peer = scene.peer(boot=8)
    assert attach(peer, 2, 5, **given) == [(0, 1)]
    assert messages(peer, 2) == [texts[1]]
    assert scene.queue("q") == {"ready": 2, "in_flight": 2}


def test_a_deleted_queue_has_no_receivers_after_a_restart() -> None:
    disk = Disk()
    attach(disk.scene.peer(), 2, 3)
    names = disk.scene.names
    assert isinstance(names, EveryName)
    names.give("q", Policy.parse({"role": "metadata", "reference": "elsewhere"}))
    disk.scene.refresh()
    scene = disk.killed()
    assert len(scene.engine._links.durable) == 0


def test_no_more_links_than_the_bound_are_suspended_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    peer = disk.scene.peer()
    for link in (2, 3, 4):
        attach(peer, link, 1, client_link=str(link) * 32)
    monkeypatch.setattr(limits, "SUSPENDED_CONSUMERS_MAX", 4)
    scene = disk.killed()
    scene.settle_down()
    assert scene.queue("q") == {"ready": 4, "in_flight": 2}
    assert len(scene.engine._links.durable) == 2


def test_a_frozen_queue_has_its_deliveries_after_a_restart_and_when_it_is_served_again() -> None:
    files, placed, names = FakeFiles(), FakeMap(q=(0, 3)), EveryName()
    names.give("q", Policy.parse({"role": "queue"}))
    journal = Journal(files, "test", 0)
    scene = Scene(journal, journal.recover(1 << 30, 1), names=names, map=placed)
    sender = scene.peer("sender", boot=3)
    sender.produce(1, "q")
    sender.send(1, 1, BODIES)
    attach(scene.peer(), 2, 2)
    scene.peer("shard-1", boot=50).ask("freeze", queue="q", epoch=3)
    scene.settle_down()
    journal = Journal(files.after_crash(0, "all"), "test", 0)
    scene = Scene(journal, journal.recover(1 << 30, 1), names=names, map=placed)
    other = scene.peer("shard-1", boot=51)
    number = other.ask("freeze", queue="q", epoch=3)
    scene.settle_down()
    (state,) = other.answers[number][0]["states"]
    (consumer,) = state["state"]["consumers"]
    assert consumer["opened"]["client_link"] == LINK
    # A shard of a former version refuses an opening with a field that it does not know.
    assert "user" not in consumer["opened"]
    placed.give("q", 0, 5)
    scene.refresh()
    scene.settle_down()
    peer = scene.peer(boot=9)
    pass_time(scene, peer, limits.PEER_SILENCE_MS + 2_000)
    assert scene.queue("q") == {"ready": 4, "in_flight": 2}
    assert attach(peer, 2) == [(0, 2)]


# --- what is requested -----------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", Durability)
def test_a_receiver_is_durable_with_its_deliveries_or_not_at_all(durability: Durability) -> None:
    peer = Disk().scene.peer()
    attach(peer, 2, durability=durability)
    assert peer.durability[2] == (UNSETTLED_STATE if durability == UNSETTLED_STATE else Durability.NONE)


def test_a_store_that_does_not_outlive_the_process_keeps_nothing_durably() -> None:
    scene = Scene()
    peer = scene.peer()
    attach(peer, 2)
    assert peer.durability[2] == Durability.NONE
    assert len(scene.engine._links.durable) == 0


def test_a_link_that_becomes_durable_has_the_deliveries_of_before() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 2, 3, durability=Durability.NONE)
    assert attach(peer, 3) == [(0, 3)]
    scene = disk.killed()
    assert attach(scene.peer(boot=8), 2) == [(0, 3)]


def test_a_link_that_is_not_durable_any_longer_keeps_its_deliveries_while_the_shard_runs() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 2, 3)
    assert attach(peer, 3, durability=Durability.NONE) == [(0, 3)]
    scene = disk.killed()
    assert scene.queue("q") == {"ready": 6, "in_flight": 0}


def test_a_link_that_begins_anew_has_no_deliveries_of_before() -> None:
    """The client has lost its map."""
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 2, 3)
    assert attach(peer, 3, recovers=False) == []
    scene = disk.killed()
    assert attach(scene.peer(boot=8), 2) == []
    assert scene.queue("q") == {"ready": 6, "in_flight": 0}


# --- the records -----------------------------------------------------------------------------------------


def test_a_delivery_leaves_when_its_record_is_on_disk_and_those_of_other_links_at_once() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 2)
    peer.consume(3, "q")
    peer.credit(2, 2)
    assert messages(peer, 2) == []
    peer.credit(3, 2)
    assert messages(peer, 3) == BODIES[2:4]
    disk.scene.begin_commit()
    peer.credit(2, 3)
    assert messages(peer, 2) == []
    disk.scene.end_commit()
    assert messages(peer, 2) == BODIES[:2]
    disk.scene.settle_down()
    assert messages(peer, 2) == BODIES[4:5]


def test_the_end_of_a_drain_stays_behind_the_deliveries() -> None:
    disk = Disk(BODIES[:2])
    peer = disk.scene.peer()
    attach(peer, 2)
    peer.take()
    peer.credit(2, 5, drain=True)
    assert peer.take() == []
    disk.scene.settle_down()
    assert [answer.kind for answer in peer.take(Kind.DELIVER, Kind.DRAINED)] == [Kind.DELIVER, Kind.DRAINED]
    # Without a delivery nothing waits.
    peer.credit(2, 9, drain=True)
    assert [answer.kind for answer in peer.take(Kind.DRAINED)] == [Kind.DRAINED]


class HoldingMarks(DeliveryMarks):
    """Delivery marks that are being written for as long as the test says."""

    is_writing = False

    @property
    def holds(self) -> bool:
        return self.is_writing


def test_deliveries_keep_their_order_where_all_output_waits_for_delivery_marks() -> None:
    marks = HoldingMarks()
    scene = Scene(Outliving(), marks=marks)
    sender = scene.peer("sender", boot=3)
    sender.produce(1, "q")
    sender.send(1, 1, BODIES)
    peer = scene.peer()
    attach(peer, 2)
    marks.is_writing = True
    peer.credit(2, 2)
    scene.settle_down()
    peer.credit(2, 4)
    scene.begin_commit()
    peer.credit(2, 6)
    scene.end_commit()
    marks.is_writing = False
    scene.settle_down()
    assert [each.number for each in peer.delivered[2]] == [*range(6)]


def test_deliveries_that_wait_when_the_link_ends_are_resumed() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 2)
    peer.credit(2, 2)
    peer.close_consumer(2)
    assert attach(peer, 3) == [(0, 2)]
    peer.resend(3, (0, 2))
    disk.scene.settle_down()
    assert messages(peer, 3) == BODIES[:2]


def test_the_end_of_a_stolen_link_stays_behind_its_deliveries() -> None:
    disk = Disk()
    peer, other = disk.scene.peer(), disk.scene.peer("frontend-1", boot=8)
    attach(peer, 2)
    peer.take()
    peer.credit(2, 2)
    assert attach(other, 3) == [(0, 2)]
    assert [answer.kind for answer in peer.take(Kind.DELIVER, Kind.GONE)] == [Kind.DELIVER, Kind.GONE]
    assert disk.scene.engine._links.durable.waiting == {}


def test_ends_of_deliveries_are_recorded_ahead_of_new_ones() -> None:
    names = EveryName()
    scene = Scene(store := Outliving(), names=names)
    sender = scene.peer("sender", boot=3)
    sender.produce(1, "q")
    sender.send(1, 1, BODIES)
    peer = scene.peer()
    attach(peer, 2, 2)
    peer.settle(2, 0, 1)
    peer.credit(2, 3)
    assert store.events() == [
        (ReceiverEvent.BEGUN, []),
        (ReceiverEvent.DELIVERED, [(0, 0, 2)]),
        (ReceiverEvent.SETTLED, [(0, 0, 1)]),
        (ReceiverEvent.DELIVERED, [(2, 2, 1)]),
    ]


def test_a_link_that_does_not_request_it_has_no_record_and_does_not_wait() -> None:
    scene = Scene(store := Outliving())
    sender = scene.peer("sender", boot=3)
    sender.produce(1, "q")
    sender.send(1, 1, BODIES)
    peer = scene.peer()
    attach(peer, 2, durability=Durability.NONE)
    peer.credit(2, 2)
    assert messages(peer, 2) == BODIES[:2]
    assert store.events() == []


def test_without_room_for_a_record_deliveries_are_made_and_the_failure_is_counted() -> None:
    scene = Scene(store := Outliving())
    sender = scene.peer("sender", boot=3)
    sender.produce(1, "q")
    sender.send(1, 1, BODIES)
    scene.settle_down()
    peer = scene.peer()
    attach(peer, 2)
    store.full_for_all = True
    peer.credit(2, 2)
    assert messages(peer, 2) == BODIES[:2]
    assert scene.counts.store_failures == 1
    attach(peer, 3, client_link="2" * 32)
    assert peer.durability[3] == Durability.NONE
