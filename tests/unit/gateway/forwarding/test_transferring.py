"""Queues that forward: batches in their order and in one transaction each, and what a target refuses."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lightrail.amqp.sections import decode_annotations
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.forwarding import forwarder
from lightrail.gateway.forwarding.counts import ForwardingCounts
from lightrail.gateway.forwarding.next_queues import HOPS, TOO_MANY_HOPS, hops_of, with_hops
from lightrail.gateway.forwarding.room import FORWARDING_BYTES_MAX, ForwardingRoom
from lightrail.gateway.forwarding.transferring import (
    TRANSFER_PAUSE_MS,
    TRANSFER_PAUSE_MS_MAX,
    TRANSFERRED_AT_ONCE,
    TRANSFERRED_WINDOW,
    QueueForwarders,
)
from lightrail.model import conditions, limits
from lightrail.model.policy import Policy
from lightrail.namespace.directory import Directory
from lightrail.namespace.forwarding import HOPS_MAX
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.routers import Routers
from lightrail.namespace.service import Service
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.shard_client.receiving.queue_consumer import Delivery
from lightrail.wire.bodies import Answer, encode_request
from tests.support.amqp.letters import message as letter
from tests.support.shard.engine_links import WAIT_MS, EngineLinks
from tests.support.turns import until
from tests.unit.gateway.forwarding.test_room import Source
from tests.unit.namespace.test_routing import message


class Links(EngineLinks):
    """Links to one shard, with requests to it by number."""

    boot = 7

    def __init__(self) -> None:
        super().__init__()
        self.posts: list[int] = []
        """Messages of each transaction that the shard has applied."""
        self.lost_answers = 0
        """Answers that are lost from now on, though the shard has applied the transaction."""
        self.refused = 0
        """Transactions that the shard refuses for now, as it has no room for any, from the next one on."""
        self.owners = self
        self.resolver = self

    async def find(self, _queue: str) -> Any:
        return SimpleNamespace(shard=0)

    async def change(self, pause_ms: int) -> int:
        await asyncio.sleep(0)
        return pause_ms

    def peer_of(self, _shard: int) -> Any:
        return SimpleNamespace(request=self.transact)

    async def transact(self, op: str, fields: dict[str, Any], *, blob: bytes = b"") -> Answer:
        if self.refused:
            self.refused -= 1
            raise ShardRefusedError(conditions.RESOURCE_LOCKED, "no room")
        found = await self.peer.asked.ask(encode_request({"op": op, **fields}, blob), WAIT_MS)
        self.posts.append(sum(row[5] for row in fields["posts"]))
        if self.lost_answers:
            self.lost_answers -= 1
            raise ShardDownError("the answer is lost")
        return found


class Resolver:
    def __init__(self, links: Links) -> None:
        self.peer = links.peer_of


class Scene:
    """A namespace, and a shard with all of its queues."""

    def __init__(self, bytes_max: int) -> None:
        self.coordinator = MemoryCoordinator()
        self.directory = Directory(self.coordinator)
        self.service = Service(self.coordinator, self.directory)
        self.links = Links()
        self.links.resolver = cast(Any, Resolver(self.links))
        self.counts = ForwardingCounts()
        self.pauses: list[float] = []
        self.go_on = asyncio.Semaphore(0)
        routers = Routers(
            self.directory,
            lambda _ms, call: asyncio.get_running_loop().call_soon(call),
            self.links.now_ms,
        )
        self.forwarders = QueueForwarders(
            self.service,
            cast(Any, self.links),
            cast(Any, SimpleNamespace(routers=routers)),
            self.counts,
            ForwardingRoom(bytes_max),
            pause=self.pause,
        )
        self.directory.listen(lambda changes: self.forwarders.changed(changes.names))

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self.go_on.acquire()

    async def give(self, name: str, **fields: Any) -> None:
        policy = Policy.parse({"role": "queue", **fields})
        before = self.directory.find(name)
        if before is None:
            await self.service.give(ANYBODY, name, policy)
        else:
            await self.service.change(ANYBODY, name, policy)
        names = self.links.peer._shard.names
        assert isinstance(names, EveryName)
        names.give(name, policy)
        self.links.peer._shard.refresh()

    def bodies(self, name: str) -> list[bytes]:
        return self.links.peer.queue(name).bodies()

    def add(self, name: str, *messages: bytes) -> None:
        self.links.peer.queue(name).add(*messages)


def run(check: Callable[[Scene], Awaitable[None]], bytes_max: int = FORWARDING_BYTES_MAX) -> None:
    async def checked() -> None:
        scene = Scene(bytes_max)
        await scene.coordinator.set_shards(1)
        await check(scene)
        scene.forwarders.close()

    asyncio.run(checked())


def letters(count: int) -> list[bytes]:
    return [letter(b"%d" % number) for number in range(count)]


def test_what_is_there_is_passed_on_in_its_order_many_at_once() -> None:
    async def check(scene: Scene) -> None:
        count = TRANSFERRED_WINDOW + TRANSFERRED_AT_ONCE // 2
        sent = letters(count)
        await scene.give("target")
        await scene.give("source")
        scene.add("source", *sent)
        await scene.give("source", forward_to="target")
        await until(lambda: scene.counts.messages_forwarded == count)
        assert scene.bodies("target") == sent
        assert sum(scene.links.posts) == count
        assert max(scene.links.posts) == TRANSFERRED_AT_ONCE
        assert scene.counts.forwarding_queues == 1

    run(check)


def test_a_transaction_whose_answer_is_lost_is_not_applied_twice() -> None:
    async def check(scene: Scene) -> None:
        sent = letters(3)
        await scene.give("target")
        await scene.give("source")
        scene.add("source", *sent)
        scene.links.lost_answers = 2
        await scene.give("source", forward_to="target")
        await until(lambda: scene.counts.messages_forwarded == 3)
        assert scene.bodies("target") == sent

    run(check)


def test_what_a_target_refuses_is_a_dead_letter_of_the_transfer_and_nothing_waits_behind_it() -> None:
    async def check(scene: Scene) -> None:
        sent = [letter(b"1"), letter(b"2" * 200), letter(b"3")]
        await scene.give("target", max_message_bytes=100)
        await scene.give("source")
        scene.add("source", *sent)
        await scene.give("source", forward_to="target")
        await until(lambda: scene.counts.messages_forwarded == 2)
        assert scene.bodies("target") == [sent[0], sent[2]]
        (dead,) = scene.bodies("source/$transfer/$dlq")
        notes = decode_annotations(dead)
        assert notes["x-opt-dead-letter-condition"] == conditions.MESSAGE_SIZE_EXCEEDED
        assert notes["x-opt-dead-letter-source"] == "source"
        assert scene.counts.messages_not_forwarded == 1

    run(check)


def test_a_topic_takes_no_larger_messages_from_a_source_than_from_others() -> None:
    async def check(scene: Scene) -> None:
        await scene.give("subscribed")
        await scene.service.give(ANYBODY, "topic", Policy.parse({"role": "router", "max_message_bytes": 100}))
        await scene.service.subscribe(ANYBODY, "topic", "subscribed")
        await scene.give("source")
        scene.add("source", letter(b"1"), letter(b"2" * 200))
        await scene.give("source", forward_to="topic")
        await until(lambda: scene.counts.messages_not_forwarded == 1)
        await until(lambda: len(scene.bodies("source/$transfer/$dlq")) == 1)
        assert scene.bodies("subscribed") == [letter(b"1")]
        (dead,) = scene.bodies("source/$transfer/$dlq")
        found = decode_annotations(dead)["x-opt-dead-letter-condition"]
        assert found == conditions.MESSAGE_SIZE_EXCEEDED

    run(check)


def test_behind_the_last_hop_a_message_is_a_dead_letter_of_its_queue() -> None:
    async def check(scene: Scene) -> None:
        await scene.give("target")
        await scene.give("source")
        travelled = with_hops(letter(b"far"), 0, HOPS_MAX)
        scene.add("source", travelled, with_hops(letter(b"near"), 0, HOPS_MAX - 1))
        await scene.give("source", forward_to="target")
        await until(lambda: scene.counts.messages_not_forwarded == 1 and scene.counts.messages_forwarded == 1)
        # In its last queue it has no hops.
        (near,) = scene.bodies("target")
        assert HOPS not in decode_annotations(near)
        (dead,) = scene.bodies("source/$dlq")
        assert decode_annotations(dead)["x-opt-dead-letter-condition"] == TOO_MANY_HOPS

    run(check)


def test_a_message_that_stops_on_its_way_carries_its_hops() -> None:
    async def check(scene: Scene) -> None:
        await scene.give("last")
        await scene.give("middle", duplicate_window=60, forward_to="last", status="receive_disabled")
        await scene.give("source")
        scene.add("source", letter(b"x"))
        await scene.give("source", forward_to="middle")
        await until(lambda: scene.counts.messages_forwarded == 1)
        await scene.give("middle", duplicate_window=60)
        (stopped,) = scene.bodies("middle")
        assert decode_annotations(stopped)[HOPS] == 1
        await scene.give("middle", forward_to="last")
        await until(lambda: scene.counts.messages_forwarded == 2)
        (passed,) = scene.bodies("last")
        assert HOPS not in decode_annotations(passed)

    run(check)


def test_a_queue_that_its_shard_does_not_know_yet_refuses_nothing() -> None:
    async def check(scene: Scene) -> None:
        await scene.give("target")
        await scene.give("source")
        scene.add("source", letter(b"x"))
        scene.links.peer.delete("target")
        await scene.give("source", forward_to="target")
        await until(lambda: len(scene.pauses) == 1)
        scene.go_on.release()
        await until(lambda: len(scene.pauses) == 2)
        assert scene.pauses == [TRANSFER_PAUSE_MS / 1000, 2 * TRANSFER_PAUSE_MS / 1000]
        assert TRANSFER_PAUSE_MS_MAX > 2 * TRANSFER_PAUSE_MS
        scene.links.peer.create("target")
        scene.go_on.release()
        await until(lambda: scene.counts.messages_forwarded == 1)
        assert scene.bodies("target") == [letter(b"x")]
        assert scene.counts.messages_not_forwarded == 0

    run(check)


def test_locks_of_a_source_do_not_end_while_its_gateway_waits_for_the_target() -> None:
    async def check(scene: Scene) -> None:
        sent = letters(2)
        locked = {"lock_duration": 60, "max_delivery_count": 1}
        await scene.give("target")
        await scene.give("source", **locked)
        scene.add("source", *sent)
        scene.links.peer.delete("target")
        await scene.give("source", forward_to="target", **locked)
        await until(lambda: len(scene.pauses) == 1)
        scene.links.peer._shard.tick(61_000)
        scene.links.peer.create("target")
        scene.go_on.release()
        await until(lambda: scene.counts.messages_forwarded == 2)
        assert scene.bodies("target") == sent
        assert scene.bodies("source/$dlq") == []

    run(check)


def test_deliveries_that_the_shard_has_taken_back_are_received_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "FORWARDER_OPEN_PAUSE_MS", 0)

    async def check(scene: Scene) -> None:
        sent = letters(3)
        await scene.give("target")
        await scene.give("source", lock_duration=60)
        scene.add("source", *sent)
        scene.links.peer.delete("target")
        # The shard learns it only after the gateway, whose deliveries it locks for a minute until then.
        forwards = Policy.parse({"role": "queue", "forward_to": "target", "lock_duration": 60})
        await scene.service.change(ANYBODY, "source", forwards)
        await until(lambda: len(scene.pauses) == 1)
        scene.links.peer._shard.tick(61_000)
        scene.links.peer.create("target")
        await scene.give("source", forward_to="target", lock_duration=60)
        scene.go_on.release()
        await until(lambda: scene.counts.messages_forwarded == 3)
        assert scene.bodies("target") == sent
        assert len(scene.pauses) == 1

    run(check)


def test_dead_letters_of_rules_behind_a_topic_do_not_expire() -> None:
    async def check(scene: Scene) -> None:
        await scene.give("subscribed")
        await scene.service.give(ANYBODY, "topic", Policy.parse({"role": "router"}))
        failing = {"it": {"filter": {"rule": {"sql": "10 / price = 5"}}}}
        await scene.service.subscribe(ANYBODY, "topic", "subscribed", rules=failing)
        await scene.give("source")
        scene.add("source", message(price=0))
        await scene.give("source", forward_to="topic")
        await until(lambda: scene.counts.messages_forwarded == 1)
        scene.links.peer._shard.tick(60_000)
        (dead,) = scene.bodies("subscribed/$dlq")
        assert decode_annotations(dead)["x-opt-dead-letter-source"] == "subscribed"
        assert scene.bodies("subscribed") == []

    run(check)


@pytest.mark.parametrize("fields", [{}, {"forward_to": "target", "status": "receive_disabled"}])
def test_a_source_that_forwards_no_more_keeps_what_its_gateway_was_about_to_pass_on(
    fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def check(scene: Scene) -> None:
        await scene.give("target")
        await scene.give("source", forward_to="target")
        await until(lambda: bool(scene.links.peer.consumers))
        # Its gateway learns it when it looks where the message goes.
        other = Service(scene.coordinator, Directory(scene.coordinator))
        await other.change(ANYBODY, "source", Policy.parse({"role": "queue", **fields}))
        scene.add("source", letter(b"x"))
        await until(lambda: not scene.links.peer.consumers)
        for _ in range(10):
            await asyncio.sleep(0)
        assert scene.bodies("source") == [letter(b"x")]
        assert scene.bodies("source/$transfer/$dlq") == []
        assert scene.counts.messages_not_forwarded == 0
        assert caplog.records == []

    run(check)


def test_a_gateway_passes_messages_on_though_there_may_be_no_more_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(scene: Scene) -> None:
        await scene.give("target")
        await scene.give("source", forward_to="target")
        scene.add("source", letter(b"x"))
        await until(lambda: scene.counts.messages_forwarded == 1)
        assert scene.directory.find("source/$transfer") is None

    monkeypatch.setattr(limits, "NAMES_MAX", 2)
    run(check)


def test_a_shard_without_room_for_any_transaction_refuses_no_message() -> None:
    async def check(scene: Scene) -> None:
        sent = letters(3)
        await scene.give("target")
        await scene.give("source")
        scene.add("source", *sent)
        # That of all messages, and that of the first one.
        scene.links.refused = 2
        await scene.give("source", forward_to="target")
        await until(lambda: len(scene.pauses) == 1)
        scene.go_on.release()
        await until(lambda: scene.counts.messages_forwarded == 3)
        assert scene.bodies("target") == sent
        assert scene.counts.messages_not_forwarded == 0

    run(check)


def test_sources_that_can_not_forward_give_back_what_has_no_room_and_go_on_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarder, "FORWARDER_OPEN_PAUSE_MS", 0)
    sent = letters(10)
    bytes_max = 3 * len(sent[0])

    async def check(scene: Scene) -> None:
        await scene.give("target")
        scene.links.refused = 1_000
        for name in ("one", "two", "three"):
            await scene.give(name)
            scene.add(name, *sent)
            await scene.give(name, forward_to="target")
        room = scene.forwarders.room
        await until(lambda: len(scene.pauses) > 3)
        assert room.held <= bytes_max
        scene.links.refused = 0
        for _ in range(100):
            scene.go_on.release()
        await until(lambda: scene.counts.messages_forwarded == 30)
        assert sorted(scene.bodies("target")) == sorted(3 * sent)
        assert room.held == 0

    run(check, bytes_max)


def test_what_was_given_back_is_tried_before_others_that_wait_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "FORWARDER_OPEN_PAUSE_MS", 0)
    (sent,) = letters(1)

    async def check(scene: Scene) -> None:
        await scene.give("target")
        scene.links.refused = 1
        await scene.give("source")
        scene.add("source", sent)
        await scene.give("source", forward_to="target")
        await until(lambda: len(scene.pauses) == 1)
        other = Source(scene.forwarders.room, is_waiting=True, held=1)
        other.hold(len(sent) - 5)
        await until(lambda: scene.counts.messages_forwarded == 1)
        assert other.given_back == 1

    run(check, len(sent) + 5)


@pytest.mark.parametrize("found", [b"", b"not a message x-opt-transfer-hops", with_hops(letter(b""), 0, 0)])
def test_a_message_without_hops_that_can_be_read_has_none(found: bytes) -> None:
    assert hops_of(Delivery(1, 0, 0, 0, 0, 0, 0, found)) == 0
    assert with_hops(found, 0, 0) == found
