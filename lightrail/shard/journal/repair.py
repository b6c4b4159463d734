"""Repair: sets damaged bytes of a journal aside, describes them, and puts a Gap record in their place.

It changes no readable record. A shard starts afterwards with the remaining messages: appends in the gap are
lost, and settlements in it have no effect, so that their messages are delivered again.
"""

import os
from dataclasses import dataclass, field

from lightrail.journal import layout
from lightrail.journal.record import Delivered, Gap, Ids, Numbers, Queue, Settle, Taken, Terminus
from lightrail.journal.scan import Bytes, Found, Scan, next_whole
from lightrail.journal.segment_header import (
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
)
from lightrail.shard.journal import identity
from lightrail.shard.journal.files import DiskFile, Files, RealFiles, own_copy
from lightrail.shard.journal.segment import name_of, numbers, salt_of
from lightrail.shard.journal.store import StoreRefusedError

_NAMES = {
    layout.APPEND: "Append",
    layout.SETTLE: "Settle",
    layout.QUEUE: "Queue",
    layout.SNAPSHOT: "Snapshot",
    layout.SEAL: "Seal",
    layout.EPOCH: "Epoch",
    layout.CLOSE: "Close",
    layout.GAP: "Gap",
    layout.IDS: "Ids",
    layout.TAKEN: "Taken",
    layout.NUMBERS: "Numbers",
    layout.DELIVERED: "Delivered",
    layout.TRANSACTION: "Transaction",
    layout.TERMINUS: "Terminus",
    layout.RECEIVER: "Receiver",
}


@dataclass(slots=True)
class Damage:
    """A range that was set aside."""

    segment: str
    offset: int
    length: int
    first_lsn: int
    next_lsn: int
    """The records from `first_lsn` to before this are lost."""
    aside: str
    """Name of the file with the damaged bytes; empty if there were none."""
    held: list[str] = field(default_factory=list)
    """Descriptions of the records in these bytes, one line each."""

    def __str__(self) -> str:
        lost = self.next_lsn - self.first_lsn
        lines = [
            f"{self.segment}: {self.length} bytes at offset {self.offset}, {lost} records from number "
            f"{self.first_lsn} on" + (f", set aside in {self.aside}" if self.aside else "")
        ]
        return "\n  ".join(lines + self.held)


@dataclass(slots=True)
class Report:
    """The result of a repair."""

    segments: int = 0
    damages: list[Damage] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.damages:
            return f"{self.segments} segments, no damage found, nothing changed"
        return "\n".join(
            [f"{self.segments} segments, {len(self.damages)} damaged ranges", *map(str, self.damages)]
        )


def repair(directory: str | os.PathLike[str]) -> Report:
    """Repairs the journal in a directory, which no process may have open.

    Raises:
        StoreRefusedError: the journal is in use, or the directory has no journal of this format.
    """
    if not os.path.isdir(directory):
        raise StoreRefusedError(
            f"expected the directory of a journal, such as data/shard-0, found no {directory}"
        )
    files = RealFiles(directory)
    if not files.lock():
        raise StoreRefusedError(
            f"expected the journal in {directory} to be idle, found it in use: stop the shard first"
        )
    try:
        return repair_files(files)
    finally:
        files.unlock()


def repair_files(files: Files) -> Report:
    """See `repair`; the caller has the lock."""
    known = identity.load_identity(files)
    salt = known.salt if known is not None else salt_of(files)
    if salt is None:
        raise StoreRefusedError(
            f"expected a journal, found neither {identity.IDENTITY_FILE} nor a segment header"
        )
    return _Repairer(files, salt).run()


class _Repairer:
    """Reads the segments once."""

    __slots__ = ("_extent", "_files", "_lsn", "_opened", "_report", "_salt")

    def __init__(self, files: Files, salt: int) -> None:
        self._files = files
        self._salt = salt
        self._extent = identity.load_extent(files, salt)
        self._lsn = 0
        self._report = Report()
        self._opened: dict[int, DiskFile] = {}

    def run(self) -> Report:
        opened = self._opened = {number: self._files.open(name_of(number)) for number in numbers(self._files)}
        try:
            headers = {number: self._header(number, file) for number, file in opened.items()}
            begun = [number for number, header in headers.items() if header is not None]
            end = self._end(opened[max(begun)], headers[max(begun)]) if begun else 1
            begun += [
                number
                for number, file in opened.items()
                if headers[number] is None
                and (not begun or number > max(begun))
                and self._was_begun(file, end)
            ]
            firsts = {number: self._first_lsn(number, opened[number], headers[number]) for number in opened}
            if self._extent.segment > max(begun, default=0):
                # These segments were begun, and are missing or empty.
                begun.append(self._extent.segment)
                firsts[self._extent.segment] = self._extent.first_lsn
            if not begun:
                return self._report
            epoch = 0
            for number in range(min(opened, default=max(begun)), max(begun) + 1):
                self._report.segments += 1
                if number not in opened:
                    opened[number] = self._files.create(name_of(number))
                    self._files.sync()
                first_lsn = firsts.get(number) or self._lsn or 1
                header = headers.get(number)
                if header is None:
                    self._new_header(number, first_lsn, epoch)
                else:
                    epoch = header.epoch
                last = number == max(begun)
                self._segment(number, first_lsn, None if last else firsts.get(number + 1), last)
        finally:
            for file in opened.values():
                file.close()
        return self._report

    def _header(self, number: int, file: DiskFile) -> SegmentHeader | None:
        header = decode_segment_header(file.read(0, SEGMENT_HEADER_SIZE))
        if header is None or header.segment != number or header.salt != self._salt:
            return None
        return header

    def _end(self, file: DiskFile, header: SegmentHeader | None) -> int:
        """The number of the first record that can't be read from the beginning of a segment."""
        assert header is not None
        scan = Scan(file, self._salt, SEGMENT_HEADER_SIZE, file.size(), header.first_lsn)
        for _ in scan:
            pass
        return scan.lsn or header.first_lsn

    def _was_begun(self, file: DiskFile, lsn: int) -> bool:
        """Whether a file without a header has records that prove that `lsn` had been synced (recovery.py)."""
        records = next_whole(file, self._salt, 0, file.size(), lsn, file.written(0))
        return any(found.lsn - found.unsynced > lsn for found in records)

    def _first_lsn(self, number: int, file: DiskFile, header: SegmentHeader | None) -> int | None:
        """Number of the segment's first record, from its header or, without one, from the record itself."""
        if header is not None:
            return header.first_lsn
        scan = Scan(file, self._salt, SEGMENT_HEADER_SIZE, file.size(), None)
        first = next(iter(scan), None)
        return first.lsn if first is not None else None

    def _owned(self, number: int) -> DiskFile:
        """The file of a segment, to be changed: a file that is also in the archive is copied first."""
        file = self._opened[number]
        if file.links() > 1:
            file = self._opened[number] = own_copy(self._files, name_of(number), file)
        return file

    def _new_header(self, number: int, first_lsn: int, epoch: int) -> None:
        """Rewrites the header of a segment; `epoch` is that of the segment before it."""
        file = self._owned(number)
        old = file.read(0, SEGMENT_HEADER_SIZE)
        self._aside(number, 0, old, first_lsn, first_lsn, ["the header of the segment"])
        file.write(0, [encode_segment_header(number, first_lsn, self._salt, epoch)])
        file.sync()

    def _segment(self, number: int, lsn: int, stop: int | None, last: bool) -> None:
        """Reads one segment; `stop` is the number of the next segment's first record, None if unknown."""
        offset = SEGMENT_HEADER_SIZE
        while True:
            file = self._opened[number]
            scan = Scan(file, self._salt, offset, file.size(), lsn, stop)
            for found in scan:
                if found.code == layout.GAP:
                    gap = layout.decode_small(found.view, found.start, found.length)
                    assert isinstance(gap, Gap)
                    scan.skip_to(gap.next_lsn)
            offset, lsn = scan.offset, scan.lsn or lsn
            self._lsn = lsn
            if lsn == stop:
                return
            size = file.size()
            whole = self._next(file, offset, size, lsn, stop, last)
            if whole is None:
                if last and lsn < self._extent.next_lsn:
                    self._gap(number, offset, size, lsn, self._extent.next_lsn, True)
                elif not last and (stop is not None or file.read(offset, size - offset).strip(b"\0")):
                    self._gap(number, offset, size, lsn, stop or lsn, True)
                return
            self._gap(number, offset, whole.offset, lsn, whole.lsn, False)
            offset, lsn = whole.offset, whole.lsn

    def _next(
        self, file: DiskFile, offset: int, size: int, lsn: int, stop: int | None, last: bool
    ) -> Found | None:
        """The first usable record after the damage; None if there is none, or if a crash explains the end."""
        first = None
        for found in next_whole(file, self._salt, offset, size, lsn, file.written(offset)):
            if stop is not None and found.lsn >= stop:
                continue
            if first is None and found.offset >= offset + layout.RECORD_SIZE_MIN:
                first = found
                if not last:
                    return first
            if found.lsn - found.unsynced > lsn:
                return first
        return None

    def _gap(self, number: int, start: int, end: int, lsn: int, next_lsn: int, rest: bool) -> None:
        """Sets bytes aside and puts a Gap record in their place, which ends the segment if `rest` is set."""
        file = self._owned(number)
        damaged = file.read(start, end - start)
        if rest:
            damaged = damaged.rstrip(b"\0")
            self._lsn = next_lsn
        self._aside(number, start, damaged, lsn, next_lsn, held_by(damaged, self._salt))
        length = layout.RECORD_SIZE_MIN if rest else end - start
        body = layout.U64.pack(next_lsn).ljust(length - layout.HEADER_SIZE, b"\0")
        if rest:
            file.truncate(start)
        file.write(
            start,
            [layout.finished(layout.REST.pack(layout.GAP, 0, layout.MARK, 0, lsn, 0) + body, self._salt)],
        )
        file.sync()

    def _aside(self, number: int, offset: int, data: bytes, lsn: int, next_lsn: int, held: list[str]) -> None:
        name = ""
        if data:
            name = f"damaged-{number:012d}-{offset}.bin"
            self._files.replace(name, data)
        self._report.damages.append(Damage(name_of(number), offset, len(data), lsn, next_lsn, name, held))


def held_by(data: bytes, salt: int) -> list[str]:
    """Describes damaged bytes: every part that begins like a record, also with a wrong checksum."""
    lines = []
    position = 0
    while position + layout.HEADER_SIZE <= len(data):
        length, _, code, _, mark, _, lsn, _ = layout.HEADER.unpack_from(data, position)
        fits = layout.RECORD_SIZE_MIN <= length <= len(data) - position
        if mark != layout.MARK or code not in _NAMES or not fits:
            following = data.find(b"LR", position + 11)
            if following < 0:
                break
            position = following - 10
            continue
        whole = next(iter(Scan(Bytes(data), salt, position, position + length, None)), None)
        state = "whole" if whole is not None else "damaged"
        lines.append(f"record {lsn}, {state}: {_NAMES[code]}{_details(data, position, length, code)}")
        position += length
    if not lines and data:
        lines.append(f"{len(data)} bytes that look like no record")
    return lines


def _details(data: bytes, start: int, length: int, code: int) -> str:
    try:
        if code == layout.APPEND:
            head, targets, _ = layout.decode_append_head(data, start, length)
            starts = ", ".join(f"queue {queue} from sequence {sequence}" for queue, sequence in targets)
            return f" of {head.messages} messages ({head.size} bytes) to {starts}"
        record = layout.decode_small(data, start, length)
    except (layout.LayoutError, ValueError):
        return ""
    if isinstance(record, Settle):
        parts = ", ".join(f"{first} to {last - 1}" for first, last in record.ranges[:5])
        count = sum(last - first for first, last in record.ranges)
        return f" of {count} messages of queue {record.queue}: {parts}"
    if isinstance(record, Delivered):
        count = sum(last - first for first, last in record.ranges)
        return f" of {count} messages of queue {record.queue} to a consumer"
    if isinstance(record, Queue):
        return f" {record.queue} named {record.name!r}"
    if isinstance(record, Ids):
        return f" of {len(record.digests) // layout.DIGEST_BYTES} message-ids of queue {record.queue}"
    if isinstance(record, Taken):
        return f": {record.taken} messages of batch {record.number} of producer {record.producer}"
    if isinstance(record, Numbers):
        return f" of {len(record.producers)} producers, with queue {record.queue}"
    if isinstance(record, Terminus):
        return f" of {len(record.tags)} delivery-tags of a link to queue {record.queue}"
    return ""
