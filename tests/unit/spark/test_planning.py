"""Planning a read: which parts of which segments, in how many tasks, and what is lost."""

from itertools import pairwise
from pathlib import Path

import pytest

from lightrail.spark.journals.journal import Journal
from lightrail.spark.journals.listing import Listing
from lightrail.spark.reading.losses import Loss
from lightrail.spark.reading.planning import Piece, first_since, pieces, tasks
from lightrail.spark.reading.stream import admitted
from tests.support.spark.archives import MORNING_MS, JournalOf

MESSAGE = b"\x00Su\xa0\x60" + bytes(96)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightrail.journal.index.BLOCK_BYTES", 4_096)


@pytest.fixture
def written(tmp_path: Path) -> JournalOf:
    journal = JournalOf(tmp_path / "journal", segment_bytes=32 * 1024)
    journal.declare("orders")
    for _ in range(200):
        journal.send("orders", [MESSAGE] * 10)
        journal.now_ms += 1_000
    return journal


def found(tmp_path: Path, written: JournalOf) -> Journal:
    return Listing((str(tmp_path / "archive"),), None).journals()[written.disk]


def none_lost(loss: Loss) -> None:
    raise AssertionError(str(loss))


def ranges(every: list[Piece]) -> list[tuple[int, int]]:
    return [(piece.part.first_lsn, piece.part.next_lsn) for piece in every]


@pytest.mark.parametrize("partitions", [None, 1, 2, 7, 20, 10_000])
def test_tasks_cover_a_range_once_and_in_order(
    tmp_path: Path, written: JournalOf, partitions: int | None
) -> None:
    written.archive(tmp_path / "archive")
    journal = found(tmp_path, written)
    first, last = 7, (journal.latest or 0) - 3
    planned = tasks(pieces(journal, first, last, none_lost), partitions)
    every = ranges([piece for task in planned for piece in task])
    assert every[0][0] == first
    assert every[-1][1] == last
    assert all(before[1] == after[0] for before, after in pairwise(every))
    if partitions is not None and partitions <= 20:
        assert partitions <= len(planned) <= partitions + 8


def test_segments_that_are_gone_are_a_loss_between_those_that_are_there(
    tmp_path: Path, written: JournalOf
) -> None:
    folder = written.archive(tmp_path / "archive")
    numbers = [held.number for held in found(tmp_path, written).segments]
    for number in (numbers[0], numbers[3]):
        (folder / f"{number:012d}.segment").unlink()
    journal = found(tmp_path, written)
    losses: list[Loss] = []
    every = ranges(list(pieces(journal, 1, journal.latest or 0, losses.append)))
    assert [(loss.first_lsn, loss.next_lsn) for loss in losses] == [
        (1, every[0][0]),
        (every[1][1], every[2][0]),
    ]


def test_segments_in_which_nothing_was_captured_are_not_missed(tmp_path: Path, written: JournalOf) -> None:
    written.roll()
    written.declare("orders", capture=False)
    written.roll()
    off = sorted(written.journal._segments)[-1]
    for _ in range(200):
        written.send("orders", [MESSAGE] * 10)
    written.roll()
    on = sorted(written.journal._segments)[-1]
    written.declare("orders")
    written.send("orders", [MESSAGE])
    folder = written.archive(tmp_path / "archive")
    for number in range(off, on):
        (folder / f"{number:012d}.segment").unlink()
    journal = found(tmp_path, written)
    assert len(list(pieces(journal, 1, journal.latest or 0, none_lost))) == len(journal.segments)
    # Also for a stream that had read live what was not archived, and for a range that ends there.
    gap = journal.index(next(held for held in journal.segments if held.number == on)).first_lsn
    assert ranges(list(pieces(journal, gap - 50, journal.latest or 0, none_lost)))
    assert ranges(list(pieces(journal, 1, gap - 50, none_lost)))


def test_a_segment_without_an_index_is_read_for_one(tmp_path: Path, written: JournalOf) -> None:
    folder = written.archive(tmp_path / "archive")
    before = ranges(list(pieces(found(tmp_path, written), 1, 100, none_lost)))
    for index in folder.glob("*.index"):
        index.unlink()
    assert ranges(list(pieces(found(tmp_path, written), 1, 100, none_lost))) == before


def test_a_time_is_the_first_record_that_is_not_older(tmp_path: Path, written: JournalOf) -> None:
    written.archive(tmp_path / "archive")
    journal = found(tmp_path, written)
    stamps = {}
    for held in journal.segments:
        for cut in journal.index(held).blocks:
            stamps[cut.lsn] = cut.timestamp
    lsn, stamp = sorted(stamps.items())[5]
    assert first_since(journal, 0) == 1
    assert first_since(journal, MORNING_MS) == 1
    assert first_since(journal, stamp) <= lsn < first_since(journal, stamp + 2_000)
    assert first_since(journal, written.now_ms + 1) == journal.latest


@pytest.mark.parametrize("limit", [1, 100, 500, 1_999, 100_000])
def test_a_micro_batch_has_a_block_at_least_and_no_more_than_was_allowed(
    tmp_path: Path, written: JournalOf, limit: int
) -> None:
    written.archive(tmp_path / "archive")
    journal = found(tmp_path, written)
    end = journal.latest or 0
    position, rounds = 1, 0
    while position < end:
        after = admitted({"it": (journal, position, end)}, limit, None)["it"]
        assert after > position
        # Each segment has two records without messages: the Snapshot, and at first the queue.
        assert 10 * (after - position) <= max(limit + 100, 100)
        position, rounds = after, rounds + 1
    assert rounds >= 2_000 / max(limit, 100)
