"""Listing: what a caller may know of, in pages that cost as much as they show, a few names at a time."""

import asyncio
from collections.abc import Iterable

import pytest

from lightrail.cluster.coordinator import Write
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.model import limits
from lightrail.model.policy import QUEUE
from lightrail.namespace import listing
from lightrail.namespace.directory import Directory
from lightrail.namespace.listing import children, every_name
from lightrail.namespace.records import NAMES, Name, Permission, Right
from lightrail.namespace.rights import ANYBODY, Caller
from tests.support import work


async def directory_of(names: Iterable[str], *permissions: Permission) -> Directory:
    coordinator = MemoryCoordinator()
    for name in names:
        await coordinator.write([Write(NAMES + name, Name(name, QUEUE).to_value())])
    for permission in permissions:
        await coordinator.write([Write(permission.key, permission.to_value())])
    directory = Directory(coordinator)
    directory.refresh()
    return directory


async def shown(
    directory: Directory, caller: Caller, prefix: str = "", after: str = ""
) -> list[tuple[str, str, int]]:
    return [
        (record.name, str(record.role), below)
        async for record, below in children(directory, caller, prefix, after)
    ]


def test_children_have_the_number_of_names_below_them() -> None:
    async def check() -> None:
        directory = await directory_of(["a", "a!", "a/b", "a/b/c", "a/d", "x/y/z"])
        expected = [("a", "queue", 3), ("a!", "queue", 0), ("x", "none", 1)]
        assert await shown(directory, ANYBODY) == expected
        assert await shown(directory, ANYBODY, after="a") == expected[1:]
        assert await shown(directory, ANYBODY, after="a/b/c") == expected[1:]
        assert await shown(directory, ANYBODY, "a") == [("a/b", "queue", 1), ("a/d", "queue", 0)]
        assert await shown(directory, ANYBODY, "a", "a/b") == [("a/d", "queue", 0)]
        assert await shown(directory, ANYBODY, "a/d") == []

    asyncio.run(check())


def test_children_count_only_what_the_caller_may_know_of() -> None:
    async def check() -> None:
        bob = Caller("bob")
        directory = await directory_of(
            ["a", "a/b", "a/b/c", "d", "e/f"],
            Permission("bob", "a/b", frozenset({Right.SEND})),
            Permission("bob", "e", frozenset({Right.MANAGE})),
        )
        assert await shown(directory, bob) == [("a", "none", 2), ("e", "none", 1)]
        assert await shown(directory, Caller("eve")) == []

    asyncio.run(check())


@pytest.mark.parametrize("at_once", [1, 3])
def test_names_that_change_meanwhile_are_seen_behind_the_last_one(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "NAMES_AT_ONCE", at_once)

    async def check() -> None:
        coordinator = MemoryCoordinator()
        for name in ("b", "d", "f", "h"):
            await coordinator.write([Write(NAMES + name, Name(name, QUEUE).to_value())])
        directory = Directory(coordinator)
        found: list[str] = []
        async for record in every_name(directory, lambda _: ANYBODY):
            if not found:
                await coordinator.write([Write(NAMES + "h", None)])
                for name in ("a", "g"):
                    await coordinator.write([Write(NAMES + name, Name(name, QUEUE).to_value())])
                directory.refresh()
            found.append(record.name)
        assert found == ["b", "d", "f", "g"]

    asyncio.run(check())


def test_a_page_of_children_costs_the_same_among_many_names() -> None:
    async def cost(count: int) -> int:
        directory = await directory_of(f"{number % 100:02}/{number:05}" for number in range(count))
        directory.count("x")
        listed = children(directory, ANYBODY)

        def page() -> None:
            for _ in range(20):
                with pytest.raises(StopIteration):
                    anext(listed).__await__().send(None)

        return work.lines(page)

    assert asyncio.run(cost(4_000)) < asyncio.run(cost(200)) + 200


def test_other_work_runs_between_a_few_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NAMES_AT_ONCE", 10)
    monkeypatch.setattr(listing, "CHILDREN_AT_ONCE", 10)

    async def check() -> None:
        directory = await directory_of(f"n{number}" for number in range(100))
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        assert len([each async for each in every_name(directory, lambda _: ANYBODY)]) == 100
        assert turns >= 10
        turns = 0
        assert len(await shown(directory, ANYBODY)) == 100
        assert turns >= 10
        counting.cancel()

    asyncio.run(check())
