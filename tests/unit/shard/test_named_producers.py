"""Producers that clients name: their numbers outlive links, frontends and the shard, and have one order."""

from typing import Any

from lightrail.model import conditions
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.memory import MemoryStore
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.bodies import ProducerOpen
from lightrail.wire.frames import IDENTITY, UNKNOWN_SEQUENCE, Kind, frame
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, batch

ME = IDENTITY | 77


def say(peer: Peer, link: int, number: int, *messages: bytes, queue: str = "q", **options: Any) -> None:
    """Opens a named producer and sends a batch, in one message as a gateway does."""
    body = ProducerOpen(queue, sequences=True, identity=ME).encode()
    peer.say(
        frame(Kind.PRODUCER_OPEN, link=link, body=body),
        batch(link, number, list(messages), afresh=True, **options),
    )


def stored(peer: Peer) -> list[tuple[int, int, bool]]:
    """(link, number, whether it came before) of each answer."""
    peer.scene.settle_down()
    answers, peer.stored = peer.stored, []
    return [(link, number, sequence == UNKNOWN_SEQUENCE) for link, number, sequence in answers]


def bounded(**policy: Any) -> EveryName:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", **policy}))
    return names


def test_another_link_of_another_gateway_goes_on_with_the_numbers() -> None:
    scene = Scene()
    one, two = scene.peer("gateway-0", boot=7), scene.peer("gateway-1", boot=8)
    say(one, 1, 5, b"a")
    assert stored(one) == [(1, 5, False)]
    one.close_producer(1)
    say(two, 1, 5, b"a")
    say(two, 2, 6, b"b")
    assert stored(two) == [(1, 5, True), (2, 6, False)]
    assert scene.queue("q")["ready"] == 2


def test_numbers_outlive_a_frontend_that_is_forgotten() -> None:
    scene = Scene()
    one = scene.peer("gateway-0", boot=7)
    say(one, 1, 5, b"a")
    scene.engine.lost(one.identity)
    two = scene.peer("gateway-0", boot=8)
    say(two, 1, 5, b"a")
    assert stored(two) == [(1, 5, True)]


def test_what_is_in_a_commit_is_answered_when_it_ended_to_both_who_said_it() -> None:
    scene = Scene()
    one, two = scene.peer("gateway-0", boot=7), scene.peer("gateway-1", boot=8)
    say(one, 1, 5, b"a")
    scene.begin_commit()
    say(two, 1, 5, b"a")
    assert (one.stored, two.stored) == ([], [])
    assert [refusal.condition for _, _, refusal in one.refusals] == [conditions.STOLEN]
    scene.end_commit()
    assert stored(two) == [(1, 5, True)]
    assert scene.queue("q")["ready"] == 1


def test_a_transient_batch_that_a_policy_makes_durable_is_answered_again_only_from_disk() -> None:
    scene = Scene(names=bounded(durable="always"))
    one = scene.peer()
    say(one, 1, 5, b"a", durable=False)
    say(one, 2, 5, b"a", durable=False)
    assert one.stored == []
    assert stored(one) == [(1, 5, False), (2, 5, True)]


def test_who_waits_for_room_gives_way_to_who_comes_later_and_nothing_is_stored_twice() -> None:
    scene = Scene(names=bounded(max_length=1, overflow="flow_control"))
    one, two = scene.peer("gateway-0", boot=7), scene.peer("gateway-1", boot=8)
    say(one, 1, 5, b"a", b"b")
    scene.settle_down()
    say(two, 1, 5, b"a", b"b")
    assert [refusal.condition for _, _, refusal in one.refusals] == [conditions.STOLEN]
    two.consume(9, "q", 10)
    scene.settle_down()
    two.settle(9, 0, 1)
    scene.settle_down()
    two.settle(9, 1, 1)
    assert stored(two) == [(1, 5, False)]
    assert two.messages(9) == [b"a", b"b"]
    assert one.stored == []


def test_a_batch_of_which_a_full_queue_took_some_goes_on_there_when_it_comes_again() -> None:
    scene = Scene(names=bounded(max_length=2, overflow="reject"))
    one = scene.peer()
    say(one, 1, 5, b"a", b"b", b"c")
    scene.settle_down()
    assert [(number, refusal.accepted) for _, number, refusal in one.refusals] == [(5, 2)]
    one.close_producer(1)
    one.consume(9, "q", 10)
    scene.settle_down()
    one.settle(9, 0, 2)
    scene.settle_down()
    say(one, 2, 5, b"a", b"b", b"c")
    assert stored(one) == [(2, 5, False)]
    scene.settle_down()
    assert one.messages(9) == [b"a", b"b", b"c"]


def test_a_shard_that_was_killed_between_the_disk_and_the_answer_knows_the_batch() -> None:
    files = FakeFiles()
    journal = Journal(files, "test", 0, segment_bytes=1 << 20)
    scene = Scene(journal, journal.recover(1 << 30, 0))
    one = scene.peer()
    say(one, 1, 5, b"a")
    scene.begin_commit()
    assert scene.commit is not None
    scene.commit.perform()
    # It dies here: the record is on disk, nobody was told.
    assert one.stored == []
    again = Journal(files.after_crash(keep="none"), "test", 0, segment_bytes=1 << 20)
    life = Scene(again, again.recover(1 << 30, 0), boot=2)
    two = life.peer(boot=8)
    say(two, 1, 5, b"a")
    say(two, 2, 6, b"b")
    assert stored(two) == [(1, 5, True), (2, 6, False)]
    assert life.queue("q")["ready"] == 2


def test_a_batch_that_was_not_on_disk_is_stored_when_it_comes_again() -> None:
    files = FakeFiles()
    journal = Journal(files, "test", 0, segment_bytes=1 << 20)
    scene = Scene(journal, journal.recover(1 << 30, 0))
    say(scene.peer(), 1, 5, b"a")
    again = Journal(files.after_crash(keep="none"), "test", 0, segment_bytes=1 << 20)
    life = Scene(again, again.recover(1 << 30, 0), boot=2)
    two = life.peer(boot=8)
    say(two, 1, 5, b"a")
    assert stored(two) == [(1, 5, False)]


def test_an_ordinary_producer_is_not_known_when_it_has_closed() -> None:
    scene = Scene(MemoryStore())
    one = scene.peer()
    one.produce(1, "q")
    one.send(1, 5, [b"a"])
    scene.settle_down()
    one.close_producer(1)
    assert scene.engine._links.sending._numbers == {}
