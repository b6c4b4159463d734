"""The SQLite coordinator: what is there after a restart, and for many processes at once."""

import asyncio
import json
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lightrail.cluster.coordinator import CoordinatorError, Write
from lightrail.cluster.entries import Entry
from lightrail.cluster.map import ShardRecord
from lightrail.cluster.sqlite import APPLICATION_ID, SqliteCoordinator
from lightrail.cluster.users import UserRecord
from lightrail.model.placement import Placement

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
        (f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 4", "format version 4"),
        (f"PRAGMA application_id = {APPLICATION_ID + 1}", "another program"),
    ],
)
def test_a_foreign_or_newer_file_is_refused(tmp_path: Path, statements: str, said: str) -> None:
    path = str(tmp_path / "c.sqlite")
    file = sqlite3.connect(path)
    file.executescript(statements)
    file.close()
    with pytest.raises(CoordinatorError, match=said):
        asyncio.run(SqliteCoordinator.open(path))


VERSION_1 = """
CREATE TABLE identity (cluster_id TEXT NOT NULL, secret BLOB NOT NULL) STRICT;
CREATE TABLE shards (id INTEGER PRIMARY KEY, queues INTEGER NOT NULL) STRICT;
CREATE TABLE placements (
    queue TEXT PRIMARY KEY, shard INTEGER NOT NULL, epoch INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE users (
    name TEXT NOT NULL, hash TEXT NOT NULL, salt BLOB NOT NULL, iterations INTEGER NOT NULL,
    stored_key BLOB NOT NULL, server_key BLOB NOT NULL, PRIMARY KEY (name, hash)
) STRICT, WITHOUT ROWID;
INSERT INTO identity VALUES ('0123456789abcdef0123456789abcdef', x'00');
INSERT INTO shards VALUES (0, 2), (1, 2);
INSERT INTO placements VALUES ('a/q', 1, 1), ('a/q/$dlq', 1, 1), ('b', 0, 3), ('b/$dlq', 0, 3);
"""
VERSION_2 = """
CREATE TABLE revisions (newest INTEGER NOT NULL, forgotten INTEGER NOT NULL) STRICT;
CREATE TABLE entries (
    key TEXT PRIMARY KEY, value TEXT, created INTEGER NOT NULL, revision INTEGER NOT NULL,
    at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX entries_by_revision ON entries (revision);
INSERT INTO revisions VALUES (7, 2);
INSERT INTO entries VALUES ('names/b', '{"policy":{"role":"queue"}}', 4, 6, 0), ('names/c', NULL, 5, 7, 0);
"""
ALICE = UserRecord.make("alice", "secret", iterations=1)
BOB = UserRecord.make("b/ob", "other", iterations=2)


def write_old(path: Path, version: int) -> None:
    file = sqlite3.connect(path)
    file.executescript(VERSION_1 + (VERSION_2 if version == 2 else ""))
    for user in (ALICE, BOB):
        for hash, keys in (("sha256", user.sha256), ("sha512", user.sha512)):
            row = (user.name, hash, keys.salt, keys.iterations, keys.stored_key, keys.server_key)
            file.execute("INSERT INTO users VALUES (?, ?, ?, ?, ?, ?)", row)
    file.executescript(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version}")
    file.close()


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_an_older_version_keeps_queues_shards_and_users(tmp_path: Path, version: int) -> None:
    path = tmp_path / "c.sqlite"
    write_old(path, version)

    async def read() -> None:
        coordinator = await SqliteCoordinator.open(str(path))
        entries = {each.key: each for each in await coordinator.entries("")}
        assert await coordinator.cluster_id() == "0123456789abcdef0123456789abcdef"
        assert await coordinator.shards() == 2
        assert await coordinator.placements() == {"a/q": Placement(1, 1), "b": Placement(0, 3)}
        assert (await coordinator.place("b/$dlq")).shard == 0
        assert await coordinator.user("alice") == ALICE
        assert await coordinator.user("b/ob") == BOB
        newest = {1: 2, 2: 8}[version]
        assert entries["placement/b"] == Entry("placement/b", '{"shard":0,"epoch":3}', newest, newest)
        assert entries["shardsets/1"].value == ShardRecord(1).encode()
        if version == 1:
            # What was placed was a queue, and every user could do everything.
            assert entries["names/a/q"].value == '{"policy":{"role":"queue"}}'
            assert entries["permissions/alice//"].value == '{"rights":["listen","manage","send"]}'
            assert entries["permissions/b%2Fob//"].value == '{"rights":["listen","manage","send"]}'
        else:
            assert entries["names/b"] == Entry("names/b", '{"policy":{"role":"queue"}}', 4, 6)
            news = coordinator.news(6)
            assert news is not None
            assert news.entries[0] == Entry("names/c", None, 5, 7)
        assert await coordinator.write([Write("names/other", "{}", 0)]) == newest + 1
        await coordinator.close()

    asyncio.run(read())
    asyncio.run(read_again(path))


async def read_again(path: Path) -> None:
    coordinator = await SqliteCoordinator.open(str(path))
    assert await coordinator.users() == ["alice", "b/ob"]
    assert (await coordinator.place("b")).epoch == 3
    await coordinator.close()


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
