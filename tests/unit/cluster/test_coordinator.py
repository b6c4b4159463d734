"""The fence alone: what is sent with each transaction, and what becomes of it."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from lightrail.cluster.coordinator import (
    ConflictError,
    CoordinatorError,
    Fence,
    FencedError,
    Write,
    unchanged,
)


class Store:
    """Answers each transaction with the next of some answers."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.sent: list[Sequence[Write]] = []

    async def commit(self, writes: Sequence[Write]) -> int:
        self.sent.append(writes)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


WRITES = [Write("a", "1", 3)]


def test_without_a_fence_the_very_writes_are_sent() -> None:
    async def story() -> None:
        store, fence = Store(7, 8), Fence()
        assert await fence.write(WRITES, store.commit) == 7
        fence.set("r", 5)
        fence.lift("r")
        assert await fence.write(WRITES, store.commit) == 8
        assert store.sent[0] is WRITES
        assert store.sent[1] is WRITES

    run(story())


def test_a_fence_is_checked_before_all_else() -> None:
    async def story() -> None:
        store, fence = Store(7), Fence()
        fence.set("r", 5)
        fence.set("s", 0)
        assert await fence.write(WRITES, store.commit) == 7
        assert store.sent == [[unchanged("r", 5), unchanged("s", 0), *WRITES]]

    run(story())


@pytest.mark.parametrize("keys", [("r",), ("r", "a"), ("a", "r")])
def test_a_fence_that_has_fallen_counts_before_a_guard(keys: tuple[str, ...]) -> None:
    async def story() -> None:
        store, fence = Store(ConflictError(*keys)), Fence()
        fence.set("r", 5)
        with pytest.raises(FencedError, match="r is not at revision 5") as failed:
            await fence.write(WRITES, store.commit)
        assert failed.value.key == "r"

    run(story())


def test_a_guard_that_does_not_hold_is_the_writers() -> None:
    async def story() -> None:
        store, fence = Store(ConflictError("a")), Fence()
        fence.set("r", 5)
        with pytest.raises(ConflictError):
            await fence.write(WRITES, store.commit)

    run(story())


def test_the_fence_follows_what_its_process_writes() -> None:
    async def story() -> None:
        store, fence = Store(6, 7, 8, 9), Fence()
        fence.set("r", 5)
        await fence.write([Write("r", "2", 5)], store.commit)
        await fence.write([unchanged("r", 6), *WRITES], store.commit)
        await fence.write([Write("r", None, 6)], store.commit)
        await fence.write(WRITES, store.commit)
        assert store.sent[1] == [unchanged("r", 6, "2"), *WRITES]
        assert store.sent[3] == [unchanged("r", 0), *WRITES]

    run(story())


def test_after_a_lost_answer_the_fence_stays() -> None:
    async def story() -> None:
        store, fence = Store(CoordinatorError("no answer"), 7), Fence()
        fence.set("r", 5)
        with pytest.raises(CoordinatorError, match="no answer"):
            await fence.write([Write("r", "2", 5)], store.commit)
        await fence.write(WRITES, store.commit)
        assert store.sent[1] == [unchanged("r", 5), *WRITES]

    run(story())


def test_a_fence_that_was_set_during_a_write_stays_as_it_was_set() -> None:
    async def story() -> None:
        fence = Fence()
        fence.set("r", 5)

        async def commit(writes: Sequence[Write]) -> int:
            fence.set("r", 9)
            return 6

        await fence.write([Write("r", "2", 5)], commit)
        store = Store(7)
        await fence.write(WRITES, store.commit)
        assert store.sent == [[unchanged("r", 9), *WRITES]]

    run(story())
