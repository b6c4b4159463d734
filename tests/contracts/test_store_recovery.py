"""What the stores that last hold after a restart: one suite on the journal and SQLite."""

import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from lightrail.journal.record import (
    CONTINUED,
    REWRITTEN,
    SPILLED,
    Delivered,
    Epoch,
    Ids,
    Numbers,
    Outcome,
    Queue,
    QueueEvent,
    Seal,
    Settle,
    Taken,
    Terminus,
    TerminusEvent,
)
from lightrail.model import limits
from lightrail.model.attempts import waiting
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.sqlite import SqliteStore
from lightrail.shard.journal.store import Store
from lightrail.shard.queue.values.runs import Batch, batch_of
from tests.contracts.stores import (
    ALL,
    DURABLE,
    Make,
    again,
    bodies,
    commit,
    declare,
    messages,
    opened,
    send,
    sqlite,
)
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.journal_writer import Writer, script, shown


@DURABLE
def test_messages_survive_with_all_their_attributes(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    batch = batch_of(
        [b"", b"a", b"bc" * 3_000],
        durable=True,
        priority=9,
        expires_at_ms=123_456,
        enqueued_at_ms=99,
        message_format=7,
    )
    store.append(Append([(1, 40)], (1 << 64) - 1, 5, batch, 0, 3, 2), 1_000)
    store, recovered = again(store, make, tmp_path)
    [queue] = recovered.queues
    assert (queue.queue, queue.name, queue.policy, queue.next_sequence) == (1, "queue/1", "{}", 43)
    [run] = queue.runs
    assert (run.sequence, run.count, run.attempts) == (40, 3, 2)
    found = run.batch
    assert (found.durable, found.priority, found.expires_at_ms) == (True, 9, 123_456)
    assert (found.enqueued_at_ms, found.message_format) == (99, 7)
    assert messages([run]) == [b"", b"a", b"bc" * 3_000]
    assert recovered.producers == {(1 << 64) - 1: 5}
    store.close()


@DURABLE
def test_a_slice_of_a_batch_is_kept_as_a_slice(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    data = b"header" + b"".join(bodies(10))
    ends = memoryview(b"".join((10 * n).to_bytes(4, "little") for n in range(1, 11))).cast("I")
    batch = Batch(data, ends, 10, 100, 6, True)
    store.append(Append([(1, 0)], 0, 0, batch, 3, 7), 1)
    store.append(Append([(1, 4)], 0, 0, batch, 0, 2), 1)
    store, recovered = again(store, make, tmp_path)
    assert messages(recovered.queues[0].runs) == bodies(4, start=3) + bodies(2)
    store.close()


@DURABLE
def test_one_record_for_many_queues(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1, 2)
    batch = batch_of(bodies(4), durable=True)
    store.append(Append([(1, 10), (2, 90)], 0, 0, batch, 0, 4), 1)
    store.append(Settle(1, [(10, 12)], Outcome.ACCEPTED), 1)
    store.append(Settle(2, [(93, 94)], Outcome.ACCEPTED), 1)
    store, recovered = again(store, make, tmp_path)
    assert messages(recovered.queues[0].runs) == bodies(2, start=2)
    assert messages(recovered.queues[1].runs) == bodies(3)
    assert [run.sequence for run in recovered.queues[1].runs] == [90]
    store.close()


@DURABLE
def test_settled_ranges_are_gone_and_returned_ones_have_their_attempts(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    send(store, batch_of(bodies(10), durable=True), 0)
    store.append(Settle(1, [(0, 2), (4, 5), (9, 12)], Outcome.ACCEPTED, "accepted"), 1)
    store.append(Settle(1, [(5, 7)], Outcome.MODIFIED, "", 3), 1)
    store, recovered = again(store, make, tmp_path)
    [queue] = recovered.queues
    shape = [(run.sequence, run.end, run.attempts) for run in queue.runs]
    assert shape == [(2, 4, 0), (5, 7, 3), (7, 9, 0)]
    assert queue.next_sequence == 10
    store.close()


@DURABLE
def test_the_time_until_which_messages_wait_is_recovered(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    send(store, batch_of(bodies(8), durable=True), 0)
    store.append(Settle(1, [(0, 2), (3, 4)], Outcome.MODIFIED, "", waiting(3, 1 << 41)), 1)
    store.append(Settle(1, [(3, 4)], Outcome.MODIFIED, "", 4), 1)
    send(store, batch_of([b"x", b"y"], durable=True), 5, flags=REWRITTEN, attempts=waiting(1, 70_000))
    store, recovered = again(store, make, tmp_path)
    shape = [(run.sequence, run.end, run.attempts) for run in recovered.queues[0].runs]
    assert shape == [
        (0, 2, waiting(3, 1 << 41)),
        (2, 3, 0),
        (3, 4, 4),
        (4, 5, 0),
        (5, 7, waiting(1, 70_000)),
        (7, 8, 0),
    ]
    assert {run.batch.durable for run in recovered.queues[0].runs} == {True}
    store.close()


@DURABLE
def test_rewritten_messages_replace_the_old_ones(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    send(store, batch_of(bodies(6), durable=True), 0)
    send(store, batch_of([b"x", b"y"], durable=True), 2, flags=REWRITTEN, attempts=1)
    store, recovered = again(store, make, tmp_path)
    old = bodies(6)
    assert messages(recovered.queues[0].runs) == [old[0], old[1], b"x", b"y", old[4], old[5]]
    assert [run.attempts for run in recovered.queues[0].runs] == [0, 1, 0]
    store.close()


@DURABLE
def test_spilled_messages_do_not_survive(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    send(store, batch_of(bodies(3)), 0, flags=SPILLED)
    send(store, batch_of(bodies(3, start=3), durable=True), 3)
    store, recovered = again(store, make, tmp_path)
    assert messages(recovered.queues[0].runs) == bodies(3, start=3)
    assert recovered.queues[0].next_sequence == 6
    store.close()


@DURABLE
def test_queues_come_change_and_go(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1, 2)
    send(store, batch_of(bodies(2), durable=True), 0, queue=2)
    store.append(Queue(QueueEvent.POLICY, 1, "new name", '{"max": 3}'), 1)
    store.append(Queue(QueueEvent.DELETED, 2, ""), 1)
    with pytest.raises(ValueError, match="not declared"):
        send(store, batch_of(bodies(2), durable=True), 0, queue=2)
    with pytest.raises(ValueError, match="not declared"):
        store.append(Queue(QueueEvent.POLICY, 2, "x"), 1)
    store, recovered = again(store, make, tmp_path)
    [queue] = recovered.queues
    assert (queue.name, queue.policy, queue.runs) == ("new name", '{"max": 3}', [])
    declare(store, 2)
    store, recovered = again(store, make, tmp_path)
    assert [(queue.queue, queue.next_sequence) for queue in recovered.queues] == [(1, 0), (2, 0)]
    store.close()


@DURABLE
def test_next_sequences_survive_an_empty_queue_and_restarts(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    send(store, batch_of(bodies(7), durable=True), 0)
    store.append(Settle(1, [(0, 7)], Outcome.ACCEPTED), 1)
    for _ in range(3):
        store, recovered = again(store, make, tmp_path)
        assert recovered.queues[0].next_sequence == 7
        assert recovered.queues[0].runs == []
    store.close()


@DURABLE
def test_epoch_and_seal(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    store.append(Epoch(6), 1)
    store, recovered = again(store, make, tmp_path)
    assert (recovered.epoch, recovered.sealed) == (6, False)
    store.append(Seal(7), 1)
    store, recovered = again(store, make, tmp_path)
    assert (recovered.epoch, recovered.sealed) == (7, True)
    store.append(Epoch(8), 1)
    store, recovered = again(store, make, tmp_path)
    assert (recovered.epoch, recovered.sealed) == (8, False)
    store.close()


def small_journal(path: Path) -> Store:
    return Journal(RealFiles(path / "journal"), "cluster", 3, segment_bytes=4_096, producers_max=5)


def small_sqlite(path: Path) -> Store:
    return SqliteStore(path / "store.sqlite", "cluster", 3, producers_max=5, reserve_bytes=0)


@pytest.mark.parametrize("make", [small_journal, small_sqlite])
def test_the_longest_silent_producers_are_forgotten(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    batch = batch_of([b"x"], durable=True)
    sequence = 0
    for number in range(1, 4):
        for producer in (10, 11, 12, 13, 14, 15, 16, 10):
            store.append(Append([(1, sequence)], producer, number, batch, 0, 1), 1)
            sequence += 1
        commit(store)
    for _ in range(2):
        store, recovered = again(store, make, tmp_path)
        assert recovered.producers == {13: 3, 14: 3, 15: 3, 16: 3, 10: 3}
        assert list(recovered.producers) == [13, 14, 15, 16, 10]
    store.close()


@DURABLE
@pytest.mark.parametrize("memory_bytes", [0, 1_000, 12_000, ALL])
def test_memory_is_bounded_and_what_stays_on_disk_can_be_read(
    make: Make, tmp_path: Path, memory_bytes: int
) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1, 2, 3)
    for number in range(100):
        send(store, batch_of(bodies(10, 20, number * 10), durable=True), number * 10)
        send(store, batch_of([b"y" * 50], durable=True), number, queue=2)
    store.append(Settle(1, [(5, 25), (500, 501)], Outcome.ACCEPTED), 1)
    store, recovered = again(store, make, tmp_path, memory_bytes)
    in_memory = sum(run.size for queue in recovered.queues for run in queue.runs if not run.batch.evicted)
    assert in_memory <= memory_bytes + 2 * 200
    assert in_memory >= min(memory_bytes * 0.5, 20_000)
    expected = [body for n, body in enumerate(bodies(1_000, 20)) if not (5 <= n < 25 or n == 500)]
    got: list[bytes] = []
    evicted = False
    for run in recovered.queues[0].runs:
        if run.batch.evicted:
            evicted = True
            assert run.batch.location is not None
            got += messages(store.read(run.batch.location, 1, run.sequence, run.end))
        else:
            assert not evicted, "the head is in memory, the tail is not"
            got += messages([run])
    assert got == expected
    assert sum(run.size for run in recovered.queues[1].runs) == 5_000
    if memory_bytes == 0:
        assert len(recovered.queues[0].runs) < 20
    store.close()


@DURABLE
@pytest.mark.parametrize("seed", range(12))
def test_any_script_is_there_after_a_restart(make: Make, tmp_path: Path, seed: int) -> None:
    store, recovered = opened(make, tmp_path)
    chance = random.Random(seed)
    state = shown(recovered, store)
    for life in range(4):
        writer = Writer(store)
        assert writer.adopt(recovered, store) == state
        writer.run([op for op in script(seed * 10 + life, 60) if op != ("clean",)])
        store, recovered = again(store, make, tmp_path, chance.choice((0, 200, ALL)))
        state = shown(recovered, store)
        assert state == writer.states[-1]
    store.close()


@DURABLE
def test_a_group_is_there_whole(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1, 2)
    send(store, batch_of(bodies(3), durable=True), 0)
    send(store, batch_of([b"dead"], durable=True), 0, queue=2, flags=CONTINUED)
    store.append(Settle(1, [(0, 1)], Outcome.DEAD_LETTERED, "rejected"), 1)
    store, recovered = again(store, make, tmp_path)
    assert messages(recovered.queues[0].runs) == bodies(2, start=1)
    assert messages(recovered.queues[1].runs) == [b"dead"]
    store.close()


@DURABLE
def test_records_of_an_open_group_are_there_with_its_last_one(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1, 2)
    send(store, batch_of(bodies(3), durable=True), 0)
    store.is_group_open = True
    store.append(Settle(1, [(0, 1)], Outcome.ACCEPTED, "accepted"), 1)
    store.append(Settle(1, [(2, 3)], Outcome.MODIFIED, attempts=2), 1)
    store.is_group_open = False
    send(store, batch_of([b"moved"], durable=True), 0, queue=2)
    store, recovered = again(store, make, tmp_path)
    assert messages(recovered.queues[0].runs) == bodies(2, start=1)
    assert [run.attempts for run in recovered.queues[0].runs for _ in range(run.count)] == [0, 2]
    assert messages(recovered.queues[1].runs) == [b"moved"]
    store.close()


def test_an_open_group_without_its_last_record_is_not_there(tmp_path: Path) -> None:
    files = FakeFiles()
    journal = Journal(files, "cluster", 3)
    journal.recover(ALL)
    declare(journal, 1)
    send(journal, batch_of(bodies(3), durable=True), 0)
    journal.is_group_open = True
    journal.append(Settle(1, [(0, 1)], Outcome.ACCEPTED, "accepted"), 1)
    commit(journal)
    journal = Journal(files.after_crash(keep="all"), "cluster", 3)
    (queue,) = journal.recover(ALL).queues
    assert messages(queue.runs) == bodies(3)


@DURABLE
def test_message_ids_come_back_as_long_as_their_queue_is_there(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1, 2)
    store.append(Ids(1, 5_000, b"a" * 16), 1_000)
    store.append(Ids(1, 6_000, b"b" * 32), 1_100)
    store.append(Ids(2, 7_000, b"c" * 16), 1_100)
    store, recovered = again(store, make, tmp_path)
    assert [queue.ids for queue in recovered.queues] == [
        [(5_000, b"a" * 16), (6_000, b"b" * 32)],
        [(7_000, b"c" * 16)],
    ]
    # What is out of its window goes with the next that come.
    store.append(Ids(1, 9_000, b"d" * 16), 5_000)
    store.append(Queue(QueueEvent.DELETED, 2, "queue/2"), 5_000)
    store, recovered = again(store, make, tmp_path)
    assert (6_000, b"b" * 32) in recovered.queues[0].ids
    assert recovered.queues[0].ids[-1] == (9_000, b"d" * 16)
    declare(store, 2)
    store, recovered = again(store, make, tmp_path)
    assert recovered.queues[1].ids == []
    store.close()


@DURABLE
def test_no_more_message_ids_are_kept_than_a_queue_may_remember(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DUPLICATE_IDS_MAX", 3)
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    for number in range(6):
        store.append(Ids(1, 5_000, bytes([number]) * 16), 1_000)
    store, recovered = again(store, make, tmp_path)
    assert [digests[0] for _, digests in recovered.queues[0].ids] == [3, 4, 5]
    store.close()


@DURABLE
def test_a_batch_that_was_taken_in_part_is_remembered_until_the_next(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    batch = batch_of(bodies(3), durable=True)
    for producer in (7, 1 << 63, 9):
        store.append(Append([(1, producer & 7)], producer, 4, batch, 0, 2, 0, CONTINUED), 1_000)
        store.append(Taken(producer, 4, 2), 1_000)
    # Of another batch than the last one: means nothing.
    store.append(Taken(9, 3, 1), 1_000)
    store, recovered = again(store, make, tmp_path)
    assert recovered.parts == {7: 2, 1 << 63: 2, 9: 2}
    # The rest came under the same number, and a whole batch after it.
    store.append(Append([(1, 20)], 7, 4, batch, 2, 3), 1_000)
    store.append(Append([(1, 21)], 9, 5, batch, 0, 3), 1_000)
    store, recovered = again(store, make, tmp_path)
    assert recovered.parts == {1 << 63: 2}
    assert recovered.producers == {7: 4, 1 << 63: 4, 9: 5}
    store.close()


@DURABLE
def test_numbers_of_producers_that_come_with_a_queue_count_where_they_are_newer(
    make: Make, tmp_path: Path
) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    batch = batch_of(bodies(1), durable=True)
    for producer in (7, 8):
        store.append(Append([(1, producer)], producer, 4, batch, 0, 1), 1_000)
    store.append(Numbers(1, 50, [(7, 3, 2), (8, 5, 1), (1 << 63, 9, 0), (10, 1, 6)]), 1_000)
    store, recovered = again(store, make, tmp_path)
    assert recovered.producers == {7: 4, 8: 5, 1 << 63: 9, 10: 1}
    assert recovered.parts == {8: 1, 10: 6}
    assert recovered.queues[0].next_sequence == 50
    store.append(Append([(1, 50)], 8, 6, batch, 0, 1), 1_000)
    store, recovered = again(store, make, tmp_path)
    assert (recovered.producers[8], recovered.parts) == (6, {10: 6})
    store.close()


@DURABLE
def test_the_number_of_a_transient_batch_is_not_remembered(make: Make, tmp_path: Path) -> None:
    """The number stands for messages that are lost: a batch that is sent again with it must be stored."""
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    batch = batch_of(bodies(1))
    store.append(Append([(1, 0)], 8, 6, replace(batch, durable=True), 0, 1), 1_000)
    store.append(Append([(1, 1)], 8, 7, batch, 0, 1, 0, SPILLED), 1_000)
    store.append(Append([(1, 2)], 9, 1, batch, 0, 1, 0, SPILLED), 1_000)
    store.append(Delivered(1, 5, [(0, 3)]), 1_000)
    store.append(Settle(1, [(1, 3)], Outcome.ACCEPTED), 1_000)
    store, recovered = again(store, make, tmp_path)
    assert recovered.producers == {8: 6}
    assert messages(recovered.queues[0].runs) == bodies(1)
    assert recovered.queues[0].next_sequence == 3
    store.close()


def test_an_sqlite_store_of_the_first_version_is_opened_and_raised(tmp_path: Path) -> None:
    store, _ = opened(sqlite, tmp_path)
    declare(store, 1)
    commit(store)
    store.close()
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("UPDATE meta SET value = '1' WHERE key = 'format'")
        connection.execute("DROP TABLE ids")
        connection.execute("DROP TABLE part")
        connection.execute("DROP TABLE terminus")
        connection.execute("DROP TABLE tag")
        connection.execute("DROP TABLE receiver")
    connection.close()
    store, recovered = opened(sqlite, tmp_path)
    assert [queue.name for queue in recovered.queues] == ["queue/1"]
    store.append(Ids(1, 5_000, b"a" * 16), 1_000)
    store, recovered = again(store, sqlite, tmp_path)
    assert recovered.queues[0].ids == [(5_000, b"a" * 16)]
    store.close()


def test_an_sqlite_store_whose_termini_have_no_user_is_opened_and_raised(tmp_path: Path) -> None:
    store, _ = opened(sqlite, tmp_path)
    declare(store, 1)
    commit(store)
    store.close()
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("UPDATE meta SET value = '7' WHERE key = 'format'")
        connection.execute("ALTER TABLE terminus DROP COLUMN user")
        connection.execute("INSERT INTO terminus VALUES (1, ?, 2, 60000)", (bytes(16),))
    connection.close()
    store, recovered = opened(sqlite, tmp_path)
    assert recovered.queues[0].termini == [(bytes(16), 2, 60_000, [], "")]
    store.append(Terminus(1, bytes(16), TerminusEvent.BEGUN, 2, 60_000, user="ann"), 1_000)
    store, recovered = again(store, sqlite, tmp_path)
    assert recovered.queues[0].termini == [(bytes(16), 2, 60_000, [], "ann")]
    store.close()
