"""Durable termini (3.5.5): what of a link that may be resumed is there after the process of its shard."""

from typing import Any

import pytest

from lightrail.journal.record import CONTINUED, Taken, Terminus, TerminusEvent
from lightrail.model.links import Durability
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.links.sending import termini
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.columns import encode_tags
from lightrail.wire.frames import CLOSED, Kind, frame
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore, batch

LINK = "1" * 32
MINUTE = 60_000
UNSETTLED_STATE = Durability.UNSETTLED_STATE


class Outliving(SmallStore):
    """In memory, though it is taken for a store that outlives the process: its records are looked at."""

    outlives = True  # type: ignore[misc]  # a store in memory is none of these

    def of_termini(self) -> list[Terminus]:
        return [record for record in self.records if isinstance(record, Terminus)]


class Disk:
    """A shard that may be killed and started again on one disk."""

    def __init__(self, **policy: Any) -> None:
        self.files = FakeFiles()
        self.policy = policy
        self.scene: Scene
        self.start()

    def start(self) -> Scene:
        journal = Journal(self.files, "test", 0, segment_bytes=4_000)
        recovered = journal.recover(1 << 30, 1)
        names = EveryName()
        names.give("q", Policy.parse({"role": "queue", **self.policy}))
        self.scene = Scene(journal, recovered, names=names)
        return self.scene

    def killed(self) -> Scene:
        """The next process, when everything that was written is on disk."""
        self.files = self.files.after_crash(0, "all")
        return self.start()


def attach(peer: Peer, link: int, durability: int = UNSETTLED_STATE, **options: Any) -> int:
    """Attaches a link; the durability that the shard announces."""
    given: dict[str, Any] = {"client_link": LINK, "steals": True, "suspended_ms": MINUTE}
    peer.produce(link, "q", **given | options, durability=durability)
    peer.scene.settle_down()
    return peer.durability.pop(link)


def unsettled(peer: Peer, link: int, durability: int = UNSETTLED_STATE, **options: Any) -> list[bytes]:
    """Attaches a link; the tags that the shard announces to it."""
    assert attach(peer, link, durability, **options) == durability
    is_kept, tags = peer.unsettled.pop(link)
    assert is_kept
    return tags


def send(peer: Peer, link: int, number: int, *tags: bytes, **options: Any) -> None:
    """A batch with one message for each tag."""
    peer.say(
        frame(Kind.TAGS, link=link, number=number, count=len(tags), body=encode_tags(tags)),
        batch(link, number, list(tags), **options),
    )


def pass_time(scene: Scene, peer: Peer, wait_ms: int) -> None:
    for _ in range(0, wait_ms, 1_000):
        peer.ping()
        scene.tick(1_000)


# --- a restart -------------------------------------------------------------------------------------------


def test_tags_are_known_to_the_next_attach_after_the_shard_was_killed() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    assert unsettled(peer, 1) == []
    send(peer, 1, 1, b"a", b"b")
    disk.scene.settle_down()
    scene = disk.killed()
    assert unsettled(scene.peer(boot=8), 1) == [b"a", b"b"]
    assert scene.queue("q")["ready"] == 2


def test_a_link_that_does_not_request_it_is_lost_with_the_shard() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    assert unsettled(peer, 1, Durability.NONE) == []
    send(peer, 1, 1, b"a")
    disk.scene.settle_down()
    scene = disk.killed()
    assert unsettled(scene.peer(boot=8), 1, Durability.NONE) == []


def test_of_a_link_with_durable_configuration_no_tags_are_there_after_a_restart() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    assert unsettled(peer, 1, Durability.CONFIGURATION) == []
    send(peer, 1, 1, b"a")
    disk.scene.settle_down()
    scene = disk.killed()
    assert len(scene.engine._links.sending.termini) == 1
    assert unsettled(scene.peer(boot=8), 1, Durability.CONFIGURATION) == []


def test_a_frontend_that_outlives_the_shard_goes_on_with_its_link() -> None:
    """It opens the link again, and repeats a batch whose answer it did not get."""
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a")
    disk.scene.settle_down()
    scene = disk.killed()
    peer = scene.peer()
    attach(peer, 1, steals=False)
    send(peer, 1, 1, b"a")
    send(peer, 1, 2, b"b")
    scene.settle_down()
    assert peer.accepted(1) == [1, 2]
    scene = disk.killed()
    assert unsettled(scene.peer(boot=8), 1) == [b"a", b"b"]
    assert scene.queue("q")["ready"] == 2


def test_a_link_whose_tags_were_dropped_can_not_be_resumed_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(termini, "TERMINI_TAGS_MAX", 2)
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a", b"b", durable=True)
    disk.scene.settle_down()
    peer = disk.killed().peer(boot=8)
    assert attach(peer, 1) == Durability.NONE
    assert peer.unsettled.pop(1) == (False, [])


def test_after_a_restart_tags_count_for_their_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bob's link has most tags, and is not the one that is lost."""
    monkeypatch.setattr(termini, "TERMINI_TAGS_MAX", 17)
    disk = Disk()
    peer = disk.scene.peer()
    links = {1: ("ann", 4), 2: ("bob", 5)}
    for link, (user, count) in links.items():
        attach(peer, link, client_link=str(link) * 32, user=user)
        send(peer, link, 1, *(b"%d" % number for number in range(count)), durable=True)
    disk.scene.settle_down()
    scene = disk.killed()
    peer = scene.peer(boot=8)
    attach(peer, 3, client_link="3" * 32, user="ann")
    send(peer, 3, 1, b"a", b"b", b"c", durable=True)
    scene.settle_down()
    kept = [
        attach(peer, 3 + link, client_link=str(link) * 32, user=user) for link, (user, _) in links.items()
    ]
    assert kept == [Durability.NONE, UNSETTLED_STATE]


def test_a_new_delivery_under_a_stored_tag_replaces_it_for_good() -> None:
    disk = Disk(max_length=1, overflow="reject")
    peer = disk.scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a", durable=True)
    disk.scene.settle_down()
    send(peer, 1, 2, b"a", durable=True)
    disk.scene.settle_down()
    assert len(peer.refusals) == 1
    assert unsettled(disk.killed().peer(boot=8), 1) == []


def test_what_the_client_has_settled_is_forgotten_for_good() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a", b"b")
    disk.scene.settle_down()
    peer.say(frame(Kind.FORGET, link=1, count=2, body=encode_tags([b"a", b"unknown"])))
    disk.scene.settle_down()
    scene = disk.killed()
    assert unsettled(scene.peer(boot=8), 1) == [b"b"]


def test_a_closed_link_is_forgotten_for_good() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a")
    disk.scene.settle_down()
    peer.say(frame(Kind.FORGET, flags=CLOSED, link=1))
    peer.close_producer(1)
    disk.scene.settle_down()
    scene = disk.killed()
    assert len(scene.engine._links.sending.termini) == 0
    assert unsettled(scene.peer(boot=8), 1) == []


def test_the_time_of_a_suspended_link_begins_anew_at_the_start_of_the_shard() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a")
    peer.close_producer(1)
    pass_time(disk.scene, peer, MINUTE - 2_000)
    disk.scene.settle_down()
    scene = disk.killed()
    peer = scene.peer(boot=8)
    pass_time(scene, peer, MINUTE - 2_000)
    assert len(scene.engine._links.sending.termini) == 1
    pass_time(scene, peer, 5_000)
    assert len(scene.engine._links.sending.termini) == 0
    scene.settle_down()
    assert len(disk.killed().engine._links.sending.termini) == 0


def test_another_time_holds_after_a_restart() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 1)
    attach(peer, 1, suspended_ms=5_000)
    scene = disk.killed()
    pass_time(scene, scene.peer(boot=8), 8_000)
    assert len(scene.engine._links.sending.termini) == 0


def test_a_deleted_queue_has_no_termini_after_a_restart() -> None:
    disk = Disk()
    attach(disk.scene.peer(), 1)
    names = disk.scene.names
    assert isinstance(names, EveryName)
    names.give("q", Policy.parse({"role": "metadata", "reference": "elsewhere"}))
    disk.scene.refresh()
    disk.scene.settle_down()
    scene = disk.killed()
    assert len(scene.engine._links.sending.termini) == 0


def test_a_store_that_does_not_outlive_the_process_keeps_nothing_durably() -> None:
    peer = Scene().peer()
    assert attach(peer, 1) == Durability.NONE
    assert peer.unsettled[1] == (True, [])


# --- another durability ------------------------------------------------------------------------------------


def test_a_link_that_becomes_durable_has_the_tags_of_before() -> None:
    """Also those of messages that are on their way to the disk while it is attached again."""
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 1, Durability.NONE)
    peer.take()
    send(peer, 1, 1, b"a")
    disk.scene.begin_commit()
    send(peer, 1, 2, b"b")
    peer.produce(2, "q", client_link=LINK, steals=True, suspended_ms=MINUTE, durability=UNSETTLED_STATE)
    disk.scene.end_commit()
    assert peer.take(Kind.PRODUCER_READY) == []
    disk.scene.settle_down()
    assert peer.durability[2] == UNSETTLED_STATE
    assert peer.unsettled[2] == (True, [b"a", b"b"])
    scene = disk.killed()
    assert unsettled(scene.peer(boot=8), 1) == [b"a", b"b"]


@pytest.mark.parametrize("durability", [Durability.NONE, Durability.CONFIGURATION])
def test_a_link_that_becomes_less_durable_keeps_its_tags_while_the_shard_runs(durability: Durability) -> None:
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a")
    disk.scene.settle_down()
    assert unsettled(peer, 2, durability) == [b"a"]
    disk.scene.settle_down()
    scene = disk.killed()
    assert len(scene.engine._links.sending.termini) == bool(durability)
    assert unsettled(scene.peer(boot=8), 1, durability) == []


def test_a_link_without_a_time_is_not_durable() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 1)
    assert attach(peer, 2, suspended_ms=0) == Durability.NONE
    disk.scene.settle_down()
    assert len(disk.killed().engine._links.sending.termini) == 0


# --- the records -----------------------------------------------------------------------------------------


def test_tags_are_in_one_group_with_their_messages() -> None:
    scene = Scene(store := Outliving())
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a", b"b")
    append, tags = store.records[-2:]
    assert isinstance(append, Append)
    assert append.flags & CONTINUED
    assert isinstance(tags, Terminus)
    assert (tags.event, tags.tags, tags.flags) == (TerminusEvent.STORED, [b"a", b"b"], 0)


def test_of_a_batch_that_is_stored_in_part_only_those_tags_are_in_the_group() -> None:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", "max_length": 2, "overflow": "flow_control"}))
    scene = Scene(store := Outliving(), names=names)
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a", b"b", b"c", b"d", b"e")
    consumer = scene.peer("receiver", boot=9)
    consumer.consume(5, "q", 10)
    consumer.settle(5, 0, 2)
    scene.settle_down()
    stored = [record.tags for record in store.of_termini() if record.event == TerminusEvent.STORED]
    assert stored == [[b"a", b"b"], [b"c", b"d"]]
    assert any(isinstance(record, Taken) and record.taken == 2 for record in store.records)


def test_accepted_duplicates_have_their_tags_as_well() -> None:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", "duplicate_window": 60}))
    scene = Scene(store := Outliving(), names=names)
    peer = scene.peer()
    attach(peer, 1)
    message = b"\x00\x53\x73\xc0\x04\x01\xa1\x01i\x00\x53\x75\xa0\x01x"
    for number, tag in ((1, b"a"), (2, b"b")):
        peer.say(
            frame(Kind.TAGS, link=1, number=number, count=1, body=encode_tags([tag])),
            batch(1, number, [message]),
        )
    scene.settle_down()
    assert scene.queue("q")["ready"] == 1
    stored = [record.tags for record in store.of_termini() if record.event == TerminusEvent.STORED]
    assert stored == [[b"a"], [b"b"]]


def test_transient_messages_and_those_that_are_sent_settled_have_no_tags_in_the_store() -> None:
    scene = Scene(store := Outliving())
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a", durable=False)
    peer.say(batch(1, 2, [b"m"]))
    scene.settle_down()
    assert [record.event for record in store.of_termini()] == [TerminusEvent.BEGUN]
    assert unsettled(peer, 2) == [b"a"]


def test_a_link_that_does_not_request_it_has_no_record() -> None:
    scene = Scene(store := Outliving())
    peer = scene.peer()
    attach(peer, 1, Durability.NONE)
    send(peer, 1, 1, b"a")
    peer.say(frame(Kind.FORGET, link=1, count=1, body=encode_tags([b"a"])))
    peer.say(frame(Kind.FORGET, flags=CLOSED, link=1))
    peer.close_producer(1)
    scene.settle_down()
    assert store.of_termini() == []


def test_without_room_for_its_record_a_link_is_attached_and_is_not_durable() -> None:
    scene = Scene(store := Outliving())
    peer = scene.peer()
    peer.produce(9, "q")
    store.full_for_all = True
    assert attach(peer, 1) == Durability.NONE
    store.full_for_all = False
    assert scene.counts.store_failures > 0
    send(peer, 1, 1, b"a")
    scene.settle_down()
    assert store.of_termini() == []
    assert unsettled(peer, 2) == [b"a"]


# --- bounds ------------------------------------------------------------------------------------------------


def test_no_more_links_than_the_bound_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    peer = disk.scene.peer()
    for link in (1, 2, 3):
        attach(peer, link, client_link=str(link) * 32)
    monkeypatch.setattr(termini, "TERMINI_MAX", 2)
    assert len(disk.killed().engine._links.sending.termini) == 2
    disk.scene.settle_down()
    monkeypatch.setattr(termini, "TERMINI_MAX", 9)
    assert len(disk.killed().engine._links.sending.termini) == 2
