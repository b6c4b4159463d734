"""Idle topics: deleted to the millisecond, never under a use, and nothing accepted is deleted with them."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lightrail.cluster.coordinator import CoordinatorError, Write
from lightrail.cluster.map import Member
from lightrail.filters.matcher import Looks
from lightrail.gateway.idle_topics import (
    TOPIC_AGAIN_MS,
    TOPIC_ASKED_MS,
    TOPICS_BACK_MS,
    TOPICS_PAUSE_MS,
    IdleTopics,
)
from lightrail.model.names import subscription_name
from lightrail.model.policy import Policy
from lightrail.namespace.deleting import own_queue
from lightrail.namespace.directory import Directory
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.routing import Routing
from lightrail.namespace.service import Service
from lightrail.namespace.topic_uses import USE_LOOK_MS, USE_MS, TopicUses, UseNotes
from lightrail.shard.links.retiring import LEAVES_WITH_MS
from lightrail.shard.queues.declarations import Deletions
from lightrail.shard.queues.ownership import OwnershipState
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.wire.bodies import Answer
from tests.support.routers import Graph
from tests.support.shard.scene import Peer, Scene, numbered_messages

MAX_MS = 300_000
QUEUE = own_queue("t", "s")
MESSAGES = numbered_messages(2)


class Frontend:
    """A process that routes messages of the topic."""

    def __init__(self, story: "Story") -> None:
        self.story = story
        self.behind_ms = 0
        """By how much its clock is behind the gateway's."""
        self.directory = Directory(story.graph.coordinator, now_ms=story.now_ms)
        self.timers: list[Callable[[], None]] = []
        uses = TopicUses(story.graph.coordinator, self.directory)
        self.notes = UseNotes(uses, self.now_ms, story.spawn, lambda _, call: self.timers.append(call))
        self.routing = Routing(self.directory, notes=self.notes)

    def now_ms(self) -> int:
        return self.story.now_ms() - self.behind_ms

    def look(self) -> None:
        timers, self.timers = self.timers, []
        for timer in timers:
            timer()

    def try_to_send(self) -> bool:
        """Whether a message of the topic passes at once; the shard stores it then."""
        self.directory.refresh()
        if not self.routing.prepare("t", self.story.now_ms(), Looks()):
            return False
        plan = self.routing.plan("t", self.story.now_ms())
        assert plan is not None
        for group in plan.route(MESSAGES).groups:
            self.story.route(group.queues)
        return True

    async def send(self) -> None:
        while not self.try_to_send():
            await self.notes.written()


class Story:
    """A topic with a subscription, its shard, a gateway, and an administrator elsewhere."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.graph.now_ms = 1_000_000_000
        self.tasks: set[asyncio.Task[None]] = set()
        self.shard_is_lost = False
        self.asked: list[dict[str, Any]] = []
        self.links = 10
        self.ahead_ms = 0
        """By how much the gateway's clock is ahead of the shard's."""
        self.at_request: Callable[[dict[str, Any]], Awaitable[None]] | None = None

    def now_ms(self) -> int:
        return self.graph.now_ms

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def begin(self, *subscriptions: str, **topic: Any) -> None:
        await self.graph.coordinator.set_shards(1)
        self.names = Directory(self.graph.coordinator, now_ms=self.now_ms)
        self.scene = Scene(names=self.names, now_ms=self.now_ms())
        self.peer: Peer = self.scene.peer()
        self.map = SimpleNamespace(frontends={0: Member(0, 7)}, gateways={0: Member(0, 8)})
        self.topics = self.gateway()
        await self.topics.sweep(self.now_ms())
        await self.graph.router("t", max_idle=MAX_MS / 1000, unroutable="drop", **topic)
        for id in subscriptions or ("s",):
            queue = own_queue("t", id)
            await self.graph.service.give(ANYBODY, queue, Policy.parse({"role": "queue", "delay": True}))
            await self.graph.subscribe("t", queue, id=id)
        self.follow()
        await self.topics.sweep(self.now_ms())
        self.frontend = Frontend(self)

    def gateway(self) -> IdleTopics:
        directory = Directory(self.graph.coordinator, now_ms=self.now_ms)
        directory.refresh()
        services: Any = SimpleNamespace(
            coordinator=self.graph.coordinator,
            directory=directory,
            namespace=Service(self.graph.coordinator, directory, now_ms=self.now_ms),
            shards=SimpleNamespace(map=self.map, request=self.request),
            now_ms=lambda: self.now_ms() + self.ahead_ms,
        )
        return IdleTopics(services, TopicUses(self.graph.coordinator, directory))

    async def request(self, queue: str, op: str, fields: dict[str, Any]) -> Answer:
        """A gateway asks the shard."""
        self.asked.append(fields)
        if self.at_request is not None:
            await self.at_request(fields)
        if self.shard_is_lost:
            raise ShardDownError("the shard is lost")
        number = self.peer.ask(op, **fields)
        self.scene.settle_down()
        found, blob = self.peer.answers[number]
        if "error" in found:
            raise ShardRefusedError(found["error"]["condition"], found["error"]["description"])
        return Answer(found, memoryview(blob))

    def route(self, queues: frozenset[str]) -> None:
        """A frontend sends what a plan routes to queues."""
        self.links += 1
        self.peer.produce(self.links)
        self.peer.targets(self.links, 1, *queues)
        self.peer.route(self.links, 1, 1, MESSAGES)
        self.scene.settle_down()

    def follow(self) -> None:
        self.topics._services.directory.refresh()
        self.scene.refresh()
        self.scene.settle_down()

    async def wait(self, wait_ms: int, step_ms: int = 1_000) -> None:
        until_ms = self.now_ms() + wait_ms
        while self.now_ms() < until_ms:
            step = min(step_ms, until_ms - self.now_ms())
            self.graph.now_ms += step
            self.peer.ping()
            self.scene.tick(step)
            self.scene.settle_down()
            if self.now_ms() // 20_000 != (self.now_ms() - step) // 20_000:
                self.frontend.look()
                await self.settle()
            await self.topics.sweep(self.now_ms())
            deletions = Deletions(Service(self.graph.coordinator, self.names, now_ms=self.now_ms))
            deletions.keep(map(self.names.get, self.scene.wishes_to_keep))
            self.scene.wishes_to_keep.clear()
            await deletions.close()
            self.follow()

    async def settle(self) -> None:
        while self.tasks:
            await asyncio.gather(*self.tasks)

    def is_there(self) -> bool:
        self.graph.directory.refresh()
        return self.graph.directory.find("t") is not None

    def state(self) -> OwnershipState | None:
        found = self.scene.engine._queues.find(QUEUE)
        return None if found is None else found.state

    async def is_there_for(self, wait_ms: int) -> None:
        await self.wait(wait_ms - 1)
        assert (self.is_there(), self.state()) == (True, OwnershipState.SERVING)
        await self.wait(1)
        assert (self.is_there(), self.state()) == (False, None)


def run(check: Callable[[Story], Awaitable[None]], *subscriptions: str, **topic: Any) -> None:
    async def within() -> None:
        story = Story()
        await story.begin(*subscriptions, **topic)
        await check(story)
        await story.settle()

    asyncio.run(within())


def test_a_topic_is_there_for_its_time_to_the_millisecond_and_is_deleted_with_its_subscriptions() -> None:
    async def check(story: Story) -> None:
        await story.is_there_for(USE_MS + MAX_MS)
        await story.wait(1_000)
        for prefix in ("names/", "subscriptions/", "uses/", "placement/"):
            assert await story.graph.coordinator.entries(prefix) == []

    run(check, "s", "s2")


def test_a_topic_is_deleted_with_subscriptions_that_receivers_made_by_attaching_to_it() -> None:
    async def check(story: Story) -> None:
        queue = subscription_name("t", "receiver")
        await story.graph.queue(queue)
        await story.graph.subscribe("t", queue, id="receiver")
        await story.wait(2 * USE_MS + MAX_MS)
        assert not story.is_there()
        assert await story.graph.coordinator.entries("names/") == []

    run(check)


def test_a_topic_without_subscriptions_that_nobody_ever_used_is_there_for_its_time() -> None:
    async def check(story: Story) -> None:
        await story.graph.router("lonely", max_idle=MAX_MS / 1000)
        await story.wait(MAX_MS - 1)
        story.graph.directory.refresh()
        assert story.graph.directory.find("lonely") is not None
        await story.wait(1)
        story.graph.directory.refresh()
        assert story.graph.directory.find("lonely") is None

    run(check)


def test_never_under_a_receiver_of_a_subscription_that_waits() -> None:
    async def check(story: Story) -> None:
        story.peer.consume(1, QUEUE, 1)
        await story.wait(4 * MAX_MS)
        assert (story.is_there(), story.state()) == (True, OwnershipState.SERVING)
        story.peer.credit(1, 1, drain=True)
        await story.wait(MAX_MS - 1)
        assert story.is_there()
        await story.wait(2 * TOPIC_ASKED_MS)
        assert not story.is_there()

    run(check, "s", "s2")


@pytest.mark.parametrize("behind_ms", [0, 4 * MAX_MS])
def test_never_under_a_sender_that_sends_at_times_though_no_subscription_gets_it(behind_ms: int) -> None:
    async def check(story: Story) -> None:
        await story.graph.router("quiet", max_idle=MAX_MS / 1000, unroutable="drop")
        frontend = story.frontend
        frontend.behind_ms = behind_ms
        for _ in range(10):
            frontend.directory.refresh()
            while not frontend.routing.prepare("quiet", frontend.now_ms(), Looks()):
                await frontend.notes.written()
            assert frontend.routing.plan("quiet", frontend.now_ms()) is not None
            await story.wait(MAX_MS // 2)
        story.graph.directory.refresh()
        assert story.graph.directory.find("quiet") is not None
        await story.wait(MAX_MS + USE_MS)
        story.graph.directory.refresh()
        assert story.graph.directory.find("quiet") is None

    run(check)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_use_after_a_long_pause_is_known_before_the_message_passes(is_killed: bool) -> None:
    async def check(story: Story) -> None:
        await story.wait(USE_MS + MAX_MS - 2_000)
        assert not story.frontend.try_to_send(), "the first one waits for a write"
        await story.frontend.notes.written()
        assert story.frontend.try_to_send()
        if is_killed:
            story.frontend = Frontend(story)
        story.topics = story.gateway()
        await story.topics.sweep(story.now_ms())
        await story.wait(MAX_MS - 1)
        assert story.is_there()
        await story.wait(2 * USE_MS)
        assert not story.is_there()

    run(check)


@pytest.mark.parametrize("use", ["policy", "queue", "rules", "subscription", "unsubscription", "schedule"])
def test_changes_and_scheduled_messages_are_uses(use: str) -> None:
    async def check(story: Story) -> None:
        admin = story.graph.service
        await story.wait(MAX_MS)
        if use == "policy":
            policy = Policy.parse({"role": "router", "max_idle": MAX_MS / 1000, "description": "used"})
            await admin.change(ANYBODY, "t", policy)
        elif use == "queue":
            await admin.change(ANYBODY, QUEUE, Policy.parse({"role": "queue"}))
        elif use == "rules":
            await admin.subscribe(ANYBODY, "t", QUEUE, id="s", replace_it=True, filter={"sql": "x = 1"})
        elif use == "subscription":
            await admin.give(ANYBODY, own_queue("t", "new"), Policy.parse({"role": "queue"}))
            await admin.subscribe(ANYBODY, "t", own_queue("t", "new"), id="new")
        elif use == "unsubscription":
            await admin.unsubscribe(ANYBODY, "t", "s2")
        else:
            await admin.give(ANYBODY, "t/$scheduled", Policy.parse({"role": "queue", "delay": True}))
            story.follow()
            story.peer.produce(1, "t/$scheduled")
            story.peer.send(1, 1, MESSAGES)
        story.follow()
        await story.wait(MAX_MS - 1)
        assert story.is_there()
        await story.wait(MAX_MS)
        assert not story.is_there()

    run(check, "s", "s2")


def test_a_topic_with_a_subscription_that_passes_messages_on_is_in_use() -> None:
    async def check(story: Story) -> None:
        await story.graph.queue("q")
        made = await story.graph.subscribe("t", "q")
        revision = story.graph.coordinator._revision
        await story.wait(3 * MAX_MS)
        assert (story.is_there(), story.state()) == (True, OwnershipState.SERVING)
        assert story.graph.coordinator._revision - revision <= 3, "it is looked at once in its time"
        await story.graph.unsubscribe(made)
        forwards = Policy.parse({"role": "queue", "forward_to": "q"})
        await story.graph.service.change(ANYBODY, QUEUE, forwards)
        await story.wait(3 * MAX_MS)
        assert story.is_there()
        await story.graph.service.change(ANYBODY, QUEUE, Policy.parse({"role": "queue"}))
        await story.wait(MAX_MS + 2 * TOPIC_ASKED_MS)
        assert not story.is_there()

    run(check)


# --- between the decision and the write ------------------------------------------------------------------


@pytest.mark.parametrize("use", ["send", "policy", "rules", "subscription", "first schedule"])
def test_a_use_between_the_decision_and_the_write_wins_and_its_links_go_on(use: str) -> None:
    async def check(story: Story) -> None:
        left: list[str] = []

        async def at_request(fields: dict[str, Any]) -> None:
            if not fields["leaves"] or left:
                return
            left.append(use)
            admin = story.graph.service
            if use == "send":
                await story.frontend.send()
            elif use == "policy":
                policy = Policy.parse({"role": "router", "max_idle": MAX_MS / 1000, "description": "used"})
                await admin.change(ANYBODY, "t", policy)
            elif use == "rules":
                await admin.subscribe(ANYBODY, "t", QUEUE, id="s", replace_it=True, filter={"sql": "x = 1"})
            elif use == "first schedule":
                await admin.give(ANYBODY, "t/$scheduled", Policy.parse({"role": "queue", "delay": True}))
            else:
                await admin.give(ANYBODY, own_queue("t", "new"), Policy.parse({"role": "queue"}))
                await admin.subscribe(ANYBODY, "t", own_queue("t", "new"), id="new")

        story.at_request = at_request
        await story.wait(USE_MS + MAX_MS)
        assert left == [use]
        assert (story.is_there(), story.state()) == (True, OwnershipState.SERVING)
        story.peer.consume(1, QUEUE, 10)
        assert story.peer.messages(1) == (MESSAGES if use == "send" else [])
        await story.wait(2 * MAX_MS)
        assert story.is_there()

    run(check)


def test_a_sender_between_the_decision_and_the_write_finds_no_topic_or_its_message_is_stored() -> None:
    async def check(story: Story) -> None:
        async def at_request(fields: dict[str, Any]) -> None:
            if fields["leaves"]:
                # The frontend can't write, and has no choice but to route.
                story.frontend.notes._unwritten["t"] = None

        story.at_request = at_request
        await story.wait(USE_MS + MAX_MS - 1)
        request = story.request
        moved: list[Any] = []

        async def and_then(queue: str, op: str, fields: dict[str, Any]) -> Answer:
            answer = await request(queue, op, fields)
            if fields["leaves"]:
                story.peer.take()
                assert story.frontend.try_to_send()
                moved.extend(story.peer.refusals)
                assert story.peer.accepted(story.links) == []
            return answer

        story.topics._services.shards.request = and_then  # type: ignore[method-assign]
        await story.wait(1)
        assert not story.is_there()
        assert [why.condition for _, _, why in moved] == ["lightrail:moved"]
        story.frontend.directory.refresh()
        assert story.frontend.routing.plan("t", story.now_ms()) is None

    run(check)


def test_a_receiver_that_comes_before_its_queue_leaves_keeps_the_topic_and_the_other_queues_are_served() -> (
    None
):
    async def check(story: Story) -> None:
        async def at_request(fields: dict[str, Any]) -> None:
            if fields["leaves"] and fields["queue"] == own_queue("t", "s2"):
                story.peer.consume(1, own_queue("t", "s2"), 1)

        story.at_request = at_request
        await story.wait(USE_MS + MAX_MS)
        assert (story.is_there(), story.state()) == (True, OwnershipState.SERVING)
        await story.wait(2 * MAX_MS)
        assert story.is_there()

    run(check, "s", "s2")


def test_a_gateway_whose_clock_is_ahead_of_the_shards_deletes_no_queue_that_does_not_leave() -> None:
    async def check(story: Story) -> None:
        async def at_request(fields: dict[str, Any]) -> None:
            if fields["leaves"]:
                # Between the two questions somebody uses the queue; the gateway's clock is far ahead.
                story.peer.consume(1, QUEUE, 1)
                story.ahead_ms = 2 * MAX_MS

        story.at_request = at_request
        await story.wait(USE_MS + MAX_MS)
        assert story.ahead_ms
        assert (story.is_there(), story.state()) == (True, OwnershipState.SERVING)

    run(check)


def test_a_change_of_a_queue_that_its_shard_has_not_read_keeps_the_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The deletion allows for the change, and the shard serves the queue again when it reads it."""

    async def check(story: Story) -> None:
        async def at_request(fields: dict[str, Any]) -> None:
            if fields["leaves"] and fields["queue"] != QUEUE:
                monkeypatch.undo()
                story.scene.refresh()
                story.route(frozenset([QUEUE]))

        await story.wait(USE_MS + MAX_MS - 1)
        story.at_request = at_request
        monkeypatch.setattr(story.names, "refresh", lambda: None)
        await story.graph.service.keep(story.graph.directory.get(QUEUE))
        story.topics._services.directory.refresh()
        story.graph.now_ms += 1
        story.scene.tick(1)
        await story.topics.sweep(story.now_ms())
        assert (story.is_there(), story.state()) == (True, OwnershipState.SERVING)

    run(check, "s", "s2")


def test_silence_of_a_shard_means_that_the_topic_is_used() -> None:
    async def check(story: Story) -> None:
        story.shard_is_lost = True
        await story.wait(3 * MAX_MS)
        assert story.is_there()
        assert len(story.asked) < 3 * MAX_MS // TOPIC_AGAIN_MS
        story.shard_is_lost = False
        await story.wait(TOPIC_AGAIN_MS + 2 * TOPIC_ASKED_MS)
        assert not story.is_there()

    run(check)


def test_queues_whose_gateway_is_lost_are_served_again() -> None:
    async def check(story: Story) -> None:
        async def at_request(fields: dict[str, Any]) -> None:
            if fields["leaves"] and fields["queue"] != QUEUE:
                raise asyncio.CancelledError

        story.at_request = at_request
        with pytest.raises(asyncio.CancelledError):
            await story.wait(USE_MS + MAX_MS)
        assert story.state() is OwnershipState.LEAVING
        story.at_request = None
        story.topics = story.gateway()
        await story.topics.sweep(story.now_ms())
        await story.wait(LEAVES_WITH_MS - 1_000)
        assert story.state() is OwnershipState.LEAVING
        await story.wait(2_000)
        assert (story.is_there(), story.state()) == (True, OwnershipState.SERVING)

    run(check, "s", "s2")


# --- starts, pauses, and a coordinator that answers reads alone -------------------------------------------


def test_clients_have_time_to_return_after_a_start_or_a_pause() -> None:
    async def check(story: Story) -> None:
        await story.wait(USE_MS + MAX_MS - 1_000)
        story.map.frontends[1] = Member(1, 9)
        await story.wait(TOPICS_BACK_MS)
        assert story.is_there()
        story.graph.now_ms += TOPICS_PAUSE_MS + 1
        await story.topics.sweep(story.now_ms())
        assert story.is_there()
        await story.wait(TOPICS_BACK_MS - 1)
        assert story.is_there()
        await story.wait(2 * TOPIC_ASKED_MS)
        assert not story.is_there()

    run(check)


def test_a_use_that_could_not_be_written_is_written_before_the_topic_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(story: Story) -> None:
        write = type(story.graph.coordinator).write
        is_away = True

        async def refuse(coordinator: Any, writes: list[Write]) -> int:
            if is_away:
                raise CoordinatorError("etcd answers reads alone")
            return await write(coordinator, writes)

        monkeypatch.setattr(type(story.graph.coordinator), "write", refuse)
        await story.wait(USE_MS + MAX_MS - TOPIC_ASKED_MS - 1_000)
        await story.frontend.send()
        assert story.frontend.try_to_send(), "nobody waits for etcd"
        for _ in range(2 * MAX_MS // 1_000):
            try:
                await story.wait(1_000)
            except CoordinatorError:
                continue
        is_away = False
        await story.wait(MAX_MS - USE_MS)
        assert story.is_there()
        assert story.frontend.notes._unwritten == {}
        await story.wait(3 * USE_MS)
        assert not story.is_there()

    run(check)


def test_the_use_of_a_topic_that_is_always_in_use_is_written_about_once_a_minute() -> None:
    async def check(story: Story) -> None:
        await story.wait(2 * USE_MS)
        others = [Frontend(story) for _ in range(3)]
        revisions = set()
        for _ in range(600_000 // USE_LOOK_MS):
            for frontend in [story.frontend, *others]:
                await frontend.send()
            await story.wait(USE_LOOK_MS, USE_LOOK_MS)
            for frontend in others:
                frontend.look()
                await story.settle()
            revisions.add(story.topics._uses.of("t").revision)
        assert 5 < len(revisions) <= 600_000 // USE_MS * 2

    run(check)


def test_a_shard_knows_of_messages_whose_sender_was_killed_before_it_could_write_their_use() -> None:
    async def check(story: Story) -> None:
        await story.wait(MAX_MS)
        story.frontend.notes._unwritten["t"] = None
        assert story.frontend.try_to_send()
        story.frontend = Frontend(story)
        await story.wait(MAX_MS - 1)
        assert (story.is_there(), story.state()) == (True, OwnershipState.SERVING)
        await story.wait(2 * TOPIC_ASKED_MS)
        assert not story.is_there()

    run(check)
