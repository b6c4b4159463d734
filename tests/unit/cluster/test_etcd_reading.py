"""However many strangers make a process look into etcd, its calls are few, and nobody is refused."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.entries import Entry
from lightrail.cluster.etcd.grouping import ETCD_READ_KEYS, ETCD_READ_MS, ETCD_READS_WAITING, Reading


class Server:
    """An etcd with an entry for each key, whose calls are answered when the test says; a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[float, list[str]]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: BaseException | None = None
        loop = asyncio.get_running_loop()
        self.create_future, self.create_task = loop.create_future, loop.create_task
        self.reading = Reading(self._read, self, self._sleep)  # type: ignore[arg-type]

    def time(self) -> float:
        return self.now

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    async def _read(self, keys: Sequence[str]) -> list[Entry | None]:
        self.calls.append((self.now, list(keys)))
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return [None if key == "none" else Entry(key, f"v{len(self.calls)}", 1, 1) for key in keys]

    async def values(self, *keys: str) -> list[str | None]:
        found = await asyncio.gather(*map(self.reading.entry, keys))
        return [None if entry is None else entry.value for entry in found]


def run(check: Callable[[Server], Awaitable[None]]) -> None:
    async def checked() -> None:
        await check(Server())

    asyncio.run(checked())


def test_a_flood_of_keys_is_a_few_calls_that_are_some_time_apart() -> None:
    async def check(server: Server) -> None:
        await server.values(*(f"k{number}" for number in range(3 * ETCD_READ_KEYS)))
        assert [len(keys) for _, keys in server.calls] == [ETCD_READ_KEYS] * 3
        await server.values("later")
        assert [round(1000 * at) for at, _ in server.calls] == [0, *(ETCD_READ_MS * n for n in (1, 2, 3))]

    run(check)


def test_who_asks_while_a_call_is_under_way_gets_the_answer_of_a_later_one() -> None:
    async def check(server: Server) -> None:
        server.open.clear()
        first = asyncio.ensure_future(server.values("k"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        others = asyncio.ensure_future(server.values("k", "k", "none"))
        await asyncio.sleep(0)
        server.open.set()
        assert await first == ["v1"]
        assert await others == ["v2", "v2", None]
        assert [keys for _, keys in server.calls] == [["k"], ["k", "none"]]

    run(check)


def test_the_end_of_one_who_waits_is_not_that_of_others() -> None:
    async def check(server: Server) -> None:
        server.open.clear()
        one, other = (asyncio.ensure_future(server.reading.entry("k")) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        await asyncio.sleep(0)
        server.open.set()
        found = await other
        assert found is not None
        assert found.value == "v1"

    run(check)


@pytest.mark.parametrize("error", [CoordinatorError("etcd is away"), OSError("no socket")])
def test_when_a_call_fails_so_do_all_who_wait_and_the_next_is_tried(error: Exception) -> None:
    async def check(server: Server) -> None:
        server.open.clear()
        server.error = error
        first = asyncio.ensure_future(server.reading.entry("k"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waits = asyncio.ensure_future(server.reading.entry("k2"))
        await asyncio.sleep(0)
        server.open.set()
        for each in (first, waits):
            with pytest.raises(CoordinatorError):
                await each
        assert len(server.calls) == 1
        server.error = None
        assert await server.values("k2") == ["v2"]

    run(check)


def test_only_so_many_wait() -> None:
    async def check(server: Server) -> None:
        server.open.clear()
        waiting = [
            asyncio.ensure_future(server.reading.entry(f"k{number}")) for number in range(ETCD_READS_WAITING)
        ]
        await asyncio.sleep(0)
        again = asyncio.ensure_future(server.reading.entry("k0"))
        await asyncio.sleep(0)
        more = [asyncio.ensure_future(server.reading.entry(f"m{n}")) for n in range(ETCD_READ_KEYS + 1)]
        await asyncio.sleep(0)
        with pytest.raises(CoordinatorError, match="wait to be read"):
            await more[-1]
        server.open.set()
        await asyncio.gather(*waiting, again, *more[:-1], return_exceptions=True)
        assert len(server.calls) <= 2 + ETCD_READS_WAITING // ETCD_READ_KEYS

    run(check)
