"""The renewal of locks beside a handler: when it is due, what a failed request changes, when it ends."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from lightrail.client import ClientError, Delivery, LinkError, LostError, connect
from lightrail.client.keeper import AGAIN_S, LONGEST_S, Keeper
from tests.support.amqp.engine_broker import EngineBroker
from tests.support.sim.loop import SimLoop
from tests.unit.client.test_recovery import SOON
from tests.unit.client.test_recovery import play as play_sockets


class Rig:
    """A keeper, and a broker that answers as the test says."""

    def __init__(self, longest: float = 1_000.0) -> None:
        self.loop = asyncio.get_running_loop()
        self.lock_s: float | None = 8.0
        self.asked: list[tuple[float, list[Any]]] = []
        """When, and which deliveries."""
        self.until: dict[Any, float] = {}
        self.fails: list[Exception] = []
        self.lost: list[tuple[int, str]] = []
        self.keeper = Keeper(self.loop, self.renew, longest, lambda *what: self.lost.append(what))

    async def renew(self, deliveries: Sequence[Delivery]) -> list[float | None]:
        now = self.loop.time()
        self.asked.append((now, list(deliveries)))
        if self.fails:
            raise self.fails.pop(0)
        found: list[float | None] = []
        for each in deliveries:
            late = self.until.get(each, now) < now
            found.append(0 if late else self.lock_s)
            self.until[each] = now + (self.lock_s or 1e9)
        return found

    def came(self, *names: str) -> None:
        """Names stand for deliveries: the keeper looks at nothing of them."""
        for name in names:
            self.until[name] = self.loop.time() + (self.lock_s or 1e9)
        self.keeper.add(names)  # type: ignore[arg-type]

    def settled(self, name: str) -> None:
        self.keeper.settled(name)  # type: ignore[arg-type]


def play(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop()
    try:
        loop.run_until_complete(test())
    finally:
        loop.close()


def test_every_renewal_leaves_while_at_least_half_of_the_lock_is_left() -> None:
    async def test() -> None:
        rig = Rig()
        rig.came("a")
        await asyncio.sleep(3.5)
        rig.came("b")
        await asyncio.sleep(100)
        rig.keeper.stop()
        assert not rig.lost
        times = [time for time, names in rig.asked if "b" in names]
        gaps = [late - early for early, late in zip([3.5, *times], times, strict=False)]
        assert max(gaps) <= 4.0
        assert min(gaps) >= 2.0

    play(test)


def test_what_is_settled_soon_costs_no_request() -> None:
    async def test() -> None:
        rig = Rig()
        rig.came("first")
        await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        rig.settled("first")
        for number in range(1_000):
            name = f"{number}"
            rig.came(name)
            await asyncio.sleep(0.1)
            rig.settled(name)
        assert [names for _, names in rig.asked] == [["first"]]
        rig.keeper.stop()

    play(test)


def test_a_request_that_fails_is_made_again_and_its_reason_told_where_a_lock_is_lost_for_it() -> None:
    async def test() -> None:
        rig = Rig()
        rig.came("a")
        await asyncio.sleep(1)
        rig.fails = [LostError("away"), TimeoutError()]
        await asyncio.sleep(10)
        assert not rig.lost
        rig.fails = [LostError("the shard is away")] * int(8 / AGAIN_S)
        await asyncio.sleep(20)
        assert rig.lost == [(1, "the shard is away")]
        asked = len(rig.asked)
        await asyncio.sleep(100)
        assert len(rig.asked) == asked
        rig.keeper.stop()

    play(test)


def test_locks_without_a_time_are_looked_at_now_and_then() -> None:
    async def test() -> None:
        rig = Rig()
        rig.lock_s = None
        rig.came("a")
        await asyncio.sleep(5 * LONGEST_S - 1)
        assert [time for time, _ in rig.asked] == [LONGEST_S * number for number in range(5)]
        rig.keeper.stop()

    play(test)


def test_renewal_ends_with_its_longest_time_and_with_the_link() -> None:
    async def test() -> None:
        rig = Rig(longest=20.0)
        rig.came("a")
        await asyncio.sleep(100)
        assert 16 <= rig.asked[-1][0] <= 20
        assert not rig.lost
        rig.came("b")
        await asyncio.sleep(5)
        rig.keeper.stop()
        asked = len(rig.asked)
        await asyncio.sleep(100)
        assert len(rig.asked) == asked
        # Another link: how long its locks are is asked at once.
        rig.came("c")
        await asyncio.sleep(0.001)
        ((at, names),) = rig.asked[asked:]
        assert at == pytest.approx(205)
        assert names == ["c"]
        rig.keeper.stop()

    play(test)


def test_a_broker_that_renews_no_locks_is_an_error_that_says_what_to_do() -> None:
    async def test() -> None:
        async with EngineBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            async with connection.sender("q") as sender, connection.receiver("q") as receiver:
                await sender.send("x")
                [delivery] = await receiver.receive()
                with pytest.raises(ClientError, match="does not: settle messages before"):
                    await delivery.renew()
                assert not delivery.lost
                await delivery.accept()
            with pytest.raises(LinkError, match="leave renew_for out") as refused:
                await connection.receiver("q", renew_for=60).opened()
            assert refused.value.condition == "amqp:not-implemented"
            with pytest.raises(ValueError, match="0 seconds or more"):
                connection.receiver("q", renew_for=-1)
            with pytest.raises(ValueError, match="settled messages have no lock"):
                connection.receiver("q", renew_for=1, presettled=True)

    play_sockets(test())
