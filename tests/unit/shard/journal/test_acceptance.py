"""What others see or lose follows the accepted end of a journal, not the end that its owner has synced."""

import pytest

from lightrail.journal.record import Queue, QueueEvent
from lightrail.shard.journal import identity
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.segment import name_of, numbers
from lightrail.shard.queue.values.runs import batch_of
from lightrail.shard.replicas.marks import Marks
from tests.support.now import now
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.journal_writer import open_journal
from tests.support.shard.member import MEMBER, Member, shared_journal


def begun() -> tuple[FakeFiles, Journal, Member]:
    """A journal with a queue 1, accepted."""
    files = FakeFiles()
    journal, _, member = shared_journal(files)
    journal.append(Queue(QueueEvent.DECLARED, 1, "q"), 5)
    commit(journal, member)
    member.acknowledge(journal)
    return files, journal, member


def append(journal: Journal, sequence: int, size: int = 20) -> None:
    batch = batch_of([b"x" * size], durable=True)
    journal.append(Append([(1, sequence)], 0, 0, batch, 0, 1), 6)


def commit(journal: Journal, member: Member) -> None:
    begun = journal.begin_commit()
    member.receive(begun)
    begun.perform()
    journal.end_commit(begun)


def test_readers_see_accepted_records() -> None:
    _, journal, member = begun()
    before = journal.committed
    append(journal, 0)
    commit(journal, member)
    assert journal.committed == before
    member.acknowledge(journal)
    assert journal.committed.next_lsn == before.next_lsn + 1


@pytest.mark.parametrize("is_late", [False, True])
def test_a_dropped_segment_stays_until_the_records_before_its_drop_are_accepted(is_late: bool) -> None:
    files, journal, member = begun()
    first = journal.current.number
    append(journal, 0, 600)
    if is_late:
        commit(journal, member)
    journal.drop(first)
    if not is_late:
        commit(journal, member)
    assert not now(journal.pending)
    append(journal, 1)
    commit(journal, member)
    assert first in numbers(files)
    member.acknowledge(journal)
    assert now(journal.pending)
    commit(journal, member)
    assert first not in numbers(files)
    assert not now(journal.pending)


def test_a_segment_is_dropped_without_a_sync_if_everything_is_accepted() -> None:
    files, journal, member = begun()
    first = journal.current.number
    append(journal, 0, 600)
    commit(journal, member)
    member.acknowledge(journal)
    syncs = journal.usage().syncs
    journal.drop(first)
    commit(journal, member)
    assert first not in numbers(files)
    assert journal.usage().syncs == syncs


def test_the_extent_has_a_new_segment_when_its_records_are_accepted() -> None:
    files, journal, member = begun()
    append(journal, 0, 600)
    commit(journal, member)
    new = journal.current.number
    append(journal, 1)
    commit(journal, member)
    journal.write_extent()
    known = identity.load_extent(files, journal.salt)
    assert known.segment < new
    member.acknowledge(journal)
    append(journal, 2)
    commit(journal, member)
    known = identity.load_extent(files, journal.salt)
    assert (known.segment, known.next_lsn) == (new, journal.committed.next_lsn)


def test_what_an_owner_began_to_write_alone_is_accepted_without_later_members() -> None:
    """Its extent, which is written with it, says so: a member that cuts it would cut accepted records."""
    files = FakeFiles()
    journal, _ = open_journal(files)
    journal.append(Queue(QueueEvent.DECLARED, 1, "q"), 5)
    journal.flush()
    append(journal, 0, 600)
    append(journal, 1)
    begun = journal.begin_commit()
    journal.marks.require({MEMBER})
    journal.accept()
    begun.perform()
    known = identity.load_extent(files, journal.salt)
    journal.end_commit(begun)
    assert journal.committed.next_lsn == known.next_lsn == begun.last_lsn + 1
    append(journal, 2)
    journal.flush()
    assert journal.committed.next_lsn == known.next_lsn


def test_the_extent_of_a_dropped_segment_has_its_first_record() -> None:
    _, journal, member = begun()
    first = journal.current
    append(journal, 0, 600)
    commit(journal, member)
    journal.drop(first.number)
    assert journal.extent[:2] == (first.number, first.index.first_lsn)
    assert journal.extent.next_lsn > first.index.first_lsn


def test_an_orderly_end_writes_the_accepted_extent() -> None:
    files, journal, member = begun()
    accepted = journal.committed.next_lsn
    append(journal, 0)
    commit(journal, member)
    journal.close()
    assert identity.load_extent(files, journal.salt).next_lsn == accepted


def test_records_say_how_many_before_them_are_not_accepted() -> None:
    _, journal, member = begun()
    accepted = journal.committed.next_lsn - 1
    append(journal, 0)
    commit(journal, member)
    append(journal, 1)
    lsn = journal.position.lsn
    assert journal._tail._unsynced(lsn) == lsn - 1 - accepted == 1


def test_a_member_that_starts_as_owner_shows_nothing_until_the_others_have_it() -> None:
    files, journal, member = begun()
    append(journal, 0)
    commit(journal, member)
    again = Journal(files.after_crash(), "test", 0, segment_bytes=700, marks=Marks(frozenset({MEMBER})))
    again.recover(1 << 30, 1)
    assert again.committed.next_lsn == 1
    again.marks.synced(MEMBER, again.position.synced_lsn)
    again.accept()
    assert again.committed.next_lsn == again.position.lsn + 1


def test_the_bytes_of_an_owner_and_a_member_are_equal() -> None:
    files, journal, member = begun()
    for sequence in range(5):
        append(journal, sequence, 200)
        commit(journal, member)
    member.acknowledge(journal)
    assert len(member.ends) > 1
    for number, end in member.ends.items():
        mine, theirs = (each.inodes[name_of(number)].live[:end] for each in (files, member.files))
        assert mine == theirs


def test_of_an_owner_alone_everything_synced_is_accepted() -> None:
    journal, _ = open_journal(FakeFiles())
    journal.append(Queue(QueueEvent.DECLARED, 1, "q"), 5)
    journal.flush()
    assert journal.position.synced_lsn == journal.position.lsn == journal.committed.next_lsn - 1
    assert not journal.position.is_shared
