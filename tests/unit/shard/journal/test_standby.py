"""A standby reads what is accepted, follows drops and new beginnings, and never hinders a start."""

import contextlib
import errno
import logging

import pytest

from lightrail.journal.record import (
    CONTINUED,
    Ids,
    Outcome,
    ReceiverChange,
    ReceiverEvent,
    Seal,
    Settle,
    Terminus,
    TerminusEvent,
    TransactionState,
    TransactionStep,
)
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.repair import repair_files
from lightrail.shard.journal.segment import name_of, numbers
from lightrail.shard.journal.standby import REPLAYED_RECORDS, Standby
from lightrail.shard.journal.store import JournalDamagedError, StoreRefusedError
from lightrail.shard.queue.values.runs import batch_of
from tests.support.shard.fake_files import FakeFiles, Fault
from tests.support.shard.journal_writer import Writer, shown
from tests.support.shard.mirrored import SALT, Scene, image, opened, replayed, replayed_by, stream


def taken_over(scene: Scene, standby: Standby, epoch: int = 2) -> object:
    """The state after a take-over; the process of the former owner has ended."""
    scene.mirror.close()
    journal = Journal(scene.files, "test", 0, segment_bytes=700)
    state = shown(journal.recover(1 << 30, 1, epoch, standby), journal)
    journal.close()
    return state


def reads(files: FakeFiles) -> int:
    """Bytes read since the last call."""
    count, files.read = files.read, 0
    return count


def test_no_record_behind_the_accepted_one_is_read() -> None:
    scene = Scene()
    scene.send(60, 9)
    last = scene.mirror.synced_lsn
    for to in range(1, last + 1):
        standby = replayed(scene, to)
        assert standby.lsn == to
        assert not standby.replay(to - 1)
        assert standby.lsn == to
    assert len(numbers(scene.files)) > 1


def test_a_call_reads_a_bounded_number_of_records() -> None:
    scene = Scene(segment_bytes=1 << 20)
    scene.send(60, REPLAYED_RECORDS)
    standby = Standby(scene.files, SALT)
    assert standby.replay(scene.mirror.synced_lsn)
    assert standby.lsn == REPLAYED_RECORDS
    # Meanwhile more arrives, which the next calls read, too.
    scene.send()
    assert not standby.replay(scene.mirror.synced_lsn)
    assert standby.lsn == scene.mirror.synced_lsn


def test_a_call_reads_a_bounded_number_of_bytes() -> None:
    scene = Scene(segment_bytes=32 << 20)
    scene.send(100_000, 40)
    standby = Standby(scene.files, SALT)
    assert standby.replay(scene.mirror.synced_lsn)
    assert 10 < standby.lsn < 30


def test_a_take_over_reads_the_remainder_alone() -> None:
    scene = Scene(segment_bytes=8 << 20)
    scene.send(100_000, 60)
    standby = replayed(scene)
    scene.send(60, 3)
    reads(scene.files)
    # Without their messages, which are read on demand.
    scene.mirror.close()
    journal = Journal(scene.files, "test", 0, segment_bytes=700)
    recovered = journal.recover(0, 1, 2, standby)
    assert reads(scene.files) < 3_000_000
    assert sum(run.count for queue in recovered.queues for run in queue.runs) == 64
    assert shown(recovered, journal) == scene.writer.states[-1]


def test_a_group_whose_end_is_missing_is_not_restored() -> None:
    scene = Scene()
    before = scene.writer.states[-1]
    batch = batch_of([b"one"], durable=True)
    scene.owner.append(Append([(1, 5)], 0, 0, batch, 0, 1, 0, CONTINUED))
    stream(scene.owner, [scene.mirror])
    standby = replayed(scene)
    assert standby.lsn == scene.mirror.synced_lsn
    assert taken_over(scene, standby) == before


def test_a_group_is_restored_when_its_end_arrives() -> None:
    scene = Scene()
    batch = batch_of([bytes(300)], durable=True)
    # Its end is in another segment, and the standby has read its beginning before.
    for sequence in range(1, 4):
        scene.owner.append(Append([(1, sequence)], 0, 0, batch, 0, 1, 0, CONTINUED))
        stream(scene.owner, [scene.mirror])
    standby = replayed(scene)
    scene.owner.append(Settle(1, [(0, 1)], Outcome.ACCEPTED))
    stream(scene.owner, [scene.mirror])
    assert len(numbers(scene.files)) > 1
    state = taken_over(scene, standby)
    assert isinstance(state, tuple)
    assert [sequence for sequence, *_ in state[0][0][4]] == [1, 2, 3]


def drop_all_but_the_last(scene: Scene) -> None:
    """The owner drops segments, and the member follows."""
    for _ in range(len(numbers(scene.owner_files))):
        scene.writer.run([("settle", 1, 0, 99), ("clean",)])
        stream(scene.owner, [scene.mirror])
    first = scene.owner.segments()[0].number
    assert first > 3
    scene.mirror.drop(first)


@pytest.mark.parametrize("records", [0, 1, 9])
def test_segments_that_are_dropped_before_they_are_read_are_not_needed(
    records: int, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    scene.send(60, 12)
    standby = Standby(scene.files, SALT)
    assert standby.replay(scene.mirror.synced_lsn, records)
    drop_all_but_the_last(scene)
    while standby.replay(scene.mirror.synced_lsn):
        pass
    assert standby.lsn == scene.mirror.synced_lsn
    with caplog.at_level(logging.WARNING):
        assert taken_over(scene, standby) == scene.writer.states[-1]
    assert not caplog.records


def test_segments_that_are_dropped_behind_a_standby_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.send(60, 12)
    standby = replayed(scene)
    drop_all_but_the_last(scene)
    scene.send()
    with caplog.at_level(logging.WARNING):
        assert taken_over(scene, standby) == scene.writer.states[-1]
    assert not caplog.records


def test_what_only_dropped_segments_had_is_forgotten() -> None:
    scene = Scene()
    link = bytes(16)
    for record in (
        Terminus(1, link, TerminusEvent.BEGUN, 2, 60_000, [b"tag"]),
        ReceiverChange(1, link, ReceiverEvent.BEGUN, 0, b"opening"),
        TransactionStep(link, TransactionState.PREPARED, 1, "detail", b"blob"),
        Ids(1, 5_000, bytes(16)),
        Seal(1),
    ):
        scene.owner.append(record)
    scene.send(60, 12)
    standby = replayed(scene)
    # The owner has not written it again, so that a recovery finds nothing of it.
    scene.mirror.drop(numbers(scene.files)[-1])
    state, kept, *_ = whole = opened_whole(scene)
    assert isinstance(state, tuple)
    assert 0 < len(state[0][0][4]) < 5
    assert kept == ([([], [], [])], [], False)
    assert opened_whole(scene, standby) == whole


def of_another_owner(files: FakeFiles, sizes: list[int]) -> object:
    """The directory gets the journal of an owner of epoch 3; returns its state."""
    other = FakeFiles()
    journal = Journal(other, "test", 0, segment_bytes=700)
    journal.recover(1 << 30, 1, 3)
    writer = Writer(journal)
    writer.run([op for size in sizes for op in (("send", 2, 1, size), ("commit",))])
    files.inodes, files._durable = other.inodes, other._durable
    return writer.states[-1]


def test_a_journal_that_begins_anew_is_read_anew() -> None:
    scene = Scene()
    scene.send(60, 9)
    standby = replayed(scene)
    of_another_owner(scene.files, [60] * 20)
    to = standby.lsn + 3
    while standby.replay(to):
        pass
    assert standby.lsn == to
    assert standby.take().segments[-1].epoch == 3


def test_a_journal_that_begins_anew_within_a_replay_is_read_anew() -> None:
    scene = Scene()
    scene.send(60, 9)
    standby = Standby(scene.files, SALT)
    last = scene.mirror.synced_lsn
    assert standby.replay(last, 1)
    # Its first segment is longer, so that the next one begins with another record.
    of_another_owner(scene.files, [5] * 20)
    replayed_by(standby, last)
    assert standby.lsn == last
    assert standby.take().segments[-1].epoch == 3


def test_a_journal_that_is_emptied_within_a_replay_is_no_damage() -> None:
    scene = Scene()
    scene.send(60, 9)
    standby = Standby(scene.files, SALT)
    assert standby.replay(scene.mirror.synced_lsn, 1)
    for number in numbers(scene.files):
        scene.files.remove(name_of(number))
    assert standby.replay(scene.mirror.synced_lsn)
    assert standby.lsn == 0


@pytest.mark.parametrize("sizes", [[60] * 20, [60], [900, 900]])
def test_a_take_over_reads_a_journal_that_has_changed_from_its_first_record_on(
    sizes: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    scene.send(60, 9)
    standby = replayed(scene)
    scene.mirror.close()
    expected = of_another_owner(scene.files, sizes)
    journal = Journal(scene.files, "test", 0, segment_bytes=700)
    with caplog.at_level(logging.WARNING):
        assert shown(journal.recover(1 << 30, 1, 4, standby), journal) == expected
    assert "as it has changed since it was read" in caplog.text


def test_a_file_that_has_become_shorter_is_read_from_its_beginning(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.send(60, 2)
    standby = replayed(scene)
    scene.mirror.close()
    with contextlib.closing(scene.files.open(name_of(1))) as file:
        file.truncate(scene.mirror.lineage[0].end - 50)
    journal = Journal(scene.files, "test", 0, segment_bytes=700)
    with caplog.at_level(logging.WARNING):
        assert shown(journal.recover(1 << 30, 1, 2, standby), journal) in scene.writer.states[:-1]
    assert "bytes in 000000000001.segment, found" in caplog.text


def test_damage_is_reported_and_read_again() -> None:
    scene = Scene()
    scene.send(60, 9)
    standby = Standby(scene.files, SALT)
    inode = scene.files.inodes[name_of(2)]
    inode.live[100] ^= 1
    for _ in range(2):
        with pytest.raises(JournalDamagedError, match=r"wrong checksum, though record .* is accepted"):
            replayed_by(standby, scene.mirror.synced_lsn)
        assert standby.lsn == 0
    inode.live[100] ^= 1
    replayed_by(standby, scene.mirror.synced_lsn)
    assert taken_over(scene, standby) == scene.writer.states[-1]


@pytest.mark.parametrize("segment", [1, 3])
def test_a_header_that_is_damaged_is_reported(segment: int) -> None:
    scene = Scene()
    scene.send(60, 9)
    standby = Standby(scene.files, SALT)
    scene.files.inodes[name_of(segment)].live[20] ^= 1
    with pytest.raises(JournalDamagedError, match=f"{name_of(segment)} is damaged at offset 0: no header"):
        replayed_by(standby, scene.mirror.synced_lsn)


@pytest.mark.parametrize("has_segment", [True, False])
def test_ranges_that_a_repair_gave_up_are_passed(has_segment: bool) -> None:
    scene = Scene()
    scene.send(60, 9)
    last = scene.mirror.synced_lsn
    scene.mirror.close()
    if has_segment:
        scene.files.inodes[name_of(2)].live[100] ^= 1
    else:
        scene.files.remove(name_of(2))
    repair_files(scene.files)
    whole = opened_whole(scene)
    [(gap, behind)] = whole[2]
    assert behind <= last
    for to in [*range(1, gap), *range(behind, last + 1)]:
        standby = replayed(scene, to)
        assert standby.lsn == to
        assert opened_whole(scene, standby) == whole


def opened_whole(
    scene: Scene, standby: Standby | None = None
) -> tuple[object, object, list[tuple[int, int]], dict[str, bytes]]:
    """What a recovery of a copy of the directory restores, what is lost, and what it leaves there."""
    files = scene.files.after_crash(0, "all")
    journal = Journal(files, "test", 0, segment_bytes=700)
    recovered = journal.recover(0, 1, 2, standby)
    links = [(each.ids, each.termini, each.receivers) for each in recovered.queues]
    kept = links, recovered.transactions, recovered.sealed
    return shown(recovered, journal), kept, recovered.lost, image(files)


def test_records_that_are_missing_are_reported() -> None:
    scene = Scene()
    scene.send()
    with pytest.raises(JournalDamagedError, match="though record 1000 is accepted"):
        replayed_by(Standby(scene.files, SALT), 1_000)


def test_an_empty_directory_has_nothing_to_read() -> None:
    files = FakeFiles()
    mirror = opened(files)
    standby = Standby(files, SALT)
    assert not standby.replay(mirror.accepted_lsn)
    assert standby.lsn == 0
    mirror.close()
    journal = Journal(files, "test", 0, segment_bytes=700)
    assert journal.recover(1 << 30, 1, 1, standby).queues == []


def test_a_failed_read_begins_anew() -> None:
    scene = Scene()
    scene.send(60, 9)
    standby = replayed(scene, 3)
    for call in range(2):
        scene.files.fault = Fault(len(scene.files.calls) + call, errno.EIO)
        with pytest.raises(OSError, match="the disk is broken"):
            replayed_by(standby, scene.mirror.synced_lsn)
        assert standby.lsn == 0
    scene.files.fault = None
    replayed_by(standby, scene.mirror.synced_lsn)
    assert taken_over(scene, standby) == scene.writer.states[-1]


def test_no_file_stays_open_between_replays() -> None:
    scene = Scene()
    scene.send(60, 9)
    before = len(scene.files.opened)
    standby = replayed(scene)
    scene.send()
    replayed_by(standby, scene.mirror.synced_lsn)
    opened_since = scene.files.opened[before:]
    assert len(opened_since) > len(numbers(scene.files)) - 2
    assert all(file.closed for file in opened_since)


def test_an_older_epoch_takes_nothing_over() -> None:
    scene = Scene()
    standby = replayed(scene)
    scene.mirror.close()
    with pytest.raises(StoreRefusedError, match="expected an epoch of this owner after 1"):
        Journal(scene.files, "test", 0, segment_bytes=700).recover(1 << 30, 1, 1, standby)
