"""What is missing of segments: named with its location, or passed over with the next whole record."""

import pickle
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.journal.archive import ArchiveError
from lightrail.journal.layout import GAP, QUEUE, SNAPSHOT, encode_small, finished
from lightrail.journal.record import RANGE_RECORDS, Gap
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE
from lightrail.spark.decoding.wanted import Part, Wanted
from lightrail.spark.decoding.windows import DamageError
from tests.unit.spark.journal_rows import (
    PLAIN,
    Bytes,
    Stored,
    append,
    declared,
    journal_of,
    plain_rows,
    rows_of,
    some_records,
    stored,
    written,
)

ALL = Wanted(columns=PLAIN, captured_only=False)
CAPTURED = Wanted(columns=PLAIN)


def lines(count: int = 6) -> Stored:
    return written(declared(1), *(append([b"message %d" % number], (1, number)) for number in range(count)))


def survived(segment: Stored, part: Part | None = None) -> tuple[list[int], list[DamageError]]:
    damage: list[DamageError] = []
    rows = rows_of(segment, CAPTURED, part, damage.append)
    return [row["sequence"] for row in rows], damage


def test_damage_is_named_with_its_location() -> None:
    segment = lines()
    third = segment.records()[4]
    broken = segment.damaged(third.offset + third.length - 1)
    with pytest.raises(DamageError) as caught:
        rows_of(broken, CAPTURED)
    damage = caught.value
    assert (damage.journal, damage.segment, damage.offset) == ("5eed", segment.index.segment, third.offset)
    assert (damage.lsn, damage.next_lsn) == (third.lsn, third.lsn + 1)
    assert "wrong checksum" in str(damage)
    assert "failOnDataLoss" in str(damage)
    again = pickle.loads(pickle.dumps(damage))
    assert (str(again), again.next_lsn) == (str(damage), damage.next_lsn)


def test_reading_goes_on_with_the_next_whole_record() -> None:
    segment = lines()
    third = segment.records()[4]
    for at in range(third.offset, third.offset + third.length):
        sequences, damage = survived(segment.damaged(at))
        assert sequences == [0, 1, 3, 4, 5]
        assert [each.lsn for each in damage] == [third.lsn]


def test_damage_is_that_of_the_part_whose_records_are_missing() -> None:
    segment = lines()
    third = segment.records()[4]
    broken = segment.damaged(third.offset + 20)
    assert survived(broken, broken.part(third.lsn + 1)) == ([3, 4, 5], [])
    assert survived(broken, broken.part(None, third.lsn)) == ([0, 1], [])
    sequences, (damage,) = survived(broken, broken.part(third.lsn, third.lsn + 1))
    assert (sequences, damage.lsn) == ([], third.lsn)


def test_damage_in_the_last_record_ends_the_reading() -> None:
    segment = lines()
    last = segment.records()[-1]
    sequences, damage = survived(segment.damaged(last.offset + 40))
    assert sequences == [0, 1, 2, 3, 4]
    assert [each.lsn for each in damage] == [last.lsn]


def test_a_file_that_is_shorter_than_what_was_committed_is_damaged() -> None:
    segment = lines()
    last = segment.records()[-1]
    for end in (last.offset, last.offset + 10, last.offset + 50):
        short = Stored(Bytes(segment.file.data[:end]), segment.index, segment.salt)
        sequences, (damage,) = survived(short)
        assert (sequences, damage.lsn) == ([0, 1, 2, 3, 4], last.lsn)


def test_what_is_half_written_behind_the_end_is_not_looked_at() -> None:
    segment = lines()
    data = segment.file.data[: segment.index.end] + segment.file.data[100:180]
    assert survived(stored(data, False)) == ([0, 1, 2, 3, 4, 5], [])


def test_a_damaged_declaration_leaves_its_queue_unknown_and_says_so() -> None:
    segment = lines()
    damaged = segment.damaged(segment.index.queues[0] + 40)
    sequences, damage = survived(damaged, damaged.part(segment.records()[3].lsn))
    assert sequences == []
    assert [each.offset for each in damage] == segment.index.queues
    found: list[DamageError] = []
    rows = rows_of(damaged, ALL, None, found.append)
    assert {row["queue"] for row in rows} == {"lost-and-found/1"}


def test_a_header_that_is_none_is_damage() -> None:
    sequences, damage = survived(lines().damaged(0))
    assert (sequences, len(damage)) == ([], 1)


@given(seed=st.integers(0, 2**32), shares=st.lists(st.floats(0, 1, exclude_max=True), max_size=12))
@settings(max_examples=10, deadline=None)
def test_one_wrong_bit_costs_the_rows_of_its_record_and_no_others(seed: int, shares: list[float]) -> None:
    (segment,) = journal_of(some_records(seed, 40))
    segment.index.sealed = True
    whole = plain_rows(segment, captured_only=False)
    for share in shares:
        offset = SEGMENT_HEADER_SIZE + int(share * (segment.index.end - SEGMENT_HEADER_SIZE))
        (record,) = (each for each in segment.records() if each.offset <= offset < each.offset + each.length)
        damage: list[DamageError] = []
        rows = rows_of(segment.damaged(offset), ALL, None, damage.append)
        assert (damage[0].lsn, damage[0].offset) == (record.lsn, record.offset)
        if record.code not in (QUEUE, SNAPSHOT):
            assert rows == [row for row in whole if row["lsn"] != record.lsn]
            assert len(damage) == 1


@given(seed=st.integers(0, 2**32), shares=st.lists(st.floats(0, 1), max_size=12))
@settings(max_examples=10, deadline=None)
def test_an_end_that_is_torn_anywhere_is_the_end(seed: int, shares: list[float]) -> None:
    (segment,) = journal_of(some_records(seed, 40))
    for share in shares:
        torn = stored(segment.file.data[: SEGMENT_HEADER_SIZE + int(share * segment.index.end)], False)
        assert rows_of(torn, ALL) == plain_rows(torn, captured_only=False)


def repaired(change: Callable[[bytes, int, int], bytes]) -> Stored:
    """A segment whose fourth record was replaced."""
    segment = lines()
    record = segment.records()[4]
    data = segment.file.data
    new = change(data[record.offset : record.offset + record.length], record.lsn, segment.salt)
    assert len(new) == record.length
    whole = data[: record.offset] + new + data[record.offset + record.length :]
    return Stored(Bytes(whole), segment.index, segment.salt)


def test_a_gap_of_a_repair_is_loss() -> None:
    def gap(old: bytes, lsn: int, salt: int) -> bytes:
        rest = encode_small(Gap(lsn + 1), lsn, 0, 1_000)
        return finished(rest + bytes(len(old) - len(rest) - 8), salt)

    segment = repaired(gap)
    assert segment.records()[4].code == GAP
    sequences, (damage,) = survived(segment)
    assert sequences == [0, 1, 3, 4, 5]
    assert "repair" in str(damage)


def test_the_gap_of_a_promotion_is_loss() -> None:
    def gap(old: bytes, lsn: int, salt: int) -> bytes:
        rest = encode_small(Gap(3 * RANGE_RECORDS), lsn, 0, 1_000)
        return finished(rest + bytes(len(old) - len(rest) - 8), salt)

    sequences, damage = survived(repaired(gap))
    assert sequences[:2] == [0, 1]
    assert damage[0].next_lsn == 3 * RANGE_RECORDS
    assert "given up when another member was promoted" in str(damage[0])


@pytest.mark.parametrize(
    ("at", "value"), [(68, 9), (72, 1), (80, 2), (100, 99), (8, 16), (8, 0), (8, 2), (8, 12)]
)
def test_a_body_that_is_not_as_drawn_is_damage(at: int, value: int) -> None:
    def change(old: bytes, lsn: int, salt: int) -> bytes:
        data = bytearray(old)
        data[at] = value
        return finished(bytes(data[8:]), salt)

    sequences, damage = survived(repaired(change))
    assert sequences == [0, 1, 3, 4, 5]
    assert len(damage) == 1


def test_a_segment_of_a_newer_version_or_another_number_is_refused() -> None:
    segment = lines()
    data = bytearray(segment.file.data)
    data[8] = 99
    newer = Stored(Bytes(bytes(data)), segment.index, segment.salt)
    with pytest.raises(ArchiveError, match="99"):
        survived(newer)
    part = segment.part()
    other = Part(part.incarnation, part.segment + 1, part.first_lsn, part.next_lsn, part.index)
    with pytest.raises(ArchiveError, match="another"):
        survived(segment, other)
