"""Messages on their way to a shard: answers, refusals that hit those behind them, and what is sent again."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.messages import sending as sending_module
from lightrail.gateway.messages.outgoing import Outgoing
from lightrail.gateway.messages.sending import Carried, NameSender, RouterSender
from lightrail.model import limits
from lightrail.model.placement import Placement
from lightrail.model.policy import Policy
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name
from lightrail.namespace.rights import ANYBODY
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import AFRESH, DURABLE, ENQUEUE_COLUMNS, HEADER, HEADER_SIZE, Kind
from tests.support.routers import Graph
from tests.support.shard.fake_shards import FULL, FakePeer, FakeShards

MESSAGE = Outgoing(b"message", True, 4, 0)


class TwoShards(FakeShards):
    """Queues whose names begin with `far` are on the second shard."""

    def __init__(self) -> None:
        super().__init__()
        self.far = FakePeer()
        self.far.shard = 1
        self.deleted: set[str] = set()
        """Queues without a placement until they are forgotten."""

    def placement(self, queue: str) -> Placement | None:
        return None if queue in self.deleted else Placement(int(queue.startswith("far")), 1)

    def forget(self, queue: str) -> None:
        self.deleted.discard(queue)

    async def find(self, queue: str) -> Placement:
        return Placement(int(queue.startswith("far")), 1)

    def placed(self, queue: str) -> FakePeer | None:
        if queue in self.deleted:
            return None
        return self.far if queue.startswith("far") else self.peer


class Scene:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.shards = TwoShards()
        self.message = MESSAGE
        loop = asyncio.get_running_loop()
        self.sender = RouterSender(self.shards, graph.directory, loop)  # type: ignore[arg-type]

    async def send(self, carried: Carried | None = None) -> "asyncio.Task[None]":
        """Sends the message to the router `r`."""
        task = asyncio.create_task(self.sender.send(self.graph.directory.get("r"), self.message, carried))
        for _ in range(5):
            await asyncio.sleep(0)
        return task

    def frames(self) -> tuple[int, int]:
        """How many frames with messages each shard got since the last look."""
        return len(self.shards.peer.said(Kind.ROUTE)), len(self.shards.far.said(Kind.ROUTE))


def run(check: Callable[[Scene], Awaitable[None]], *queues: str) -> None:
    async def within() -> None:
        graph = Graph()
        await graph.coordinator.set_shards(2)
        await graph.router("r")
        await graph.queue(*queues)
        for queue in queues:
            await graph.subscribe("r", queue)
        graph.directory.refresh()
        await check(Scene(graph))

    asyncio.run(within())


def test_a_message_is_one_frame_for_all_queues_of_a_shard_as_far_as_a_set_may_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(scene: Scene) -> None:
        task = await scene.send()
        assert scene.frames() == (1, 1)
        scene.shards.peer.producer.answered(1, 1)
        scene.shards.far.producer.answered(1, 1)
        await task
        monkeypatch.setattr(limits, "ROUTE_TARGETS_MAX", 2)
        task = await scene.send()
        assert scene.frames() == (2, 1)
        scene.shards.peer.producer.answered(2, 1)
        scene.shards.far.producer.answered(2, 1)
        await asyncio.sleep(0)
        assert not task.done()
        scene.shards.peer.producer.answered(3, 1)
        await task

    run(check, "a", "b", "c", "far")


def test_a_message_of_another_format_keeps_its_format() -> None:
    async def check(scene: Scene) -> None:
        scene.message = MESSAGE._replace(message_format=7)
        task = await scene.send()
        (part,) = [part for part in scene.shards.peer.parts if HEADER.unpack_from(part)[0] == Kind.ROUTE]
        assert ENQUEUE_COLUMNS.unpack_from(part, HEADER_SIZE)[1] == 7
        scene.shards.peer.producer.answered(1, 1)
        await task

    run(check, "a")


def test_what_an_attempt_has_stored_when_its_time_is_up_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "REQUEST_MS", 10)

    async def check(scene: Scene) -> None:
        carried: Carried = set()
        task = await scene.send(carried)
        scene.shards.peer.producer.answered(1, 1)
        with pytest.raises(ProblemError):
            await task
        assert carried == {(b"message", "a")}
        scene.frames()
        monkeypatch.setattr(limits, "REQUEST_MS", 60_000)
        task = await scene.send(carried)
        assert scene.frames() == (0, 1)
        scene.shards.far.producer.answered(2, 1)
        await task

    run(check, "a", "far")


def test_a_queue_deleted_while_another_is_looked_up_lets_the_message_be_routed_once_more() -> None:
    async def check(scene: Scene) -> None:
        scene.shards.deleted.add("a")
        task = await scene.send()
        assert scene.frames() == (0, 1)
        scene.shards.far.producer.answered(1, 1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert scene.frames() == (1, 0)
        scene.shards.peer.producer.answered(1, 1)
        await task

    run(check, "a", "far")


def test_a_queue_that_has_stored_a_message_does_not_get_it_again_as_a_changed_action_writes_it() -> None:
    async def check(scene: Scene) -> None:
        graph = scene.graph
        scene.message = MESSAGE._replace(message=b"\x00\x53\x75\xa0\x01x")
        former = await graph.subscribe("r", "b", action={"set": {"subject": "former"}})
        graph.directory.refresh()
        task = await scene.send()
        assert scene.frames() == (1, 1)
        scene.shards.peer.producer.answered(1, 1)
        await graph.unsubscribe(former)
        await graph.subscribe("r", "b", action={"set": {"subject": "new"}})
        scene.shards.far.producer.refused(1, Refusal("amqp:not-found", "no such queue"))
        await turn()
        assert scene.frames() == (0, 1)
        scene.shards.far.producer.answered(2, 1)
        await task

    async def prepare() -> None:
        graph = Graph()
        await graph.coordinator.set_shards(2)
        await graph.router("r")
        await graph.queue("b", "far")
        await graph.subscribe("r", "far")
        await check(Scene(graph))

    asyncio.run(prepare())


def test_what_is_in_the_source_of_a_full_queue_does_not_come_into_that_queue_at_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "REQUEST_MS", 10)

    async def check(scene: Scene) -> None:
        service = scene.graph.service
        forwards = Policy.parse({"role": "queue", "forward_to": "end"})
        await service.change(ANYBODY, "source", forwards)
        carried: Carried = set()
        task = await scene.send(carried)
        assert scene.frames() == (1, 1)
        scene.shards.peer.producer.refused(1, FULL)
        scene.shards.far.producer.refused(1, FULL)
        await turn()
        # Now for the source; the other queue stays full.
        assert scene.frames() == (1, 1)
        scene.shards.peer.producer.answered(2, 1)
        scene.shards.far.producer.refused(2, FULL)
        with pytest.raises(ProblemError):
            await task
        assert carried == {(b"message", "source")}
        task = await scene.send(carried)
        assert scene.frames() == (0, 1)
        scene.shards.far.producer.answered(3, 1)
        await task

    async def prepare() -> None:
        graph = Graph()
        await graph.coordinator.set_shards(2)
        await graph.router("r")
        await graph.queue("source", "end", "far")
        await graph.subscribe("r", "source")
        await graph.subscribe("r", "far")
        await check(Scene(graph))

    asyncio.run(prepare())


def test_what_the_end_of_a_chain_has_is_not_stored_in_its_source_as_an_action_writes_it_anew() -> None:
    async def check(scene: Scene) -> None:
        scene.message = MESSAGE._replace(message=b"\x00\x53\x75\xa0\x01x")
        task = await scene.send()
        assert scene.frames() == (1, 1)
        scene.shards.peer.producer.answered(1, 1)
        scene.shards.far.producer.refused(1, FULL)
        await turn()
        assert scene.frames() == (0, 1)
        scene.shards.far.producer.answered(2, 1)
        await task

    async def prepare() -> None:
        graph = Graph()
        await graph.coordinator.set_shards(2)
        await graph.router("r")
        await graph.queue("source", "end", "far")
        forwards = Policy.parse({"role": "queue", "forward_to": "end"})
        await graph.service.change(ANYBODY, "source", forwards)
        numbered = {"rule": {"sql": "SET sys.MessageId = newid()"}}
        await graph.subscribe("r", "source", rules={"it": {"filter": None, "action": numbered}})
        await graph.subscribe("r", "far")
        graph.directory.refresh()
        await check(Scene(graph))

    asyncio.run(prepare())


def test_of_two_rules_whose_messages_are_new_each_time_that_which_was_refused_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "REQUEST_MS", 10)

    async def check(scene: Scene) -> None:
        scene.message = MESSAGE._replace(message=b"\x00\x53\x75\xa0\x01x")
        carried: Carried = set()
        task = await scene.send(carried)
        assert scene.frames() == (2, 0)
        producer = scene.shards.peer.producer
        producer.refused(1, FULL)
        producer.refused(2, Refusal(FULL.condition, "a batch before this one was refused"))
        producer.answered(3, 1)
        with pytest.raises(ProblemError):
            await task
        ((stored, _),) = carried
        assert b"second" in stored
        task = await scene.send(carried)
        (part,) = [part for part in scene.shards.peer.parts if HEADER.unpack_from(part)[0] == Kind.ROUTE][1:]
        assert b"first" in part
        assert b"second" not in part
        producer.answered(4, 1)
        await task

    async def prepare() -> None:
        graph = Graph()
        await graph.coordinator.set_shards(2)
        await graph.router("r")
        await graph.queue("a")
        numbered = {"filter": None, "action": {"rule": {"sql": "SET sys.MessageId = newid()"}}}
        await graph.subscribe("r", "a", rules={"first": numbered, "second": numbered})
        graph.directory.refresh()
        await check(Scene(graph))

    asyncio.run(prepare())


def test_a_later_attempt_makes_the_copies_of_the_first_one_which_live_no_longer() -> None:
    async def check(scene: Scene) -> None:
        scene.message = MESSAGE._replace(message=b"\x00\x53\x75\xa0\x01x")
        record, parts = scene.graph.directory.get("r"), []
        for number in (1, 2):
            scene.shards.peer.parts.clear()
            task = asyncio.create_task(scene.sender.send(record, scene.message, set(), 7_000_000))
            await turn()
            parts += [part for part in scene.shards.peer.parts if HEADER.unpack_from(part)[0] == Kind.ROUTE]
            scene.shards.peer.producer.answered(number, 1)
            await task
        first, second = (part[HEADER_SIZE:] for part in parts)
        assert first == second
        assert ENQUEUE_COLUMNS.unpack_from(first)[0] == 7_050_000

    async def prepare() -> None:
        graph = Graph()
        await graph.coordinator.set_shards(2)
        await graph.router("r")
        await graph.queue("a")
        lives = {"filter": None, "action": {"rule": {"sql": "SET sys.TimeToLive = '00:00:50'"}}}
        await graph.subscribe("r", "a", rules={"it": lives})
        graph.directory.refresh()
        await check(Scene(graph))

    asyncio.run(prepare())


Q = Name("q", Policy.parse({"role": "queue", "max_message_bytes": 100}))


def scene(check: Callable[[NameSender, FakePeer], Awaitable[None]]) -> None:
    async def run() -> None:
        shards = FakeShards()
        directory = Directory(MemoryCoordinator())
        sender = NameSender(shards, directory, asyncio.get_running_loop())  # type: ignore[arg-type]
        await check(sender, shards.peer)
        sender.close()

    asyncio.run(run())


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def gone(peer: FakePeer) -> None:
    while peer.producers:  # noqa: ASYNC110 - the fake tells nobody
        await asyncio.sleep(0)


def sending(sender: NameSender) -> Any:
    return asyncio.create_task(sender.send(Q, MESSAGE))


def test_the_answer_is_the_sequence() -> None:
    async def check(sender: NameSender, peer: FakePeer) -> None:
        tasks = [sending(sender) for _ in range(2)]
        await turn()
        assert peer.said(Kind.ENQUEUE) == [(DURABLE | AFRESH, 1, 1), (DURABLE, 1, 2)]
        peer.producer.stored(1, 41)
        peer.producer.stored(2, 42)
        assert [await task for task in tasks] == [41, 42]

    scene(check)


def test_those_behind_a_refusal_are_sent_again_afresh() -> None:
    async def check(sender: NameSender, peer: FakePeer) -> None:
        tasks = [sending(sender) for _ in range(3)]
        await turn()
        peer.said()
        behind = Refusal(FULL.condition, "a batch before this one was refused")
        peer.producer.refused(1, FULL)
        late = sending(sender)
        peer.producer.refused(2, behind)
        await turn()
        assert peer.said(Kind.ENQUEUE) == []
        peer.producer.refused(3, behind)
        assert peer.said(Kind.ENQUEUE) == [(DURABLE | AFRESH, 1, 4), (DURABLE, 1, 5), (DURABLE, 1, 6)]
        with pytest.raises(ProblemError) as raised:
            await tasks[0]
        assert raised.value.status == 503
        for number, sequence in ((4, 1), (5, 2), (6, 3)):
            peer.producer.stored(number, sequence)
        # What came while the others were held back is behind none of them that was sent before it.
        assert sorted([await task for task in (*tasks[1:], late)]) == [1, 2, 3]

    scene(check)


def test_after_a_greeting_what_has_no_answer_is_said_again() -> None:
    async def check(sender: NameSender, peer: FakePeer) -> None:
        answered, open_ = sending(sender), sending(sender)
        await turn()
        peer.producer.stored(1, 1)
        await answered
        peer.said()
        peer.producer.reopen()
        assert peer.said(Kind.PRODUCER_OPEN, Kind.ENQUEUE) == [(0, 0, 3), (DURABLE, 1, 2)]
        peer.producer.stored(2, 2)
        assert await open_ == 2

    scene(check)


def test_who_went_is_not_sent_again() -> None:
    async def check(sender: NameSender, peer: FakePeer) -> None:
        task = sending(sender)
        await turn()
        task.cancel()
        await turn()
        peer.said()
        peer.producer.reopen()
        assert peer.said(Kind.ENQUEUE) == []

    scene(check)


def test_a_shard_that_says_nothing_is_told_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_MS", 10)

    async def check(sender: NameSender, peer: FakePeer) -> None:
        with pytest.raises(ProblemError) as raised:
            await sender.send(Q, MESSAGE)
        assert raised.value.status == 503
        assert "may or may not" in raised.value.detail

    scene(check)


def test_a_queue_that_is_gone_is_told_to_all() -> None:
    async def check(sender: NameSender, peer: FakePeer) -> None:
        tasks = [sending(sender) for _ in range(2)]
        await turn()
        peer.producer.ended(Refusal("amqp:not-found", "there is no q"))
        for task in tasks:
            with pytest.raises(ProblemError) as raised:
                await task
            assert raised.value.status == 404

    scene(check)


def test_a_queue_that_was_made_again_has_a_producer_of_its_own() -> None:
    async def check(sender: NameSender, peer: FakePeer) -> None:
        before = sending(sender)
        await turn()
        old = peer.producer
        after = asyncio.create_task(sender.send(replace(Q, revision=Q.revision + 1), MESSAGE))
        await turn()
        (_, new) = cast(Any, peer.producers.values())
        assert len(peer.said(Kind.PRODUCER_OPEN, Kind.ENQUEUE)) == 4
        old.ended(Refusal("amqp:resource-deleted", "q was dropped and made again"))
        with pytest.raises(ProblemError):
            await before
        new.stored(1, 0)
        assert await after == 0
        # The end of the former one has left the new one where it is.
        again = asyncio.create_task(sender.send(replace(Q, revision=Q.revision + 1), MESSAGE))
        await turn()
        assert len(peer.producers) == 2
        new.stored(2, 1)
        assert await again == 1

    scene(check)


def test_a_policy_that_changed_is_known_to_the_shard_before_the_next_message() -> None:
    async def check(sender: NameSender, peer: FakePeer) -> None:
        before = sending(sender)
        await turn()
        old = peer.producer
        after = asyncio.create_task(sender.send(replace(Q, revision=Q.revision + 1), MESSAGE))
        await turn()
        old.stored(1, 0)
        assert await before == 0
        # The former one is closed when it has its answers; who read the name earlier uses the new one.
        new = peer.producer
        assert new is not old
        late = sending(sender)
        await turn()
        new.stored(1, 1)
        new.stored(2, 2)
        assert (await after, await late) == (1, 2)

    scene(check)


def test_what_is_too_large_is_not_sent() -> None:
    async def check(sender: NameSender, peer: FakePeer) -> None:
        with pytest.raises(ProblemError) as raised:
            await sender.send(Q, Outgoing(b"x" * 101, True, 4, 0))
        assert raised.value.status == 413
        assert not peer.producers

    scene(check)


def test_bodies_have_a_limit_in_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_module, "HTTP_BODIES_BYTES", 100)

    async def check(sender: NameSender, peer: FakePeer) -> None:
        with sender.room() as first, sender.room() as second:
            first.take(90)
            with pytest.raises(ProblemError) as raised:
                second.take(20)
            assert raised.value.status == 503
        # One that is larger than the limit passes alone: it is within what the server takes.
        with sender.room() as alone:
            alone.take(200)
        assert sender.bytes == 0

    scene(check)


def test_an_idle_producer_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_module, "SENDER_IDLE_MS", 10)

    async def check(sender: NameSender, peer: FakePeer) -> None:
        task = sending(sender)
        await turn()
        sender._sweep()
        assert peer.producers
        peer.producer.stored(1, 1)
        await task
        await asyncio.wait_for(gone(peer), 10)

    scene(check)
