"""The lineage of a journal: which owner wrote each of its segments, and so how far two journals are equal.

Each owner has an epoch of its own, and each start begins a segment (docs/formats/journal.md). So a segment
with the same number, first record and epoch in two journals was written by one owner in one life, and the
shorter copy is a prefix of the longer one: the common end is a byte offset. Older segments are equal then as
well: that owner wrote behind them, and the other journal got them from it.

The epoch 0 proves nothing: all owners before the shard had replicas share it.

An operator may have promoted a member that lacked accepted records. Its journal goes on in another range of
record numbers (journal/record.py). Nobody is cut to such a journal: what would be cut may have been accepted.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lightrail.journal.record import range_of


class LineageError(Exception):
    """The journals can't become equal without a loss; the message says what was expected and found."""


class OwnedSegment(NamedTuple):
    """The records of one segment."""

    segment: int
    first_lsn: int
    epoch: int
    """The epoch of the owner that wrote it."""
    end: int
    """Offset behind the last record."""
    next_lsn: int
    """Number after that of the last record."""

    @property
    def owner(self) -> tuple[int, int, int]:
        """Equal in two journals if one owner wrote both copies."""
        return self.segment, self.first_lsn, self.epoch


class RecordEnd(NamedTuple):
    """A position between two records."""

    segment: int
    offset: int
    """0: nothing of the segment, nor of any before it."""
    next_lsn: int
    """Number of the record behind it."""


class Comparison(NamedTuple):
    """What has to be done to a member's journal to make it equal to the owner's."""

    common: RecordEnd
    """Up to here the member keeps its journal. With the offset 0 it keeps nothing, and begins anew with the
    owner's oldest segment."""
    cut: bool
    """Whether the member has bytes behind the common end."""
    fetch: bool
    """Whether the owner has bytes behind the common end."""


def compare(member: Sequence[OwnedSegment], owner: Sequence[OwnedSegment], accepted: int) -> Comparison:
    """Compares the lineages of a member's journal and of its owner's, both newest first.

    A journal of which the owner has nothing any more begins anew: the owner had all records before its oldest
    segment, and dropped them with their segments.

    Args:
        accepted: number of the last record that is accepted, as far as the member knows; 0 for a journal of
            which everything may be cut.

    Raises:
        LineageError: the owner has no segment; its epoch is over; the owner was promoted, and a record would
            be cut; an accepted record would be cut; or an older segment differs, so that one of the journals
            is damaged.
    """
    if not owner:
        raise LineageError(
            "expected the segments of the owner, found none: its disk is full, free space there"
        )
    newest, oldest = owner[0], owner[-1]
    if member and member[0].epoch > newest.epoch:
        raise LineageError(
            f"expected an owner of epoch {member[0].epoch} or later, as segment {member[0].segment} here "
            f"has, found epoch {newest.epoch}: this owner has been replaced, so follow the newer one"
        )
    common = RecordEnd(oldest.segment, 0, oldest.first_lsn)
    of_owner = {each.segment: each for each in owner}
    for index, mine in enumerate(member):
        theirs = of_owner.get(mine.segment)
        if theirs is not None and mine.epoch and mine.owner == theirs.owner:
            shorter = min(mine, theirs, key=lambda each: each.end)
            common = RecordEnd(mine.segment, shorter.end, shorter.next_lsn)
            _check_older(member[index + 1 :], of_owner)
            break
    at = (common.segment, common.offset)
    cut = bool(member) and (member[0].segment, member[0].end) != at
    # Also where the owner has dropped the Gap with its segment.
    if cut and range_of(member[0].next_lsn) != range_of(newest.next_lsn):
        raise LineageError(
            f"expected no records that the owner lacks, as it was promoted without all accepted ones, found "
            f"those up to {member[0].next_lsn - 1} here, of which the owner has those up to "
            f"{common.next_lsn - 1}: nothing was cut, and this member does not follow. Keep its directory as "
            "long as its messages may be needed; to join again, start it with an empty one"
        )
    if common.next_lsn <= accepted:
        raise LineageError(
            f"expected the owner to have all records up to {accepted}, which were accepted, found that its "
            f"journal is that of this member up to record {common.next_lsn - 1} only: nothing was cut. Let "
            "the owner fetch the others, or a member take over that has them"
        )
    return Comparison(common, cut, fetch=(newest.segment, newest.end) != at)


def _check_older(member: Sequence[OwnedSegment], of_owner: dict[int, OwnedSegment]) -> None:
    """Checks segments that precede one of the same owner: those that both journals have must be equal."""
    for mine in member:
        theirs = of_owner.get(mine.segment)
        if theirs is not None and mine != theirs:
            raise LineageError(
                f"expected segment {mine.segment} as the owner has it, {theirs}, since a newer one is from "
                f"the same owner, found {mine}: one of the two is damaged. If it is this one, empty the "
                "directory of this member, which then gets everything anew"
            )
