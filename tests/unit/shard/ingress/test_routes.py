"""Batches for several queues: stored once, in all of them or none, freed when the last has let go."""

import pytest

from lightrail.journal.record import REWRITTEN, SPILLED
from lightrail.model import conditions, limits
from lightrail.model.policy import QUEUE
from lightrail.shard.effects import peers
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.sqlite import SqliteStore
from lightrail.shard.journal.store import StoreFullError
from lightrail.shard.journal.tail import Tail
from lightrail.shard.links.sending import sending_links
from lightrail.shard.queue.values.commands import Change
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.frames import UNKNOWN_SEQUENCE, Kind, OutcomeCode
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore

SEGMENT_BYTES = 40_000


def opened(scene: Scene | None = None, *queues: str) -> tuple[Scene, Peer]:
    """A router's link, 1, with set 5."""
    scene = scene or Scene()
    peer = scene.peer()
    peer.produce(1)
    peer.targets(1, 5, *(queues or ("a", "b", "c")))
    return scene, peer


def journalled(files: FakeFiles, mark: int = 1 << 30) -> Scene:
    journal = Journal(files, "test", 0, segment_bytes=SEGMENT_BYTES)
    return Scene(journal, journal.recover(mark, 1), memory_mark=mark)


def taken(peer: Peer, link: int, queue: str, count: int) -> list[bytes]:
    """Receives and settles so many messages, some at a time."""
    peer.consume(link, queue)
    done = 0
    while done < count:
        peer.credit(link, min(count, done + 40))
        peer.scene.settle_down()
        came = len(peer.messages(link))
        assert came > done, f"{queue} has {done} of {count} messages"
        peer.settle(link, done, came - done)
        done = came
    peer.scene.settle_down()
    return peer.messages(link)


# --- storing -------------------------------------------------------------------------------------------


def test_a_routed_batch_is_one_record_and_one_batch_in_every_queue() -> None:
    scene, peer = opened()
    for link, queue in enumerate("abc", 2):
        peer.consume(link, queue, 10)
    peer.route(1, 1, 5, [b"x", b"y"])
    assert peer.accepted(1) == []
    scene.settle_down()
    assert peer.accepted(1) == [1]
    assert all(peer.messages(link) == [b"x", b"y"] for link in (2, 3, 4))
    assert isinstance(scene.store, SmallStore)
    (append,) = scene.store.appends()
    assert len(append.targets) == 3
    assert scene.store.usage().live_bytes == 6


def test_a_durable_batch_is_one_object_for_all_its_queues() -> None:
    scene, peer = opened()
    peer.route(1, 1, 5, [b"x"])
    found = [scene.engine._queues.find(name) for name in "abc"]
    assert len({id(queue.machine.contents.ready.runs[0].batch) for queue in found if queue}) == 1


def test_a_transient_batch_is_answered_at_once_and_shares_its_bytes() -> None:
    scene, peer = opened()
    scene.settle_down()
    peer.take()
    peer.route(1, 1, 5, [b"x"], durable=False)
    assert peer.accepted(1) == [1]
    found = [scene.engine._queues.find(name) for name in "abc"]
    assert len({id(queue.machine.contents.ready.runs[0].batch.data) for queue in found if queue}) == 1
    assert len({id(queue.machine.contents.ready.runs[0].batch) for queue in found if queue}) == 3


def test_a_batch_said_again_is_answered_and_not_stored_twice() -> None:
    scene, peer = opened()
    peer.route(1, 1, 5, [b"x"])
    peer.route(1, 1, 5, [b"x"])
    peer.greet()
    peer.produce(1)
    peer.targets(1, 6, "a")
    peer.route(1, 1, 6, [b"x"])
    scene.settle_down()
    assert 1 in peer.accepted(1)
    assert [scene.queue(name)["ready"] for name in "abc"] == [1, 1, 1]
    assert scene.counts.batches_duplicate == 2


def test_a_name_twice_in_a_set_counts_once() -> None:
    scene, peer = opened(None, "a", "b", "a")
    peer.route(1, 1, 5, [b"x"])
    assert [scene.queue(name)["ready"] for name in "ab"] == [1, 1]


def test_queues_keep_their_own_sequences_and_attempts() -> None:
    scene, peer = opened(None, "a", "b")
    peer.produce(2, "a")
    peer.send(2, 1, [b"before"])
    peer.route(1, 1, 5, [b"x"])
    peer.consume(3, "a", 10)
    peer.consume(4, "b", 10)
    assert [(each.sequence, each.message) for each in peer.delivered[3]] == [(0, b"before"), (1, b"x")]
    assert [(each.sequence, each.message) for each in peer.delivered[4]] == [(0, b"x")]
    peer.settle(4, 0, 1, OutcomeCode.REJECTED)
    assert scene.queue("b/$dlq")["ready"] == 1
    assert scene.queue("a")["in_flight"] == 2


# --- refusals ------------------------------------------------------------------------------------------


def test_a_set_with_an_unknown_queue_is_refused_with_each_batch_and_the_link_lives() -> None:
    scene = Scene()
    names = scene.names
    assert isinstance(names, EveryName)
    names.drop("b")
    scene, peer = opened(scene)
    peer.route(1, 1, 5, [b"x"])
    peer.route(1, 2, 9, [b"x"], afresh=True)
    assert [(number, refusal.condition) for _, number, refusal in peer.refusals] == [
        (1, conditions.NOT_FOUND),
        (2, conditions.NOT_FOUND),
    ]
    assert "b is no queue" in peer.refusals[0][2].description
    names.give("b", QUEUE)
    peer.targets(1, 5, "a", "b")
    peer.route(1, 3, 5, [b"behind"])
    assert peer.refusals[2][2].condition == conditions.RESOURCE_LIMIT_EXCEEDED
    peer.route(1, 4, 5, [b"y"], afresh=True)
    assert [scene.queue(name)["ready"] for name in "ab"] == [1, 1]


def test_a_set_whose_queue_was_dropped_is_refused() -> None:
    scene, peer = opened()
    assert isinstance(scene.names, EveryName)
    scene.names.drop("b")
    scene.refresh()
    peer.route(1, 1, 5, [b"x"])
    assert peer.refusals[0][2].condition == conditions.NOT_FOUND
    assert scene.queue("a")["ready"] == 0


def test_a_full_disk_refuses_a_batch_for_all_queues() -> None:
    scene, peer = opened()
    assert isinstance(scene.store, SmallStore)
    scene.store.full = True
    peer.route(1, 1, 5, [b"x"])
    assert peer.refusals[0][2].condition == conditions.RESOURCE_LIMIT_EXCEEDED
    assert [scene.queue(name)["ready"] for name in "abc"] == [0, 0, 0]


def test_sets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROUTE_SETS_MAX", 2)
    monkeypatch.setattr(limits, "ROUTE_TARGETS_MAX", 2)
    scene, peer = opened(None, "a")
    peer.targets(1, 6, "a", "b")
    peer.targets(1, 7, "a", "b", "c")
    for number, set_ in enumerate((5, 6, 7), 1):
        peer.route(1, number, set_, [b"x"], afresh=True)
    assert [number for _, number, _ in peer.refusals] == [1, 3]
    assert scene.queue("b")["ready"] == 1


def test_what_does_not_belong_to_a_routers_link_is_passed_over() -> None:
    scene, peer = opened()
    peer.produce(2, "q")
    peer.targets(2, 1, "a")
    peer.route(2, 1, 1, [b"x"])
    peer.send(1, 1, [b"x"])
    peer.close_producer(1)
    peer.route(1, 2, 5, [b"x"])
    scene.settle_down()
    assert peer.accepted(1) == peer.accepted(2) == []
    assert scene.queue("a")["ready"] == 0


# --- sequences -----------------------------------------------------------------------------------------


def test_who_asks_for_sequences_gets_the_first_of_each_batch() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q", sequences=True)
    peer.send(1, 1, [b"a", b"b"])
    peer.send(1, 2, [b"c"], durable=False)
    assert peer.stored == [(1, 2, 2)]
    scene.settle_down()
    assert peer.stored[1:] == [(1, 1, 0)]
    peer.send(1, 1, [b"a", b"b"])
    scene.settle_down()
    assert peer.stored[2:] == [(1, 1, 0)]
    peer.greet()
    peer.produce(1, "q", sequences=True)
    peer.send(1, 2, [b"c"], durable=False)
    scene.settle_down()
    assert peer.stored[3:] == [(1, 2, 2)]
    assert peer.take(Kind.ACCEPTED) == []


def test_sequences_that_are_forgotten_are_said_to_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SEQUENCES_KEPT", 2)
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q", sequences=True)
    for number in (1, 2, 3):
        peer.send(1, number, [b"a"])
        scene.settle_down()
    peer.stored.clear()
    peer.send(1, 1, [b"a"])
    peer.send(1, 2, [b"a"])
    scene.settle_down()
    assert peer.stored == [(1, 1, UNKNOWN_SEQUENCE), (1, 2, 1)]


def test_of_producers_that_left_the_sequences_of_so_many_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending_links, "SEQUENCE_PRODUCERS_KEPT", 2)
    scene = Scene()
    peer = scene.peer()
    for link in (1, 2, 3):
        peer.produce(link, "q", sequences=True)
        peer.send(link, 1, [b"a"])
        scene.settle_down()
    peer.greet()
    peer.stored.clear()
    for link in (1, 2, 3):
        peer.produce(link, "q", sequences=True)
        peer.send(link, 1, [b"a"])
        scene.settle_down()
    # What the first one sent again is known by its number all the same, and not stored twice.
    assert sorted(peer.stored) == [(1, 1, UNKNOWN_SEQUENCE), (2, 1, 1), (3, 1, 2)]
    assert scene.queue("q")["ready"] == 3


# --- memory and disk -----------------------------------------------------------------------------------


def bodies(count: int) -> list[list[bytes]]:
    return [[b"%05d" % (10 * number + index) + b"." * 200 for index in range(10)] for number in range(count)]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("kind", ["journal", "memory", "sqlite"])
def test_routed_messages_flow_to_disk_and_come_back_in_every_queue(
    durable: bool, kind: str, tmp_path: object
) -> None:
    mark = 30_000
    if kind == "sqlite":
        store = SqliteStore(f"{tmp_path}/m.sqlite", "test", 0, reserve_bytes=0)
        scene = Scene(store, store.recover(mark, 1), memory_mark=mark)
    else:
        scene = journalled(FakeFiles(), mark) if kind == "journal" else Scene(memory_mark=mark)
    scene, peer = opened(scene)
    sent: list[bytes] = []
    for number, messages in enumerate(bodies(40), 1):
        peer.route(1, number, 5, messages, durable=durable)
        scene.settle_down()
        sent += messages
    assert scene.counts.evicted_bytes > 0
    for link, queue in enumerate("abc", 2):
        assert taken(peer, link, queue, len(sent)) == sent
    assert scene.store.usage().live_bytes == 0
    assert scene.engine._house.memory.resident == 0
    scene.store.close()


def test_the_live_bytes_of_a_routed_batch_go_with_its_last_reader() -> None:
    scene = journalled(FakeFiles())
    scene, peer = opened(scene)
    for number, messages in enumerate(bodies(5), 1):
        peer.route(1, number, 5, messages)
    scene.settle_down()
    full = scene.store.usage().live_bytes
    seen = [full]
    for link, queue in enumerate("abc", 2):
        taken(peer, link, queue, 50)
        seen.append(scene.store.usage().live_bytes)
    assert seen == sorted(seen, reverse=True)
    # Stored once: what is alive on disk is not three times what was sent.
    assert 50 * 205 <= full < 2 * 50 * 205
    assert seen[-1] == 0
    scene.store.close()


def test_after_recovery_the_live_bytes_are_those_from_before() -> None:
    files = FakeFiles()
    scene, peer = opened(journalled(files))
    for number, messages in enumerate(bodies(5), 1):
        peer.route(1, number, 5, messages)
    taken(peer, 2, "a", 17)
    before = scene.store.usage().live_bytes
    scene.store.close()
    for mark in (1 << 30, 2_000):
        scene = journalled(files, mark)
        assert scene.store.usage().live_bytes == pytest.approx(before, rel=0.02)
        scene.turn()
        scene.store.close()
    scene = journalled(files)
    peer = scene.peer()
    sent = [message for messages in bodies(5) for message in messages]
    assert taken(peer, 2, "a", 33) == sent[17:]
    assert taken(peer, 3, "b", 50) == sent
    assert taken(peer, 4, "c", 50) == sent
    assert scene.store.usage().live_bytes == 0
    scene.store.close()


@pytest.mark.parametrize("mark", [1 << 30, 8_000])
def test_the_cleaner_writes_what_several_queues_hold_once(mark: int, monkeypatch: pytest.MonkeyPatch) -> None:
    appended: list[Append] = []
    real = Tail.append

    def append(tail: Tail, record: Append, now_ms: int) -> Location:
        appended.append(record)
        return real(tail, record, now_ms)

    monkeypatch.setattr(Tail, "append", append)
    scene, peer = opened(journalled(FakeFiles(), mark))
    peer.produce(2, "busy")
    peer.consume(3, "busy", 1 << 20)
    kept = bodies(6)
    for number, messages in enumerate(kept, 1):
        peer.route(1, number, 5, messages)
    scene.settle_down()
    for number, messages in enumerate(bodies(250), 1):
        peer.send(2, number, messages)
        peer.settle(3, 10 * (number - 1), 10)
        scene.settle_down()
    usage = scene.store.usage()
    assert usage.segments_dropped > 3
    rewritten = [each for each in appended if each.flags & REWRITTEN and len(each.targets) > 1]
    assert rewritten
    if mark > 8_000:
        alone = [each for each in appended if each.flags == REWRITTEN and len(each.targets) == 1]
        assert len(alone) < len(rewritten)
    assert usage.total_bytes < 8 * SEGMENT_BYTES
    sent = [message for messages in kept for message in messages]
    for link, queue in enumerate("abc", 4):
        assert taken(peer, link, queue, 60) == sent
    assert scene.store.usage().live_bytes == 0
    scene.store.close()


def test_transient_messages_of_several_queues_are_spilled_by_each() -> None:
    scene, peer = opened(Scene(memory_mark=20_000))
    for number, messages in enumerate(bodies(20), 1):
        peer.route(1, number, 5, messages, durable=False)
        scene.settle_down()
    assert isinstance(scene.store, SmallStore)
    spilled = [each for each in scene.store.appends() if each.flags & SPILLED]
    assert {each.targets[0][0] for each in spilled} == {1, 2, 3}
    assert all(len(each.targets) == 1 for each in spilled)


# --- queues whose policies have a say --------------------------------------------------------------------


def with_policy(scene: Scene, name: str, policy: Policy) -> Queue:
    queue = scene.engine._queues.find(name)
    assert queue is not None
    queue.machine.apply(Change(policy), 0)
    return queue


def identified(id: bytes) -> bytes:
    section = b"\xa0" + bytes((len(id),)) + id
    return b"\x00\x53\x73\xc0" + bytes((len(section) + 1, 1)) + section + b"\x00\x53\x75\xa0\x01x"


def test_all_queues_take_of_a_batch_what_fits_into_the_fullest() -> None:
    scene, peer = opened()
    full = with_policy(scene, "b", Policy(max_length=3))
    with_policy(scene, "c", Policy(max_length=4))
    peer.route(1, 1, 5, [b"w", b"x"])
    peer.route(1, 2, 5, [b"y", b"z"])
    peer.route(1, 3, 5, [b"behind"])
    assert [number for _, number, _ in peer.refusals] == [3]
    scene.settle_down()
    assert peer.accepted(1) == [1]
    _, number, refusal = peer.refusals[1]
    assert (number, refusal.accepted) == (2, 1)
    assert "queue b is full" in refusal.description
    assert [scene.queue(name)["ready"] for name in "abc"] == [3, 3, 3]
    assert full.machine.contents.counters.refused == 1
    # What fits everywhere is one record still.
    assert isinstance(scene.store, SmallStore)
    assert [len(append.targets) for append in scene.store.appends()] == [3, 3]
    peer.route(1, 4, 5, [b"no"], afresh=True)
    assert peer.refusals[2][2].accepted == 0
    assert [scene.queue(name)["ready"] for name in "abc"] == [3, 3, 3]


@pytest.mark.parametrize("again", ["greeting", "crash"])
def test_what_was_taken_in_part_is_refused_in_part_when_it_is_said_again(again: str) -> None:
    files = FakeFiles()
    scene, peer = opened(journalled(files))
    with_policy(scene, "b", Policy(max_length=1))
    peer.route(1, 1, 5, [b"y", b"z"])
    scene.settle_down()
    if again == "crash":
        scene = journalled(files.after_crash(1, "none"))
        peer = scene.peer()
    else:
        peer.greet()
    peer.produce(1)
    peer.targets(1, 5, "a", "b", "c")
    peer.refusals.clear()
    peer.route(1, 1, 5, [b"y", b"z"], afresh=True)
    scene.settle_down()
    assert [(number, refusal.accepted) for _, number, refusal in peer.refusals] == [(1, 1)]
    assert [scene.queue(name)["ready"] for name in "abc"] == [1, 1, 1]
    with_policy(scene, "b", Policy())
    peer.route(1, 2, 5, [b"on"], afresh=True)
    peer.route(1, 2, 5, [b"on"])
    scene.settle_down()
    assert 2 in peer.accepted(1)
    assert [scene.queue(name)["ready"] for name in "abc"] == [2, 2, 2]


def test_a_message_too_large_for_one_queue_is_for_none() -> None:
    scene, peer = opened()
    with_policy(scene, "b", Policy(max_message_bytes=2))
    peer.route(1, 1, 5, [b"a", b"large", b"c"])
    scene.settle_down()
    _, _, refusal = peer.refusals[0]
    assert (refusal.condition, refusal.accepted) == (conditions.MESSAGE_SIZE_EXCEEDED, 1)
    assert [scene.queue(name)["ready"] for name in "abc"] == [1, 1, 1]


def test_a_group_without_room_for_all_of_it_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    files = FakeFiles()
    scene, peer = opened(journalled(files))
    with_policy(scene, "b", Policy(max_age_ms=60_000))
    peer.route(1, 1, 5, [b"before"])
    scene.settle_down()
    assert isinstance(scene.store, Journal)
    lsn = scene.store.position.lsn

    def reserve(_journal: Journal, _size: int, _now_ms: int = 0) -> None:
        raise StoreFullError("there is no room")

    monkeypatch.setattr(Journal, "reserve", reserve)
    peer.route(1, 2, 5, [b"refused"])
    monkeypatch.undo()
    assert peer.refusals[0][2].description == "there is no room"
    assert scene.store.position.lsn == lsn
    peer.route(1, 3, 5, [b"after"], afresh=True)
    scene.settle_down()
    scene = journalled(files.after_crash(1, "none"))
    peer = scene.peer()
    for link, queue in enumerate("abc", 2):
        assert taken(peer, link, queue, 2) == [b"before", b"after"]


def test_each_queue_takes_of_a_batch_what_its_policy_says() -> None:
    scene, peer = opened()
    with_policy(scene, "a", Policy(duplicate_window_ms=1_000))
    with_policy(scene, "b", Policy(max_length=3, overflow="discard_incoming"))
    with_policy(scene, "c", Policy(max_age_ms=50, dead_letter=False))
    peer.route(1, 1, 5, [identified(b"1"), identified(b"2")])
    peer.route(1, 2, 5, [identified(b"2"), identified(b"3")])
    scene.settle_down()
    assert peer.accepted(1) == [1, 2]
    assert [scene.queue(name)["ready"] for name in "abc"] == [3, 3, 4]
    peer.route(1, 2, 5, [identified(b"2"), identified(b"3")])
    scene.tick(50)
    assert [scene.queue(name)["ready"] for name in "abc"] == [3, 3, 0]


def test_what_several_policies_made_of_a_batch_survives_together() -> None:
    files = FakeFiles()
    scene = journalled(files)
    _, peer = opened(scene)
    for name, policy in (
        ("a", Policy(duplicate_window_ms=60_000)),
        ("b", Policy(max_length=3, overflow="discard_incoming")),
        ("c", Policy(durable="never")),
    ):
        with_policy(scene, name, policy)
    peer.route(1, 1, 5, [identified(b"1"), identified(b"2"), identified(b"1")])
    peer.route(1, 2, 5, [identified(b"2"), identified(b"3")])
    scene.settle_down()
    scene = journalled(files.after_crash(1, "none"))
    assert [scene.queue(name)["ready"] for name in "abc"] == [3, 3, 0]
    _, peer = opened(scene)
    with_policy(scene, "a", Policy(duplicate_window_ms=60_000))
    # The router's last batch is known, and the ids are.
    peer.route(1, 2, 5, [identified(b"2"), identified(b"3")])
    peer.route(1, 3, 5, [identified(b"3"), identified(b"4")])
    scene.settle_down()
    assert peer.accepted(1) == [2, 3]
    assert [scene.queue(name)["ready"] for name in "abc"] == [4, 5, 2]


def test_a_full_disk_refuses_a_guarded_batch() -> None:
    scene, peer = opened()
    with_policy(scene, "b", Policy(max_length=3))
    assert isinstance(scene.store, SmallStore)
    scene.store.full = True
    peer.route(1, 1, 5, [b"x"])
    assert peer.refusals[0][2].description == "there is no room"
    assert [scene.queue(name)["ready"] for name in "abc"] == [0, 0, 0]
