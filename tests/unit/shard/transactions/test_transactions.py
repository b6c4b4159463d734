"""The request `transact`: sends and settlements of a transaction are applied together, or not at all."""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest

from lightrail.journal.record import CONTINUED, Numbers, Queue, Settle
from lightrail.model import conditions, limits
from lightrail.model.attempts import DEFERRED
from lightrail.model.policy import Policy
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.store import StoreBusyError
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.transactions import applying
from tests.support.shard.scene import Peer, Scene, SmallStore

PRODUCER = 7 << 32 | 99


def post(*queues: str, durable: bool = True, messages: Sequence[bytes] = (b"m",)) -> tuple[list[Any], bytes]:
    """A post, and its part of the blob."""
    ends = array("I", accumulate(map(len, messages)))
    fields: list[Any] = [list(queues), durable, 4, 0, 0, len(messages), ends[-1]]
    return fields, ends.tobytes() + b"".join(messages)


def settled(queue: str, link: int, first: int, count: int, code: int = 0, **detail: Any) -> list[Any]:
    return [queue, link, first, count, code, detail]


def transact(
    peer: Peer, number: int, *posts: tuple[list[Any], bytes], settles: Sequence[Any] = (), **fields: Any
) -> int:
    body = {"producer": PRODUCER, "number": number, "settles": list(settles)} | fields
    blob = b"".join(part for _, part in posts)
    return peer.ask("transact", blob, posts=[fields for fields, _ in posts], **body)


def committed(scene: Scene, peer: Peer, request: int) -> bool:
    scene.settle_down()
    return peer.answers[request][0] == {"committed": True}


def condition(peer: Peer, request: int) -> str:
    return str(peer.answers[request][0]["error"]["condition"])


def ready(scene: Scene, queue: str) -> list[bytes]:
    """Messages that a receiver would get, without taking them."""
    inspector = Peer(scene, "inspector", 8)
    inspector.greet()
    inspector.consume(1, queue, 1 << 20, browse=True)
    scene.turn()
    found = inspector.messages(1)
    scene.engine.lost(inspector.identity)
    return found


def received(scene: Scene, peer: Peer, queue: str, *messages: bytes) -> None:
    """The messages are in flight at link 2 of the peer."""
    peer.produce(1, queue)
    peer.send(1, 1, messages, durable=True)
    peer.consume(2, queue, len(messages))
    scene.settle_down()


def test_all_of_a_transaction_is_applied() -> None:
    scene = Scene()
    peer = scene.peer()
    received(scene, peer, "in", b"1", b"2", b"3")
    request = transact(
        peer, 1, post("a", "b", messages=[b"x", b"yy"]), post("a"), settles=[settled("in", 2, 0, 2)]
    )
    assert committed(scene, peer, request)
    assert ready(scene, "a") == [b"x", b"yy", b"m"]
    assert ready(scene, "b") == [b"x", b"yy"]
    assert scene.queue("in") == {"ready": 0, "in_flight": 1}


def test_the_answer_waits_for_the_disk() -> None:
    scene = Scene()
    peer = scene.peer()
    request = transact(peer, 1, post("a"))
    scene.turn()
    assert request not in peer.answers
    assert committed(scene, peer, request)


def test_its_records_are_one_group_with_its_number() -> None:
    store = SmallStore()
    scene = Scene(store)
    peer = scene.peer()
    received(scene, peer, "in", b"1")
    before = len(store.records)
    transact(peer, 5, post("a"), post("b"), settles=[settled("in", 2, 0, 1)])
    scene.settle_down()
    group = [each for each in store.records[before:] if isinstance(each, Append | Settle | Numbers)]
    assert [type(each) for each in group] == [Settle, Append, Append, Numbers]
    assert [bool(each.flags & CONTINUED) for each in group] == [True, True, True, False]
    last = group[-1]
    assert isinstance(last, Numbers)
    assert list(last.producers) == [(PRODUCER, 5, 0)]


def test_a_deferral_is_in_the_group_and_its_message_is_received_by_nobody() -> None:
    store = SmallStore()
    scene = Scene(store)
    peer = scene.peer()
    received(scene, peer, "in", b"1", b"2")
    before = len(store.records)
    request = transact(peer, 1, post("a"), settles=[settled("in", 2, 0, 1, 3, deferred=True)])
    assert committed(scene, peer, request)
    group = [each for each in store.records[before:] if isinstance(each, Append | Settle | Numbers)]
    assert [type(each) for each in group] == [Settle, Append, Numbers]
    assert [bool(each.flags & CONTINUED) for each in group] == [True, True, False]
    peer.close_consumer(2)
    scene.settle_down()
    found = {message: attempts for _, _, attempts, message in scene.everything("in")}
    assert found == {b"1": DEFERRED, b"2": 0}
    assert ready(scene, "in") == [b"2"]


def test_a_request_that_comes_again_is_answered_and_not_applied_again() -> None:
    scene = Scene()
    peer = scene.peer()
    assert committed(scene, peer, transact(peer, 1, post("a")))
    assert committed(scene, peer, transact(peer, 1, post("a")))
    assert ready(scene, "a") == [b"m"]
    assert committed(scene, peer, transact(peer, 2, post("a")))
    assert ready(scene, "a") == [b"m", b"m"]


def test_transient_messages_need_no_record() -> None:
    store = SmallStore()
    scene = Scene(store)
    peer = scene.peer()
    assert committed(scene, peer, transact(peer, 1, post("a", durable=False)))
    assert ready(scene, "a") == [b"m"]
    assert not store.appends()


@pytest.mark.parametrize(
    ("settle", "why"),
    [
        (settled("in", 2, 1, 5), conditions.TRANSACTION_ROLLBACK),
        (settled("in", 2, 7, 1), conditions.TRANSACTION_ROLLBACK),
        (settled("in", 3, 0, 1), conditions.MOVED),
        (settled("other", 2, 0, 1), conditions.MOVED),
    ],
    ids=["some-are-not-locked", "not-locked", "no-such-link", "another-queue"],
)
def test_where_a_delivery_is_not_there_nothing_is_applied(settle: list[Any], why: str) -> None:
    scene = Scene()
    peer = scene.peer()
    received(scene, peer, "in", b"1", b"2", b"3")
    request = transact(peer, 1, post("a"), settles=[settled("in", 2, 0, 1), settle])
    scene.settle_down()
    assert condition(peer, request) == why
    assert ready(scene, "a") == []
    assert scene.queue("in") == {"ready": 0, "in_flight": 3}


def test_a_delivery_whose_lock_ran_out_rolls_the_transaction_back() -> None:
    names = EveryName()
    names.give("in", Policy.parse({"role": "queue", "lock_duration": 1}))
    scene = Scene(names=names)
    peer = scene.peer()
    received(scene, peer, "in", b"1")
    peer.credit(2, 1)
    scene.tick(2_000)
    request = transact(peer, 1, post("a"), settles=[settled("in", 2, 0, 1)])
    scene.settle_down()
    assert condition(peer, request) == conditions.TRANSACTION_ROLLBACK
    assert ready(scene, "a") == []


def test_where_one_queue_is_full_no_message_is_sent() -> None:
    names = EveryName()
    names.give("full", Policy.parse({"role": "queue", "max_length": 2, "overflow": "reject"}))
    scene = Scene(names=names)
    peer = scene.peer()
    request = transact(peer, 1, post("a"), post("full", messages=[b"1", b"2"]), post("full"))
    scene.settle_down()
    assert condition(peer, request) == conditions.RESOURCE_LIMIT_EXCEEDED
    assert ready(scene, "a") == ready(scene, "full") == []
    assert committed(scene, peer, transact(peer, 1, post("a"), post("full", messages=[b"1", b"2"])))
    assert ready(scene, "full") == [b"1", b"2"]


def test_a_disk_without_room_leaves_everything_as_it_was() -> None:
    class Full(SmallStore):
        def reserve(self, size: int, now_ms: int = 0) -> None:
            if self.full:
                self.append(Append([], 0, 0, None, 0, 0))  # type: ignore[arg-type]

    store = Full()
    scene = Scene(store)
    peer = scene.peer()
    received(scene, peer, "in", b"1")
    store.full = True
    request = transact(peer, 1, post("a"), settles=[settled("in", 2, 0, 1)])
    scene.turn()
    assert condition(peer, request) == conditions.RESOURCE_LIMIT_EXCEEDED
    store.full = False
    assert ready(scene, "a") == []
    assert scene.queue("in") == {"ready": 0, "in_flight": 1}
    assert committed(scene, peer, transact(peer, 1, post("a"), settles=[settled("in", 2, 0, 1)]))


def test_duplicates_are_stored_once() -> None:
    names = EveryName()
    names.give("a", Policy.parse({"role": "queue", "duplicate_window": 60}))
    scene = Scene(names=names)
    peer = scene.peer()
    message = b"\x00\x53\x73\xc0\x06\x01\xa1\x03one\x00\x53\x77\x43"
    assert committed(scene, peer, transact(peer, 1, post("a", messages=[message, message])))
    assert committed(scene, peer, transact(peer, 2, post("a", messages=[message])))
    assert len(ready(scene, "a")) == 1


def test_other_outcomes_are_applied_with_the_transaction() -> None:
    scene = Scene()
    peer = scene.peer()
    received(scene, peer, "in", b"1", b"2", b"3")
    settles = [
        settled("in", 2, 0, 1, 2),
        settled("in", 2, 1, 1, 3, delivery_failed=True),
        settled("in", 2, 2, 1, 1),
    ]
    assert committed(scene, peer, transact(peer, 1, settles=settles))
    assert ready(scene, "in") == [b"1", b"2"]
    assert len(ready(scene, "in/$dlq")) == 1


def test_other_outcomes_are_in_the_group_with_its_number() -> None:
    store = SmallStore()
    scene = Scene(store, max_delivery_count=2)
    peer = scene.peer()
    received(scene, peer, "in", b"1", b"2", b"3", b"4")
    before = len(store.records)
    settles = [
        settled("in", 2, 0, 1, 1),
        settled("in", 2, 1, 1, 3, delivery_failed=True),
        settled("in", 2, 2, 1),
    ]
    assert committed(scene, peer, transact(peer, 1, settles=settles))
    group = [each for each in store.records[before:] if not isinstance(each, Queue)]
    assert [type(each) for each in group] == [Append, Settle, Settle, Settle, Numbers]
    assert [bool(each.flags & CONTINUED) for each in group] == [True, True, True, True, False]


def test_a_transaction_that_only_releases_writes_nothing() -> None:
    store = SmallStore()
    scene = Scene(store)
    peer = scene.peer()
    received(scene, peer, "in", b"1")
    before = len(store.records)
    assert committed(scene, peer, transact(peer, 1, settles=[settled("in", 2, 0, 1, 2)]))
    assert store.records[before:] == []
    assert ready(scene, "in") == [b"1"]


def on_disk(scene: Scene, peer: Peer) -> None:
    """Two messages are in flight at link 2, and only on disk."""
    received(scene, peer, "in", b"1" * 100, b"2" * 100)
    contents = scene.queue_contents("in")
    contents.deliveries.evict(1 << 20, None)
    assert contents.deliveries.evicted_count == 2


def test_messages_on_disk_are_read_before_a_transaction_rejects_them() -> None:
    store = SmallStore()
    scene = Scene(store)
    peer = scene.peer()
    on_disk(scene, peer)
    before = len(store.records)
    scene.reading = False
    request = transact(peer, 1, post("a"), settles=[settled("in", 2, 0, 1, 1)])
    scene.settle_down()
    assert request not in peer.answers
    assert ready(scene, "a") == []
    scene.reading = True
    assert committed(scene, peer, request)
    assert ready(scene, "a") == [b"m"]
    assert len(ready(scene, "in/$dlq")) == 1
    group = [each for each in store.records[before:] if not isinstance(each, Queue)]
    assert [type(each) for each in group] == [Append, Settle, Append, Numbers]
    assert [bool(each.flags & CONTINUED) for each in group] == [True, True, True, False]


def test_accepted_messages_on_disk_are_not_read() -> None:
    scene = Scene()
    peer = scene.peer()
    on_disk(scene, peer)
    scene.reading = False
    assert committed(scene, peer, transact(peer, 1, settles=[settled("in", 2, 0, 2)]))


def test_a_consumer_that_closes_while_messages_are_read_rolls_the_transaction_back() -> None:
    scene = Scene()
    peer = scene.peer()
    on_disk(scene, peer)
    scene.reading = False
    request = transact(peer, 1, post("a"), settles=[settled("in", 2, 0, 1, 1)])
    peer.close_consumer(2)
    scene.reading = True
    scene.settle_down()
    assert condition(peer, request) == conditions.MOVED
    assert ready(scene, "a") == []


def test_a_store_that_is_busy_after_the_reading_is_waited_for() -> None:
    class Busy(SmallStore):
        is_busy = False

        def reserve(self, size: int, now_ms: int = 0) -> None:
            if self.is_busy:
                raise StoreBusyError("when the commit has ended")

    store = Busy()
    scene = Scene(store)
    peer = scene.peer()
    on_disk(scene, peer)
    store.is_busy = True
    request = transact(peer, 1, settles=[settled("in", 2, 0, 1, 1)])
    scene.turn()
    assert request not in peer.answers
    store.is_busy = False
    assert committed(scene, peer, request)


def test_not_more_bytes_are_rejected_than_one_group_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applying, "TRANSACTION_REWRITTEN_BYTES_MAX", 1_500)
    scene = Scene()
    peer = scene.peer()
    received(scene, peer, "in", *[b"%d" % number for number in range(9)])
    request = transact(peer, 1, settles=[settled("in", 2, 0, 9, 1)])
    scene.settle_down()
    assert condition(peer, request) == conditions.RESOURCE_LIMIT_EXCEEDED
    assert scene.queue("in") == {"ready": 0, "in_flight": 9}
    # Outcomes that write no message again are not bounded by that.
    assert committed(scene, peer, transact(peer, 1, settles=[settled("in", 2, 0, 9)]))


@pytest.mark.parametrize(
    "fields",
    [
        {"posts": 5},
        {"posts": [[]]},
        {"posts": [[["a"], True, 4, 0, 0, 1, 100]]},
        {"posts": [[["a"], True, 4, 0, 0, 0, 0]]},
        {"posts": [["a", True, 4, 0, 0, 1, 0]]},
        {"posts": [], "settles": [["in", 2, 0, 0, 0, {}]]},
        {"posts": [], "settles": [["in", 2, 0, 1, 9, {}]]},
        {"posts": [], "settles": [["in", 2, 0, 1, 0, {"unknown": 1}]]},
        {"posts": [], "producer": 0},
        {"posts": [], "number": -1},
    ],
)
def test_what_can_not_be_read_is_refused(fields: dict[str, Any]) -> None:
    scene = Scene()
    peer = scene.peer()
    body: dict[str, Any] = {"producer": PRODUCER, "number": 1, "settles": []} | fields
    assert condition(peer, peer.ask("transact", b"\x01\x00\x00\x00x", **body)) == conditions.INVALID_FIELD


def test_ends_that_do_not_rise_are_refused() -> None:
    scene = Scene()
    peer = scene.peer()
    fields: list[Any] = [["a"], True, 4, 0, 0, 3, 2]
    blob = array("I", [2, 1, 2]).tobytes() + b"ab"
    request = peer.ask("transact", blob, producer=PRODUCER, number=1, settles=[], posts=[fields])
    assert condition(peer, request) == conditions.INVALID_FIELD


def test_more_messages_than_a_transaction_may_have_are_refused() -> None:
    scene = Scene()
    peer = scene.peer()
    request = transact(peer, 1, post("a", messages=[b""] * (limits.TRANSACTION_MESSAGES_MAX + 1)))
    assert condition(peer, request) == conditions.RESOURCE_LIMIT_EXCEEDED
