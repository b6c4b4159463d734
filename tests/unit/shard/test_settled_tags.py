"""Tags that the client has settled: when they are removed, and that no loss of the shard brings them back.

The client may use such a tag for another message when a message behind the settlement has its outcome, or
when an attach without the tag is answered (ADR 41). Were the tag still there, that message would be taken for
stored.
"""

from typing import Any

import pytest

from lightrail.model.durability import Durability
from lightrail.model.policy import Policy
from lightrail.shard.declarations import EveryName
from lightrail.shard.journal.journal import Journal
from lightrail.wire.frames import Kind, frame
from lightrail.wire.tags import encode_tags
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
