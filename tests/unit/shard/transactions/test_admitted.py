"""Messages of transactions obey the policies of queues, as messages outside of transactions do."""

from typing import Any

import pytest

from lightrail.amqp.types import encode
from lightrail.model import conditions
from lightrail.model.policy import Policy
from lightrail.shard.queues.declarations import EveryName
from tests.support.shard.scene import Peer, Scene
from tests.unit.shard.transactions.test_prepared import ID, answer, prepare
from tests.unit.shard.transactions.test_transactions import (
    condition,
    post,
    ready,
    received,
    settled,
    transact,
)

WINDOW_S = 3_600


def message(id: str, body: bytes) -> bytes:
    """A message with this message-id."""
    value = encode(id)
    properties = b"\x00\x53\x73\xc0" + bytes([1 + len(value), 1]) + value
    return properties + b"\x00\x53\x75\xa0" + bytes([len(body)]) + body


def scene_with(**policy: Any) -> tuple[Scene, Peer]:
    """A shard whose queue q has this policy."""
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", **policy}))
    scene = Scene(names=names)
    return scene, scene.peer()


def commit(scene: Scene, peer: Peer, over: str, *posts: Any, number: int = 1, **fields: Any) -> str:
    """Commits a transaction at one shard, or over several; returns the condition of a refusal, or nothing."""
    if over == "one shard":
        request = transact(peer, number, *posts, **fields)
    else:
        request = prepare(peer, *posts, id=f"{number:032x}", **fields)
    scene.settle_down()
    if "error" in peer.answers[request][0]:
        return condition(peer, request)
    if over == "several":
        answer(scene, peer, peer.ask("conclude", id=f"{number:032x}", commit=True))
    return ""


OVER = pytest.mark.parametrize("over", ["one shard", "several"])


@OVER
@pytest.mark.parametrize("posts", [[[b"1", b"2"]], [[b"1"], [b"2"]], [[b"1"], [b"2", b"3"]]])
def test_a_message_id_is_stored_once_within_a_transaction(over: str, posts: list[list[bytes]]) -> None:
    scene, peer = scene_with(duplicate_window=WINDOW_S)
    found = [post("q", messages=[message("same", body) for body in bodies]) for bodies in posts]
    assert commit(scene, peer, over, *found) == ""
    assert ready(scene, "q") == [message("same", b"1")]
    assert scene.queue_contents("q").counters.duplicates == sum(map(len, posts)) - 1


@OVER
def test_a_duplicate_of_an_earlier_message_is_confirmed_and_not_stored(over: str) -> None:
    scene, peer = scene_with(duplicate_window=WINDOW_S)
    received(scene, peer, "q", message("same", b"1"))
    assert commit(scene, peer, over, post("q", messages=[message("same", b"2")])) == ""
    assert ready(scene, "q") == []
    # And one in a transaction is known to those after it.
    assert commit(scene, peer, over, post("q", messages=[message("other", b"3")]), number=2) == ""
    peer.send(1, 2, [message("other", b"4")], durable=True)
    assert ready(scene, "q") == [message("other", b"3")]


def test_of_two_prepared_duplicates_the_first_that_is_committed_is_stored() -> None:
    scene, peer = scene_with(duplicate_window=WINDOW_S)
    for number in (1, 2):
        request = prepare(peer, post("q", messages=[message("same", b"%d" % number)]), id=f"{number:032x}")
        assert answer(scene, peer, request) == {"prepared": True}
    for number in (2, 1):
        answer(scene, peer, peer.ask("conclude", id=f"{number:032x}", commit=True))
    assert ready(scene, "q") == [message("same", b"2")]


@OVER
@pytest.mark.parametrize("overflow", ["reject", "flow_control"])
@pytest.mark.parametrize("bound", [{"max_length": 2}, {"max_bytes": 2}])
def test_a_queue_without_room_for_all_refuses_the_transaction(
    over: str, overflow: str, bound: dict[str, int]
) -> None:
    scene, peer = scene_with(**bound, overflow=overflow)
    posts = [post("q", messages=[b"1"]), post("other"), post("q", messages=[b"2", b"3"])]
    assert commit(scene, peer, over, *posts) == conditions.RESOURCE_LIMIT_EXCEEDED
    assert (ready(scene, "q"), ready(scene, "other")) == ([], [])
    assert commit(scene, peer, over, *posts[:2], number=2) == ""
    assert ready(scene, "q") == [b"1"]


@OVER
@pytest.mark.parametrize(("overflow", "left"), [("discard_incoming", b"1"), ("discard_existing", b"3")])
@pytest.mark.parametrize("bound", [{"max_length": 1}, {"max_bytes": 1}])
def test_a_queue_that_discards_messages_keeps_its_bound(
    over: str, overflow: str, left: bytes, bound: dict[str, int]
) -> None:
    scene, peer = scene_with(**bound, overflow=overflow)
    posts = [post("q", messages=[b"1"]), post("q", messages=[b"2"]), post("q", messages=[b"3"])]
    assert commit(scene, peer, over, *posts) == ""
    assert ready(scene, "q") == [left]


@OVER
def test_a_message_that_is_too_large_refuses_the_transaction(over: str) -> None:
    scene, peer = scene_with(max_message_bytes=2)
    assert commit(scene, peer, over, post("q", messages=[b"1", b"333"])) == conditions.MESSAGE_SIZE_EXCEEDED
    assert ready(scene, "q") == []


@OVER
def test_age_and_durability_are_those_of_the_policy(over: str) -> None:
    scene, peer = scene_with(max_age=10, durable="never")
    assert commit(scene, peer, over, post("q")) == ""
    (run,) = scene.queue_contents("q").ready.waiting()
    assert (run.batch.durable, run.batch.expires_at_ms) == (False, scene.now_ms + 10_000)


@OVER
def test_a_duplicate_needs_no_room(over: str) -> None:
    scene, peer = scene_with(max_length=1, duplicate_window=WINDOW_S)
    posts = [post("q", messages=[message("same", b"1")])] * 3
    assert commit(scene, peer, over, *posts) == ""
    assert ready(scene, "q") == [message("same", b"1")]


@OVER
def test_deliveries_of_a_refused_transaction_stay_with_their_receiver(over: str) -> None:
    scene, peer = scene_with(max_length=1)
    received(scene, peer, "in", b"1")
    refused = commit(scene, peer, over, post("q", messages=[b"1", b"2"]), settles=[settled("in", 2, 0, 1)])
    assert refused == conditions.RESOURCE_LIMIT_EXCEEDED
    assert scene.queue("in") == {"ready": 0, "in_flight": 1}


@pytest.mark.parametrize("bound", [{"max_length": 2}, {"max_bytes": 2}])
@pytest.mark.parametrize("commits", [True, False])
def test_prepared_messages_keep_their_room(bound: dict[str, int], commits: bool) -> None:
    scene, peer = scene_with(**bound)
    assert answer(scene, peer, prepare(peer, post("q"))) == {"prepared": True}
    peer.produce(1, "q")
    peer.send(1, 1, [b"1", b"2"], durable=True)
    assert commit(scene, peer, "one shard", post("q")) == conditions.RESOURCE_LIMIT_EXCEEDED
    answer(scene, peer, peer.ask("conclude", id=ID, commit=commits))
    assert ready(scene, "q") == [b"1", b"m"][: 1 + commits]
    assert commit(scene, peer, "one shard", post("q")) == (
        "" if not commits else conditions.RESOURCE_LIMIT_EXCEEDED
    )


def test_a_batch_that_waits_for_the_room_of_a_prepared_message_is_stored_when_that_is_aborted() -> None:
    scene, peer = scene_with(max_length=1, overflow="flow_control")
    assert answer(scene, peer, prepare(peer, post("q"))) == {"prepared": True}
    peer.produce(1, "q")
    peer.send(1, 1, [b"1"], durable=True)
    scene.settle_down()
    assert ready(scene, "q") == []
    answer(scene, peer, peer.ask("conclude", id=ID, commit=False))
    assert ready(scene, "q") == [b"1"]
