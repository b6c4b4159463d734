"""The uses of topics: written together, once for a while, and before the message that is the use."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lightrail.cluster.coordinator import CoordinatorError, Write
from lightrail.filters.matcher import Looks
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.routers import Routers
from lightrail.namespace.topic_uses import (
    NO_USE,
    USE_LOOK_MS,
    USE_MS,
    USE_MS_MAX,
    USES_OF_A_WRITE_MAX,
    TopicUses,
    UseNotes,
    covered_ms,
)
from tests.support.routers import Graph


class Scene:
    """A process that routes; its timers run when the test says so."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.writes: list[list[Write]] = []
        self.is_refused = False
        write = self.graph.coordinator.write

        async def noted(writes: list[Write]) -> int:
            if self.is_refused:
                raise CoordinatorError("etcd answers reads alone")
            self.writes.append(writes)
            return await write(writes)

        self.graph.coordinator.write = noted  # type: ignore[assignment,method-assign]
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.uses = TopicUses(self.graph.coordinator, self.graph.directory)
        self.notes = UseNotes(self.uses, self.now_ms, self.spawn, self.later)
        self.routers = Routers(self.graph.directory, self.later, self.now_ms, self.notes)

    def now_ms(self) -> int:
        return self.graph.now_ms

    def spawn(self, work: Any) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def later(self, wait_ms: int, call: Callable[[], None]) -> None:
        self.timers.append((wait_ms, call))

    async def run_timers(self, wait_ms: int) -> None:
        """Makes the calls that wait for so long."""
        due = [call for each, call in self.timers if each == wait_ms]
        self.timers = [each for each in self.timers if each[0] != wait_ms]
        for call in due:
            call()
        await self.settle()

    async def settle(self) -> None:
        while self.tasks:
            await self.tasks.pop()

    def prepares(self, topic: str = "t") -> bool:
        return self.routers.routing.prepare(topic, self.now_ms(), Looks())

    async def use(self, topic: str = "t") -> None:
        assert await self.routers.plan(topic) is not None

    def written(self) -> int:
        """Transactions that note uses since the last look."""
        found = [each for each in self.writes if any(write.key.startswith("uses/") for write in each)]
        self.writes.clear()
        return len(found)


def run(check: Callable[[Scene], Awaitable[None]]) -> None:
    async def within() -> None:
        scene = Scene()
        await scene.graph.coordinator.set_shards(1)
        await scene.graph.router("t", max_idle=300)
        await check(scene)
        await scene.settle()

    asyncio.run(within())


def test_an_entry_covers_a_minute_or_a_hundredth_of_a_long_time() -> None:
    def covered(seconds: float) -> int:
        return covered_ms(Policy.parse({"role": "router", "max_idle": seconds}))

    assert [covered(300), covered(6_000), covered(86_400)] == [USE_MS, USE_MS, 864_000]
    assert covered(427 * 86_400) == USE_MS_MAX


def test_a_sender_waits_for_the_write_of_its_use_and_no_other_one_does() -> None:
    class Sender:
        calls = 0

        def route_waiting(self) -> None:
            self.calls += 1

    async def check(scene: Scene) -> None:
        sender = Sender()
        assert not scene.prepares()
        scene.routers.wait_prepared(sender)
        await scene.settle()
        await scene.run_timers(0)
        assert (sender.calls, scene.written()) == (1, 1)
        assert scene.uses.of("t").until_ms == scene.now_ms() + USE_MS
        for _ in range(3):
            assert scene.prepares()
            await scene.use()
        assert scene.written() == 0

    run(check)


def test_a_router_without_the_field_is_never_written_and_its_plan_stays() -> None:
    async def check(scene: Scene) -> None:
        await scene.graph.router("r")
        scene.graph.directory.refresh()
        plan = await scene.routers.plan("r")
        scene.graph.now_ms += 10 * USE_MS
        await scene.run_timers(USE_LOOK_MS)
        assert await scene.routers.plan("r") is plan
        assert (scene.written(), scene.timers) == (0, [])

    run(check)


def test_the_plan_of_a_topic_is_put_aside_and_used_again_and_the_uses_of_those_behind_it_are_noted() -> None:
    async def check(scene: Scene) -> None:
        await scene.graph.router("first")
        await scene.graph.subscribe("first", "t")
        scene.writes.clear()
        plan = await scene.routers.plan("first")
        assert scene.uses.of("t") != NO_USE
        assert scene.uses.of("first") == NO_USE
        scene.graph.now_ms += USE_LOOK_MS
        await scene.run_timers(USE_LOOK_MS)
        assert await scene.routers.plan("first") is plan
        scene.written()
        scene.graph.now_ms += USE_LOOK_MS
        await scene.run_timers(USE_LOOK_MS)
        assert scene.written() == 1, "in advance, as it is in use"
        assert scene.uses.of("t").until_ms == scene.now_ms() + USE_MS
        scene.graph.now_ms += USE_LOOK_MS
        await scene.run_timers(USE_LOOK_MS)
        assert (scene.written(), scene.timers) == (0, []), "nobody has used it since"
        scene.graph.now_ms += USE_MS
        assert not scene.prepares("first")

    run(check)


def test_many_topics_are_written_together() -> None:
    async def check(scene: Scene) -> None:
        topics = [f"t{number}" for number in range(USES_OF_A_WRITE_MAX + 1)]
        for topic in topics:
            await scene.graph.router(topic, max_idle=300)
        scene.writes.clear()
        assert not any(map(scene.prepares, topics))
        await scene.settle()
        assert all(map(scene.prepares, topics))
        assert scene.written() == 2

    run(check)


def test_a_topic_that_is_deleted_or_changed_meanwhile_does_not_leave_an_entry() -> None:
    async def check(scene: Scene) -> None:
        assert not scene.prepares()
        await scene.graph.drop("t")
        await scene.settle()
        assert await scene.routers.plan("t") is None
        assert await scene.graph.coordinator.entries("uses/") == []

    run(check)


def test_a_use_that_is_written_is_noted_though_the_coordinator_can_not_be_followed() -> None:
    async def check(scene: Scene) -> None:
        scene.uses.refresh()
        scene.graph.coordinator.news = lambda since: None  # type: ignore[method-assign]
        scene.written()
        assert not scene.prepares()
        await scene.settle()
        assert scene.prepares()
        assert scene.written() == 1
        assert scene.uses.of("t").until_ms == scene.now_ms() + USE_MS

    run(check)


def test_while_nothing_can_be_written_messages_pass_and_their_use_is_written_later() -> None:
    async def check(scene: Scene) -> None:
        scene.is_refused = True
        assert not scene.prepares()
        await scene.use()
        for _ in range(5):
            scene.graph.now_ms += USE_MS
            await scene.run_timers(USE_LOOK_MS)
            assert scene.prepares()
        assert scene.uses.of("t") == NO_USE
        scene.is_refused = False
        await scene.run_timers(USE_LOOK_MS)
        assert scene.uses.of("t").until_ms == scene.now_ms() + USE_MS

    run(check)


@pytest.mark.parametrize("change", ["make", "replace", "end"])
def test_each_change_of_a_subscription_is_a_use_in_its_own_transaction(change: str) -> None:
    async def check(scene: Scene) -> None:
        await scene.graph.queue("q")
        if change != "make":
            await scene.graph.subscribe("t", "q", id="s")
        scene.graph.now_ms += 5
        if change == "end":
            await scene.graph.service.unsubscribe(ANYBODY, "t", "s")
        else:
            await scene.graph.subscribe("t", "q", id="s", replace_it=change == "replace")
        assert {"subscriptions/t//s", "uses/t"} <= {each.key for each in scene.writes[-1]}
        scene.uses.refresh()
        assert scene.uses.of("t").until_ms == scene.now_ms() + USE_MS

    run(check)
