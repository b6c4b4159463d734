"""The index that a journal keeps of its segments says what reading them would say."""

import dataclasses

import pytest

from lightrail.journal import index as format_of_index
from lightrail.journal.index import SegmentIndex, read_index
from lightrail.journal.record import CONTINUED, SPILLED, Outcome, Queue, QueueEvent, Settle
from lightrail.journal.segment_header import decode_segment_header
from lightrail.shard.journal import segment as segment_module
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.repair import repair_files
from lightrail.shard.journal.segment import name_of
from lightrail.shard.queue.values.runs import batch_of
from tests.support.now import now
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.journal_writer import Writer, open_journal, script


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_of_index, "BLOCK_BYTES", 200)
    monkeypatch.setattr(segment_module, "BLOCK_BYTES", 200)


def by_reading(files: FakeFiles, number: int) -> SegmentIndex:
    file = files.open(name_of(number))
    header = decode_segment_header(file.read(0, 40))
    assert header is not None
    return read_index(header, file, file.size())[0]


def check(files: FakeFiles, journal: Journal) -> int:
    """All sealed segments of a journal; returns how many blocks and queues they have."""
    seen = 0
    for number, segment in journal._segments.items():
        if segment.index.sealed:
            expected = dataclasses.replace(by_reading(files, number), sealed=True)
            assert segment.index == expected
            seen += len(expected.blocks) + len(expected.queues)
    return seen


@pytest.mark.parametrize("seed", range(8))
def test_the_index_kept_while_writing_and_the_one_after_recovery_are_those_of_the_files(seed: int) -> None:
    files = FakeFiles()
    journal, _ = open_journal(files, segment_bytes=2_000)
    writer = Writer(journal)
    writer.run(script(seed, 120))
    writer.commit()
    seen = check(files, journal)
    image = files.after_crash(seed, "none")
    journal, _ = open_journal(image, segment_bytes=2_000)
    seen += check(image, journal)
    assert seen > 5
    committed = journal.committed
    index = by_reading(image, committed.segment)
    assert (index.next_lsn, index.end) == (committed.next_lsn, committed.end)


def test_a_group_that_recovery_cuts_is_not_in_the_index() -> None:
    files = FakeFiles()
    journal, _ = open_journal(files, segment_bytes=1_000)
    journal.append(Queue(QueueEvent.DECLARED, 1, "q"), 5)
    journal.append(Append([(1, 0)], 0, 0, batch_of([b"x" * 100], durable=True), 0, 1), 6)
    for number in range(1, 9):
        batch = batch_of([b"x" * 100], durable=True)
        journal.append(Append([(1, number)], 0, 0, batch, 0, 1, 0, CONTINUED), 7)
    journal.append(Queue(QueueEvent.DECLARED, 2, "r", flags=CONTINUED), 8)
    journal.flush()
    assert len(journal._segments) > 1
    image = files.after_crash(0, "all")
    journal, recovered = open_journal(image, segment_bytes=1_000)
    assert recovered.queues[0].next_sequence == 1
    check(image, journal)
    first = next(iter(journal._segments.values())).index
    assert (first.messages, first.last_ms, len(first.queues)) == (1, 6, 1)


def test_the_committed_end_is_synced_and_never_within_a_group() -> None:
    files = FakeFiles()
    journal, _ = open_journal(files, segment_bytes=5_000)
    journal.append(Queue(QueueEvent.DECLARED, 1, "q"), 1)
    journal.flush()
    before = journal.committed
    assert before.next_lsn == 3

    def append(sequence: int, flags: int) -> None:
        batch = batch_of([b"x"], durable=True)
        journal.append(Append([(1, sequence)], 0, 0, batch, 0, 1, 0, flags), 2)
        journal.flush()

    append(0, SPILLED)
    assert journal.committed == before, "written, and not synced"
    append(1, CONTINUED)
    assert journal.committed == before, "synced, and half a group"
    append(2, 0)
    assert journal.committed.next_lsn == 6
    assert journal.committed.messages == 3
    append(3, SPILLED)
    assert journal.committed.next_lsn == 6
    journal.want_sync()
    assert now(journal.pending)
    journal.flush()
    assert journal.committed.next_lsn == 7
    assert not journal.pending
    journal.want_sync()
    assert not journal.pending, "everything is synced"


def test_records_that_a_repair_gave_up_are_passed_over() -> None:
    files = FakeFiles()
    journal, _ = open_journal(files, segment_bytes=5_000)
    journal.append(Queue(QueueEvent.DECLARED, 1, "q"), 1)
    locations = []
    for number in range(9):
        batch = batch_of([b"x" * 100], durable=True)
        locations.append(journal.append(Append([(1, number)], 0, 0, batch, 0, 1), 3))
        journal.flush()
    journal.append(Settle(1, [(0, 1)], Outcome.ACCEPTED), 4)
    journal.flush()
    image = files.after_crash(0, "none")
    location = locations[3]
    assert location is not None
    image.inodes[name_of(location.segment)].live[location.offset + 90] ^= 1
    image.inodes[name_of(location.segment)].durable[location.offset + 90] ^= 1
    assert repair_files(image).damages
    index = by_reading(image, 1)
    assert (index.messages, index.next_lsn) == (8, journal.committed.next_lsn)
    journal, _ = open_journal(image, segment_bytes=5_000)
    check(image, journal)
