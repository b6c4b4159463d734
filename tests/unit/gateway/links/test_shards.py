"""Shards: who asks where a name is gets on in the order of asking."""

import asyncio

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.links.shards import Shards
from lightrail.model.placement import Placement


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
        shards = Shards(coordinator, loop, name="gateway-0", boot=1)
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
        assert shards._turns == {}
        shards.close()

    asyncio.run(check())
