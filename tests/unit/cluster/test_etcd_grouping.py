"""Transactions that wait for etcd together are few calls, each is whole or not at all, none waits in vain."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from lightrail.cluster.coordinator import (
    WRITES_MAX,
    ConflictError,
    CoordinatorError,
    Write,
    unchanged,
)
from lightrail.cluster.etcd import grouping
from lightrail.cluster.etcd.grouping import Grouping
from lightrail.model import limits

CALL_S = 5.0


class Server:
    """An etcd whose calls are answered when the test answers them; a clock that the test sets."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.now = 0.0
        self.calls: list[tuple[list[Write], asyncio.Future[None]]] = []
        self.answered = 0
        self.entries: dict[str, str | None] = {}
        self.grouping = Grouping(self._send, _Clock(loop, self), CALL_S)  # type: ignore[arg-type]

    async def _send(self, writes: Sequence[Write]) -> tuple[int, bool]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.calls.append((list(writes), answer))
        await answer
        taken = [each.key for each in writes if each.guard == 0 and each.key in self.entries]
        if taken:
            raise ConflictError(*taken)
        self.entries |= {each.key: each.value for each in writes if not each.is_check}
        return self.answered, True

    def write(self, *keys: str) -> "asyncio.Task[tuple[int, bool]]":
        return asyncio.ensure_future(self.grouping.write([Write(key, "v", 0) for key in keys]))

    async def answer(self, error: Exception | None = None) -> None:
        """Answers all calls that were sent, in order."""
        for _ in range(3):
            await asyncio.sleep(0)
        calls, self.calls = self.calls, []
        for _, answer in calls:
            self.answered += 1
            answer.set_exception(error) if error else answer.set_result(None)
        for _ in range(5):
            await asyncio.sleep(0)


class _Clock:
    def __init__(self, loop: asyncio.AbstractEventLoop, server: Server) -> None:
        self._server = server
        self.create_future = loop.create_future
        self.create_task = loop.create_task

    def time(self) -> float:
        return self._server.now


def run(check: Callable[[Server], Awaitable[None]]) -> None:
    async def checked() -> None:
        await check(Server())

    asyncio.run(checked())


def test_transactions_that_check_one_entry_share_calls() -> None:
    """Thousands of subscribers of one router arrive at once."""

    async def check(server: Server) -> None:
        made = [
            asyncio.ensure_future(server.grouping.write([Write(f"s{number}", "v", 0), unchanged("r", 7)]))
            for number in range(3_000)
        ]
        while not all(each.done() for each in made):
            await server.answer()
        assert [each.exception() for each in made if each.exception()] == []
        assert server.answered <= limits.ETCD_THREADS + -(-2 * 3_000 // WRITES_MAX)

    run(check)


def test_a_transaction_that_checks_what_another_one_writes_or_expects_otherwise_is_sent_later() -> None:
    async def check(server: Server) -> None:
        for number in range(limits.ETCD_THREADS):
            server.write(f"busy{number}")
        for writes in (
            [Write("a", "v"), unchanged("r", 7)],
            [Write("b", "v"), unchanged("r", 8)],
            [Write("r", "v")],
            [Write("c", "v"), unchanged("r", 9)],
        ):
            asyncio.ensure_future(server.grouping.write(writes))  # noqa: RUF006
        await server.answer()
        assert [[each.key for each in writes] for writes, _ in server.calls] == [
            ["a", "r"],
            ["b", "r"],
            ["r"],
            ["c", "r"],
        ]

    run(check)


@pytest.mark.parametrize("count", [3_000, 10_000])
def test_many_new_names_at_once_are_few_calls(count: int) -> None:
    async def check(server: Server) -> None:
        names = [server.write(f"n{number}") for number in range(count)]
        turns = 0
        while not all(each.done() for each in names):
            await server.answer()
            turns += 1
            # Each turn takes longer than a call may take.
            server.now += CALL_S + 1
        assert [each.exception() for each in names if each.exception()] == []
        assert server.answered <= limits.ETCD_THREADS + -(-count // WRITES_MAX)
        assert turns <= 1 + -(-server.answered // limits.ETCD_THREADS)

    run(check)


def test_a_transaction_alone_is_sent_at_once() -> None:
    async def check(server: Server) -> None:
        made = server.write("a", "b")
        await server.answer()
        assert made.result() == (1, True)
        assert server.entries == {"a": "v", "b": "v"}

    run(check)


def test_transactions_whose_guards_do_not_hold_fail_alone() -> None:
    async def check(server: Server) -> None:
        server.entries = dict.fromkeys(("n7", "n9"))
        names = [server.write(f"n{number}", f"p{number}") for number in range(20)]
        while not all(each.done() for each in names):
            await server.answer()
        failed = {number: each.exception() for number, each in enumerate(names) if each.exception()}
        assert failed.keys() == {7, 9}
        assert isinstance(failed[7], ConflictError)
        assert failed[7].key == "n7"
        assert "p7" not in server.entries
        assert server.answered < 15

    run(check)


def test_transactions_of_one_key_are_not_sent_together() -> None:
    async def check(server: Server) -> None:
        first = [server.write(f"other{number}") for number in range(limits.ETCD_THREADS)]
        two = [server.write("same"), server.write("same")]
        while not all(each.done() for each in [*first, *two]):
            await server.answer()
        assert two[0].exception() is None
        assert isinstance(two[1].exception(), ConflictError)

    run(check)


def test_an_etcd_that_does_not_answer_fails_what_has_waited_for_the_time_of_a_call() -> None:
    async def check(server: Server) -> None:
        early = [server.write(f"early{number}") for number in range(1_000)]
        await asyncio.sleep(0)
        server.now = CALL_S + 1
        late = server.write("late")
        await server.answer(CoordinatorError("etcd is away"))
        assert all(each.done() and isinstance(each.exception(), CoordinatorError) for each in early)
        assert not late.done()
        await server.answer()
        assert late.result()[1]

    run(check)


def test_a_cancelled_transaction_that_waits_is_not_sent() -> None:
    async def check(server: Server) -> None:
        first = [server.write(f"n{number}") for number in range(limits.ETCD_THREADS)]
        cancelled, other = server.write("cancelled"), server.write("other")
        await asyncio.sleep(0)
        cancelled.cancel()
        while not all(each.done() for each in [*first, other]):
            await server.answer()
        assert "cancelled" not in server.entries
        assert "other" in server.entries

    run(check)


def test_writes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ETCD_CALLS_WAITING", 10)

    async def check(server: Server) -> None:
        names = [server.write(f"n{number}") for number in range(10 + limits.ETCD_THREADS + 1)]
        while not all(each.done() for each in names):
            await server.answer()
        failed = [each for each in names if each.exception()]
        assert len(failed) == 1
        assert "10 writes wait for etcd already" in str(failed[0].exception())

    run(check)


def test_a_group_has_bounded_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "ETCD_GROUP_BYTES", 10)

    async def check(server: Server) -> None:
        names = [server.write(f"name{number}") for number in range(8)]
        while not all(each.done() for each in names):
            await asyncio.sleep(0)
            assert all(len(writes) <= 2 for writes, _ in server.calls)
            await server.answer()

    run(check)
