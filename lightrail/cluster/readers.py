"""Reader: a reader of the shards' journals and its positions, so that no segment is removed before it was
read.

A reader is the entry ``readers/NAME``. Shards keep segments in their archives for it, up to the reader's own
bounds; beyond the bounds, shards remove segments anyway (docs/operate/readers.md).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from lightrail.model import limits, names

READERS: Final = "readers/"
LSN_MAX: Final = (1 << 63) - 1


class InvalidReaderError(ValueError):
    """An invalid field of a reader; the message has what was expected and found."""


class ReaderGoesBackError(Exception):
    """A position before the recorded one."""

    def __init__(self, disk: str, before: int, after: int) -> None:
        super().__init__(
            f"the reader is at {before} in journal {disk} already, and {after} is before that: the records "
            "between them may have been removed"
        )
        self.disk = disk
        self.before = before
        self.after = after


@dataclass(frozen=True, slots=True)
class Reader:
    """Positions of one reader, and the bounds of the segments that are kept for it."""

    positions: dict[str, int] = field(default_factory=dict)
    """Next lsn to read, by the disk of the journal. A missing journal is read from its earliest record."""
    hold_hours: float = limits.READER_HOLD_HOURS
    """Segments that were sealed longer ago are not kept for it."""
    hold_bytes: int = limits.READER_HOLD_BYTES
    """Most bytes that each shard keeps for it."""
    moved_ms: int = 0
    """Time of its last report of positions, in milliseconds since 1970."""
    revision: int = 0
    """Revision of the entry; guards the next change."""

    def encode(self) -> str:
        """The value of its entry."""
        fields = asdict(self)
        del fields["revision"]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, value: str, revision: int) -> "Reader":
        """Decodes its entry. Raises ValueError, TypeError or KeyError."""
        fields = json.loads(value)
        return cls(
            {str(disk): int(lsn) for disk, lsn in dict(fields["positions"]).items()},
            float(fields["hold_hours"]),
            int(fields["hold_bytes"]),
            int(fields["moved_ms"]),
            revision,
        )

    def moved(self, positions: Mapping[str, int], now_ms: int, *, back: bool = False) -> "Reader":
        """The reader with these positions; those of other journals stay.

        Args:
            back: whether positions may decrease.

        Raises:
            ReaderGoesBackError: a position decreases, and `back` is False.
            InvalidReaderError: too many journals.
        """
        for disk, lsn in positions.items():
            before = self.positions.get(disk, 0)
            if lsn < before and not back:
                raise ReaderGoesBackError(disk, before, lsn)
        merged = self.positions | dict(positions)
        if len(merged) > limits.READER_POSITIONS_MAX:
            raise InvalidReaderError(
                f"the reader would have positions in {len(merged)} journals; at most "
                f"{limits.READER_POSITIONS_MAX} are allowed: forget those of journals that no longer exist"
            )
        return replace(self, positions=merged, moved_ms=now_ms)

    def without(self, disks: set[str]) -> "Reader":
        """The reader without positions in these journals; existing journals are read from the beginning."""
        return replace(
            self, positions={disk: lsn for disk, lsn in self.positions.items() if disk not in disks}
        )


def check_name(name: str) -> None:
    """Raise InvalidReaderError unless a reader may have this name: any name but system names."""
    try:
        names.check(name)
    except names.InvalidNameError as error:
        raise InvalidReaderError(str(error)) from None
    if names.is_system(name) or name.startswith(names.SYSTEM_MARKS):
        raise InvalidReaderError(f"the name {name[:80]!a} is reserved for the system; choose another")


def is_disk(text: str) -> bool:
    """Whether a journal may have this name: 1 to 64 lower-case hexadecimal digits."""
    return 0 < len(text) <= 64 and all(each in "0123456789abcdef" for each in text)
