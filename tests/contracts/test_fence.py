"""What a process writes depends on its fence, whatever it writes and to whichever coordinator."""

import ast
import inspect
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import lightrail
from lightrail.cluster import moves
from lightrail.cluster.coordinator import (
    WRITES_MAX,
    Coordinator,
    CoordinatorError,
    FencedError,
    Write,
    unchanged,
)
from lightrail.cluster.map import PLACEMENT, Map, Move, Placed
from lightrail.cluster.users import UserRecord
from tests.contracts.coordinators import Run

OWNER: Final = "replicas/0"
"""An entry by which a process owns a shard."""
USER: Final = UserRecord.make("alice", "secret", iterations=1)
OTHER: Final = UserRecord.make("bob", "secret", iterations=1)
WRITERS: Final[dict[str, Callable[[Coordinator], Awaitable[object]]]] = {
    "write": lambda space: space.write([Write("names/a", "2")]),
    "register": lambda space: space.register("shards/0", "2", lambda _: None),
    "unregister": lambda space: space.unregister("shards/1"),
    "set_shards": lambda space: space.set_shards(3),
    "place": lambda space: space.place("new"),
    "add_user": lambda space: space.add_user(OTHER),
    "replace_user": lambda space: space.replace_user(UserRecord.make("alice", "new", iterations=1)),
    "remove_user": lambda space: space.remove_user("alice"),
}
"""The methods that write in the name of a process."""
OTHERS: Final = frozenset(
    (
        *("cluster_id", "secret", "entry", "current", "entries", "news", "on_news", "remaining_ms", "close"),
        *("members", "replicas_max"),
        *("shards", "placement", "placements", "user", "users", "has_users"),
        # An operator's repair of a coordinator that was set back, which writes the entries of fences again.
        "put_back",
    )
)


def test_each_method_of_the_port_that_writes_is_checked_here() -> None:
    methods = {name for name, _ in inspect.getmembers(Coordinator, inspect.isfunction) if name[0] != "_"}
    assert methods == WRITERS.keys() | OTHERS


async def prepared(coordinator: Coordinator) -> int:
    """Entries that each writer can change; returns the revision of the owner's."""
    await coordinator.set_shards(2)
    await coordinator.add_user(USER)
    await coordinator.register("shards/1", "1", lambda _: None)
    await coordinator.write([Write("names/a", "1")])
    return await coordinator.write([Write(OWNER, "A")])


@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_whose_fence_has_fallen_changes_nothing(run: Run, writer: str) -> None:
    async def check(coordinator: Coordinator) -> None:
        coordinator.fence.set(OWNER, await prepared(coordinator))
        await coordinator.write([Write("names/b", "1")])
        # As another process does that takes over.
        coordinator.fence.lift(OWNER)
        taken = await coordinator.write([Write(OWNER, "B")])
        coordinator.fence.set(OWNER, taken - 1)
        before = await coordinator.entries("")
        with pytest.raises(FencedError, match=f"{OWNER} is not at revision {taken - 1}") as failed:
            await WRITERS[writer](coordinator)
        assert not failed.value.may_be_written
        assert await coordinator.entries("") == before

    run(check)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_whose_fence_stands_writes(run: Run, writer: str) -> None:
    async def check(coordinator: Coordinator) -> None:
        coordinator.fence.set(OWNER, await prepared(coordinator))
        coordinator.fence.set("replicas/1", 0)
        before = await coordinator.entries("")
        await WRITERS[writer](coordinator)
        after = await coordinator.entries("")
        assert after != before
        assert next(each for each in after if each.key == OWNER) in before

    run(check)


def test_an_owner_that_changes_its_own_entry_goes_on(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        first = await coordinator.write([Write(OWNER, "A")])
        coordinator.fence.set(OWNER, first)
        for guard in (None, 0, first - 1, first + 1):
            # Of another revision this process has read, at best, that it is not the owner.
            with pytest.raises(FencedError, match=OWNER):
                await coordinator.write([Write(OWNER, "A2", guard)])
        second = await coordinator.write([Write(OWNER, "A2", first), Write("names/a", "1")])
        await coordinator.write([unchanged(OWNER, second), Write("names/b", "1")])
        await coordinator.write([Write(OWNER, None, second)])
        await coordinator.write([Write("names/c", "1")])
        assert [each.key for each in await coordinator.entries("")] == ["names/a", "names/b", "names/c"]

    run(check)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_fence_falls_where_its_revision_is_that_of_another_value(run: Run, writer: str) -> None:
    """After etcd was restored from a backup, revisions are used again."""

    async def check(coordinator: Coordinator) -> None:
        revision = await prepared(coordinator)
        coordinator.fence.set(OWNER, revision, "of a lost history")
        before = await coordinator.entries("")
        with pytest.raises(FencedError, match=OWNER):
            await WRITERS[writer](coordinator)
        with pytest.raises(FencedError, match=OWNER):
            await coordinator.write([Write(OWNER, "A2", revision)])
        assert await coordinator.entries("") == before
        coordinator.fence.set(OWNER, revision, "A")
        await coordinator.write([Write(OWNER, "A2", revision)])
        await WRITERS[writer](coordinator)

    run(check)


def test_as_many_writes_as_without_a_fence_fit_into_a_transaction(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        for id in range(3):
            coordinator.fence.set(f"replicas/{id}", 0)
        await coordinator.write([Write(f"names/{number}", "1", 0) for number in range(WRITES_MAX)])
        assert len(await coordinator.entries("names/")) == WRITES_MAX

    run(check)


def test_a_guard_that_does_not_hold_is_no_fallen_fence(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        coordinator.fence.set(OWNER, await coordinator.write([Write(OWNER, "A")]))
        await coordinator.write([Write("names/a", "1")])
        with pytest.raises(CoordinatorError, match="names/a was changed by another process") as failed:
            await coordinator.write([Write("names/a", "2", 0)])
        assert not isinstance(failed.value, FencedError)

    run(check)


MOVES: Final[dict[str, Callable[[Coordinator, Move, Placed], Awaitable[object]]]] = {
    "freeze": lambda space, move, _: moves.freeze(space, move),
    "renew": lambda space, move, _: moves.renew(space, move),
    "commit": moves.commit,
    "give_up": moves.give_up,
}


async def moving(coordinator: Coordinator) -> tuple[Move, Placed]:
    """A queue that moves from shard 0 to shard 1."""
    await coordinator.write([Write(PLACEMENT + "q", Placed.encode(0))])
    map = Map(coordinator)
    map.refresh()
    await moves.begin(coordinator, map, [("q", 1)], now_ms=1)
    map.refresh()
    placed = map.placed("q")
    assert placed is not None
    return map.moves["q"], placed


@pytest.mark.parametrize("step", MOVES)
def test_a_destination_that_is_no_owner_any_more_changes_no_move(run: Run, step: str) -> None:
    """Its successor has dropped the copy: after a commit the source would delete the only messages."""

    async def check(coordinator: Coordinator) -> None:
        move, placed = await moving(coordinator)
        first = await coordinator.write([Write(OWNER, "A")])
        await coordinator.write([Write(OWNER, "B")])
        coordinator.fence.set(OWNER, first)
        before = await coordinator.entries("")
        with pytest.raises(FencedError, match=OWNER):
            await MOVES[step](coordinator, move, placed)
        assert await coordinator.entries("") == before

    run(check)


# --- nobody passes it by -----------------------------------------------------------------------------

SOURCES: Final = Path(lightrail.__file__).parent
SENDERS: Final = {
    "_commit": {"cluster/keyed.py: write"},
    "_transact": {
        "cluster/etcd/coordinator.py: _commit",
        "cluster/etcd/coordinator.py: _register",
        "cluster/etcd/coordinator.py: put_back",
        # These are given `_register`.
        "cluster/etcd/leases.py: __init__",
        "cluster/etcd/leases.py: _write",
        "cluster/etcd/leases.py: _register_again",
    },
    "transact": {
        "cluster/etcd/coordinator.py: _call",
        # The identity is written before there is anything to own; the other one is refused in any case.
        "cluster/etcd/client.py: identify",
        "cluster/etcd/calls.py: look_for_space",
    },
}
"""The functions that use what sends transactions."""
MAKERS: Final = frozenset(
    ("open_coordinator", "EtcdClient", "EtcdCoordinator", "SqliteCoordinator", "MemoryCoordinator")
)
OPENERS: Final = ("cli/", "cluster/etcd/", "cluster/opening.py", "cluster/joining.py")
"""Modules that make coordinators: processes open theirs in `Joining`, and commands own no shard."""


def modules(below: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((SOURCES / below).rglob("*.py")):
        yield str(path.relative_to(SOURCES)), ast.parse(path.read_text())


def uses(name: str) -> Iterator[str]:
    for path, module in modules("cluster"):
        for function in ast.walk(module):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                nodes = ast.walk(function)
                if any(isinstance(each, ast.Attribute) and each.attr == name for each in nodes):
                    yield f"{path}: {function.name}"


@pytest.mark.parametrize("name", SENDERS)
def test_transactions_are_sent_through_the_fence(name: str) -> None:
    assert set(uses(name)) == SENDERS[name]


def test_a_process_has_one_coordinator_and_with_it_one_fence() -> None:
    """So whatever a shard's process writes is fenced, in whichever module that is."""
    for path, module in modules(""):
        made = {
            alias.name
            for node in ast.walk(module)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert not made & MAKERS or path.startswith(OPENERS), f"{path} makes {made & MAKERS}"
