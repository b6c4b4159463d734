"""The stores that keep the same promises, and how the tests of these speak with one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lightrail.journal.record import Queue, QueueEvent
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.memory import MemoryStore
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.sqlite import SqliteStore
from lightrail.shard.journal.store import Recovered, Store
from lightrail.shard.queue.values.runs import Batch, Location, Run

ALL = 1 << 40


def journal(path: Path) -> Store:
    return Journal(RealFiles(path / "journal"), "cluster", 3, segment_bytes=256 * 1024)


def sqlite(path: Path) -> Store:
    return SqliteStore(path / "store.sqlite", "cluster", 3, reserve_bytes=0)


def memory(path: Path) -> Store:
    return MemoryStore()


STORES = pytest.mark.parametrize("make", [journal, sqlite, memory])
DURABLE = pytest.mark.parametrize("make", [journal, sqlite])
Make = Callable[[Path], Store]


def opened(make: Make, path: Path, memory_bytes: int = ALL) -> tuple[Store, Recovered]:
    store = make(path)
    return store, store.recover(memory_bytes, 1)


def commit(store: Store) -> None:
    if store.pending:
        begun = store.begin_commit()
        begun.perform()
        store.end_commit(begun)


def again(store: Store, make: Make, path: Path, memory_bytes: int = ALL) -> tuple[Store, Recovered]:
    commit(store)
    store.close(9)
    return opened(make, path, memory_bytes)


def messages(runs: list[Run]) -> list[bytes]:
    return [message for run in runs for message in run.messages()]


def bodies(count: int, size: int = 10, start: int = 0) -> list[bytes]:
    return [str(number).encode().ljust(size, b".") for number in range(start, start + count)]


def send(
    store: Store, batch: Batch, sequence: int, queue: int = 1, flags: int = 0, attempts: int = 0
) -> Location:
    location = store.append(Append([(queue, sequence)], 0, 0, batch, 0, batch.count, attempts, flags), 1_000)
    assert location is not None
    return location


def declare(store: Store, *queues: int) -> None:
    for queue in queues:
        store.append(Queue(QueueEvent.DECLARED, queue, f"queue/{queue}"), 1_000)
