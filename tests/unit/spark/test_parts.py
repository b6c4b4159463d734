"""The stream of a capture: what it plans is handed on whole, with what is lost or was never archived."""

import json
import pickle
from pathlib import Path

import pytest

from lightrail.spark.columns import SCHEMA
from lightrail.spark.lake.files import Covered, Range
from lightrail.spark.lake.stream import Outline, PartsReader
from lightrail.spark.reading.losses import DataLossError
from lightrail.spark.reading.options import read_options
from lightrail.spark.reading.planning import Piece
from tests.support.spark.lakes import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    for _ in range(4):
        lake.send(100)
        lake.archived()
    return lake


def planned(
    lake: Lake, fail: bool = True, start: dict[str, int] | None = None
) -> tuple[Outline, list[Piece]]:
    """What the tasks of one micro-batch with everything are told, as they are told."""
    options = {
        "path": str(lake.archive),
        "failOnDataLoss": str(fail).lower(),
        "startingOffsets": json.dumps(start) if start else "earliest",
    }
    reader = PartsReader(read_options(options, streaming=True), tuple(SCHEMA.names))
    first = reader.initialOffset()
    end = reader.latestOffset(first, reader.getDefaultReadLimit())
    told = [
        pickle.loads(row[0])
        for each in reader.partitions(first, end)
        for row in pickle.loads(pickle.dumps(reader)).read(each)
    ]
    outline = told[0]
    assert isinstance(outline, Outline)
    return outline, [piece for task in told[1:] for piece in task]


def as_read(outline: Outline, pieces: list[Piece]) -> Covered:
    """As if every piece had been read whole."""
    ranges = []
    for piece in pieces:
        part = piece.part
        count = part.next_lsn - part.first_lsn
        where = part.incarnation
        ranges.append(Range(where.disk, where.shard, part.first_lsn, part.next_lsn, count, 0, 0))
    return outline.covered(ranges)


def gone(lake: Lake, at: int) -> None:
    """A segment of the archive is not there any more."""
    path = sorted(lake.archive.glob("*/*.segment"))[at]
    path.unlink()
    path.with_suffix(".index").unlink()


def test_a_plan_says_all_that_its_tasks_read(lake: Lake) -> None:
    outline, pieces = planned(lake)
    (journal,) = lake.journals().values()
    assert outline.bounds == {lake.journal.disk: (journal.earliest, journal.latest)}
    covered = as_read(outline, pieces)
    assert outline.losses == []
    assert covered.unwatched == []
    assert sum(each.records for each in covered.ranges) == (journal.latest or 0) - (journal.earliest or 0)


def test_a_segment_that_is_gone_is_a_range_without_records(lake: Lake) -> None:
    gone(lake, 1)
    with pytest.raises(DataLossError, match="can't be read"):
        planned(lake)
    outline, pieces = planned(lake, fail=False)
    covered = as_read(outline, pieces)
    (loss,) = outline.losses
    (lost,) = [each for each in covered.ranges if not each.records]
    assert (lost.first_lsn, lost.next_lsn, lost.shard) == (loss.first_lsn, loss.next_lsn, 1)
    assert covered.unwatched == []


def test_segments_that_went_before_they_were_read_are_a_range_without_records(lake: Lake) -> None:
    first = next(iter(lake.journals().values())).earliest
    assert first is not None
    gone(lake, 0)
    outline, pieces = planned(lake, fail=False, start={lake.journal.disk: first})
    covered = as_read(outline, pieces)
    assert outline.bounds[lake.journal.disk][0] == first
    assert [each.first_lsn for each in covered.ranges if not each.records] == [first]


def test_what_was_never_archived_is_no_loss(lake: Lake) -> None:
    for queue in lake.queues:
        lake.journal.declare(queue, capture=False)
    lake.archived()
    lake.send(40)
    lake.archived()
    for queue in lake.queues:
        lake.journal.declare(queue)
    lake.archived()
    gone(lake, -2)
    outline, pieces = planned(lake)
    covered = as_read(outline, pieces)
    assert outline.losses == []
    (unwatched,) = covered.unwatched
    assert unwatched.shard == 1
    assert all(each.records for each in covered.ranges)
