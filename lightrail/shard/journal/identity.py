"""Two small files beside the segments: the identity of the journal, which is checked before anything is read,
and its extent, a position that the journal has reached.

If the newest segment is deleted, or loses its end, no other segment shows it. So the commit that begins a
segment writes the new extent after its sync and before any answer is sent; later commits write their extent
when requested, without an extra sync. Records within the written extent are on disk already, so a journal
that is shorter than its extent has lost records; no crash explains this.
"""

import json
import struct
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple
from zlib import crc32

from lightrail.journal.segment_header import FORMAT_VERSION
from lightrail.shard.journal.files import NO_SPACE, DiskFile, Files
from lightrail.shard.journal.segment import name_of
from lightrail.shard.journal.store import JournalDamagedError, NewerFormatError, StoreRefusedError

IDENTITY_FILE: Final = "identity.json"


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of the directory, written at its first use."""

    format: int
    cluster: str
    shard: int
    disk: str
    """Random id of the journal, which all of its replicas share."""
    salt: int
    """Start value of all checksums of this journal."""
    member: str
    """Random id of this directory among the replicas of the journal; `disk` for the first one."""


def load_identity(files: Files) -> Identity | None:
    """The identity of a directory; None if it has none yet.

    Raises:
        NewerFormatError: the file has a newer format.
        StoreRefusedError: the file can't be read.
    """
    data = files.load(IDENTITY_FILE)
    if data is None:
        return None
    try:
        fields: dict[str, Any] = json.loads(data)
        version = int(fields["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreRefusedError(
            f"expected {IDENTITY_FILE} of a journal, found {data[:80]!r} ({error}): "
            "restore the file from a copy"
        ) from error
    if version > FORMAT_VERSION:
        raise NewerFormatError(
            f"this journal has format version {version}, this program knows {FORMAT_VERSION} and older: "
            "start it with the newer program that wrote it"
        )
    disk = str(fields["disk"])
    return Identity(
        version,
        str(fields["cluster"]),
        int(fields["shard"]),
        disk,
        int(fields["salt"]),
        str(fields.get("member", disk)),
    )


def lock(files: Files) -> None:
    """Locks a directory for this process. Raises StoreRefusedError if another process has locked it."""
    if not files.lock():
        raise StoreRefusedError(
            "expected to be the only process with this journal, found it locked by another process: "
            "stop that process, or give this one its own directory"
        )


def settle(
    files: Files,
    cluster: str,
    shard: int,
    salt: int | None = None,
    disk: str | None = None,
    member: str | None = None,
) -> Identity:
    """Checks that the directory belongs to this shard; a new directory gets its identity.

    Args:
        salt: the salt in the headers of the segments, for a directory that lost its identity file.
        disk: the id of the disk, for a new directory whose disk has one already.
        member: the id of the directory, for a new one that is to have a copy of another's journal.

    Raises:
        StoreRefusedError: the directory belongs to another shard or cluster, or has a newer format.
    """
    found = load_identity(files)
    if found is None:
        drawn = files.random()
        if salt is None:
            salt = int.from_bytes(drawn[:4], "little")
        disk = disk or drawn.hex()
        identity = Identity(FORMAT_VERSION, cluster, shard, disk, salt, member or disk)
        fields = asdict(identity)
        if identity.member == disk:
            del fields["member"]
        files.replace(IDENTITY_FILE, json.dumps(fields, indent=2).encode() + b"\n")
        return identity
    if (found.cluster, found.shard) != (cluster, shard):
        raise StoreRefusedError(
            f"expected the journal of shard {shard} of cluster {cluster!r}, found that of shard "
            f"{found.shard} of cluster {found.cluster!r}: give this shard its own directory"
        )
    return found


EXTENT_FILE: Final = "extent"
MAGIC: Final = b"LREXTENT"
VERSION: Final = 1
SLOT_BYTES: Final = 512
"""Size of a disk's sector: an interrupted write of one slot damages no other."""
SYNCED_SLOTS: Final = 2
"""Number of slots that are written alternately, each with a sync, so that one of them is always intact."""
SLOTS: Final = SYNCED_SLOTS + 1
"""All slots; the last one is for extents that are written without a sync."""
_HEAD: Final = struct.Struct("<8sHHI")
_BODY: Final = struct.Struct("<QQQ")


class Extent(NamedTuple):
    """How far a journal reaches."""

    segment: int
    """Number of the newest begun segment; 0 for none."""
    first_lsn: int
    """Number of the first record in that segment."""
    next_lsn: int
    """Number of the next record: the journal has all records before it."""


NOTHING: Final = Extent(0, 1, 1)


def encode(extent: Extent, salt: int) -> bytes:
    """The first bytes of a slot; the rest of the slot is left unchanged."""
    body = _BODY.pack(*extent)
    return _HEAD.pack(MAGIC, VERSION, 0, crc32(body, salt)) + body


def decode(slot: bytes, salt: int) -> Extent | None:
    """The extent in a slot; None if the slot is empty, damaged, or of another journal.

    Raises:
        NewerFormatError: the slot has a newer format.
    """
    if len(slot) < _HEAD.size + _BODY.size:
        return None
    magic, version, _, checksum = _HEAD.unpack_from(slot)
    if magic != MAGIC:
        return None
    if version > VERSION:
        raise NewerFormatError(
            f"the file {EXTENT_FILE} of this journal has format version {version}, this program "
            f"knows {VERSION}: start it with the newer program that wrote it"
        )
    body = slot[_HEAD.size : _HEAD.size + _BODY.size]
    return Extent(*_BODY.unpack(body)) if crc32(body, salt) == checksum else None


def load_extent(files: Files, salt: int) -> Extent:
    """The furthest extent in the file; NOTHING if there is none, as in journals of older versions.

    Raises NewerFormatError for a newer format.
    """
    data = files.load(EXTENT_FILE) or b""
    slots = [data[start : start + SLOT_BYTES] for start in range(0, len(data), SLOT_BYTES)]
    found = [extent for slot in slots if (extent := decode(slot, salt)) is not None]
    return max(found, key=lambda extent: extent.next_lsn, default=NOTHING)


def check(known: Extent, last_segment: int, end: int, next_lsn: int) -> None:
    """Checks that a journal that ends at this offset of this segment reaches the known extent.

    Raises JournalDamagedError.
    """
    if next_lsn >= known.next_lsn:
        return
    missing = (
        f"records {next_lsn} to {known.next_lsn - 1} are missing, which were on disk (file {EXTENT_FILE})"
    )
    if last_segment < known.segment:
        last = f"the journal ends with {name_of(last_segment)}" if last_segment else "there is no segment"
        raise JournalDamagedError(name_of(known.segment), 0, f"it is missing or empty: {last}, and {missing}")
    raise JournalDamagedError(name_of(last_segment), end, f"it ends here, and {missing}")


@dataclass(slots=True, eq=False, repr=False)
class ExtentFile:
    """Writes extents to the file. After opening, only the commit thread calls it."""

    _files: Files
    _salt: int
    written: Extent
    _file: DiskFile | None = None
    _next: int = 0

    def write(self, extent: Extent, *, sync: bool) -> None:
        """Writes an extent. If the disk has no room for the file, the next commit tries again.

        Raises:
            OSError: a call of the disk failed.
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
            if EXTENT_FILE in self._files.names():
                self._file = self._files.open(EXTENT_FILE)
                self._next = self._older()
            else:
                file = self._files.create(EXTENT_FILE)
                try:
                    file.allocate(SLOTS * SLOT_BYTES)
                    file.sync()
                except OSError:
                    file.close()
                    self._files.remove(EXTENT_FILE)
                    raise
                self._files.sync()
                self._file = file
        return self._file

    def _older(self) -> int:
        """The slot to write next: the one with the lower extent."""
        data = self._files.load(EXTENT_FILE) or b""
        slots = [data[number * SLOT_BYTES : (number + 1) * SLOT_BYTES] for number in range(SYNCED_SLOTS)]
        reach = [(decode(slot, self._salt) or NOTHING).next_lsn for slot in slots]
        return reach.index(min(reach))
