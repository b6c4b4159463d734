"""Reader: a reader of the shards' journals and its positions, so that nothing is removed before it was read.

A reader is the entry ``readers/NAME``. Shards keep what they would remove from their archives, up to the
reader's own bounds; beyond these they remove it all the same (docs/operate/readers.md).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from lightrail.model import limits, names

READERS: Final = "readers/"
LSN_MAX: Final = (1 << 63) - 1


class InvalidReaderError(ValueError):
    """Something of a reader that can't be: what was expected and what came."""


class ReaderGoesBackError(Exception):
    """A position that is behind the one that is written down."""

    def __init__(self, disk: str, before: int, after: int) -> None:
        super().__init__(
            f"the reader is at {before} in journal {disk} already, and {after} is behind that: what lies "
            "between may have been removed"
        )
        self.disk = disk
        self.before = before
        self.after = after


@dataclass(frozen=True, slots=True)
class Reader:
    """Positions of one reader, and how much may be kept for it."""

    positions: dict[str, int] = field(default_factory=dict)
    """Next lsn to read, by the disk of the journal. One that is missing is read from its earliest record."""
    hold_hours: float = limits.READER_HOLD_HOURS
    """What was sealed longer ago is not kept for it."""
    hold_bytes: int = limits.READER_HOLD_BYTES
    """At most this is kept for it, at each shard."""
    moved_ms: int = 0
    """When it last reported its positions, in milliseconds since 1970."""
    revision: int = 0
    """Of the entry; guards the next change."""

    def encode(self) -> str:
        """The value of its entry."""
        fields = asdict(self)
        del fields["revision"]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, value: str, revision: int) -> "Reader":
        """From its entry. Raises ValueError, TypeError or KeyError where that is none."""
        fields = json.loads(value)
        return cls(
            {str(disk): int(lsn) for disk, lsn in dict(fields["positions"]).items()},
            float(fields["hold_hours"]),
            int(fields["hold_bytes"]),
            int(fields["moved_ms"]),
            revision,
        )

    def moved(self, positions: Mapping[str, int], now_ms: int, *, back: bool = False) -> "Reader":
        """With these positions; those of other journals stay.

        Args:
            back: positions may go back.

        Raises:
            ReaderGoesBackError: one does, and may not.
            InvalidReaderError: these are too many journals.
        """
        for disk, lsn in positions.items():
            before = self.positions.get(disk, 0)
            if lsn < before and not back:
                raise ReaderGoesBackError(disk, before, lsn)
        merged = self.positions | dict(positions)
        if len(merged) > limits.READER_POSITIONS_MAX:
            raise InvalidReaderError(
                f"the reader would have positions in {len(merged)} journals; at most "
                f"{limits.READER_POSITIONS_MAX} are allowed: forget those that are gone"
            )
        return replace(self, positions=merged, moved_ms=now_ms)

    def without(self, disks: set[str]) -> "Reader":
        """Without positions in these journals: those that still exist are read from the beginning."""
        return replace(
            self, positions={disk: lsn for disk, lsn in self.positions.items() if disk not in disks}
        )


def check_name(name: str) -> None:
    """Raise InvalidReaderError unless a reader may be called so: as names are, but for those of the
    system."""
    try:
        names.check(name)
    except names.InvalidNameError as error:
        raise InvalidReaderError(str(error)) from None
    if names.is_system(name) or name.startswith(names.SYSTEM_MARKS):
        raise InvalidReaderError(f"the name {name[:80]!a} is of those that the system gives; choose another")


def is_disk(text: str) -> bool:
    """Whether a journal may have this name: 1 to 64 lower-case hexadecimal digits."""
    return 0 < len(text) <= 64 and all(each in "0123456789abcdef" for each in text)
