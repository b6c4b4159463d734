"""Every store keeps the same promises while it runs: one suite on the journal, SQLite and memory."""

import os
from pathlib import Path

import pytest

from lightrail.journal.record import REWRITTEN, SPILLED, Delivered, Ids, Numbers, Outcome, Settle, Taken
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.sqlite import SqliteStore
from lightrail.shard.journal.store import Store, StoreBrokenError, StoreError, StoreRefusedError, needs_sync
from lightrail.shard.queue.values.runs import Batch, Location, batch_of
from tests.contracts.stores import (
    DURABLE,
    STORES,
    Make,
    bodies,
    commit,
    declare,
    messages,
    opened,
    send,
    sqlite,
)
from tests.support.now import now


@STORES
def test_an_empty_store_recovers_nothing(make: Make, tmp_path: Path) -> None:
    store, recovered = opened(make, tmp_path)
    assert (recovered.queues, recovered.producers, recovered.epoch) == ([], {}, 0)
    store.close()


@STORES
def test_a_commit_takes_what_gathered_and_lets_more_gather(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    assert not now(store.pending)
    declare(store, 1)
    send(store, batch_of(bodies(3), durable=True), 0)
    assert now(store.pending)
    begun = store.begin_commit()
    assert (begun.records, begun.messages, begun.synced) == (2, 3, True)
    assert not now(store.pending)
    send(store, batch_of(bodies(2), durable=True), 3)
    assert now(store.pending)
    begun.perform()
    store.end_commit(begun)
    assert store.pending
    commit(store)
    usage = store.usage()
    assert usage.messages == 5
    assert usage.records >= 3
    assert usage.commits >= 2
    store.close()


@STORES
def test_spilled_messages_need_no_sync(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    commit(store)
    batch = batch_of(bodies(3))
    spilled = Append([(1, 0)], 0, 0, batch, 0, 3, 0, SPILLED)
    assert not needs_sync(spilled)
    location = store.append(spilled, 1)
    assert location is not None
    begun = store.begin_commit()
    assert not begun.synced
    begun.perform()
    store.end_commit(begun)
    assert messages(store.read(location, 1, 0, 3)) == bodies(3)
    store.append(Settle(1, [(0, 1)], Outcome.ACCEPTED), 1)
    begun = store.begin_commit()
    assert begun.synced
    begun.perform()
    store.end_commit(begun)
    store.close()


@STORES
def test_reads_find_what_is_gathered_in_flight_and_committed(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    first = send(store, batch_of(bodies(2), durable=True), 0)
    begun = store.begin_commit()
    second = send(store, batch_of(bodies(2, 3_000, 2), durable=True), 2)
    assert messages(store.read(first, 1, 0, 2)) == bodies(2)
    assert messages(store.read(second, 1, 2, 4)) == bodies(2, 3_000, 2)
    begun.perform()
    assert messages(store.read(first, 1, 0, 2)) == bodies(2)
    store.end_commit(begun)
    commit(store)
    whole = Location(first.segment, first.offset, second.offset + second.length - first.offset)
    runs = store.read(whole, 1, 1, 3)
    assert [(run.sequence, run.count) for run in runs] == [(1, 1), (2, 1)]
    assert messages(runs) == [bodies(2)[1], bodies(1, 3_000, 2)[0]]
    assert store.read(whole, 2, 0, 9) == []
    store.close()


@STORES
def test_reads_give_a_sequence_as_it_was_written_last(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    first = send(store, batch_of(bodies(5), durable=True), 0)
    last = send(store, batch_of([b"new"], durable=True), 2, flags=REWRITTEN, attempts=4)
    commit(store)
    whole = Location(first.segment, first.offset, last.offset + last.length - first.offset)
    runs = store.read(whole, 1, 0, 5)
    old = bodies(5)
    assert messages(runs) == [old[0], old[1], b"new", old[3], old[4]]
    assert [run.attempts for run in runs] == [0, 4, 0]
    store.close()


@STORES
def test_reads_of_what_is_not_there_say_so(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    with pytest.raises(StoreError):
        store.read(Location(77, 5_000, 10), 1, 0, 1)
    store.close()


@STORES
def test_after_a_failed_commit_everything_is_refused(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    begun = store.begin_commit()
    store.fail_commit(begun, OSError(5, "broken"))
    with pytest.raises(StoreBrokenError, match="broken"):
        declare(store, 2)
    with pytest.raises(StoreBrokenError, match="broken"):
        store.begin_commit()
    assert "broken" in store.usage().broken
    assert "broken" in store.failure
    store.close()


@STORES
def test_a_store_that_works_has_no_failure_and_counts_its_records(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    assert (store.failure, store.no_room) == ("", "")
    before = store.position.lsn
    declare(store, 1)
    send(store, batch_of([b"a"], durable=True), 0)
    assert store.position.lsn == before + 2
    store.close()


def test_sqlite_that_can_not_ask_for_free_space_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = opened(sqlite, tmp_path)
    declare(store, 1)

    def fails(_: object) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr("os.statvfs", fails)
    with pytest.raises(StoreBrokenError, match="input/output"):
        send(store, batch_of([b"a"], durable=True), 0)
    monkeypatch.undo()
    assert "input/output" in store.failure
    with pytest.raises(StoreBrokenError):
        declare(store, 2)
    store.close()


def test_sqlite_reads_what_the_disk_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = opened(sqlite, tmp_path)
    store.close()
    forgotten: list[int] = []
    monkeypatch.setattr("os.posix_fadvise", lambda _, first, length, advice: forgotten.append(advice))
    (tmp_path / "store.sqlite-wal").touch()
    store, _ = opened(sqlite, tmp_path)
    assert forgotten == [os.POSIX_FADV_DONTNEED] * 2
    store.close()


@STORES
def test_evicted_batches_can_not_be_appended(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    with pytest.raises(ValueError, match="fetch it first"):
        send(store, Batch(None, None, 3, 30, location=Location(1, 2, 3)), 0)
    store.close()


@STORES
def test_a_batch_may_change_its_owner_after_append(make: Make, tmp_path: Path) -> None:
    """The queue forgets the data of an evicted batch; what was appended must not care."""
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    batch = batch_of(bodies(3, 2_000), durable=True)
    location = send(store, batch, 0)
    batch.data = batch.ends = None
    commit(store)
    assert messages(store.read(location, 1, 0, 3)) == bodies(3, 2_000)
    store.close()


@STORES
def test_every_store_takes_every_record(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    store.append(Ids(1, 5_000, b"a" * 16), 1_000)
    store.append(Taken(1, 1, 1), 1_000)
    store.append(Numbers(1, 7, [(5, 1, 0)]), 1_000)
    commit(store)
    store.append(Delivered(1, 5, [(0, 2)]), 1_000)
    if store.pending:
        begun = store.begin_commit()
        assert not begun.synced, "only readers of the journal want to know of deliveries"
        begun.perform()
        store.end_commit(begun)
    store.close()


@DURABLE
def test_a_store_is_held_by_one_process_and_belongs_to_one_shard(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    with pytest.raises(StoreRefusedError, match="another process"):
        opened(make, tmp_path)
    store.close()
    foreign: list[Store] = [
        Journal(RealFiles(tmp_path / "journal"), "other", 3),
        Journal(RealFiles(tmp_path / "journal"), "cluster", 4),
    ]
    if make is sqlite:
        foreign = [
            SqliteStore(tmp_path / "store.sqlite", "other", 3),
            SqliteStore(tmp_path / "store.sqlite", "cluster", 4),
        ]
    for other in foreign:
        with pytest.raises(StoreRefusedError, match="its own"):
            other.recover(0, 1)
    store, _ = opened(make, tmp_path)
    store.close()
