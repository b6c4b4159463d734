"""Damage: malformed records of a journal, or records that no archive or gateway has."""

from collections.abc import Callable


class DamageError(Exception):
    """Rows are missing; the message says which, where, why, and what to do."""

    def __init__(
        self, journal: str, segment: int, offset: int, lsn: int, what: str, next_lsn: int | None = None
    ) -> None:
        # All arguments are passed to Exception, because workers of Spark pickle their exceptions.
        super().__init__(journal, segment, offset, lsn, what, next_lsn)
        self.journal = journal
        self.segment = segment
        self.offset = offset
        """Bytes from the beginning of the segment."""
        self.lsn = lsn
        """Lsn of the first missing record."""
        self.next_lsn = lsn + 1 if next_lsn is None else next_lsn
        """Lsn of the first record after the missing ones, within the range that was read."""
        self.what = what

    def __str__(self) -> str:
        return (
            f"journal {self.journal}, segment {self.segment}, offset {self.offset}, record {self.lsn}: "
            f"{self.what}. Expected whole records; read another copy of this segment, or set "
            "failOnDataLoss=false (--allow-loss of lightrail-spark) to continue without the missing records"
        )


Lost = Callable[[DamageError], None]
"""Called with damage if reading continues after it."""
