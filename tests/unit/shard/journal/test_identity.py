"""A journal that is shorter than it once was on disk is refused; a crash alone never looks so."""

import random

import pytest

from lightrail.journal.record import CONTINUED, Queue, QueueEvent
from lightrail.shard.journal import identity
from lightrail.shard.journal.identity import EXTENT_FILE, NOTHING, SLOT_BYTES, Extent, ExtentFile
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.repair import repair_files
from lightrail.shard.journal.segment import name_of, numbers
from lightrail.shard.journal.store import JournalDamagedError, NewerFormatError, StoreRefusedError
from lightrail.shard.queue.values.runs import batch_of
from tests.support.shard.fake_files import Crash, FakeFiles, Inode

SALT = int.from_bytes(bytes(range(4)), "little")


def opened(files: FakeFiles) -> tuple[Journal, list[int]]:
    journal = Journal(files, "c", 0, segment_bytes=1_000)
    found = journal.recover(1 << 30)
    return journal, [int(body[:3]) for queue in found.queues for run in queue.runs for body in run.messages()]


def send(journal: Journal, first: int, count: int, flags: int = 0) -> None:
    for number in range(first, first + count):
        batch = batch_of([b"%03d" % number + bytes(97)], durable=True)
        journal.append(Append([(1, number)], 5, number + 1, batch, 0, 1, flags=flags))
        if not flags:
            journal.flush()


def written(count: int = 12, *, close: bool = False, asked: bool = False) -> FakeFiles:
    """Segments 1 to 3 with one message per record and commit, and the spare, as a kill leaves them."""
    files = FakeFiles()
    journal, _ = opened(files)
    journal.append(Queue(QueueEvent.DECLARED, 1, "orders"))
    send(journal, 0, count)
    if asked:
        journal.write_extent()
        journal.flush()
    if close:
        journal.close()
    return files.after_crash(0, "all")


def without(files: FakeFiles, *segments: int) -> FakeFiles:
    for number in segments:
        del files.inodes[name_of(number)]
        del files._durable[name_of(number)]
    return files


def cut(files: FakeFiles, segment: int, size: int) -> FakeFiles:
    inode = files.inodes[name_of(segment)]
    del inode.live[size:], inode.durable[size:]
    return files


@pytest.mark.parametrize("close", [False, True])
def test_a_deleted_newest_segment_is_damage_that_names_it_and_what_is_missing(close: bool) -> None:
    files = written(close=close)
    missing = r"000000000003\.segment.*missing.*records \d+ to \d+.*repair"
    with pytest.raises(JournalDamagedError, match=missing):
        opened(without(files, *numbers(files)[2:]))


@pytest.mark.parametrize("gone", [(2, 3), (1, 2, 3)])
def test_several_or_all_deleted_segments_are_damage(gone: tuple[int, ...]) -> None:
    with pytest.raises(JournalDamagedError, match="missing"):
        opened(without(written(), *gone, 4))


def test_an_emptied_newest_segment_is_damage() -> None:
    with pytest.raises(JournalDamagedError, match=r"000000000003\.segment"):
        opened(cut(written(), 3, 0))


def test_a_newest_segment_that_is_shorter_than_it_was_when_it_was_asked_for_is_damage() -> None:
    for files in (written(asked=True), written(close=True)):
        damage = r"000000000003\.segment is damaged at offset \d+: it ends"
        with pytest.raises(JournalDamagedError, match=damage):
            opened(cut(files, 3, len(files.inodes[name_of(3)].live) // 4))


def test_a_refused_journal_is_left_as_it_was() -> None:
    files = without(written(), 3, 4)
    before = {name: bytes(inode.live) for name, inode in files.inodes.items()}
    with pytest.raises(JournalDamagedError):
        opened(files)
    assert {name: bytes(inode.live) for name, inode in files.inodes.items()} == before


@pytest.mark.parametrize("gone", [(3,), (2, 3), (1, 2, 3)])
@pytest.mark.parametrize("close", [False, True])
def test_repair_accepts_the_loss_and_gives_no_record_number_twice(gone: tuple[int, ...], close: bool) -> None:
    files = written(close=close)
    known = identity.load_extent(files, SALT)
    without(files, *gone, *numbers(files)[3:])
    report = repair_files(files)
    assert report.damages, "the loss is told"
    assert report.damages[-1].next_lsn >= known.next_lsn
    journal, found = opened(files)
    assert found == list(range(len(found)))
    assert len(found) == {3: 8, 2: 4, 1: 0}[gone[0]]
    assert journal.extent.next_lsn > known.next_lsn
    journal.close()
    assert repair_files(files).damages == []
    _, again = opened(files)
    assert again == found


def test_a_journal_without_an_extent_is_opened_and_gets_one() -> None:
    """Those of older programs have none."""
    files = written()
    del files.inodes[EXTENT_FILE]
    journal, found = opened(files)
    assert found == list(range(12))
    journal.close()
    assert identity.load_extent(files, SALT).next_lsn == journal.extent.next_lsn


def test_no_crash_at_any_step_looks_like_a_loss() -> None:
    """Machines that stop at any byte, with all, none or some of what was not synced."""
    whole = FakeFiles()
    journal, _ = opened(whole)
    journal.append(Queue(QueueEvent.DECLARED, 1, "orders"))
    send(journal, 0, 10)
    steps = whole.written
    for step in range(1, steps, 7):
        files = FakeFiles(step)
        accepted = 0
        try:
            journal, _ = opened(files)
            journal.append(Queue(QueueEvent.DECLARED, 1, "orders"))
            for number in range(10):
                send(journal, number, 1)
                accepted = number + 1
                journal.write_extent()
                if number % 3 == 0:
                    journal.flush()
        except Crash:
            pass
        for keep in ("all", "none", "some"):
            journal, found = opened(files.after_crash(step, keep))
            assert found[:accepted] == list(range(accepted)), (step, keep)


def test_a_group_that_a_crash_cuts_over_a_new_segment_is_no_loss() -> None:
    files = FakeFiles()
    journal, _ = opened(files)
    journal.append(Queue(QueueEvent.DECLARED, 1, "orders"))
    send(journal, 0, 2)
    send(journal, 2, 12, CONTINUED)
    journal.flush()
    assert journal.current.number > 1
    _, found = opened(files.after_crash(0, "all"))
    assert found == [0, 1]


def test_commits_within_a_segment_sync_no_extent() -> None:
    files = FakeFiles()
    journal = Journal(files, "c", 0, segment_bytes=100_000)
    journal.recover(0)
    journal.append(Queue(QueueEvent.DECLARED, 1, "orders"))
    journal.flush()
    syncs = files.syncs
    send(journal, 0, 50)
    assert files.syncs == syncs + 50
    extent = files.inodes[EXTENT_FILE]
    assert not extent.pending, "and do not write one either"
    journal.write_extent()
    assert journal.pending
    journal.flush()
    assert files.syncs == syncs + 50
    assert extent.pending
    assert identity.load_extent(files, SALT) == journal.extent
    journal.write_extent()
    assert not journal.pending, "nothing has come since"


def test_an_extent_without_room_for_its_file_is_written_by_a_later_commit() -> None:
    files = FakeFiles()
    journal, _ = opened(files)
    file = ExtentFile(files, SALT, NOTHING)
    del files.inodes[EXTENT_FILE]
    files.space = 0
    file.write(Extent(1, 1, 7), sync=True)
    assert file.written == NOTHING
    files.space = None
    file.write(Extent(1, 1, 8), sync=True)
    assert identity.load_extent(files, SALT) == Extent(1, 1, 8)
    journal.close()


def test_a_torn_slot_leaves_the_one_before() -> None:
    files = FakeFiles()
    file = ExtentFile(files, SALT, NOTHING)
    for next_lsn in (5, 9, 12):
        file.write(Extent(1, 1, next_lsn), sync=True)
    data = bytearray(files.load(EXTENT_FILE) or b"")
    rng = random.Random(1)
    for slot, left in ((0, 9), (1, 12)):
        torn = bytearray(data)
        torn[slot * SLOT_BYTES + 20] ^= rng.randrange(1, 256)
        files.inodes[EXTENT_FILE] = Inode(bytes(torn))
        assert identity.load_extent(files, SALT).next_lsn == left
    assert identity.decode(bytes(data[:SLOT_BYTES]), SALT + 1) is None, "of another journal"


def test_a_newer_format_is_refused() -> None:
    slot = bytearray(identity.encode(Extent(1, 1, 1), SALT))
    slot[8] = 2
    with pytest.raises(NewerFormatError, match="format version 2"):
        identity.decode(bytes(slot), SALT)


def test_whoever_knows_more_is_asked_before_anything_is_changed() -> None:
    files = written()
    asked: list[Extent] = []

    def judge(found: Extent) -> None:
        asked.append(found)
        raise StoreRefusedError("it is a copy that is behind")

    before = {name: bytes(inode.live) for name, inode in files.inodes.items()}
    journal = Journal(files, "c", 0, segment_bytes=1_000)
    journal.judge = judge
    with pytest.raises(StoreRefusedError, match="behind"):
        journal.recover(0)
    assert asked == [Extent(3, asked[0].first_lsn, 17)]
    assert {name: bytes(inode.live) for name, inode in files.inodes.items()} == before


def test_a_closed_journal_says_where_it_ended() -> None:
    files = FakeFiles()
    journal, _ = opened(files)
    journal.append(Queue(QueueEvent.DECLARED, 1, "orders"))
    lsn = journal.extent.next_lsn
    journal.close()
    assert identity.load_extent(files, SALT) == journal.extent
    assert journal.extent.next_lsn == lsn + 2


def test_a_directory_of_the_first_member_has_the_id_of_the_journal() -> None:
    files = FakeFiles()
    made = identity.settle(files, "c", 0)
    assert made.member == made.disk
    assert b"member" not in bytes(files.inodes["identity.json"].live)
    assert identity.load_identity(files) == made


def test_a_directory_of_another_member_has_an_id_of_its_own_beside_that_of_the_journal() -> None:
    files = FakeFiles()
    made = identity.settle(files, "c", 0, 77, "d0", "m1")
    assert (made.salt, made.disk, made.member) == (77, "d0", "m1")
    assert identity.settle(files, "c", 0, 78, "d1", "m2") == made == identity.load_identity(files)
