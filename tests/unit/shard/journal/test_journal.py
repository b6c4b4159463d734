"""The journal itself: rolls, groups, a full disk, a broken disk, the cleaner's rule."""

import errno
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from lightrail.journal.record import REWRITTEN, SPILLED, Delivered, Ids, Outcome, Queue, QueueEvent, Settle
from lightrail.model import limits
from lightrail.shard.journal.commit import pieces_of
from lightrail.shard.journal.identity import SLOT_BYTES, SLOTS
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.segment import name_of
from lightrail.shard.journal.store import (
    Recovered,
    StoreBrokenError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreRefusedError,
)
from lightrail.shard.queue.values.runs import Batch, Location, Run, batch_of
from tests.support.now import now
from tests.support.shard.fake_files import FakeFiles

EXTENT_BYTES = SLOTS * SLOT_BYTES
"""What a journal takes of a disk beside its segments."""


def opened(
    files: FakeFiles, segment_bytes: int = 2_000, memory_bytes: int = 1 << 30
) -> tuple[Journal, Recovered]:
    journal = Journal(files, "c", 0, segment_bytes=segment_bytes)
    return journal, journal.recover(memory_bytes, 0)


def declared(files: FakeFiles, segment_bytes: int = 2_000) -> Journal:
    journal, _ = opened(files, segment_bytes)
    journal.append(Queue(QueueEvent.DECLARED, 1, "q"), 0)
    journal.flush()
    return journal


def batch(count: int = 1, size: int = 100) -> Batch:
    return batch_of([bytes([65 + index % 26]) * size for index in range(count)], durable=True)


def send(
    journal: Journal, sequence: int, count: int = 1, size: int = 100, flags: int = 0, now_ms: int = 0
) -> Location:
    location = journal.append(Append([(1, sequence)], 0, 0, batch(count, size), 0, count, 0, flags), now_ms)
    assert location is not None
    return location


def fill(journal: Journal) -> dict[int, Location]:
    """Sends until there is no room."""
    live: dict[int, Location] = {}
    try:
        while True:
            live[len(live)] = send(journal, len(live))
            journal.flush()
    except StoreFullError:
        return live


def sequences(runs: Sequence[Run]) -> list[int]:
    return [sequence for run in runs for sequence in range(run.sequence, run.end)]


def restarted(files: FakeFiles, keep: str = "none") -> list[int]:
    _, recovered = opened(files.after_crash(0, keep))
    return sequences(recovered.queues[0].runs)


def test_nothing_may_be_appended_before_recovery() -> None:
    with pytest.raises(StoreBrokenError, match="recover"):
        Journal(FakeFiles()).append(Queue(QueueEvent.DECLARED, 1, "q"))


def test_a_segment_is_rolled_at_append_and_the_former_is_synced_first() -> None:
    files = FakeFiles()
    journal = declared(files)
    locations = [send(journal, number, size=500) for number in range(8)]
    assert [location.segment for location in locations] == [1, 1, 1, 2, 2, 2, 3, 3]
    syncs = files.syncs
    journal.flush()
    assert files.syncs == syncs + 3 + 1, "each segment, and the extent once"
    assert restarted(files) == list(range(8))
    # Sealed segments are exactly as long as what is in them.
    usage = journal.usage()
    assert usage.segments == 3
    assert usage.total_bytes == sum(len(files.inodes[name_of(number)].live) for number in (1, 2, 3, 4))


def test_a_group_without_anything_durable_is_not_synced_until_the_next_that_is() -> None:
    files = FakeFiles()
    journal = declared(files)
    syncs = files.syncs
    send(journal, 0, flags=SPILLED)
    journal.flush()
    assert files.syncs == syncs
    send(journal, 1)
    journal.flush()
    assert files.syncs == syncs + 1
    assert restarted(files) == [1]


def test_a_record_larger_than_a_segment_gets_a_larger_one() -> None:
    files = FakeFiles()
    journal = declared(files)
    location = send(journal, 0, size=10_000)
    after = send(journal, 1)
    journal.flush()
    assert location.length > 10_000
    assert after.segment == location.segment
    [run] = journal.read(location, 1, 0, 1)
    assert run.messages() == [b"A" * 10_000]
    assert restarted(files) == [0, 1]


def test_the_snapshot_at_the_head_of_a_segment_stands_for_what_was_dropped() -> None:
    files = FakeFiles()
    journal, _ = opened(files)
    journal.append(Queue(QueueEvent.DECLARED, 1, "q", '{"a":1}'), 0)
    for number in range(40):
        record = Append([(1, number)], 9, number + 1, batch(1, 400), 0, 1)
        location = journal.append(record, 0)
        assert location is not None
        journal.append(Settle(1, [(number, number + 1)], Outcome.ACCEPTED), 0)
        journal.release(location.segment, 400)
        journal.flush()
        while (oldest := journal.oldest_to_clean()) is not None:
            journal.drop(oldest)
            journal.flush()
    assert journal.usage().segments <= 2
    assert journal.usage().segments_dropped > 5
    _, recovered = opened(files.after_crash(0, "none"))
    [queue] = recovered.queues
    assert (queue.name, queue.policy, queue.next_sequence, queue.runs) == ("q", '{"a":1}', 40, [])
    assert recovered.producers == {9: 40}


def test_disk_use_stays_within_the_factor_while_the_oldest_messages_stay() -> None:
    """One message of ten stays for ever: the cleaner has to carry them along."""
    files = FakeFiles()
    journal = declared(files)
    live: dict[int, Location] = {}
    for number in range(300):
        live[number] = send(journal, number)
        if number % 10:
            journal.append(Settle(1, [(number, number + 1)], Outcome.ACCEPTED), 0)
            journal.release(live.pop(number).segment, 100)
        journal.flush()
        while (oldest := journal.oldest_to_clean()) is not None:
            for sequence, location in list(live.items()):
                if location.segment == oldest:
                    [run] = journal.read(location, 1, sequence, sequence + 1)
                    moved = journal.append(
                        Append([(1, sequence)], 0, 0, run.batch, run.first, run.last, 0, REWRITTEN), 0
                    )
                    assert moved is not None
                    live[sequence] = moved
                    journal.release(oldest, 100)
            journal.drop(oldest)
            journal.flush()
        usage = journal.usage()
        assert usage.total_bytes <= 2 * usage.live_bytes + 3 * 2_000
    assert journal.usage().segments_dropped > 5
    assert restarted(files) == sorted(live)


def test_only_the_oldest_segment_may_go() -> None:
    journal = declared(FakeFiles())
    for number in range(8):
        send(journal, number, size=500)
    with pytest.raises(ValueError, match="only the oldest"):
        journal.drop(2)


def test_a_dropped_segment_goes_after_what_was_appended_before_is_synced() -> None:
    files = FakeFiles()
    journal = declared(files)
    for number in range(4):
        send(journal, number, size=500)
    journal.flush()
    for number in range(4):
        send(journal, number, size=500, flags=REWRITTEN)
    journal.drop(1)
    assert journal.pending
    assert name_of(1) in files.inodes
    journal.flush()
    assert name_of(1) not in files.inodes
    assert restarted(files) == [0, 1, 2, 3]


def test_a_reader_keeps_a_dropped_segment_open() -> None:
    files = FakeFiles()
    journal = declared(files)
    location = send(journal, 0, size=1_500)
    send(journal, 1, size=1_500)
    journal.flush()
    segment = journal._segments[1]
    assert segment.pin()
    journal.drop(1)
    journal.flush()
    assert segment.file.read(location.offset, 4) != b""
    segment.unpin()
    assert not segment.pin()
    with pytest.raises(StoreError, match="found it removed"):
        journal.read(location, 1, 0, 1)


def test_reads_while_another_thread_commits() -> None:
    files = FakeFiles()
    journal = declared(files, 100_000)
    locations = [send(journal, number, count=3, size=50) for number in range(400)]
    failures: list[object] = []
    started = threading.Barrier(2)

    def read() -> None:
        started.wait()
        for number, location in enumerate(locations):
            runs = journal.read(location, 1, number, number + 3)
            if [run.count for run in runs] != [3]:
                failures.append((number, runs))

    reader = threading.Thread(target=read)
    reader.start()
    started.wait()
    for number in range(400, 600):
        send(journal, number)
        journal.flush()
    reader.join()
    assert not failures


# --- a full disk -------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_messages_takes_settlements_and_recovers_by_itself() -> None:
    files = FakeFiles(space=6_500 + EXTENT_BYTES)
    journal = declared(files)
    sent = len(fill(journal))
    with pytest.raises(StoreFullError, match="free space"):
        send(journal, sent)
    assert journal.usage().full
    assert sent > 15
    for number in range(sent - 2):
        journal.append(Settle(1, [(number, number + 1)], Outcome.ACCEPTED), 0)
    journal.flush()
    assert restarted(files) == [sent - 2, sent - 1]
    files.space = None
    with pytest.raises(StoreFullError):
        send(journal, sent, now_ms=limits.FULL_RETRY_MS - 1)
    send(journal, sent, now_ms=limits.FULL_RETRY_MS)
    journal.flush()
    assert not journal.usage().full
    assert restarted(files) == [sent - 2, sent - 1, sent]


def test_the_last_of_a_full_disk_is_for_settlements_and_the_cleaner() -> None:
    """Not for what flows to disk, nor for what only readers of the journal want to know."""
    files = FakeFiles(space=6_500 + EXTENT_BYTES)
    journal = declared(files)
    sent = len(fill(journal))
    small = batch_of([b"x" * 10])
    spilled = Append([(1, sent)], 0, 0, small, 0, 1, 0, REWRITTEN | SPILLED, spills=True)
    for refused in (
        spilled,
        Delivered(1, 7, [(0, 1)]),
        Settle(1, [(0, 1)], Outcome.RELEASED),
    ):
        with pytest.raises(StoreFullError):
            journal.append(refused, 1)
    journal.append(Settle(1, [(0, 1)], Outcome.MODIFIED, attempts=1), 1)
    journal.append(replace(spilled, spills=False), 1)
    files.space = None
    for taken in (Delivered(1, 7, [(0, 1)]), Settle(1, [(0, 1)], Outcome.RELEASED), spilled):
        journal.append(taken, limits.FULL_RETRY_MS)
    journal.flush()
    journal.close()


def test_on_a_full_disk_what_the_cleaner_frees_is_used_again() -> None:
    files = FakeFiles(space=6_500 + EXTENT_BYTES)
    journal = declared(files)
    live = fill(journal)
    for number, location in live.items():
        journal.append(Settle(1, [(number, number + 1)], Outcome.ACCEPTED), 0)
        journal.release(location.segment, 100)
    oldest = journal.oldest_to_clean()
    assert oldest == 1
    journal.drop(oldest)
    journal.flush()
    assert not journal.usage().full
    assert files.used() <= 6_500 + EXTENT_BYTES
    # The files that are used again hold old records behind their new ones; those never come back.
    for number in range(len(live), len(live) + 60):
        location = send(journal, number)
        journal.flush()
        assert restarted(files) == [number]
        journal.append(Settle(1, [(number, number + 1)], Outcome.ACCEPTED), 0)
        journal.release(location.segment, 100)
        while (oldest := journal.oldest_to_clean()) is not None:
            journal.drop(oldest)
            journal.flush()
    assert journal.usage().segments_dropped > 5
    assert files.used() <= 6_500 + EXTENT_BYTES


def test_a_record_for_which_nothing_is_left_changes_nothing() -> None:
    files = FakeFiles(space=4_500 + EXTENT_BYTES)
    journal = declared(files)
    with pytest.raises(StoreFullError):
        send(journal, 0, size=9_000)
    send(journal, 0)
    journal.flush()
    assert restarted(files) == [0]


def test_a_start_on_a_full_disk_delivers_and_waits_for_space() -> None:
    files = FakeFiles()
    journal = declared(files)
    send(journal, 0)
    journal.flush()
    files = files.after_crash(0, "none")
    files.space = 1_000
    journal, recovered = opened(files)
    assert sequences(recovered.queues[0].runs) == [0]
    with pytest.raises(StoreFullError):
        send(journal, 1)
    with pytest.raises(StoreFullError):
        journal.append(Settle(1, [(0, 1)], Outcome.ACCEPTED), 0)
    assert not journal.pending
    files.space = None
    send(journal, 1, now_ms=5_000)
    journal.flush()
    assert restarted(files) == [0, 1]
    journal.close()


def test_a_directory_without_room_for_a_name_is_a_full_disk_and_any_other_error_a_broken_one() -> None:
    files = FakeFiles()
    journal = declared(files)
    files.fail_creates = errno.ENOSPC
    live = fill(journal)
    assert journal.usage().full
    assert not journal.usage().broken
    files.fail_creates = 0
    send(journal, len(live), now_ms=limits.FULL_RETRY_MS)
    files.fail_creates = errno.EIO
    # The spare was made already and takes this one; the next needs a new file.
    send(journal, len(live) + 1, size=1_900, now_ms=limits.FULL_RETRY_MS)
    with pytest.raises(StoreBrokenError, match="no new file"):
        send(journal, len(live) + 2, size=1_900, now_ms=limits.FULL_RETRY_MS)
    assert "restart" in journal.usage().broken


class HangingFiles(FakeFiles):
    """Whose next sync of names lasts until the test ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self.is_there = threading.Event()
        self.goes_on = threading.Event()

    def sync(self) -> None:
        if self.hangs:
            self.hangs = False
            self.is_there.set()
            assert self.goes_on.wait(60)
        super().sync()


def test_while_the_commit_thread_hangs_appending_never_waits_for_it() -> None:
    files = HangingFiles()
    journal = declared(files)
    live: dict[int, Location] = {}
    while journal._space.spare is not None:
        live[len(live)] = send(journal, len(live))  # It takes the spare when the segment is full.
    commit = journal.begin_commit()
    files.hangs = True
    thread = threading.Thread(target=commit.perform)
    thread.start()
    assert files.is_there.wait(60)
    while not now(journal.is_crowded):
        live[len(live)] = send(journal, len(live), now_ms=limits.FULL_RETRY_MS)
    # What is left of the segment takes what is on its way still.
    room = journal.current.capacity - journal.current.end
    size = live[len(live) - 1].length
    for _ in range(room // size):
        live[len(live)] = send(journal, len(live), now_ms=limits.FULL_RETRY_MS)
    with pytest.raises(StoreBusyError, match="send again in a moment"):
        send(journal, len(live), now_ms=limits.FULL_RETRY_MS)
    assert room > size
    assert not journal.full
    with pytest.raises(StoreBusyError, match="send again in a moment"):
        journal._tail.roll(0, 0)
    files.goes_on.set()
    thread.join()
    journal.end_commit(commit)
    live[len(live)] = send(journal, len(live))
    assert not journal.is_crowded
    journal.flush()
    assert restarted(files) == list(live)


def test_on_a_full_disk_the_commit_thread_looks_for_room_where_one_is_under_way() -> None:
    files = FakeFiles()
    journal = declared(files)
    files.fail_creates = errno.ENOSPC
    live = fill(journal)
    assert now(journal.full)
    journal.append(Settle(1, [(0, 1)], Outcome.ACCEPTED, "", 0))
    commit = journal.begin_commit()
    files.fail_creates = 0
    with pytest.raises(StoreFullError, match="expected room"):
        send(journal, len(live), now_ms=limits.FULL_RETRY_MS)
    assert now(journal.full)
    commit.perform()
    journal.end_commit(commit)
    assert not journal.full
    send(journal, len(live), now_ms=limits.FULL_RETRY_MS)


def test_an_error_while_the_oldest_segment_goes_is_a_broken_disk() -> None:
    files = FakeFiles()
    journal = declared(files)
    # They are written again when their segment goes, and find no room in the newest.
    journal.append(Ids(1, 1 << 40, bytes(16) * 80))
    journal.flush()
    oldest = journal.current.number
    journal.seal(0)
    journal.append(Ids(1, 1 << 40, bytes(16) * 80))
    journal._space.close()
    files.fail_creates = errno.EIO
    with pytest.raises(StoreBrokenError, match="no new file"):
        journal.drop(oldest)
    assert "no new file" in journal.failure


# --- a broken disk -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["fail_writes", "fail_syncs"])
def test_after_a_failed_write_or_sync_everything_is_refused_for_good(part: str) -> None:
    files = FakeFiles()
    journal = declared(files)
    send(journal, 0)
    journal.flush()
    send(journal, 1)
    setattr(files, part, True)
    with pytest.raises(OSError, match="broken") as raised:
        journal.flush()
    assert raised.value.errno == errno.EIO
    setattr(files, part, False)
    with pytest.raises(StoreBrokenError, match="restart"):
        send(journal, 2)
    with pytest.raises(StoreBrokenError, match="restart"):
        journal.begin_commit()
    journal.close()
    # The same machine, another process: what the failed sync left in memory must not be believed.
    again, recovered = opened(files)
    found = sequences(recovered.queues[0].runs)
    assert found[0] == 0
    assert found == restarted(files), "what was shown is on disk"
    again.close()


def test_what_a_killed_process_left_unsynced_is_on_disk_before_it_is_shown() -> None:
    files = FakeFiles()
    journal = declared(files)
    send(journal, 0)
    commit = journal.begin_commit()
    # Killed between write and sync: the bytes are in the page cache.
    part = commit.parts[0]
    part.segment.file.write(part.start, pieces_of(part.entries, journal.salt))
    files.unlock()
    _, recovered = opened(files)
    assert sequences(recovered.queues[0].runs) == [0]
    assert restarted(files) == [0]


def test_two_processes_do_not_share_a_journal() -> None:
    files = FakeFiles()
    declared(files)
    with pytest.raises(StoreRefusedError, match="another process"):
        Journal(files, "c", 0).recover(0)


def test_closing_commits_what_has_gathered_and_says_that_it_is_whole() -> None:
    files = FakeFiles()
    journal = declared(files)
    send(journal, 0)
    journal.close(7)
    assert not any(not file.closed for file in files.opened)
    assert restarted(files) == [0]
    with pytest.raises(StoreBrokenError, match="closed"):
        send(journal, 1)


def test_every_file_is_closed_when_recovery_fails() -> None:
    files = FakeFiles()
    journal = declared(files)
    for number in range(8):
        send(journal, number, size=500)
    journal.close()
    files.inodes[name_of(1)].live[100] ^= 1
    files.opened.clear()
    with pytest.raises(StoreError):
        opened(files)
    assert files.opened
    assert all(file.closed for file in files.opened)
    assert files.lock(), "the directory is free again"
