"""Messages that transactions schedule, under numbers given before, and schedules that they cancel."""

from typing import Any

import pytest

from lightrail.amqp.messages import read_message
from lightrail.journal.record import Numbers
from lightrail.model import conditions, limits
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore
from tests.unit.shard.test_scheduled_messages import message, opened
from tests.unit.shard.transactions.test_prepared import ID, answer, prepare
from tests.unit.shard.transactions.test_transactions import (
    committed,
    condition,
    post,
    ready,
    received,
    settled,
    transact,
)

DUE = 2_000_000


def reserved(scene: Scene, peer: Peer, count: int = 1, queue: str = "q") -> int:
    found = answer(scene, peer, peer.ask("reserve_numbers", queue=queue, count=count))
    return int(found["first"])


def under(sequence: Any, *bodies: str, due: int = DUE, queue: str = "q") -> tuple[list[Any], bytes]:
    """A post of messages that are due at a time, with the number of the first one."""
    fields, blob = post(queue, messages=[message(body, due=due) for body in bodies])
    return [*fields, sequence], blob


def cancels(*sequences: int, queue: str = "q") -> list[list[Any]]:
    return [[queue, 0, sequence, 1, "cancelled", {}] for sequence in sequences]


def contents(scene: Scene, queue: str = "q") -> dict[int, str]:
    """The bodies of all messages by sequence."""
    return {
        run.sequence + at: bytes(read_message(payload).body).decode()
        for run in scene.queue_view(queue).runs
        for at, payload in enumerate(run.messages())
    }


def scheduled(scene: Scene, peer: Peer, *bodies: str) -> None:
    """Delayed messages from sequence 0 on."""
    peer.send(1, 1, [message(body, due=DUE) for body in bodies], durable=True)
    scene.settle_down()


def again(files: FakeFiles, **options: Any) -> tuple[Scene, Peer, FakeFiles]:
    """The shard after a kill."""
    files = files.after_crash(keep="none")
    return *opened(files, **options), files


def test_a_message_is_scheduled_under_the_number_that_was_given_before_the_commit() -> None:
    scene, peer = opened()
    first = reserved(scene, peer, 2)
    scheduled(scene, peer, "between")
    assert (first, contents(scene)) == (0, {2: "between"})
    assert committed(scene, peer, transact(peer, 1, under(first, "one", "two")))
    assert contents(scene) == {0: "one", 1: "two", 2: "between"}
    assert reserved(scene, peer) == 3
    scene.tick(DUE - scene.now_ms)
    scene.settle_down()
    # Each is enqueued when it is due, as a new message.
    assert list(contents(scene)) == [4, 5, 6]
    assert sorted(contents(scene).values()) == ["between", "one", "two"]


def test_one_that_is_due_before_the_commit_is_enqueued_at_once() -> None:
    scene, peer = opened()
    first = reserved(scene, peer)
    assert committed(scene, peer, transact(peer, 1, under(first, "late", due=1)))
    scene.settle_down()
    assert contents(scene) == {1: "late"}


def test_numbers_are_given_once_also_after_a_kill() -> None:
    files = FakeFiles()
    scene, peer = opened(files)
    assert reserved(scene, peer, 3) == 0
    scene, peer, files = again(files)
    assert reserved(scene, peer) == 3
    assert committed(scene, peer, transact(peer, 1, under(1, "one")))
    scene, peer, files = again(files)
    assert contents(scene) == {1: "one"}
    assert reserved(scene, peer) == 4


def test_numbers_that_are_taken_or_were_never_given_are_refused() -> None:
    scene, peer = opened()
    first = reserved(scene, peer, 2)
    assert committed(scene, peer, transact(peer, 1, under(first, "one")))
    for number, posts in enumerate(
        ([under(first, "two")], [under(5, "six")], [under(1, "two"), under(1, "three")]), 2
    ):
        request = transact(peer, number, *posts)
        assert not committed(scene, peer, request)
        assert condition(peer, request) == conditions.TRANSACTION_ROLLBACK
    for sequence in (-1, "1", True, 1 << 62):
        request = transact(peer, 9, under(sequence, "odd"))
        assert not committed(scene, peer, request)
        assert condition(peer, request) == conditions.INVALID_FIELD
    fields, blob = under(1, "two")
    request = transact(peer, 9, ([["q", "p"], *fields[1:]], blob))
    assert not committed(scene, peer, request)
    assert condition(peer, request) == conditions.INVALID_FIELD
    # A queue without delays gives none, and as many as one transaction sends are the most.
    for queue, count in (("plain", 1), ("q", limits.TRANSACTION_MESSAGES_MAX + 1), ("q", 0)):
        peer.produce(7, queue)
        assert "error" in answer(scene, peer, peer.ask("reserve_numbers", queue=queue, count=count))
    assert contents(scene) == {0: "one"}


def test_in_a_queue_that_delays_no_more_the_numbers_are_of_no_use() -> None:
    scene, peer = opened()
    first = reserved(scene, peer)
    names = scene.names
    assert isinstance(names, EveryName)
    names.give("q", Policy.parse({"role": "queue"}))
    scene.refresh()
    request = transact(peer, 1, under(first, "one"))
    assert not committed(scene, peer, request)
    assert condition(peer, request) == conditions.TRANSACTION_ROLLBACK


def test_a_schedule_is_cancelled_with_all_else() -> None:
    scene, peer = opened()
    scheduled(scene, peer, "one", "two", "three")
    found = answer(scene, peer, peer.ask("are_delayed", queue="q", sequences=[2, 3, 0]))
    assert found == {"found": [True, False, True]}
    assert committed(scene, peer, transact(peer, 1, post("a"), settles=cancels(0, 2)))
    assert contents(scene) == {1: "two"}
    assert len(scene.everything("a")) == 1


def test_what_is_not_scheduled_is_not_cancelled_and_nothing_else_is_done() -> None:
    scene, peer = opened()
    scheduled(scene, peer, "one")
    for settles in (cancels(1), cancels(0, 0), cancels(0, 7)):
        request = transact(peer, 1, post("a"), settles=settles)
        assert not committed(scene, peer, request)
        assert condition(peer, request) == conditions.TRANSACTION_ROLLBACK
    for row in (["q", 1, 0, 1], ["q", 0, -1, 1], ["q", 0, 0, 0], ["q", 0, "0", 1]):
        request = transact(peer, 1, post("a"), settles=[[*row, "cancelled", {}]])
        assert not committed(scene, peer, request)
        assert condition(peer, request) == conditions.INVALID_FIELD
    assert contents(scene) == {0: "one"}
    assert not scene.has_queue("a") or not scene.everything("a")


def prepared(scene: Scene, peer: Peer) -> None:
    """A transaction that schedules "new" under a number, and cancels "one" of "one" and "two"."""
    first = reserved(scene, peer)
    scheduled(scene, peer, "one", "two")
    request = prepare(peer, under(first, "new"), settles=cancels(first + 1))
    assert answer(scene, peer, request) == {"prepared": True}


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("becomes_due", [False, True])
def test_until_the_decision_it_stays_delayed_and_the_decision_is_applied(
    commits: bool, is_killed: bool, becomes_due: bool
) -> None:
    files = FakeFiles()
    scene, peer = opened(files)
    prepared(scene, peer)
    now_ms = DUE + 1 if becomes_due else scene.now_ms
    if is_killed:
        scene, peer, files = again(files, now_ms=now_ms)
    else:
        scene.tick(now_ms - scene.now_ms)
        scene.settle_down()
    # The one that nobody cancels is enqueued when it is due.
    assert contents(scene) == ({1: "one", 3: "two"} if becomes_due else {1: "one", 2: "two"})
    conclude = peer.ask("conclude", id=ID, commit=commits)
    assert answer(scene, peer, conclude) == {"concluded": True}
    scene.settle_down()
    left = ["new", "two"] if commits else ["one", "two"]
    assert sorted(contents(scene).values()) == left
    if not becomes_due:
        assert contents(scene) == ({0: "new", 2: "two"} if commits else {1: "one", 2: "two"})
        scene.tick(DUE - scene.now_ms)
        scene.settle_down()
    assert sorted(contents(scene).values()) == left
    # All of them were enqueued anew.
    assert min(contents(scene)) >= 3
    now_ms = scene.now_ms
    scene, peer, files = again(files, now_ms=now_ms)
    assert sorted(contents(scene).values()) == left


@pytest.mark.parametrize("op", ["transact", "prepare"])
def test_what_one_transaction_cancels_no_other_one_cancels_before_the_decision(op: str) -> None:
    scene, peer = opened()
    prepared(scene, peer)
    if op == "transact":
        request = transact(peer, 1, post("a"), settles=cancels(1))
    else:
        request = prepare(peer, post("a"), settles=cancels(1), id="0e" * 16)
    answer(scene, peer, request)
    assert condition(peer, request) == conditions.TRANSACTION_ROLLBACK
    assert answer(scene, peer, peer.ask("conclude", id=ID, commit=False)) == {"concluded": True}
    assert committed(scene, peer, transact(peer, 2, settles=cancels(1)))
    assert contents(scene) == {2: "two"}


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("killed", [True, False])
def test_what_an_undecided_transaction_cancels_nobody_cancels_before_the_decision(
    commits: bool, killed: bool
) -> None:
    files = FakeFiles()
    scene, peer = opened(files)
    prepared(scene, peer)
    if killed:
        scene, peer, files = again(files)
    before = contents(scene)
    request = peer.ask("cancel", queue="q", sequences=[2, 1])
    answer(scene, peer, request)
    assert condition(peer, request) == conditions.RESOURCE_LOCKED
    assert contents(scene) == before, "all or nothing"
    assert answer(scene, peer, peer.ask("conclude", id=ID, commit=commits)) == {"concluded": True}
    # One of the two has cancelled the message, and the other gets an error.
    found = answer(scene, peer, peer.ask("cancel", queue="q", sequences=[1]))
    assert found == {"cancelled": 0 if commits else 1}
    assert 1 not in contents(scene)


def test_the_decision_changes_nothing_in_a_queue_of_the_same_name_that_was_made_since() -> None:
    scene, peer = opened()
    reserved(scene, peer, 5)
    scheduled(scene, peer, "one")
    request = prepare(peer, under(4, "new"), settles=cancels(5))
    assert answer(scene, peer, request) == {"prepared": True}
    names = scene.names
    assert isinstance(names, EveryName)
    policy = names.get("q").policy
    names.drop("q")
    scene.refresh()
    names.give("q", policy)
    scene.refresh()
    other = scene.peer("other")
    other.produce(1, "q")
    for number in range(1, 7):
        other.send(1, number, [message(f"later {number}", due=DUE)], durable=True)
    scene.settle_down()
    assert answer(scene, peer, peer.ask("conclude", id=ID, commit=True)) == {"concluded": True}
    scene.settle_down()
    assert contents(scene) == {**{at: f"later {at + 1}" for at in range(6)}, 6: "new"}
    # It is counted at the queue no longer that it was prepared for, and never was at this one.
    queue = scene.engine._queues.find("q")
    assert queue is not None
    assert (queue.promised, queue.promised_messages, queue.promised_bytes) == (0, 0, 0)


def test_nor_does_a_decision_that_comes_after_a_kill() -> None:
    files = FakeFiles()
    scene, peer = opened(files)
    scheduled(scene, peer, "one")
    receiver = scene.peer("receiver")
    received(scene, receiver, "in", b"1", b"2")
    request = prepare(receiver, settles=[*cancels(0), settled("in", 2, 0, 1)])
    assert answer(scene, receiver, request) == {"prepared": True}
    names = scene.names
    assert isinstance(names, EveryName)
    for name in ("q", "in"):
        policy = names.get(name).policy
        names.drop(name)
        scene.refresh()
        names.give(name, policy)
        scene.refresh()
    other = scene.peer("other")
    for link, name in ((1, "q"), (2, "in")):
        other.produce(link, name)
        other.send(link, 1, [message("later", due=DUE * (name == "q"))], durable=True)
    scene.settle_down()
    scene, peer, files = again(files)
    assert contents(scene) == contents(scene, "in") == {0: "later"}
    assert len(ready(scene, "in")) == 1
    assert answer(scene, peer, peer.ask("conclude", id=ID, commit=True)) == {"concluded": True}
    assert contents(scene) == contents(scene, "in") == {0: "later"}


def test_what_was_purged_before_the_decision_is_not_in_the_way() -> None:
    scene, peer = opened()
    prepared(scene, peer)
    answer(scene, peer, peer.ask("purge", queue="q"))
    assert answer(scene, peer, peer.ask("conclude", id=ID, commit=True)) == {"concluded": True}
    assert list(contents(scene).values()) == ["new"]


def test_with_another_policy_it_stays_delayed_until_the_decision() -> None:
    scene, peer = opened()
    prepared(scene, peer)
    names = scene.names
    assert isinstance(names, EveryName)
    names.give("q", Policy.parse({"role": "queue", "delay": True, "priorities": 3}))
    scene.refresh()
    scene.tick(DUE - scene.now_ms)
    scene.settle_down()
    assert contents(scene) == {1: "one", 3: "two"}
    assert answer(scene, peer, peer.ask("conclude", id=ID, commit=False)) == {"concluded": True}
    scene.settle_down()
    assert sorted(contents(scene).values()) == ["one", "two"]
    assert min(contents(scene)) == 3


def test_the_number_is_in_the_journal_before_it_is_given() -> None:
    scene, peer = opened()
    request = peer.ask("reserve_numbers", queue="q", count=4)
    scene.turn()
    assert request not in peer.answers
    assert isinstance(scene.store, SmallStore)
    assert [each.next_sequence for each in scene.store.records if isinstance(each, Numbers)] == [4]
    scene.settle_down()
    assert peer.answers[request][0] == {"first": 0}


def test_what_a_captured_queue_stores_under_such_a_number_is_for_readers() -> None:
    files = FakeFiles()
    journal = Journal(files, "test", 0)
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", "delay": True, "capture": True}))
    scene = Scene(journal, journal.recover(1 << 30, 1), names=names)
    peer = scene.peer()
    first = reserved(scene, peer)
    scene.settle_down()
    assert journal.seal(scene.now_ms)
    assert not journal.has_captured
    assert committed(scene, peer, transact(peer, 1, under(first, "one")))
    assert journal.has_captured
