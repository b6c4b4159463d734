"""Two journals are compared by their segments, and nothing accepted is ever cut."""

import pytest

from lightrail.journal.record import RANGE_RECORDS
from lightrail.shard.replicas.lineage import Comparison, LineageError, OwnedSegment, RecordEnd, compare


def lineage(text: str) -> list[OwnedSegment]:
    """`number:epoch:first-last@end …`, the oldest first, as a lineage."""
    found = []
    for each in text.split():
        number, epoch, rest = each.split(":")
        lsns, end = rest.split("@")
        first, last = lsns.split("-")
        found.append(OwnedSegment(int(number), int(first), int(epoch), int(end), int(last) + 1))
    return found[::-1]


OWNER = "4:1:1-10@500 5:1:11-20@400 6:2:21-30@300"


@pytest.mark.parametrize(
    ("member", "common", "cut", "fetch"),
    [
        (OWNER, (6, 300, 31), False, False),
        ("4:1:1-10@500 5:1:11-20@400 6:2:21-22@100", (6, 100, 23), False, True),
        ("4:1:1-10@500 5:1:11-20@400 6:2:21-20@40", (6, 40, 21), False, True),
        ("4:1:1-10@500 5:1:11-20@400", (5, 400, 21), False, True),
        ("4:1:1-10@500 5:1:11-15@200", (5, 200, 16), False, True),
        ("5:1:11-20@400 6:2:21-30@300", (6, 300, 31), False, False),
        ("3:1:0-0@90 4:1:1-10@500 5:1:11-20@400", (5, 400, 21), False, True),
        # It had more of the segment in which another member took over.
        ("4:1:1-10@500 5:1:11-25@600", (5, 400, 21), True, True),
        # It began the next segment in its own epoch.
        ("4:1:1-10@500 5:1:11-25@600 6:1:26-27@90", (5, 400, 21), True, True),
        ("4:1:1-10@500 5:1:11-20@400 6:1:21-30@300", (5, 400, 21), True, True),
        # It has more of the owner's own segment than the owner.
        ("4:1:1-10@500 5:1:11-20@400 6:2:21-40@600", (6, 300, 31), True, False),
        ("", (4, 0, 1), False, True),
    ],
)
def test_the_common_end_is_the_shorter_end_of_the_newest_segment_of_one_owner(
    member: str, common: tuple[int, int, int], cut: bool, fetch: bool
) -> None:
    assert compare(lineage(member), lineage(OWNER), 0) == Comparison(RecordEnd(*common), cut, fetch)
    # Accepted is at most what both have.
    assert compare(lineage(member), lineage(OWNER), common[2] - 1) == Comparison(
        RecordEnd(*common), cut, fetch
    )
    with pytest.raises(LineageError, match=f"up to {common[2]}, .* up to record {common[2] - 1} only"):
        compare(lineage(member), lineage(OWNER), common[2])


@pytest.mark.parametrize("member", ["3:1:1-10@500", "3:1:1-10@500 4:1:11-30@900", "4:2:31-35@200"])
def test_a_journal_of_which_the_owner_has_dropped_everything_begins_anew(member: str) -> None:
    owner = lineage("5:2:31-40@300 6:2:41-50@200")
    for accepted in (0, 10, 30):
        assert compare(lineage(member), owner, accepted) == Comparison(RecordEnd(5, 0, 31), True, True)
    with pytest.raises(LineageError, match="up to 31"):
        compare(lineage(member), owner, 31)


def test_the_epoch_of_shards_without_replicas_does_not_show_that_two_journals_are_equal() -> None:
    owner = lineage("1:0:1-9@300 2:1:10-19@300")
    assert compare(lineage("1:0:1-9@300"), owner, 0).common == RecordEnd(1, 0, 1)
    assert compare(lineage("1:0:1-9@300 2:1:10-12@90"), owner, 0).common == RecordEnd(2, 90, 13)


BEYOND = RANGE_RECORDS + 5


def test_nobody_is_cut_to_a_journal_that_was_promoted() -> None:
    promoted = [OwnedSegment(6, 16, 4, 300, BEYOND), *lineage("4:1:1-10@500 5:1:11-15@200")]
    # It has all that the owner had before it was promoted, or a part of that, or nothing.
    for member, common in (
        ("4:1:1-10@500 5:1:11-15@200", RecordEnd(5, 200, 16)),
        ("4:1:1-10@500", RecordEnd(4, 500, 11)),
        ("", RecordEnd(4, 0, 1)),
    ):
        assert compare(lineage(member), promoted, 0) == Comparison(common, False, True)
    for member in ("4:1:1-10@500 5:1:11-16@240", "4:1:1-10@500 5:1:11-15@200 6:3:16-16@80", "4:0:1-3@500"):
        with pytest.raises(LineageError, match=r"promoted without all accepted ones.* nothing was cut"):
            compare(lineage(member), promoted, 0)
        # The owner has dropped the segments before.
        with pytest.raises(LineageError, match="promoted without all accepted ones"):
            compare(lineage(member), [OwnedSegment(7, BEYOND, 4, 300, BEYOND + 9)], 0)
    # What a member has behind the Gap is cut as ever.
    ahead = [OwnedSegment(6, 16, 4, 400, BEYOND + 2), *promoted[1:]]
    assert compare(ahead, promoted, 0) == Comparison(RecordEnd(6, 300, BEYOND), True, False)


def test_an_owner_of_an_earlier_epoch_is_refused() -> None:
    with pytest.raises(LineageError, match=r"epoch 3 or later, as segment 7 here has, found epoch 2"):
        compare(lineage("7:3:31-40@300"), lineage(OWNER), 0)


@pytest.mark.parametrize("older", ["4:1:1-10@501", "4:1:1-9@500", "4:1:2-10@500", "4:0:1-10@500"])
def test_an_older_segment_that_differs_is_damage(older: str) -> None:
    with pytest.raises(LineageError, match="expected segment 4 as the owner has it"):
        compare(lineage(f"{older} 5:1:11-20@400"), lineage(OWNER), 0)


def test_an_owner_without_a_segment_is_refused() -> None:
    with pytest.raises(LineageError, match="expected the segments of the owner, found none"):
        compare(lineage(OWNER), [], 0)
