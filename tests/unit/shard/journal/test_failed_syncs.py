"""An error of the disk that passes leaves a journal that starts, again and again, with what was accepted."""

import errno

import pytest

from lightrail.journal.record import Queue, QueueEvent
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, encode_segment_header
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.repair import repair_files
from lightrail.shard.journal.segment import name_of
from lightrail.shard.journal.store import JournalDamagedError
from lightrail.shard.queue.values.runs import batch_of
from tests.support.shard.fake_files import FakeFiles, Fault


def opened(files: FakeFiles) -> tuple[Journal, list[bytes]]:
    journal = Journal(files, "c", 0, segment_bytes=10_000)
    found = journal.recover(1 << 30)
    return journal, [body for queue in found.queues for run in queue.runs for body in run.messages()]


def sends(journal: Journal, number: int) -> None:
    """One message, which is accepted when this returns."""
    batch = batch_of([b"%03d" % number], durable=True)
    journal.append(Append([(1, number)], 5, number + 1, batch, 0, 1))
    journal.flush()


def bodies(*numbers: int) -> list[bytes]:
    return [b"%03d" % number for number in numbers]


def after_a_failed_first_sync() -> FakeFiles:
    """Three messages are accepted; the first sync of segment 2 fails, and its process has ended."""
    files = FakeFiles()
    journal, _ = opened(files)
    journal.append(Queue(QueueEvent.DECLARED, 1, "orders"))
    for number in range(3):
        sends(journal, number)
    journal.seal(0)
    batch = batch_of([b"lost"], durable=True)
    journal.append(Append([(1, 3)], 5, 4, batch, 0, 1))
    files.fault = Fault(len(files.calls) + 3, errno.EIO)
    with pytest.raises(OSError, match="broken"):
        journal.flush()
    # Segment 1 ends, and segment 2 is begun.
    assert files.calls[-4:] == ["truncate", "sync", "write", "sync"]
    files.unlock()
    return files


def test_a_header_that_only_memory_has_begins_no_segment() -> None:
    files = after_a_failed_first_sync()
    for start in range(4):
        journal, messages = opened(files)
        assert messages == bodies(*range(3 + start))
        sends(journal, 3 + start)
        journal.close()
    assert opened(files.after_crash(0, "none"))[1] == bodies(*range(7))


def left_by_an_earlier_program(header: bytes, missing: int = 0) -> FakeFiles:
    """Segment 2 was cut to the length of a header that the disk does not have, and segment 3 follows 1.

    `missing` records are between those of 1 and 3.
    """
    files = FakeFiles()
    journal, _ = opened(files)
    journal.append(Queue(QueueEvent.DECLARED, 1, "orders"))
    for number in range(3):
        sends(journal, number)
    files.unlock()
    journal, _ = opened(files)
    second = journal.current
    data = encode_segment_header(3, second.index.first_lsn + missing, journal.salt)
    second.file.write(0, [data])
    second.file.sync()
    files.unlock()
    files.remove(name_of(3))  # the spare
    files.rename(name_of(2), name_of(3))
    cut = files.create(name_of(2))
    cut.write(0, [header])
    cut.sync()
    files.sync()
    return files


@pytest.mark.parametrize(
    "header",
    [bytes(SEGMENT_HEADER_SIZE), encode_segment_header(1, 1, 0), b"LRSEG", b""],
    ids=["zeros", "of the segment that its file was before", "torn", "no bytes"],
)
def test_a_segment_too_short_for_a_record_has_lost_none(header: bytes) -> None:
    files = left_by_an_earlier_program(header)
    for start in range(3):
        journal, messages = opened(files)
        assert messages == bodies(*range(3 + start))
        sends(journal, 3 + start)
        journal.close()
    assert not repair_files(files).damages


def test_a_segment_too_short_for_a_record_is_damaged_where_records_are_missing() -> None:
    with pytest.raises(JournalDamagedError, match=r"000000000001.*the next segment begins with record"):
        opened(left_by_an_earlier_program(bytes(SEGMENT_HEADER_SIZE), missing=1))


def test_repair_sets_nothing_of_worth_aside_where_an_earlier_program_left_no_header() -> None:
    files = left_by_an_earlier_program(bytes(SEGMENT_HEADER_SIZE))
    [damage] = repair_files(files).damages
    assert damage.first_lsn == damage.next_lsn
    assert opened(files)[1] == bodies(0, 1, 2)
