"""Look-ups of shards: who asks where a queue is gets on in the order of asking."""

import asyncio

import pytest

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.model.placement import Placement
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.sockets.wiring import Wiring


class SlowCoordinator(MemoryCoordinator):
    """Answers when the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.asked = 0

    async def place(self, queue: str) -> Placement:
        self.asked += 1
        await self.gate.wait()
        return await super().place(queue)


def test_those_who_wait_for_a_look_up_are_not_overtaken_by_who_comes_later() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        coordinator = SlowCoordinator()
        await coordinator.set_shards(1)
        shards = ShardConnections(coordinator, loop, Wiring(loop), name="gateway-0", boot=1)
        shards.add(0, "inproc://nobody")
        order: list[int] = []

        async def ask(number: int) -> None:
            await shards.route("q")
            order.append(number)
            if number == 1:
                # The placement is known now, and others still wait for their turn.
                later.append(loop.create_task(ask(4)))

        later: list[asyncio.Task[None]] = []
        waiting = [loop.create_task(ask(number)) for number in (1, 2, 3)]
        await asyncio.sleep(0)
        coordinator.gate.set()
        await asyncio.gather(*waiting)
        await asyncio.gather(*later)
        assert order == [1, 2, 3, 4]
        assert coordinator.asked == 1
        assert shards._look_ups == {}
        shards.close()
        shards.wiring.close()

    asyncio.run(check())


class Broken(SlowCoordinator):
    """Fails when the test says."""

    async def place(self, queue: str) -> Placement:
        self.asked += 1
        await self.gate.wait()
        raise CoordinatorError("no answer")


def test_those_who_wait_for_a_look_up_that_fails_get_one_error_and_the_next_one_looks_again() -> None:
    async def check() -> None:
        coordinator = Broken()
        await coordinator.set_shards(1)
        shards = ShardConnections(
            coordinator,
            asyncio.get_running_loop(),
            Wiring(asyncio.get_running_loop()),
            name="gateway-0",
            boot=1,
        )
        waiting = [asyncio.ensure_future(shards.find("q")) for _ in range(3)]
        await asyncio.sleep(0)
        coordinator.gate.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in found] == [CoordinatorError] * 3
        assert coordinator.asked == 1
        with pytest.raises(CoordinatorError):
            await shards.find("q")
        assert coordinator.asked == 2
        assert not shards.looks_up("q")
        shards.close()

    asyncio.run(check())


class Recovering(SlowCoordinator):
    """Fails once."""

    async def place(self, queue: str) -> Placement:
        if not self.asked:
            self.asked += 1
            await self.gate.wait()
            raise CoordinatorError("no answer")
        return await super().place(queue)


def test_who_comes_while_others_leave_with_an_error_asks_anew() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        coordinator = Recovering()
        await coordinator.set_shards(1)
        shards = ShardConnections(coordinator, loop, Wiring(loop), name="gateway-0", boot=1)
        later: list[asyncio.Task[Placement]] = []

        async def ask() -> None:
            try:
                await shards.find("q")
            finally:
                # There is always somebody who waits.
                if len(later) < 3:
                    later.append(loop.create_task(shards.find("q")))

        waiting = [loop.create_task(ask()) for _ in range(5)]
        await asyncio.sleep(0)
        coordinator.gate.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in found] == [CoordinatorError] * 5
        placed = await asyncio.gather(*later)
        assert {each.shard for each in placed} == {0}
        assert coordinator.asked == 2
        assert not shards.looks_up("q")
        shards.close()

    asyncio.run(check())
