"""The SQLite coordinator: what is there after a restart, and for many processes at once."""

import asyncio
import json
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.sqlite import APPLICATION_ID, SqliteCoordinator
from lightrail.cluster.users import UserRecord

PLACER = """
import asyncio, json, sys
from lightrail.cluster.sqlite import SqliteCoordinator

async def place():
    coordinator = await SqliteCoordinator.open(sys.argv[1])
    sys.stdin.readline()
    placed = {name: await coordinator.place(name) for name in (f"q{number}" for number in range(20))}
    await coordinator.close()
    print(json.dumps(placed))

print("opened", flush=True)
asyncio.run(place())
"""


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "c.sqlite")

    async def write() -> tuple[object, ...]:
        coordinator = await SqliteCoordinator.open(path)
        await coordinator.set_shards(2)
        await coordinator.place("a/$dlq")
        await coordinator.add_user(UserRecord.make("alice", "secret", iterations=1))
        try:
            return await read(coordinator)
        finally:
            await coordinator.close()

    async def read(coordinator: SqliteCoordinator) -> tuple[object, ...]:
        return (
            await coordinator.cluster_id(),
            await coordinator.secret(),
            await coordinator.shards(),
            await coordinator.placements(),
            await coordinator.user("alice"),
        )

    async def again() -> tuple[object, ...]:
        coordinator = await SqliteCoordinator.open(path)
        try:
            return await read(coordinator)
        finally:
            await coordinator.close()

    assert asyncio.run(write()) == asyncio.run(again())


def test_processes_that_place_the_same_queues_agree(tmp_path: Path) -> None:
    path = str(tmp_path / "c.sqlite")

    async def prepare() -> None:
        coordinator = await SqliteCoordinator.open(path)
        await coordinator.set_shards(4)
        await coordinator.close()

    asyncio.run(prepare())
    placers = [
        subprocess.Popen([sys.executable, "-c", PLACER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    for placer in placers:
        assert placer.stdout is not None
        assert placer.stdout.readline() == b"opened\n"
    answers = []
    for placer in placers:
        output, _ = placer.communicate(b"go\n", timeout=60)
        answers.append(json.loads(output))
    assert answers[0] == answers[1] == answers[2]
    shards = [shard for shard, _ in answers[0].values()]
    # What others place at the same moment is seen a moment later, and made up for.
    assert all(4 <= shards.count(shard) <= 6 for shard in range(4))


def test_the_file_is_for_its_owner_only_and_holds_no_password(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"

    async def write() -> None:
        coordinator = await SqliteCoordinator.open(str(path))
        await coordinator.add_user(UserRecord.make("alice", "correct horse battery", iterations=1))
        await coordinator.close()

    asyncio.run(write())
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert b"correct horse" not in file.read_bytes()


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        ("CREATE TABLE other (x)", "another program"),
        (f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 2", "format version 2"),
        (f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 4", "format version 4"),
        (f"PRAGMA application_id = {APPLICATION_ID + 1}", "another program"),
    ],
)
def test_a_foreign_newer_or_older_file_is_refused(tmp_path: Path, statements: str, said: str) -> None:
    path = str(tmp_path / "c.sqlite")
    file = sqlite3.connect(path)
    file.executescript(statements)
    file.close()
    with pytest.raises(CoordinatorError, match=said):
        asyncio.run(SqliteCoordinator.open(path))


@pytest.mark.parametrize("content", [b"this is no database, only text that somebody wrote here" * 20])
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.sqlite"
    path.write_bytes(content)
    with pytest.raises(CoordinatorError, match="not a database"):
        asyncio.run(SqliteCoordinator.open(str(path)))
    assert path.read_bytes() == content


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CoordinatorError, match="absent"):
        asyncio.run(SqliteCoordinator.open(str(tmp_path / "absent" / "c.sqlite")))
