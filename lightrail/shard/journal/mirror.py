"""A mirror: the journal of a member that is not the owner, with the bytes of the owner's journal.

The owner sends what its commits write, and the mirror writes it at the same offsets (`begin`, `write`,
`sync`). After `close` the directory is a journal like any other, and `Journal.recover` opens it.

- Bytes are whole records, in order, with one checksum for all of them. A gap, an overlap, or a wrong checksum
  is refused, and changes nothing.
- A segment is cut to its contents and synced before the next one is begun, as at the owner. The newest header
  is what the member has promised: it follows no owner of an earlier epoch.
- The file `extent` has the accepted records, as far as the member knows them, not the synced ones: others may
  have to be cut, if a member takes over that does not have them. Accepted records are never cut.
- A cut sets the bytes aside, removes later segments, the newest first, then truncates and syncs. Wherever the
  machine stops meanwhile, what remains is the beginning of the journal, and the cut can be repeated.

One thread at a time calls it.
"""

from contextlib import suppress

from lightrail.journal.archive import Incarnation
from lightrail.journal.layout import HEADER, HEADER_SIZE
from lightrail.journal.segment_header import FORMAT_VERSION, SEGMENT_HEADER_SIZE, decode_segment_header
from lightrail.model import limits
from lightrail.shard.journal.cut_files import set_aside_behind
from lightrail.shard.journal.files import NO_SPACE, Buffer, DiskFile, Files, own_copy
from lightrail.shard.journal.identity import EXTENT_FILE, NOTHING, Extent, ExtentFile, lock
from lightrail.shard.journal.mirror_opening import open_mirror
from lightrail.shard.journal.segment import Segment, checksum_before, name_of
from lightrail.shard.journal.store import (
    MirrorError,
    NewerFormatError,
    StoreBrokenError,
    StoreError,
    StoreFullError,
)
from lightrail.shard.replicas.lineage import LineageError, OwnedSegment, RecordEnd
from lightrail.wire.replication import checksum_of


class Mirror:
    """See the module. The caller opens it first; after a StoreBrokenError it closes it, and opens another."""

    def __init__(
        self,
        files: Files,
        incarnation: Incarnation,
        salt: int,
        *,
        segment_bytes: int = limits.SEGMENT_BYTES,
        member: str = "",
    ) -> None:
        self._files = files
        self._incarnation = incarnation
        self._salt = salt
        self._segment_bytes = segment_bytes
        self._older: list[OwnedSegment] = []
        """All segments but the newest one, the oldest first."""
        self._newest: Segment | None = None
        self._is_dirty = False
        self._extent = ExtentFile(files, salt, NOTHING)
        self.member = member
        """Id of this directory among the replicas of the journal."""
        self.next_lsn = 1
        """Number of the next record."""
        self.synced_lsn = 0
        """Number of the last record that is on disk."""
        self.accepted_lsn = 0
        """Number of the last record that is known to be accepted."""
        self.cut_records = 0
        """Number of whole records that were cut since the start."""
        self.cut_bytes = 0
        self.failure = "the mirror has not been opened yet: call open() first"

    # --- opening and closing ---------------------------------------------------------------------------

    def open(self) -> None:
        """Finds the end of the journal, and cuts incomplete records. A new directory gets its identity.

        Raises:
            JournalDamagedError: a segment is missing, or accepted records are.
            StoreRefusedError: the directory is locked, has another journal, or a newer format.
            OSError: a call of the disk failed.
        """
        files = self._files
        lock(files)
        try:
            found = open_mirror(files, self._incarnation, self._salt, self.member)
        except BaseException:
            files.unlock()
            raise
        self.member = found.member
        self._older, self._newest = found.older, found.newest
        self._extent = ExtentFile(files, self._salt, found.extent)
        self.next_lsn = found.next_lsn
        self.synced_lsn = found.next_lsn - 1
        self.accepted_lsn = found.extent.next_lsn - 1
        self.cut_bytes = found.torn_bytes
        self.failure = ""

    def close(self) -> None:
        """Syncs what is written, writes the extent, and closes the files. Raises StoreBrokenError."""
        try:
            if not self.failure:
                self.sync()
                self.write_extent(sync=True)
        finally:
            self.failure = "the mirror is closed"
            self._extent.close()
            if self._newest is not None:
                self._newest.close()
            self._files.unlock()

    # --- writing ---------------------------------------------------------------------------------------

    @property
    def lineage(self) -> list[OwnedSegment]:
        """All segments up to the last written record, the newest first."""
        return self._owned()[::-1]

    def _owned(self) -> list[OwnedSegment]:
        newest = self._newest
        if newest is None:
            return []
        first_lsn = newest.index.first_lsn
        return [*self._older, OwnedSegment(newest.number, first_lsn, newest.epoch, newest.end, self.next_lsn)]

    def begin(self, header: bytes) -> None:
        """Ends the newest segment, and begins the next one with this header.

        Raises:
            MirrorError: the segment does not follow this journal.
            NewerFormatError: it has a newer format.
            StoreFullError: there is no room for it.
            StoreBrokenError: a call of the disk failed; the mirror refuses everything from now on.
        """
        newest = self._usable()
        found = decode_segment_header(header) if len(header) == SEGMENT_HEADER_SIZE else None
        if found is None:
            raise MirrorError(f"expected the header of a segment, found {header[:SEGMENT_HEADER_SIZE]!r}")
        if found.version > FORMAT_VERSION:
            raise NewerFormatError(
                f"segment {found.segment} of the owner has format version {found.version}, this program "
                f"knows {FORMAT_VERSION} and older: upgrade this member"
            )
        if found.salt != self._salt:
            raise MirrorError(f"expected a segment of journal {self._incarnation.disk}, found one of another")
        if newest is not None:
            if (found.segment, found.first_lsn) != (newest.number + 1, self.next_lsn):
                raise MirrorError(
                    f"expected segment {newest.number + 1} from record {self.next_lsn} on, found segment "
                    f"{found.segment} from record {found.first_lsn} on: attach again"
                )
            if found.epoch < newest.epoch:
                raise MirrorError(
                    f"expected a segment of epoch {newest.epoch} or later, found one of epoch {found.epoch}: "
                    "its owner has been replaced"
                )
            try:
                newest.file.truncate(newest.end)
                newest.capacity = newest.end
                newest.file.sync()
            except OSError as error:
                raise self._failed(error) from error
            self.synced_lsn = self.next_lsn - 1
        file = self._made(found.segment, header)
        if newest is not None:
            self._older = self._owned()
            newest.close()
        self._newest = Segment(found.segment, file, self._segment_bytes, found.epoch)
        self._newest.index.first_lsn = self.next_lsn = found.first_lsn
        self._is_dirty = True

    def _made(self, number: int, header: bytes) -> DiskFile:
        """The file of a new segment, allocated and with its header."""
        name = name_of(number)
        file = None
        try:
            file = self._files.create(name)
            file.allocate(self._segment_bytes)
            self._files.sync()
            file.write(0, [header])
        except OSError as error:
            refused = self._refused(error)
            if file is not None:
                file.close()
                with suppress(OSError):
                    self._files.remove(name)
            raise refused from error
        return file

    def write(self, segment: int, offset: int, data: Buffer, next_lsn: int, checksum: int) -> None:
        """Writes whole records behind the last one.

        Args:
            next_lsn: number after that of the last of these records.
            checksum: see `checksum_of`.

        Raises:
            MirrorError: these are not the bytes that follow, or not those that the owner sent.
            StoreFullError: there is no room for them.
            StoreBrokenError: a call of the disk failed; the mirror refuses everything from now on.
        """
        newest = self._usable()
        if newest is None or (segment, offset) != (newest.number, newest.end):
            at = f"offset {newest.end} of segment {newest.number}" if newest else "the header of a segment"
            raise MirrorError(f"expected bytes for {at}, found some for offset {offset} of segment {segment}")
        if checksum_of(self._salt, segment, offset, next_lsn, (data,)) != checksum:
            raise MirrorError(
                f"expected the checksum {checksum:#010x} of {len(data)} bytes at offset {offset} of segment "
                f"{segment}, found another: they were damaged on their way, or are of another journal"
            )
        first = HEADER.unpack_from(data)[6] if len(data) >= HEADER_SIZE else 0
        if first != self.next_lsn:
            raise MirrorError(
                f"expected record {self.next_lsn} at offset {offset} of segment {segment}, found {first}: "
                "one of the two journals is damaged"
            )
        end = offset + len(data)
        if end > newest.capacity:
            size = max(end, self._segment_bytes)
            try:
                newest.file.allocate(size)
            except OSError as error:
                raise self._refused(error) from error
            newest.capacity = size
        try:
            newest.file.write(offset, (data,))
        except OSError as error:
            raise self._failed(error) from error
        newest.end = end
        self.next_lsn = next_lsn
        self._is_dirty = True

    def sync(self) -> None:
        """Returns when everything written is on disk. Raises StoreBrokenError."""
        newest = self._usable()
        if newest is not None and self._is_dirty:
            try:
                newest.file.sync()
            except OSError as error:
                raise self._failed(error) from error
            self._is_dirty = False
            self.synced_lsn = self.next_lsn - 1

    def accept(self, lsn: int) -> None:
        """Notes that the records up to this one are accepted.

        A number beyond the records that are on disk here says nothing about this journal, and is not noted.
        """
        newest = self._usable()
        if newest is None or not self.accepted_lsn < lsn <= self.synced_lsn:
            return
        self.accepted_lsn = lsn
        if lsn >= newest.index.first_lsn and newest.number != self._extent.written.segment:
            self.write_extent(sync=True)

    def write_extent(self, *, sync: bool = False) -> None:
        """Writes the accepted end to the file. Raises StoreBrokenError."""
        self._usable()
        extent = self.extent
        if extent.next_lsn > self._extent.written.next_lsn:
            try:
                self._extent.write(extent, sync=sync)
            except OSError as error:
                raise self._failed(error) from error

    @property
    def extent(self) -> Extent:
        """The end of the accepted records."""
        for each in self.lineage:
            if each.first_lsn <= self.accepted_lsn:
                return Extent(each.segment, each.first_lsn, self.accepted_lsn + 1)
        return NOTHING

    # --- cutting and dropping --------------------------------------------------------------------------

    def cut(self, end: RecordEnd) -> None:
        """Cuts everything behind the common end of this journal and the owner's (lineage.py).

        With the offset 0 nothing remains, and the journal begins anew.

        Raises:
            LineageError: accepted records would be cut; nothing has changed.
            MirrorError: this is no end of a record here; nothing has changed.
            StoreFullError: there is no room to set the bytes aside; nothing has changed.
            StoreBrokenError: a call of the disk failed; the mirror refuses everything from now on.
        """
        newest = self._usable()
        if end.next_lsn <= self.accepted_lsn:
            raise LineageError(
                f"expected a cut behind record {self.accepted_lsn}, up to which all were accepted, found one "
                f"before record {end.next_lsn}: nothing was cut. The owner lacks accepted records: it has to "
                "fetch them, or another member has to take over"
            )
        if newest is None:
            return
        owned = self._owned()
        lsn = end.next_lsn if end.offset else max(self.accepted_lsn + 1, owned[0].first_lsn)
        try:
            self.cut_bytes += set_aside_behind(self._files, self._salt, owned, end, lsn)
        except OSError as error:
            raise self._refused(error) from error
        self.cut_records += max(0, self.next_lsn - lsn)
        try:
            self._shorten(newest, end)
        except OSError as error:
            raise self._failed(error) from error

    def _shorten(self, newest: Segment, end: RecordEnd) -> None:
        """Removes the segments behind this end, the newest first, and truncates that of the end."""
        files = self._files
        owned = self._owned()
        self._newest = None
        newest.close()
        kept = [each for each in owned if end.offset and each.segment <= end.segment]
        if not kept:
            # Without segments an extent would say that they were lost.
            self._extent.close()
            self._extent = ExtentFile(files, self._salt, NOTHING)
            self.accepted_lsn = 0
            if EXTENT_FILE in files.names():
                files.remove(EXTENT_FILE)
                files.sync()
        for each in reversed(owned[len(kept) :]):
            files.remove(name_of(each.segment))
            files.sync()
        self._older = kept[:-1]
        self.next_lsn = end.next_lsn
        if kept:
            name = name_of(end.segment)
            file = files.open(name)
            if file.links() > 1:
                file = own_copy(files, name, file)
            self._newest = Segment(end.segment, file, end.offset, kept[-1].epoch)
            self._newest.index.first_lsn, self._newest.end = kept[-1].first_lsn, end.offset
            file.truncate(end.offset)
            file.sync()
        self._is_dirty = False
        self.synced_lsn = end.next_lsn - 1

    def checksum_before(self, end: RecordEnd) -> int:
        """See `checksum_before` in segment.py; `end` is that of the journal. Raises StoreBrokenError."""
        newest = self._usable()
        assert newest is not None, "the journal has this end"
        try:
            return checksum_before(newest.file, self._salt, end)
        except OSError as error:
            raise self._failed(error) from error

    def drop(self, before: int) -> None:
        """Removes the segments with a lower number, after all that is written is on disk.

        The owner requests it when it has written again what was alive in them, and that is accepted.

        Raises:
            MirrorError: it is the newest segment, or this journal has none.
            StoreBrokenError: a call of the disk failed; the mirror refuses everything from now on.
        """
        newest = self._usable()
        if newest is None or before > newest.number:
            raise MirrorError(
                f"expected to drop segments before {newest.number if newest else 0}, the newest one here, "
                f"found those before {before}: attach again"
            )
        self.sync()
        try:
            while self._older and self._older[0].segment < before:
                self._files.remove(name_of(self._older[0].segment))
                self._files.sync()
                del self._older[0]
        except OSError as error:
            raise self._failed(error) from error

    # --- failures --------------------------------------------------------------------------------------

    def _usable(self) -> Segment | None:
        """The newest segment, if there is one."""
        if self.failure:
            raise StoreBrokenError(f"the mirror accepts nothing: {self.failure}")
        return self._newest

    def _refused(self, error: OSError) -> StoreError:
        """The error after a call that needed room on the disk."""
        if error.errno not in NO_SPACE:
            return self._failed(error)
        return StoreFullError(
            f"expected room on the disk for the journal of this member, found none ({error}): free space"
        )

    def _failed(self, error: OSError) -> StoreBrokenError:
        """The error after any other call; what is on disk is unknown, so nothing more is written."""
        self.failure = f"writing to the disk failed ({error}); restart the shard when the disk works again"
        return StoreBrokenError(f"the mirror accepts nothing: {self.failure}")
