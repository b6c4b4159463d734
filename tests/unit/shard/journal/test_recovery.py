"""Recovery tells a torn end, which it cuts, from damage, which it reports; and repair sets damage aside."""

import json
import random

import pytest

from lightrail.journal.layout import CLOSE, MARK, REST, U64, finished
from lightrail.journal.record import Outcome, Queue, QueueEvent, Settle
from lightrail.journal.scan import WINDOW_BYTES
from lightrail.journal.segment_header import FORMAT_VERSION, SEGMENT_HEADER_SIZE, encode_segment_header
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.repair import repair_files
from lightrail.shard.journal.segment import name_of, numbers
from lightrail.shard.journal.store import JournalDamagedError, NewerFormatError, Recovered, StoreRefusedError
from lightrail.shard.queue.values.runs import Location, batch_of
from tests.support import work
from tests.support.shard.fake_files import FakeFiles, Inode


def written(count: int = 12, close: bool = False) -> tuple[FakeFiles, list[Location]]:
    """Segments 1 to 3 with one message per record and commit; 4 is the spare."""
    files = FakeFiles()
    journal = Journal(files, "c", 0, segment_bytes=1_000)
    journal.recover(0)
    journal.append(Queue(QueueEvent.DECLARED, 1, "orders"))
    locations = []
    for number in range(count):
        batch = batch_of([b"%03d" % number + bytes(97)], durable=True)
        location = journal.append(Append([(1, number)], 5, number + 1, batch, 0, 1))
        assert location is not None
        locations.append(location)
        journal.flush()
    if close:
        journal.close()
    return files, locations


def recovered(files: FakeFiles) -> tuple[Recovered, list[int]]:
    journal = Journal(files, "c", 0, segment_bytes=1_000)
    found = journal.recover(1 << 30)
    numbers = [int(body[:3]) for queue in found.queues for run in queue.runs for body in run.messages()]
    journal.close()
    return found, numbers


def damage(files: FakeFiles, segment: int, offset: int, data: bytes = b"\xff") -> FakeFiles:
    """The disk after a crash, with other bytes at one offset."""
    image = files.after_crash(0, "none")
    inode = image.inodes[name_of(segment)]
    for copy in (inode.live, inode.durable):
        for index, value in enumerate(data):
            copy[offset + index] ^= value
    return image


def test_recovery_tells_everything_that_was_written() -> None:
    files, _ = written()
    found, numbers = recovered(files.after_crash(0, "none"))
    assert numbers == list(range(12))
    assert (found.lsn, found.cut_bytes, found.lost) == (16, 0, [])
    assert found.producers == {5: 12}


@pytest.mark.parametrize("segment_bytes", [1 << 20, 16 << 20])
def test_recovery_does_not_read_the_space_that_was_never_written(segment_bytes: int) -> None:
    files = FakeFiles()
    journal = Journal(files, "c", 0, segment_bytes=segment_bytes)
    journal.recover(0)
    journal.append(Queue(QueueEvent.DECLARED, 1, "orders"))
    journal.flush()
    for image in (files.after_crash(0, "none"), files.after_crash(0, "all")):
        Journal(image, "c", 0, segment_bytes=segment_bytes).recover(1 << 30)
        # The windows in which the scan and the search for later records begin.
        assert image.read <= 8 * WINDOW_BYTES


def test_damage_in_a_former_segment_stops_the_start_and_says_where() -> None:
    files, locations = written()
    image = damage(files, locations[2].segment, locations[2].offset + 60)
    with pytest.raises(
        JournalDamagedError, match=r"000000000001\.segment.*offset \d+.*checksum.*repair"
    ) as raised:
        recovered(image)
    assert raised.value.offset == locations[2].offset
    assert raised.value.segment == name_of(1)


@pytest.mark.parametrize("where", [0, 4, 8, 9, 10, 12, 16, 24, 40, 100])
def test_damage_of_any_field_is_found(where: int) -> None:
    files, locations = written()
    with pytest.raises(JournalDamagedError):
        recovered(damage(files, locations[2].segment, locations[2].offset + where))


def test_damage_in_the_last_segment_is_no_torn_end_when_later_records_know_better() -> None:
    files, locations = written()
    assert locations[-2].segment == locations[-3].segment
    with pytest.raises(JournalDamagedError, match="had been synced") as raised:
        recovered(damage(files, locations[-3].segment, locations[-3].offset + 60))
    assert raised.value.offset == locations[-3].offset


def test_damage_at_the_very_end_is_found_after_an_orderly_close() -> None:
    files, locations = written(close=True)
    with pytest.raises(JournalDamagedError, match="had been synced"):
        recovered(damage(files, locations[-1].segment, locations[-1].offset + 60))


def test_a_bad_last_record_without_a_successor_is_a_torn_end() -> None:
    files, locations = written()
    found, numbers = recovered(damage(files, locations[-1].segment, locations[-1].offset + 60))
    assert numbers == list(range(11))
    assert found.cut_bytes > 0


def test_a_missing_segment_and_a_bad_header_are_damage() -> None:
    files, _ = written()
    image = files.after_crash(0, "none")
    del image.inodes[name_of(2)]
    with pytest.raises(JournalDamagedError, match="missing"):
        recovered(image)
    with pytest.raises(JournalDamagedError, match="no header"):
        recovered(damage(files, 2, 3))
    files, locations = written()
    last = locations[-1].segment
    with pytest.raises(JournalDamagedError, match="no header"):
        recovered(damage(files, last, 3))


def test_a_segment_of_another_journal_is_refused() -> None:
    files, _ = written()
    image = files.after_crash(0, "none")
    header = encode_segment_header(2, 99, 12345)
    image.inodes[name_of(2)].live[: len(header)] = header
    with pytest.raises(JournalDamagedError, match="another journal"):
        recovered(image)
    header = encode_segment_header(2, 99, int.from_bytes(bytes(range(4)), "little"))
    image.inodes[name_of(2)].live[: len(header)] = header
    with pytest.raises(JournalDamagedError, match="record"):
        recovered(image)


def test_a_newer_format_is_refused() -> None:
    files, _ = written()
    image = files.after_crash(0, "none")
    fields = json.loads(bytes(image.inodes["identity.json"].live))
    fields["format"] = FORMAT_VERSION + 1
    image.inodes["identity.json"] = Inode(json.dumps(fields).encode())
    with pytest.raises(NewerFormatError, match=f"format version {FORMAT_VERSION + 1}"):
        recovered(image)
    image = files.after_crash(0, "none")
    image.inodes[name_of(3)].live[8] = FORMAT_VERSION + 1
    with pytest.raises(NewerFormatError, match=f"format version {FORMAT_VERSION + 1}"):
        recovered(image)


def test_an_identity_that_can_not_be_read_is_refused_and_a_lost_one_is_made_again() -> None:
    files, _ = written()
    image = files.after_crash(0, "none")
    image.inodes["identity.json"] = Inode(b"{}")
    with pytest.raises(StoreRefusedError, match=r"identity\.json"):
        recovered(image)
    image = files.after_crash(0, "none")
    del image.inodes["identity.json"]
    _, numbers = recovered(image)
    assert numbers == list(range(12))


def test_a_message_that_looks_like_a_record_does_not_make_a_torn_end_look_damaged() -> None:
    files, locations = written()
    segment = locations[-1].segment
    image = damage(files, segment, locations[-1].offset + 60)
    inode = image.inodes[name_of(segment)]
    forged = finished(REST.pack(CLOSE, 0, MARK, 0, 1_000, 0) + U64.pack(0), 0)
    at = locations[-1].offset + 110
    inode.live[at : at + len(forged)] = inode.durable[at : at + len(forged)] = forged
    _, numbers = recovered(image)
    assert numbers == list(range(11))


# --- repair ------------------------------------------------------------------------------------------------


def test_repair_of_a_whole_journal_changes_nothing() -> None:
    files, _ = written()
    image = files.after_crash(0, "none")
    before = {name: bytes(inode.live) for name, inode in image.inodes.items()}
    report = repair_files(image)
    assert report.damages == []
    assert "no damage" in str(report)
    assert {name: bytes(inode.live) for name, inode in image.inodes.items()} == before


def test_repair_sets_damage_aside_and_says_what_it_held() -> None:
    files, locations = written()
    image = damage(files, locations[2].segment, locations[2].offset + 150)
    report = repair_files(image)
    [found] = report.damages
    assert (found.segment, found.offset, found.length) == (name_of(1), *locations[2][1:])
    assert (found.first_lsn, found.next_lsn) == (5, 6)
    assert "1 messages" in str(report)
    assert "queue 1 from sequence 2" in str(report)
    assert "damaged" in str(report)
    aside = bytes(image.inodes[found.aside].live)
    assert aside[150] == bytes(files.inodes[name_of(1)].live)[found.offset + 150] ^ 0xFF
    what, numbers = recovered(image)
    assert numbers == [0, 1, *range(3, 12)]
    assert what.lost == [(5, 6)]
    assert repair_files(image).damages == []
    # The journal goes on, and is whole at the next start as well.
    _, numbers = recovered(image)
    assert numbers == [0, 1, *range(3, 12)]


def test_repair_of_an_end_of_a_former_segment() -> None:
    files, locations = written()
    last_of_first = max(number for number, location in enumerate(locations) if location.segment == 1)
    image = damage(files, 1, locations[last_of_first].offset + 60)
    report = repair_files(image)
    assert len(report.damages) == 1
    _, numbers = recovered(image)
    assert numbers == [number for number in range(12) if number != last_of_first]


@pytest.mark.parametrize("segment", [1, 2, 3])
def test_repair_of_a_header(segment: int) -> None:
    files, _ = written()
    image = damage(files, segment, 3)
    report = repair_files(image)
    assert len(report.damages) == 1
    _, numbers = recovered(image)
    assert numbers == list(range(12))


def test_repair_of_a_missing_segment() -> None:
    files, locations = written()
    image = files.after_crash(0, "none")
    del image.inodes[name_of(2)]
    del image._durable[name_of(2)]
    report = repair_files(image)
    assert len(report.damages) >= 1
    what, numbers = recovered(image)
    assert numbers == [number for number, location in enumerate(locations) if location.segment != 2]
    assert what.lost


def test_repair_leaves_a_torn_end_to_recovery() -> None:
    files, locations = written()
    image = damage(files, locations[-1].segment, locations[-1].offset + 60)
    assert repair_files(image).damages == []
    _, numbers = recovered(image)
    assert numbers == list(range(11))


def test_repair_of_no_journal_is_refused() -> None:
    with pytest.raises(StoreRefusedError, match="expected a journal"):
        repair_files(FakeFiles())


def test_after_any_damage_repair_lets_the_shard_start_with_the_rest() -> None:
    """Random bytes at random offsets: what is left is a part of what was there, in order, undamaged."""
    for seed in range(300):
        chance = random.Random(seed)
        files, locations = written(chance.randint(1, 30), close=chance.random() < 0.5)
        segment = chance.randint(1, locations[-1].segment)
        size = len(files.inodes[name_of(segment)].live)
        at = chance.choice((0, SEGMENT_HEADER_SIZE, chance.randrange(size)))
        data = bytes(chance.choices(range(256), k=min(chance.choice((1, 8, 50, 400, 2_000)), size - at)))
        image = damage(files, segment, at, data)
        before = list(range(len(locations)))
        try:
            _, numbers = recovered(image)
            # Nothing but the end may be missing without a word.
            assert numbers == before[: len(numbers)], seed
            assert len(numbers) >= len(before) - 1 or segment == locations[-1].segment, seed
        except JournalDamagedError:
            image = damage(files, segment, at, data)
            repair_files(image)
            _, numbers = recovered(image)
            assert numbers == sorted(set(numbers) & set(before)), seed
            hit = {
                number
                for number, location in enumerate(locations)
                if location.segment == segment
                and location.offset < at + len(data)
                and at < location.offset + location.length
            }
            assert set(before) - set(numbers) <= hit | {before[-1]}, seed


def test_lost_settlements_bring_messages_back() -> None:
    files = FakeFiles()
    journal = Journal(files, "c", 0, segment_bytes=10_000)
    journal.recover(0)
    journal.append(Queue(QueueEvent.DECLARED, 1, "orders"))
    journal.append(Append([(1, 0)], 0, 0, batch_of([b"000", b"001"], durable=True), 0, 2))
    journal.flush()
    at = journal.current.end
    journal.append(Settle(1, [(0, 1)], Outcome.ACCEPTED, "accepted"))
    journal.flush()
    journal.close()
    image = damage(files, 1, at + 50)
    report = repair_files(image)
    assert "Settle" in str(report)
    _, numbers = recovered(image)
    assert numbers == [0, 1]


def test_recovery_looks_at_each_queue_once_in_however_many_segments() -> None:
    def lines_for(segments: int) -> int:
        files = FakeFiles()
        journal = Journal(files, "c", 0, segment_bytes=4_000)
        journal.recover(0)
        for queue in range(1, 201):
            journal.append(Queue(QueueEvent.DECLARED, queue, f"q{queue}"))
            journal.append(Append([(queue, 0)], 5, queue, batch_of([b"m"], durable=True), 0, 1))
            journal.flush()
        first = len(numbers(files))
        number = 0
        while len(numbers(files)) < first + segments:
            number += 1
            journal.append(Append([(1, number)], 6, number, batch_of([bytes(1_500)], durable=True), 0, 1))
            journal.flush()
        journal.close()
        again = Journal(files, "c", 0, segment_bytes=4_000)
        found = work.lines(lambda: again.recover(1 << 30))
        again.close()
        return found

    few, many = lines_for(2), lines_for(22)
    # The snapshot at the beginning of each segment names all queues; nothing else of a segment does.
    assert many - few < 20 * 200 * 30
