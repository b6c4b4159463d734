"""Only the latest attach of a client's link is opened again after its shard was lost (ADR 41)."""

from typing import Any

import pytest

from lightrail.journal.record import Numbers
from lightrail.model import conditions, limits
from lightrail.shard.journal.journal import Journal
from lightrail.wire.columns import encode_tags
from lightrail.wire.frames import Kind, frame
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore, batch

LINK = "1" * 32


def attach(peer: Peer, link: int, **options: Any) -> int:
    """A client attaches its link; returns the number of the attach."""
    peer.produce(link, "q", client_link=LINK, steals=True, suspended_ms=60_000, **options)
    peer.scene.settle_down()
    return peer.attaches[link]


def open_again(peer: Peer, link: int, number: int) -> list[str]:
    """Opens a link again and repeats its batch, as a frontend does; returns the conditions of refusals."""
    peer.refusals.clear()
    peer.produce(link, "q", client_link=LINK, suspended_ms=60_000, attach=number)
    send(peer, link)
    peer.scene.settle_down()
    return [refusal.condition for _, _, refusal in peer.refusals]


def send(peer: Peer, link: int) -> None:
    peer.say(
        frame(Kind.TAGS, link=link, number=1, count=1, body=encode_tags([b"a"])), batch(link, 1, [b"message"])
    )


def unsettled(peer: Peer, link: int) -> list[bytes]:
    """Attaches the link once more; the tags that the shard announces."""
    attach(peer, link)
    return peer.unsettled[link][1]


class Disk:
    """A shard that is killed and started again."""

    def __init__(self) -> None:
        self.files = FakeFiles()

    def start(self) -> Scene:
        journal = Journal(self.files, "test", 0, segment_bytes=4_000)
        return Scene(journal, journal.recover(1 << 30, 1))

    def killed(self) -> Scene:
        """The next process, with what was synced."""
        self.files = self.files.after_crash(0, "none")
        return self.start()


def test_an_attach_that_its_client_has_left_is_not_opened_again() -> None:
    """The frontend was silent. The client uses the tag for another message, which may be lost on its way."""
    scene = Scene()
    silent, other = scene.peer("frontend-0", boot=7), scene.peer("frontend-1", boot=8)
    number = attach(silent, 1)
    scene.engine.lost(silent.identity)
    attach(other, 5)
    other.close_producer(5)
    silent.greet()
    assert open_again(silent, 1, number) == [conditions.STOLEN]
    assert scene.queue("q")["ready"] == 0
    assert unsettled(other, 6) == []


@pytest.mark.parametrize("closes", [True, False], ids=["in order", "with the shard"])
def test_nor_is_it_after_the_shard_was_killed(closes: bool) -> None:
    disk = Disk()
    scene = disk.start()
    number = attach(scene.peer("frontend-0", boot=7), 1)
    other = scene.peer("frontend-1", boot=8)
    latest = attach(other, 5)
    if closes:
        other.close_producer(5)
    scene = disk.killed()
    former = scene.peer("frontend-0", boot=7)
    assert open_again(former, 1, number) == [conditions.STOLEN]
    assert scene.queue("q")["ready"] == 0
    other = scene.peer("frontend-1", boot=8)
    assert open_again(other, 5, latest) == []
    assert scene.queue("q")["ready"] == 1


def test_nor_is_it_by_a_process_of_the_shard_that_never_heard_of_either_frontend() -> None:
    disk = Disk()
    number = attach(disk.start().peer("frontend-0", boot=7), 1)
    attach(disk.killed().peer("frontend-1", boot=8), 5)
    scene = disk.killed()
    assert open_again(scene.peer("frontend-0", boot=7), 1, number) == [conditions.STOLEN]
    assert scene.queue("q")["ready"] == 0


def test_the_latest_attach_is_opened_again_after_each_loss() -> None:
    disk = Disk()
    scene = disk.start()
    number = attach(scene.peer(), 1)
    for _ in range(2):
        scene = disk.killed()
        peer = scene.peer()
        assert open_again(peer, 1, number) == []
        assert peer.attaches[1] == number
        peer.greet()
        assert open_again(peer, 1, number) == []
    assert scene.queue("q")["ready"] == 1


def test_a_number_that_was_dropped_is_never_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_MAX", 1)
    scene = Scene()
    peer = scene.peer()
    number = attach(peer, 1)
    scene.now_ms += 1
    peer.produce(2, "q", client_link="2" * 32, steals=True, suspended_ms=60_000)
    scene.settle_down()
    peer.greet()
    assert open_again(peer, 1, number) == [conditions.STOLEN]
    assert attach(peer, 3) > number


def test_a_frontend_of_a_former_version_opens_its_links_again() -> None:
    scene = Scene()
    peer = scene.peer()
    attach(peer, 1)
    peer.greet()
    assert open_again(peer, 1, 0) == []


def test_a_link_is_attached_also_on_a_full_disk() -> None:
    store = SmallStore()
    scene = Scene(store)
    peer = scene.peer()
    attach(peer, 1)
    store.full_for_all = True
    number = attach(peer, 2)
    assert scene.counts.store_failures == 1
    store.full_for_all = False
    peer.greet()
    assert open_again(peer, 2, number) == []


def test_links_that_may_not_be_resumed_have_no_number() -> None:
    store = SmallStore()
    scene = Scene(store)
    peer = scene.peer()
    peer.produce(1, "q", client_link=LINK, steals=True)
    peer.produce(2, "q")
    scene.settle_down()
    assert not [record for record in store.records if isinstance(record, Numbers)]
