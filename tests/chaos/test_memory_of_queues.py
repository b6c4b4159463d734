"""Memory of a shard process for many queues, parts of batches, and messages that wait.

Every test failed while the thing counted for less than it costs, or could not be spilled.
"""

from functools import partial
from pathlib import Path

from lightrail.namespace.service import Service
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode
from tests.chaos.test_memory import message
from tests.chaos.test_memory_of_paths import shard, stranger_is_answered, until
from tests.support.namespace import give, with_service
from tests.support.shard.scene import Peer


def _all_have_some(peer: Peer, links: range) -> bool:
    return all(peer.delivered.get(link) for link in links)


def test_one_large_message_in_each_of_many_queues(tmp_path: Path) -> None:
    """Each is the head of its queue, and all together are five times the mark."""

    async def make(service: Service) -> None:
        for index in range(40):
            await service.first_use(f"large-{index}")

    with shard(tmp_path) as (data, way, sender):
        peer = sender.peer
        with_service(data, make)
        for first in range(0, 40, 4):
            for index in range(first, first + 4):
                peer.produce(100 + index, f"large-{index}")
                durable = index % 2 == 0
                peer.send(100 + index, 1, [message(index, 2_000_000, delay=False)], durable=durable)
            answered = 0

            def all_answered() -> bool:
                nonlocal answered
                answered += len(peer.take(Kind.ACCEPTED))
                return answered == 4

            until(way, all_answered, "they are answered")
            sender.look()
        for first in range(0, 40, 4):
            links = range(200 + first, 204 + first)
            for link in links:
                peer.consume(link, f"large-{link - 200}", 1)
            until(way, partial(_all_have_some, peer, links), "they come")
            for link in links:
                peer.settle(link, 0, 1)
                del peer.delivered[link]
            sender.look()
        stranger_is_answered(sender)


def test_one_message_of_each_batch_that_its_receiver_does_not_want(tmp_path: Path) -> None:
    """It is ready for other receivers; the others of its batch are settled."""
    with shard(tmp_path) as (_, way, sender):
        peer = sender.peer
        peer.consume(2, "q", 1_000_000)
        for number in range(1, 401):
            peer.send(1, number, [message(index, 2_000, delay=False) for index in range(100)], durable=False)
            until(way, lambda: len(peer.messages(2)) == 100, "they come")
            first = peer.delivered.pop(2)[0].number
            peer.settle(2, first + 50, 1, OutcomeCode.MODIFIED, SettleDetail(undeliverable_here=True))
            peer.settle(2, first, 50)
            peer.settle(2, first + 51, 49)
            sender.look()
        peer.consume(3, "q", 1_000)
        until(way, lambda: len(peer.messages(3)) == 400, "another receiver gets them")


def test_messages_that_came_together_and_fail_one_by_one(tmp_path: Path) -> None:
    """Few runs are delivered, and each message that waits is one."""
    with shard(tmp_path) as (data, way, sender):
        give(data, "failing", role="queue", retry_delay=3_600, max_delivery_count=0)
        peer = sender.peer
        peer.produce(2, "failing")
        peer.consume(3, "failing", 1_000_000)
        for batch in range(1, 241):
            messages = [message(500 * batch + each, 10, delay=False) for each in range(500)]
            peer.send(2, batch, messages, durable=False)
        until(way, lambda: len(peer.messages(3)) == 120_000, "they come")
        peer.late = []
        for each in peer.delivered.pop(3):
            peer.settle(3, each.number, 1, OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True))
            if len(peer.late) == 40:
                peer.ping()
                sender.look()
        peer.ping()
        peer.late = None
        stranger_is_answered(sender)
