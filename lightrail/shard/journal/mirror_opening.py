"""Opens the directory of a mirror: checks identity and extent, finds the end, and cuts incomplete records.

Only the newest segment is read. The field `unsynced` of its records says what the owner had synced, and not
what this member had: so it is no evidence of damage here, as it is in recovery.py. An end before the
extent is.
"""

from dataclasses import dataclass, field
from itertools import pairwise

from lightrail.journal.archive import Incarnation
from lightrail.journal.index import over_gaps
from lightrail.journal.scan import Scan, next_whole
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, SegmentHeader
from lightrail.shard.journal import identity
from lightrail.shard.journal.cut_files import set_aside
from lightrail.shard.journal.files import COPY_SUFFIX, DiskFile, Files, own_copy
from lightrail.shard.journal.identity import NOTHING, Extent
from lightrail.shard.journal.segment import Segment, begun, name_of, numbers
from lightrail.shard.journal.store import StoreRefusedError
from lightrail.shard.replicas.lineage import OwnedSegment


@dataclass(slots=True)
class OpenedMirror:
    """What the directory has."""

    member: str
    """Id of the directory among the replicas of the journal."""
    older: list[OwnedSegment] = field(default_factory=list)
    """All segments but the newest one, the oldest first."""
    newest: Segment | None = None
    """The newest segment, whose file is open."""
    next_lsn: int = 1
    extent: Extent = NOTHING
    torn_bytes: int = 0
    """Bytes behind the last whole record, which were cut."""


def open_mirror(files: Files, incarnation: Incarnation, salt: int, member: str = "") -> OpenedMirror:
    """Opens a directory that this process has locked; a new one gets its identity.

    Raises:
        JournalDamagedError: a segment is missing, or accepted records are.
        StoreRefusedError: the directory has another journal, or a newer format.
        OSError: a call of the disk failed.
    """
    member = member or files.random().hex()
    shard = incarnation.shard
    found = identity.settle(files, incarnation.cluster, shard, salt, incarnation.disk, member)
    if (found.disk, found.salt) != (incarnation.disk, salt):
        raise StoreRefusedError(
            f"expected journal {incarnation.disk} of shard {shard}, found journal {found.disk}: give this "
            "member an empty directory"
        )
    for name in files.names():
        if name.endswith(COPY_SUFFIX):
            files.remove(name)
    mirror = OpenedMirror(found.member, extent=identity.load_extent(files, salt))
    opened: dict[int, DiskFile] = {}
    try:
        for number in numbers(files):
            opened[number] = files.open(name_of(number))
        headers = begun(opened, salt)
        mirror.older = [
            OwnedSegment(number, header.first_lsn, header.epoch, opened[number].size(), following.first_lsn)
            for (number, header), (_, following) in pairwise(headers)
        ]
        if headers:
            _read(mirror, opened, salt, *headers[-1])
        last, end = (mirror.newest.number, mirror.newest.end) if mirror.newest else (0, 0)
        identity.check(mirror.extent, last, end, mirror.next_lsn)
        for number in sorted(opened, reverse=True):
            if number > last:
                opened.pop(number).close()
                files.remove(name_of(number))
        files.sync()
        if mirror.newest is not None:
            _cut_torn(mirror, mirror.newest, opened, files, salt)
    except BaseException:
        for file in opened.values():
            file.close()
        raise
    for number, file in opened.items():
        if number != last:
            file.close()
    return mirror


def _read(
    mirror: OpenedMirror, opened: dict[int, DiskFile], salt: int, number: int, header: SegmentHeader
) -> None:
    """Reads the newest segment up to its end."""
    file = opened[number]
    segment = mirror.newest = Segment(number, file, file.size(), header.epoch)
    segment.index.first_lsn = header.first_lsn
    scan = Scan(file, salt, SEGMENT_HEADER_SIZE, segment.capacity, header.first_lsn)
    for _ in over_gaps(scan):
        pass
    segment.end, mirror.next_lsn = scan.offset, scan.lsn or header.first_lsn


def _cut_torn(
    mirror: OpenedMirror, newest: Segment, opened: dict[int, DiskFile], files: Files, salt: int
) -> None:
    """Cuts what follows the last whole record, and sets it aside if it has whole records."""
    file, end = newest.file, newest.end
    torn = mirror.torn_bytes = newest.written_after(newest.capacity)
    if torn and any(next_whole(file, salt, end, end + torn, mirror.next_lsn)):
        set_aside(files, [(file, end, end + torn)], newest.epoch, mirror.next_lsn)
    if newest.capacity > end:
        if file.links() > 1:
            file = newest.file = opened[newest.number] = own_copy(files, name_of(newest.number), file)
        file.truncate(end)
        file.sync()
        newest.capacity = end
