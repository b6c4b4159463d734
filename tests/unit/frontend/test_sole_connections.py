"""Claims on containers over two frontends that share a coordinator, one of which may die."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest

from lightrail.amqp.connection import Connection
from lightrail.amqp.performatives import Open
from lightrail.amqp.values import Symbol
from lightrail.cluster.coordinator import ATTEMPTS_MAX, ConflictError, CoordinatorError, Write
from lightrail.cluster.map import Member
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.frontend.client import Client
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.sole_connections import (
    CLOSE_EXISTING,
    ENFORCEMENT,
    PREFIX,
    SOLE_CONNECTION_END_MS,
    SoleConnections,
)
from lightrail.model import limits

LOCKED = "amqp:resource-locked"


class FakeConnection:
    """A connection that desires to be its container's only one."""

    def __init__(self, frontend: "Frontend", number: int) -> None:
        self.id = f"{frontend.name}.{frontend.boot:08x}.{number}"
        self.is_open = True
        self.amqp: Connection | None = None
        self.client = Client(self.id)
        self.closed: list[str] = []

    def close(self, condition: str, description: str, info: dict[Symbol, Any] | None = None) -> None:
        self.closed.append(condition)

    def data_received(self, data: bytes) -> None:
        raise AssertionError("not used")


class Frontend:
    """A frontend, as far as claims need it."""

    def __init__(self, scene: "Scene", number: int, boot: int) -> None:
        self.scene = scene
        self.name, self.boot = f"frontend-{number}", boot
        scene.members[number] = Member(number, boot)
        self._numbers = 0
        self.sole = SoleConnections(
            scene.coordinator, self.name, boot, scene.member, scene.spawn, scene.sleep
        )

    async def claim(
        self, policy: int | None = None, user: str = "ann", container: str = "c"
    ) -> FakeConnection:
        """Raises ConditionError where it is refused."""
        self._numbers += 1
        connection = FakeConnection(self, self._numbers)
        properties = None if policy is None else {ENFORCEMENT: policy}
        await self.sole.claim(
            cast(Any, connection), Open(container_id=container, properties=properties), user
        )
        return connection

    async def end(self, connection: FakeConnection) -> None:
        """The connection has closed, and its claim is deleted."""
        connection.is_open = False
        self.sole.ended(cast(Any, connection))
        await self.scene.settle()


class Scene:
    async def member(self, number: int) -> Member | None:
        return self.members.get(number)

    def __init__(self) -> None:
        self.coordinator = Coordinator()
        self.members: dict[int, Member] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.slept = 0.0
        self.meanwhile: list[Coroutine[Any, Any, None]] = []
        """What happens at the next sleep."""

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds
        while self.meanwhile:
            await self.meanwhile.pop()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def settle(self) -> None:
        tasks, self.tasks = self.tasks, []
        await asyncio.gather(*tasks)


class Coordinator(MemoryCoordinator):
    """One whose writes fail, as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[Exception] = []

    async def write(self, writes: Sequence[Write]) -> int:
        if self.failures:
            raise self.failures.pop()
        return await super().write(writes)


def play(test: Callable[[Scene, Frontend, Frontend], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        scene = Scene()
        await test(scene, Frontend(scene, 0, 10), Frontend(scene, 1, 11))

    asyncio.run(asyncio.wait_for(run(), 20.0))


def test_a_second_connection_is_refused_at_every_frontend_until_the_first_has_ended() -> None:
    async def test(scene: Scene, one: Frontend, other: Frontend) -> None:
        first = await one.claim()
        for frontend in (one, other):
            with pytest.raises(ConditionError) as raised:
                await frontend.claim()
            assert raised.value.condition == "amqp:invalid-field"
            assert raised.value.info == {"invalid-field": "container-id"}
            await frontend.claim(container=f"{frontend.name}'s own")
        await one.end(first)
        await other.claim()
        assert not first.closed

    play(test)


def test_one_whose_end_is_on_its_way_from_another_frontend_is_waited_for() -> None:
    async def test(scene: Scene, one: Frontend, other: Frontend) -> None:
        scene.meanwhile.append(one.end(await one.claim()))
        second = await other.claim()
        assert 0 < scene.slept < SOLE_CONNECTION_END_MS / 1000
        scene.slept = 0
        with pytest.raises(ConditionError):
            await one.claim()
        assert scene.slept == pytest.approx(SOLE_CONNECTION_END_MS / 1000)
        # At its own frontend nothing is on its way.
        scene.slept = 0
        with pytest.raises(ConditionError):
            await other.claim()
        assert scene.slept == 0
        assert not second.closed

    play(test)


def test_the_existing_connection_is_closed_at_its_own_frontend_and_at_another() -> None:
    async def test(scene: Scene, one: Frontend, other: Frontend) -> None:
        first = await one.claim()
        second = await one.claim(CLOSE_EXISTING)
        assert first.closed == [LOCKED]
        third = await other.claim(CLOSE_EXISTING)
        for frontend in (one, other):
            frontend.sole.poll()
        assert (second.closed, third.closed) == ([LOCKED], [])
        # The end of those that were closed takes nothing from the one that is there.
        await one.end(first)
        await one.end(second)
        with pytest.raises(ConditionError):
            await one.claim()

    play(test)


def test_nobody_closes_the_connection_of_another_user() -> None:
    async def test(scene: Scene, one: Frontend, other: Frontend) -> None:
        first = await one.claim(user="ann")
        for frontend in (one, other):
            with pytest.raises(ConditionError):
                await frontend.claim(CLOSE_EXISTING, user="eve")
            frontend.sole.poll()
        assert not first.closed

    play(test)


def test_of_many_that_come_at_a_time_one_stays() -> None:
    async def test(scene: Scene, one: Frontend, other: Frontend) -> None:
        found = await asyncio.gather(
            *(frontend.claim(CLOSE_EXISTING) for frontend in (one, other) * 5), return_exceptions=True
        )
        for frontend in (one, other):
            frontend.sole.poll()
        connections = [each for each in found if isinstance(each, FakeConnection)]
        assert len(connections) == 10
        assert sorted(each.closed for each in connections) == [[]] + 9 * [[LOCKED]]

    play(test)


def test_a_claim_of_a_process_that_has_ended_holds_nobody_up() -> None:
    async def test(scene: Scene, one: Frontend, other: Frontend) -> None:
        await one.claim(container="a")
        await one.claim(container="b")
        again = Frontend(scene, 0, 12)
        await other.claim(container="a")
        await again.sole.sweep()
        assert len(await scene.coordinator.entries(PREFIX)) == 1, "that of the other frontend"
        del scene.members[1]
        await again.claim(container="a")

    play(test)


def test_a_process_that_was_thought_dead_closes_what_it_has_lost() -> None:
    async def test(scene: Scene, one: Frontend, other: Frontend) -> None:
        first = await one.claim()
        member = scene.members.pop(0)
        await other.claim()
        scene.members[0] = member
        one.sole.poll()
        assert first.closed == [LOCKED]

    play(test)


def test_a_connection_that_ends_while_it_claims_keeps_nothing() -> None:
    async def test(scene: Scene, one: Frontend, other: Frontend) -> None:
        connection: Any = FakeConnection(one, 7)
        connection.is_open = False
        await one.sole.claim(connection, Open(container_id="c"), "ann")
        await scene.settle()
        assert await scene.coordinator.entries(PREFIX) == []

    play(test)


def test_a_claim_is_deleted_as_soon_as_the_coordinator_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXPIRE_AGAIN_MS", 0)

    async def test(scene: Scene, one: Frontend, other: Frontend) -> None:
        first = await one.claim()
        scene.coordinator.failures = [CoordinatorError("down")] * 3
        await one.end(first)
        assert await scene.coordinator.entries(PREFIX) == []

    play(test)


def test_who_never_gets_to_write_is_refused() -> None:
    async def test(scene: Scene, one: Frontend, other: Frontend) -> None:
        scene.coordinator.failures = [ConflictError("containers/x")] * ATTEMPTS_MAX
        with pytest.raises(ConditionError):
            await one.claim()
        assert scene.coordinator.failures == []

    play(test)
