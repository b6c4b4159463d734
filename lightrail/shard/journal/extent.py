"""The extent of a journal: a small file beside the segments with the least position that the journal reaches.

The newest segment can be deleted, or lose its end, without any other segment showing it. So the commit that
begins a segment writes down that it did, after its sync and before anybody is answered; later commits add
how far they came when they are asked to, without a sync of its own. The extent written here is on disk
already, so a journal that is shorter than this has lost something, whatever a crash may have done.
"""

import struct
from typing import Final, NamedTuple
from zlib import crc32

from lightrail.shard.journal.files import NO_SPACE, DiskFile, Files
from lightrail.shard.journal.segment import name_of
from lightrail.shard.journal.store import JournalDamagedError, StoreRefusedError

FILE: Final = "extent"
MAGIC: Final = b"LREXTENT"
VERSION: Final = 1
SLOT_BYTES: Final = 512
"""A sector of a disk: a slot that is being written tears no other."""
SYNCED_SLOTS: Final = 2
"""Written in turn, each with a sync, so that one of them is whole at any instant."""
SLOTS: Final = SYNCED_SLOTS + 1
"""The last one is for extents that are written without a sync."""
_HEAD: Final = struct.Struct("<8sHHI")
_BODY: Final = struct.Struct("<QQQ")


class Extent(NamedTuple):
    """How far a journal reaches."""

    segment: int
    """The newest that was begun; 0 for none."""
    first_lsn: int
    """Of that segment."""
    next_lsn: int
    """The number of the next record: all before it are there."""


NOTHING: Final = Extent(0, 1, 1)


def encode(extent: Extent, salt: int) -> bytes:
    """The beginning of a slot; the rest stays as it was allocated."""
    body = _BODY.pack(*extent)
    return _HEAD.pack(MAGIC, VERSION, 0, crc32(body, salt)) + body


def decode(slot: bytes, salt: int) -> Extent | None:
    """The extent in a slot; None for an empty one, one that was torn, and one of another journal.

    Raises:
        StoreRefusedError: a newer format.
    """
    if len(slot) < _HEAD.size + _BODY.size:
        return None
    magic, version, _, checksum = _HEAD.unpack_from(slot)
    if magic != MAGIC:
        return None
    if version > VERSION:
        raise StoreRefusedError(
            f"the file {FILE} of this journal has format version {version}, this program knows {VERSION}: "
            "start it with the newer program that wrote it"
        )
    body = slot[_HEAD.size : _HEAD.size + _BODY.size]
    return Extent(*_BODY.unpack(body)) if crc32(body, salt) == checksum else None


def load(files: Files, salt: int) -> Extent:
    """The furthest extent in the file; NOTHING without one, as in journals of older programs.

    Raises StoreRefusedError for a newer format.
    """
    data = files.load(FILE) or b""
    slots = [data[start : start + SLOT_BYTES] for start in range(0, len(data), SLOT_BYTES)]
    found = [extent for slot in slots if (extent := decode(slot, salt)) is not None]
    return max(found, key=lambda extent: extent.next_lsn, default=NOTHING)


def check(known: Extent, last_segment: int, end: int, next_lsn: int) -> None:
    """Whether a journal that ends at this offset of this segment is as long as is known of it.

    Raises JournalDamagedError.
    """
    if next_lsn >= known.next_lsn:
        return
    missing = f"records {next_lsn} to {known.next_lsn - 1} are missing, which were on disk (file {FILE})"
    if last_segment < known.segment:
        last = f"the journal ends with {name_of(last_segment)}" if last_segment else "there is no segment"
        raise JournalDamagedError(name_of(known.segment), 0, f"it is missing or empty: {last}, and {missing}")
    raise JournalDamagedError(name_of(last_segment), end, f"it ends here, and {missing}")


class ExtentFile:
    """Writes extents down. After opening, only the commit thread calls it."""

    __slots__ = ("_file", "_files", "_next", "_salt", "written")

    def __init__(self, files: Files, salt: int, written: Extent) -> None:
        """`written`: the result of `load`."""
        self._files = files
        self._salt = salt
        self._file: DiskFile | None = None
        self._next = 0
        self.written = written

    def write(self, extent: Extent, *, sync: bool) -> None:
        """Where the disk has no room for the file itself, the next commit tries again.

        Raises:
            OSError: the disk refused.
        """
        try:
            file = self._opened()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return
        slot = self._next if sync else SYNCED_SLOTS
        file.write(slot * SLOT_BYTES, [encode(extent, self._salt)])
        if sync:
            file.sync()
            self._next = (self._next + 1) % SYNCED_SLOTS
        self.written = extent

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> DiskFile:
        if self._file is None:
            if FILE in self._files.names():
                self._file = self._files.open(FILE)
                self._next = self._older()
            else:
                file = self._files.create(FILE)
                try:
                    file.allocate(SLOTS * SLOT_BYTES)
                    file.sync()
                except OSError:
                    file.close()
                    self._files.remove(FILE)
                    raise
                self._files.sync()
                self._file = file
        return self._file

    def _older(self) -> int:
        """The slot to write next: the one with the lower extent."""
        data = self._files.load(FILE) or b""
        slots = [data[number * SLOT_BYTES : (number + 1) * SLOT_BYTES] for number in range(SYNCED_SLOTS)]
        reach = [(decode(slot, self._salt) or NOTHING).next_lsn for slot in slots]
        return reach.index(min(reach))
