"""Parts of batches, and batches at the heads of queues: what they keep in memory counts, and is spilled."""

import pytest

from lightrail.amqp.encoder import encode
from lightrail.amqp.values import Symbol
from lightrail.model import limits
from lightrail.model.policy import Policy
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import Enqueue
from lightrail.shard.queue.values.runs import batch_of
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.ownership import Ownership, OwnershipState
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.scene import Peer, Scene

MARK = 1_000_000
MESSAGE = 2_000
BATCH = 50
SLACK = 200 * BATCH
"""Bytes of frames around messages."""


def opened(**policy: object) -> tuple[Scene, Peer]:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", **policy}))
    scene = Scene(memory_mark=MARK, names=names)
    peer = scene.peer()
    peer.produce(1, "q")
    return scene, peer


def send(peer: Peer, link: int, number: int, *, durable: bool = False) -> None:
    messages = [b"%0*d" % (MESSAGE, 100 * number + each) for each in range(BATCH)]
    peer.send(link, number, messages, durable=durable)


def memory_of(scene: Scene) -> Memory:
    return scene.engine._house.memory


def buffers(scene: Scene, *queues: str) -> int:
    """Bytes of all batches in memory that these queues have messages of, ready or in flight."""
    found = {}
    for queue in filter(scene.has_queue, queues):
        for run in scene.queue_contents(queue).runs():
            if run.batch.data is not None:
                found[id(run.batch.data)] = len(run.batch.data)
    return sum(found.values())


@pytest.mark.parametrize("policy", [{}, {"priorities": 10}], ids=["plain", "priorities"])
def test_one_message_of_each_batch_that_is_released_counts_with_its_batch_or_is_copied(
    policy: dict[str, object],
) -> None:
    scene, peer = opened(**policy)
    for number in range(1, 101):
        link = 10 + number
        peer.consume(link, "q", BATCH)
        peer.credit(link, BATCH)
        # The one that was released before comes with those of this batch.
        send(peer, 1, number)
        came = peer.delivered.pop(link)
        newest = max(came, key=lambda each: each.sequence)
        for each in came:
            code = OutcomeCode.RELEASED if each is newest else OutcomeCode.ACCEPTED
            peer.settle(link, each.number, 1, code)
        peer.close_consumer(link)
        assert buffers(scene, "q") <= memory_of(scene).resident + SLACK
    assert scene.queue("q")["ready"] == 1 + 99


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
def test_what_is_left_of_a_batch_at_the_head_of_each_of_many_queues(durable: bool) -> None:
    """A third of each batch: it counts as a whole until memory is short, and is copied then."""
    scene, peer = opened()
    queues = [f"q{index}" for index in range(60)]
    for index, queue in enumerate(queues):
        peer.produce(100 + index, queue)
        peer.consume(200 + index, queue, 2 * BATCH // 3)
        send(peer, 100 + index, 1, durable=durable)
        scene.settle_down()
        peer.settle(200 + index, 0, 2 * BATCH // 3)
        scene.settle_down()
        assert buffers(scene, *queues) <= memory_of(scene).resident + SLACK
        assert memory_of(scene).resident <= MARK
    for index in range(len(queues)):
        peer.credit(200 + index, BATCH)
        scene.settle_down()
        assert [each.sequence for each in peer.delivered[200 + index]] == list(range(BATCH))


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
@pytest.mark.parametrize("size", [limits.HEAD_BYTES_MIN + 1, 400_000])
def test_large_heads_of_many_queues_are_spilled_and_come_back(size: int, durable: bool) -> None:
    scene, peer = opened()
    count = 4 * MARK // size
    for index in range(count):
        peer.produce(100 + index, f"q{index}")
        peer.send(100 + index, 1, [b"%0*d" % (size, index)], durable=durable)
        scene.settle_down()
        assert memory_of(scene).resident <= MARK + size
    for index in range(count):
        peer.consume(1_000 + index, f"q{index}", 1)
        scene.settle_down()
        assert peer.messages(1_000 + index) == [b"%0*d" % (size, index)]
        peer.settle(1_000 + index, 0, 1)
    scene.settle_down()
    assert memory_of(scene).resident <= limits.RUN_BYTES * limits.RUNS_UNCOUNTED_MAX


def test_a_large_index_leaves_the_spilling_to_other_queues() -> None:
    """It is the largest part of the memory, and nothing of it can be spilled."""
    scene, peer = opened(groups=True)
    for number in range(1, 500):
        peer.send(1, number, [b"\x00\x53\x75\xa0\x01x"], durable=True)
    scene.settle_down()
    for index in range(12):
        peer.produce(100 + index, f"q{index}")
        for number in (1, 2):
            send(peer, 100 + index, number, durable=True)
            scene.settle_down()
    assert memory_of(scene).index > 150_000
    assert memory_of(scene).resident <= MARK


def test_queues_that_have_nothing_to_spill_are_asked_once() -> None:
    """Each step would ask all of them while memory stays above the mark."""
    memory = Memory(1_000)
    queues = [
        Queue(1, EveryName().get("q"), Machine("q"), Ownership(OwnershipState.SERVING, 1)) for _ in range(3)
    ]
    for queue, size in zip(queues, (300, 200, 100), strict=True):
        queue.machine.apply(Enqueue(batch_of([bytes(size)])), 0)
        memory.update(queue)
    large, medium, small = queues
    assert list(memory.others({medium})) == [large, small]
    memory.asked[large] = large.resident, memory.head_bytes.bit_length()
    assert list(memory.others(())) == [medium, small]
    large.machine.apply(Enqueue(batch_of([b"x"])), 0)
    memory.update(large)
    assert list(memory.others(())) == [large, medium, small]
    memory.asked[large] = large.resident, memory.head_bytes.bit_length() + 1
    assert list(memory.others(())) == [large, medium, small], "twice as much stayed at the heads then"


@pytest.mark.parametrize("per_batch", [8, 50])
def test_delayed_messages_do_not_keep_those_that_came_with_them(per_batch: int) -> None:
    scene, peer = opened(delay=True)
    peer.consume(2, "q", 1_000_000)
    body = b"\x00\x53\x75\xb0" + MESSAGE.to_bytes(4, "big") + bytes(MESSAGE)
    late = b"\x00\x53\x72" + encode({Symbol("x-opt-delivery-delay"): 10**9}) + body
    for number in range(1, 4_000 // per_batch):
        peer.send(1, number, [late, *[body] * (per_batch - 1)], durable=False)
        for each in peer.delivered.pop(2):
            peer.settle(2, each.number, 1)
        kept = {id(run.batch): run.batch.size for run in scene.queue_contents("q").waiting()}
        assert sum(kept.values()) <= memory_of(scene).resident + 2 * limits.SLIM_AT_BYTES


@pytest.mark.parametrize("per_batch", [8, 50])
def test_last_values_do_not_keep_the_batches_of_replaced_ones(per_batch: int) -> None:
    scene, peer = opened(order="last_value", order_key="application-properties.key")
    body = b"\x00\x53\x75\xb0" + MESSAGE.to_bytes(4, "big") + bytes(MESSAGE)
    for number in range(1, 4_000 // per_batch):
        keys = [f"{number}", *["often"] * (per_batch - 1)]
        messages = [b"\x00\x53\x74" + encode({"key": key}) + body for key in keys]
        peer.send(1, number, messages, durable=False)
        kept = {id(run.batch): run.batch.size for run in scene.queue_contents("q").waiting()}
        assert sum(kept.values()) <= memory_of(scene).resident + 2 * limits.SLIM_AT_BYTES
