"""What goes into the archive and when, what the journal must keep for it, and what happens on a full disk."""

import errno
import logging

import pytest

from lightrail.journal.archive import IDENTITY, Incarnation, decode_identity, index_name, segment_name
from lightrail.journal.index import decode_index
from lightrail.journal.record import CONTINUED, SPILLED, Outcome, Queue, QueueEvent, Settle
from lightrail.shard.archiving.archiver import ARCHIVE_LOOK_MS, ARCHIVE_RETRY_MS
from lightrail.shard.archiving.retention import HOUR_MS, Rule
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.repair import repair_files
from lightrail.shard.journal.segment import name_of
from lightrail.shard.journal.store import StoreFullError
from lightrail.shard.queue.values.runs import Location, batch_of
from tests.support.shard.archive_scene import SEAL_MS, ArchiveScene, archived, reader
from tests.support.shard.fake_files import FakeFiles, FakeFolders

CAPTURED = '{"created": 1, "policy": {"capture": true}, "capture": true}'
NOT_CAPTURED = '{"created": 1, "policy": {"capture": true}}'


def opened(files: FakeFiles, policy: str = CAPTURED) -> Journal:
    """A journal with one queue, of segments with three messages."""
    journal = Journal(files, "c", 7, segment_bytes=1_000)
    journal.recover(1 << 30, 1_000)
    if not journal.usage().messages and not journal._tables.queues:
        journal.append(Queue(QueueEvent.DECLARED, 1, "q", policy), 1_000)
    journal.flush()
    return journal


def send(journal: Journal, sequence: int, now_ms: int = 1_000, flags: int = 0, size: int = 200) -> Location:
    batch = batch_of([bytes([65 + sequence % 26]) * size], durable=True)
    location = journal.append(Append([(1, sequence)], 0, 0, batch, 0, 1, 0, flags), now_ms)
    assert location is not None
    return location


def filled(journal: Journal, count: int, start: int = 0, now_ms: int = 1_000) -> dict[int, Location]:
    locations = {}
    for number in range(start, start + count):
        locations[number] = send(journal, number, now_ms)
        journal.flush()
    return locations


def settle(journal: Journal, locations: dict[int, Location]) -> None:
    journal.append(Settle(1, [(min(locations), max(locations) + 1)], Outcome.ACCEPTED), 2_000)
    for location in locations.values():
        journal.release(location.segment, 200)
    journal.flush()


def test_nothing_is_archived_and_no_folder_made_where_nobody_wants_it() -> None:
    files = FakeFiles()
    journal = opened(files, NOT_CAPTURED)
    filled(journal, 12)
    scene = ArchiveScene(files, journal)
    scene.tick()
    assert len(journal.segments()) > 3
    assert FakeFolders(files).names() == []
    assert journal.oldest_to_clean() is None


def test_sealed_segments_of_captured_queues_are_linked_with_their_index() -> None:
    files = FakeFiles()
    journal = opened(files)
    scene = ArchiveScene(files, journal)
    filled(journal, 10)
    assert scene.work()
    folder = FakeFolders(files).open(f"shard-7-{journal.incarnation.disk}")
    sealed = [segment.number for segment in journal.segments()][:-1]
    assert scene.numbers == sealed
    assert folder.names() == sorted([IDENTITY, *map(index_name, sealed), *map(segment_name, sealed)])
    for number in sealed:
        assert files.inodes[name_of(number)] is files.inodes[folder.prefix + segment_name(number)]
    assert decode_identity((folder.load(IDENTITY) or b"").decode()) == Incarnation(
        "c", 7, journal.incarnation.disk
    )
    index = decode_index((folder.load(index_name(1)) or b"").decode())
    assert index.sealed
    assert scene.counts.linked == len(sealed)
    assert not scene.work(), "there is nothing more to do"


def test_what_is_wanted_stays_in_the_journal_until_it_is_archived() -> None:
    files = FakeFiles()
    journal = opened(files)
    scene = ArchiveScene(files, journal)
    settle(journal, filled(journal, 9))
    assert journal.oldest_to_clean() is None
    assert scene.work()
    while (oldest := journal.oldest_to_clean()) is not None:
        assert oldest in scene.numbers
        journal.drop(oldest)
        journal.flush()
    assert len(scene.numbers) > len(journal.segments())
    assert sorted(archived(files, journal.incarnation.folder))[0] == 1


def test_what_was_captured_before_a_start_is_archived_after_it() -> None:
    files = FakeFiles()
    journal = opened(files)
    filled(journal, 9)
    journal.append(Queue(QueueEvent.DELETED, 1, "q"), 1_000)
    journal.flush()
    filled_segments = [segment.number for segment in journal.segments()]
    image = files.after_crash(0, "none")
    again = Journal(image, "c", 7, segment_bytes=1_000)
    again.recover(1 << 30, 2_000)
    assert not again.is_capturing
    scene = ArchiveScene(image, again)
    assert again.oldest_to_clean() is None, "all of it is gone from the queue"
    scene.tick()
    assert scene.numbers == filled_segments
    assert again.oldest_to_clean() == 1
    again.seal(2_000)
    again.flush()
    scene.tick()
    assert scene.numbers == filled_segments, "nothing is captured any more"


def test_a_last_record_without_a_time_makes_its_segment_no_older() -> None:
    """The one that closes a journal may have none; what is older than the archive's hours is not kept."""
    files = FakeFiles()
    journal = opened(files)
    filled(journal, 9)
    ages = [segment.index.last_ms for segment in journal.segments()]
    journal.close(0)
    again = Journal(files, "c", 7, segment_bytes=1_000)
    again.recover(1 << 30, 2_000)
    assert [segment.index.last_ms for segment in again.segments()][: len(ages) - 1] == ages[:-1]
    assert all(segment.index.last_ms for segment in again.segments()[:-1])


def test_a_reader_that_comes_later_gets_what_the_journal_still_has() -> None:
    files = FakeFiles()
    journal = opened(files, NOT_CAPTURED)
    scene = ArchiveScene(files, journal)
    filled(journal, 9)
    scene.tick()
    assert scene.numbers == []
    scene.readers["late"] = reader()
    scene.tick()
    assert scene.numbers == [segment.number for segment in journal.segments()][:-1]


def test_a_segment_whose_last_group_is_open_is_not_archived() -> None:
    files = FakeFiles()
    journal = opened(files)
    scene = ArchiveScene(files, journal)
    filled(journal, 1)
    for number in range(1, 9):
        send(journal, number, flags=CONTINUED)
        journal.flush()
        scene.tick()
    assert len(journal.segments()) > 2
    assert scene.numbers == []
    image = files.after_crash(0, "all")
    again = Journal(image, "c", 7, segment_bytes=1_000)
    recovered = again.recover(1 << 30, 0)
    assert recovered.queues[0].next_sequence == 1
    send(journal, 9)
    journal.flush()
    scene.tick()
    assert len(scene.numbers) > 2


def test_what_is_sealed_and_not_synced_is_not_archived() -> None:
    files = FakeFiles()
    journal = opened(files)
    scene = ArchiveScene(files, journal)
    for number in range(9):
        send(journal, number)
    commit = journal.begin_commit()
    assert scene.work(timed=True)
    assert scene.numbers == []
    commit.perform()
    scene.work(timed=True)
    assert scene.numbers == [], "the loop has not heard of it"
    journal.end_commit(commit)
    assert scene.work()
    assert len(scene.numbers) > 1


def test_on_another_file_system_segments_are_copied_and_the_journal_keeps_them_meanwhile() -> None:
    files = FakeFiles()
    files.fail_links = errno.EXDEV
    journal = opened(files)
    scene = ArchiveScene(files, journal, shares=False)
    settle(journal, filled(journal, 9))
    round = scene.archiver.begin(1_000)
    assert round is not None
    scene.readers.clear()
    assert journal.oldest_to_clean() is None
    round.perform()
    assert journal.oldest_to_clean() is None
    scene.archiver.end(round, 1_000)
    assert journal.oldest_to_clean() == 1
    assert scene.counts.copied == len(scene.numbers) > 1
    folder = FakeFolders(files).open(journal.incarnation.folder)
    assert files.inodes[name_of(1)] is not files.inodes[folder.prefix + segment_name(1)]
    assert files.inodes[name_of(1)].live == files.inodes[folder.prefix + segment_name(1)].live


def test_what_is_too_old_for_the_archive_is_told_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    files = FakeFiles()
    journal = opened(files)
    filled(journal, 9)
    scene = ArchiveScene(files, journal, rule=Rule(hours=2))
    scene.now_ms += 3 * HOUR_MS
    scene.tick()
    sealed = [segment.number for segment in journal.segments()][:-1]
    assert (scene.numbers, scene.counts.given_up) == ([], len(sealed))
    assert f"segments {', '.join(map(str, sealed))} were not archived" in caplog.text
    assert "older than the 2 hours" in caplog.text


def test_without_hours_nothing_is_missed_that_no_reader_holds(caplog: pytest.LogCaptureFixture) -> None:
    files = FakeFiles()
    journal = opened(files)
    filled(journal, 9)
    scene = ArchiveScene(files, journal, rule=Rule(hours=0))
    scene.now_ms += HOUR_MS
    scene.tick()
    assert (scene.numbers, scene.counts.given_up, caplog.text) == ([], 0, "")


def test_a_copy_is_given_up_when_the_process_ends() -> None:
    files = FakeFiles()
    files.fail_links = errno.EXDEV
    journal = opened(files)
    scene = ArchiveScene(files, journal)
    filled(journal, 9)
    round = scene.archiver.begin(1_000)
    assert round is not None
    scene.archiver.close()
    round.perform()
    scene.archiver.end(round, 1_000)
    assert scene.numbers == []
    folder = FakeFolders(files).open(journal.incarnation.folder)
    assert folder.names() == [index_name(1), IDENTITY]
    assert scene.archiver.begin(9_999_999) is None


def test_failures_are_said_once_counted_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    files = FakeFiles()
    journal = opened(files)
    scene = ArchiveScene(files, journal)
    settle(journal, filled(journal, 9))
    files.fail_links = errno.EACCES
    with caplog.at_level(logging.INFO, "lightrail.shard.archiving.archive"):
        scene.tick()
        for _ in range(3):
            scene.now_ms += ARCHIVE_RETRY_MS
            assert scene.work(timed=True)
            assert not scene.work(timed=True), "not before it is time"
        assert journal.oldest_to_clean() is None
        assert (scene.counts.failures, scene.counts.waiting) == (4, len(journal.segments()) - 1)
        files.fail_links = 0
        scene.now_ms += ARCHIVE_RETRY_MS
        scene.tick()
    assert scene.counts.waiting == 0
    assert journal.oldest_to_clean() == 1
    texts = [record.message for record in caplog.records]
    assert len([text for text in texts if "could not be written" in text]) == 1
    assert "segments are archived again" in texts


def test_an_archived_file_is_never_used_again_nor_changed() -> None:
    files = FakeFiles(space=6_000)
    journal = opened(files)
    scene = ArchiveScene(files, journal, readers={"r": reader()})
    locations: dict[int, Location] = {}
    number = 0
    try:
        while True:
            locations |= filled(journal, 1, number)
            number += 1
            scene.work()
    except StoreFullError:
        pass
    scene.tick()
    before = archived(files, journal.incarnation.folder)
    settle(journal, locations)
    while (oldest := journal.oldest_to_clean()) is not None:
        journal.drop(oldest)
        journal.flush()
    assert archived(files, journal.incarnation.folder) == before
    assert journal.full, "a reader holds what is in the archive"


def test_on_a_full_disk_the_oldest_of_the_archive_go_before_senders_are_refused() -> None:
    files = FakeFiles(space=20_000)
    journal = opened(files)
    scene = ArchiveScene(files, journal)
    for number in range(200):
        settle(journal, filled(journal, 1, number))
        scene.tick()
        while (oldest := journal.oldest_to_clean()) is not None:
            journal.drop(oldest)
            journal.flush()
    assert scene.counts.removed_full > 10
    assert scene.numbers == list(range(scene.numbers[0], scene.numbers[-1] + 1))
    assert scene.counts.given_up == 0


def test_a_full_disk_that_takes_no_index_does_not_stop_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    files = FakeFiles(space=6_000)
    journal = opened(files)
    scene = ArchiveScene(files, journal)
    number = 0
    locations: dict[int, Location] = {}
    try:
        while True:
            locations |= filled(journal, 1, number)
            number += 1
    except StoreFullError:
        pass
    files.space = files.used()
    scene.tick()
    assert scene.numbers == []
    settle(journal, locations)
    while (oldest := journal.oldest_to_clean()) is not None:
        journal.drop(oldest)
        journal.flush()
    assert scene.counts.given_up > 0
    assert "was dropped without being archived" in caplog.text
    filled(journal, 1, number, now_ms=9_000)


def test_repair_leaves_what_is_in_the_archive_as_it_is() -> None:
    files = FakeFiles()
    journal = opened(files)
    scene = ArchiveScene(files, journal)
    locations = filled(journal, 9)
    scene.tick()
    image = files.after_crash(0, "none")
    for data in (image.inodes[name_of(1)].live, image.inodes[name_of(1)].durable):
        data[locations[1].offset + 90] ^= 1
    folder = journal.incarnation.folder
    before = bytes(image.inodes[f"{folder}/{segment_name(1)}"].live)
    assert repair_files(image).damages
    assert bytes(image.inodes[f"{folder}/{segment_name(1)}"].live) == before
    assert bytes(image.inodes[name_of(1)].live) != before
    again = Journal(image, "c", 7, segment_bytes=1_000)
    assert again.recover(1 << 30, 0).lost


def test_recovery_cuts_no_file_that_has_another_name() -> None:
    files = FakeFiles()
    journal = opened(files)
    filled(journal, 1)
    image = files.after_crash(0, "none")
    image.link(name_of(1), FakeFolders(image).open("shard-7-ab"))
    before = bytes(image.inodes["shard-7-ab/" + name_of(1)].live)
    again = Journal(image, "c", 7, segment_bytes=1_000)
    again.recover(1 << 30, 2_000)
    assert bytes(image.inodes["shard-7-ab/" + name_of(1)].live) == before
    assert len(image.inodes[name_of(1)].live) < len(before)


def test_a_segment_with_anything_captured_is_sealed_after_a_while() -> None:
    files = FakeFiles()
    journal = opened(files)
    scene = ArchiveScene(files, journal)
    scene.tick()
    first = journal.current.number
    for _ in range(3):
        scene.now_ms += SEAL_MS
        scene.tick()
    assert journal.current.number == first, "nothing has happened"
    location = send(journal, 0, scene.now_ms)
    scene.now_ms += SEAL_MS - 1
    scene.tick()
    assert journal.current.number == first
    scene.now_ms += 1
    scene.tick()
    assert journal.current.number == first + 1
    assert scene.numbers == [first]
    settle(journal, {0: location})
    scene.now_ms += SEAL_MS
    scene.tick()
    assert journal.current.number == first + 2
    assert len(files.inodes[name_of(first + 1)].live) < 500, "cut to what is in it"
    scene.now_ms += SEAL_MS
    scene.tick()
    assert journal.current.number == first + 2


def test_what_is_in_no_captured_queue_seals_nothing() -> None:
    files = FakeFiles()
    journal = opened(files)
    journal.append(Queue(QueueEvent.DECLARED, 2, "other"), 1_000)
    scene = ArchiveScene(files, journal)
    scene.now_ms += SEAL_MS
    scene.tick()
    number = journal.current.number
    batch = batch_of([b"x"], durable=True)
    journal.append(Append([(2, 0)], 0, 0, batch, 0, 1), scene.now_ms)
    journal.append(Settle(2, [(0, 1)], Outcome.ACCEPTED), scene.now_ms)
    scene.now_ms += SEAL_MS
    scene.tick()
    assert journal.current.number == number
    scene.readers["r"] = reader()
    scene.now_ms += SEAL_MS
    scene.tick()
    assert journal.current.number == number + 1


def test_transient_messages_of_a_captured_queue_are_synced_within_a_tick() -> None:
    files = FakeFiles()
    journal = opened(files)
    scene = ArchiveScene(files, journal)
    send(journal, 0, flags=SPILLED)
    journal.flush()
    before = journal.committed.next_lsn
    scene.tick()
    assert journal.committed.next_lsn == before + 1


def test_what_is_old_goes_and_is_not_archived_again() -> None:
    files = FakeFiles()
    journal = opened(files)
    scene = ArchiveScene(files, journal, rule=Rule(hours=1))
    filled(journal, 6)
    scene.tick()
    old = scene.numbers
    assert old
    scene.now_ms += 2 * HOUR_MS
    filled(journal, 6, 6, now_ms=scene.now_ms)
    scene.tick()
    assert scene.counts.removed == len(old)
    assert min(scene.numbers) > max(old)
    left = scene.numbers
    scene.now_ms += ARCHIVE_LOOK_MS
    scene.tick()
    assert scene.counts.removed == len(old)
    # Nor by a start that finds it in the journal.
    journal.close(scene.now_ms)
    again = ArchiveScene(files, opened(files), rule=Rule(hours=1))
    again.now_ms = scene.now_ms
    again.tick()
    assert again.numbers[: len(left)] == left


def test_a_reader_holds_back_what_it_has_not_read_and_is_passed_over_beyond_its_bounds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = FakeFiles()
    journal = opened(files)
    scene = ArchiveScene(files, journal, rule=Rule(hours=1))
    disk = journal.incarnation.disk
    scene.readers["nightly"] = reader(hold_hours=24)
    filled(journal, 12)
    journal.seal(1_000)
    journal.flush()
    scene.tick()
    all_of_them = scene.numbers
    scene.now_ms += 2 * HOUR_MS
    scene.tick()
    assert scene.numbers == all_of_them
    assert scene.counts.readers["nightly"].held_bytes > 0
    # It has read the first one.
    index = decode_index(
        (FakeFolders(files).open(journal.incarnation.folder).load(index_name(1)) or b"").decode()
    )
    scene.readers["nightly"] = reader(hold_hours=24, **{f"_{disk}": index.next_lsn})
    scene.now_ms += ARCHIVE_LOOK_MS
    scene.tick()
    assert scene.numbers == all_of_them[1:]
    assert not scene.counts.passed_over
    scene.now_ms += 24 * HOUR_MS
    scene.tick()
    assert scene.numbers == []
    assert scene.counts.passed_over == {"nightly": len(all_of_them) - 1}
    assert "reader nightly was passed over" in caplog.text


def test_former_journals_of_the_shard_are_kept_as_long_and_go_with_their_folder() -> None:
    files = FakeFiles()
    journal = opened(files)
    scene = ArchiveScene(files, journal)
    filled(journal, 6)
    scene.tick()
    former = journal.incarnation.folder
    other = files.after_crash(0, "none")
    for name in [name for name in other.inodes if "/" not in name]:
        del other.inodes[name], other._durable[name]
    stranger = f"shard-70-{'a' * 32}"
    FakeFolders(other).open(stranger).replace(IDENTITY, Incarnation("c", 70, "a" * 32).encode().encode())
    other.random = lambda: bytes(16)  # type: ignore[method-assign]
    new = opened(other)
    assert new.incarnation.folder != former
    scene = ArchiveScene(other, new)
    scene.tick()
    assert len(scene.archiver.contents.listed()[journal.incarnation.disk]) > 1
    scene.now_ms += 169 * HOUR_MS
    scene.tick()
    assert FakeFolders(other).names() == [stranger], "that of another shard is not touched"


def test_a_missing_or_bad_index_is_made_anew_and_what_is_strange_is_left_alone() -> None:
    files = FakeFiles()
    journal = opened(files)
    scene = ArchiveScene(files, journal)
    filled(journal, 9)
    scene.tick()
    folder = FakeFolders(files).open(journal.incarnation.folder)
    expected = archived(files, journal.incarnation.folder)
    folder.remove(index_name(1))
    folder.replace(index_name(2), b"{")
    FakeFolders(files).open(f"shard-7-{'b' * 32}").replace(IDENTITY, b"{}")
    again = ArchiveScene(files, journal)
    again.tick()
    assert archived(files, journal.incarnation.folder) == expected
    assert again.numbers == scene.numbers
    assert f"shard-7-{'b' * 32}" in FakeFolders(files).names()
