"""Damage: bytes of a journal that should be whole records and are not, or records that nobody has now."""

from collections.abc import Callable


class DamageError(Exception):
    """Rows are missing: which, where, why, and what can be done."""

    def __init__(
        self, journal: str, segment: int, offset: int, lsn: int, what: str, next_lsn: int | None = None
    ) -> None:
        # All arguments go to Exception: workers of Spark pickle what they raise.
        super().__init__(journal, segment, offset, lsn, what, next_lsn)
        self.journal = journal
        self.segment = segment
        self.offset = offset
        """Bytes from the beginning of the segment."""
        self.lsn = lsn
        """Of the first record that is missing."""
        self.next_lsn = lsn + 1 if next_lsn is None else next_lsn
        """Of the first record behind those that are missing, as far as they were to be read."""
        self.what = what

    def __str__(self) -> str:
        return (
            f"journal {self.journal}, segment {self.segment}, offset {self.offset}, record {self.lsn}: "
            f"{self.what}. Expected whole records; read another copy of this segment, or set "
            "failOnDataLoss=false (--allow-loss of lightrail-spark) to go on without what is missing"
        )


Lost = Callable[[DamageError], None]
"""Told of damage when reading goes on after it."""
