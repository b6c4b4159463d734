"""Tags that the client has settled: when they are removed, and that no loss of the shard brings them back.

The client may use such a tag for another message when a message behind the settlement has its outcome, or
when an attach without the tag is answered (ADR 41). Were the tag still there, that message would be taken for
stored.
"""

from typing import Any

import pytest

from lightrail.model.links import Durability
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.columns import encode_tags
from lightrail.wire.frames import Kind, frame
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore, batch

LINK = "1" * 32
UNSETTLED_STATE = Durability.UNSETTLED_STATE


class Outliving(SmallStore):
    """In memory, though it is taken for a store that outlives the process."""

    outlives = True  # type: ignore[misc]  # a store in memory is none of these


def scene_of(**policy: Any) -> Scene:
    return Disk(**policy).scene


class Disk:
    """A shard that may be killed and started again on one disk."""

    def __init__(self, **policy: Any) -> None:
        self.files = FakeFiles()
        self.policy = policy
        self.scene = self.start()

    def start(self) -> Scene:
        journal = Journal(self.files, "test", 0, segment_bytes=4_000)
        recovered = journal.recover(1 << 30, 1)
        names = EveryName()
        names.give("q", Policy.parse({"role": "queue", **self.policy}))
        return Scene(journal, recovered, names=names)

    def killed(self, keep: str) -> Scene:
        """The next process, when all that was written is on disk, or "none" of it but what was synced."""
        self.files = self.files.after_crash(0, keep)
        return self.start()


def attach(peer: Peer, link: int, **options: Any) -> None:
    given: dict[str, Any] = {"client_link": LINK, "steals": True, "suspended_ms": 60_000}
    peer.produce(link, "q", **given | options)
    peer.scene.settle_down()


def unsettled(peer: Peer, link: int, **options: Any) -> list[bytes]:
    """Attaches a link; the tags that the shard announces to it."""
    attach(peer, link, **options)
    is_kept, tags = peer.unsettled.pop(link)
    assert is_kept
    return tags


def send(peer: Peer, link: int, number: int, *tags: bytes, **options: Any) -> None:
    """A batch with one message for each tag, as a frontend sends it."""
    peer.say(
        frame(Kind.TAGS, link=link, number=number, count=len(tags), body=encode_tags(tags)),
        batch(link, number, list(tags), **options),
    )


def forget(peer: Peer, link: int, next_number: int, *tags: bytes) -> None:
    peer.say(frame(Kind.FORGET, link=link, number=next_number, count=len(tags), body=encode_tags(list(tags))))


def test_a_delivery_that_is_settled_before_its_outcome_is_not_unsettled_when_it_is_stored() -> None:
    scene = Scene()
    peer = scene.peer()
    attach(peer, 1)
    scene.settle_down()
    send(peer, 1, 1, b"a", b"b")
    scene.begin_commit()
    forget(peer, 1, 2, b"a")
    scene.end_commit()
    assert peer.accepted(1) == [1]
    assert unsettled(peer, 2) == [b"b"]


def test_nor_is_one_that_waits_for_room() -> None:
    scene = scene_of(max_length=1, overflow="flow_control")
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a", b"b", b"c")
    forget(peer, 1, 2, b"b")
    scene.settle_down()
    peer.consume(2, "q", 3)
    for number in range(3):
        peer.settle(2, number, 1)
        scene.settle_down()
    assert peer.accepted(1) == [1]
    assert unsettled(peer, 3) == [b"a", b"c"]


@pytest.mark.parametrize("durable", [True, False])
def test_nor_is_one_whose_batch_is_sent_again(durable: bool) -> None:
    """The frontend repeats FORGET between the batches that it was between; a later batch has the tag, too."""
    scene = Scene()
    peer = scene.peer()
    attach(peer, 1)
    for _ in range(2):
        send(peer, 1, 1, b"a", b"b", durable=durable)
        forget(peer, 1, 2, b"a", b"b")
        send(peer, 1, 2, b"b", durable=durable)
        peer.greet()
        attach(peer, 1, steals=False)
    scene.settle_down()
    assert unsettled(peer, 2) == [b"b"]
    assert scene.queue("q")["ready"] == 3


def test_a_tag_is_not_settled_by_the_batches_of_a_former_link() -> None:
    """Batches of each link are numbered from 1."""
    scene = Scene()
    first, second = scene.peer("frontend-0", boot=7), scene.peer("frontend-1", boot=8)
    attach(first, 1)
    for number in range(1, 4):
        send(first, 1, number, b"%d" % number)
    scene.settle_down()
    assert unsettled(second, 5) == [b"1", b"2", b"3"]
    forget(second, 5, 1, b"3")
    send(second, 5, 1, b"2")
    scene.settle_down()
    assert unsettled(first, 2) == [b"1", b"2"]


# --- on disk --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "durable"),
    [({}, True), ({}, False), ({"max_length": 1, "overflow": "reject"}, True)],
    ids=["stored", "transient", "refused"],
)
def test_a_settled_tag_is_off_the_disk_before_a_message_behind_it_has_its_outcome(
    policy: dict[str, Any], durable: bool
) -> None:
    """The client may use it again then, and that message may be lost on its way."""
    disk = Disk(**policy)
    peer = disk.scene.peer()
    attach(peer, 1, durability=UNSETTLED_STATE)
    send(peer, 1, 1, b"a", durable=True)
    disk.scene.settle_down()
    forget(peer, 1, 2, b"a")
    send(peer, 1, 2, b"b", durable=durable)
    assert (peer.accepted(1), peer.refusals) == ([1], [])
    disk.scene.settle_down()
    assert peer.accepted(1) == [2] or len(peer.refusals) == 1
    assert b"a" not in unsettled(disk.killed("none").peer(boot=8), 1, durability=UNSETTLED_STATE)


def test_a_settled_tag_is_off_the_disk_before_an_attach_without_it_is_answered() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 1, durability=UNSETTLED_STATE)
    send(peer, 1, 1, b"a", durable=True)
    disk.scene.settle_down()
    forget(peer, 1, 2, b"a")
    assert unsettled(peer, 2, durability=UNSETTLED_STATE) == []
    assert unsettled(disk.killed("none").peer(boot=8), 1, durability=UNSETTLED_STATE) == []


def test_a_delivery_that_is_settled_before_its_outcome_is_not_there_after_a_restart() -> None:
    disk = Disk()
    peer = disk.scene.peer()
    attach(peer, 1, durability=UNSETTLED_STATE)
    send(peer, 1, 1, b"a", b"b", durable=True)
    forget(peer, 1, 2, b"a")
    disk.scene.settle_down()
    assert unsettled(disk.killed("all").peer(boot=8), 1, durability=UNSETTLED_STATE) == [b"b"]


def test_a_link_ends_whose_settled_tag_finds_no_room() -> None:
    """Its client does not take the tag for free, and attaches again."""
    store = Outliving()
    scene = Scene(store)
    peer = scene.peer()
    attach(peer, 1, durability=UNSETTLED_STATE)
    send(peer, 1, 1, b"a", durable=True)
    scene.settle_down()
    store.full_for_all = True
    forget(peer, 1, 2, b"a")
    assert [link for link, _, _ in peer.refusals] == [1]
    store.full_for_all = False
    assert unsettled(peer, 2, durability=UNSETTLED_STATE) == [b"a"]
