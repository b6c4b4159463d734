"""Files of the lake: rows to Parquet, by partition; this runs in executors.

The layout of the lake: columns, partitions, folders, and the metadata of commits.
"""

import hashlib
import json
import os
import posixpath
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from lightrail.model.limits import SPARK_LAKE_BUFFER_BYTES
from lightrail.spark.columns import SCHEMA
from lightrail.spark.stores import file_system, scheme_of

FORMAT: Final = 1
PARTITIONS: Final = ("queue_slug", "date", "hour")
"""Slug of the queue (files.py), and day and hour of `event_time` in UTC."""
LAKE_SCHEMA: Final = pa.schema(
    [*SCHEMA, ("queue_slug", pa.string()), ("date", pa.date32()), ("hour", pa.int32())]
)
STATISTICS: Final = ("queue", "shard", "journal", "epoch", "sequence", "lsn", "event", "event_time")
"""Columns with minimum and maximum in the statistics of each file; every row has them."""
FOLDER: Final = "_lightrail"
"""Folder of the ledger. It begins with `_`, so that readers of the table and its vacuum ignore it."""
COVERAGE: Final = f"{FOLDER}/coverage"
CHECKPOINT: Final = f"{FOLDER}/checkpoint"
NOTE: Final = "lightrail"
"""Key of a commit's metadata for the ledger."""
JOURNAL_TRANSACTION: Final = "lightrail-journal:"
"""Prefix of an application transaction, followed by the disk of a journal. Its version is the first lsn of
the journal that the table does not cover."""


Bounds = dict[str, tuple[int, int]]
"""By journal (its disk): its first record in a batch, and the first one after the batch."""


@dataclass(frozen=True, slots=True)
class Range:
    """A half-open range of records of one journal, with counts of its rows."""

    journal: str
    shard: int
    first_lsn: int
    next_lsn: int
    records: int
    """Number of records that were read; smaller than the range if some were lost."""
    rows: int
    checksum: int
    """Sum of the marks of the rows (tally.py)."""

    @classmethod
    def without_rows(cls, journal: str, shard: int, first_lsn: int, next_lsn: int) -> "Range":
        """The range of lost records."""
        return cls(journal, shard, first_lsn, next_lsn, 0, 0, 0)

    def plain(self) -> dict[str, Any]:
        """The range as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Covered:
    """The coverage of a batch."""

    bounds: Bounds
    """Bounds by journal; the ranges cover them without a hole."""
    ranges: Sequence[Range]
    """Ranges that were read, and lost ranges, which have no records."""
    unwatched: Sequence[Range] = ()
    """Ranges that were never archived, because no queue was captured at the time."""


@dataclass(frozen=True, slots=True)
class File:
    """A written Parquet file without a commit yet."""

    path: str
    """Path relative to the table."""
    size: int
    modified_ms: int
    partition: dict[str, str]
    stats: str
    """Statistics as JSON, in the form of Delta's log."""


PREFIX_BYTES: Final = 80
"""Bytes of a shortened slug before the digest; a slug longer than SLUG_BYTES_MAX is shortened."""
SLUG_BYTES_MAX: Final = 200
"""Folder names may have 255 bytes, and each has the prefix `queue_slug=`."""
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")
_CUT: Final = "_-"
"""Separates the digest of a long name; no escape begins with it."""
COMPRESSION: Final = "zstd"
_HOUR_US: Final = 3_600_000_000
_NO_DICTIONARY: Final = frozenset({"message", "body", "message_id", "sequence"})
"""Columns whose values rarely repeat."""
_SUFFIX: Final = ".parquet"
_WITHOUT_FOLDERS: Final = frozenset({"s3", "gcs", "abfs"})


def slug_of(queue: str) -> str:
    """Letters, digits, `-` and `.` unchanged, every other byte of the UTF-8 as `_` and two hex digits.

    A name that becomes too long is cut, and ends in `_-` and 32 hex digits of its BLAKE2b. No two names have
    the same slug.
    """
    data = queue.encode()
    slug = _escaped(data)
    if len(slug) <= SLUG_BYTES_MAX:
        return slug
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return f"{_escaped(data[:PREFIX_BYTES])[:PREFIX_BYTES]}{_CUT}{digest}"


def queue_of(slug: str) -> str | None:
    """The queue's name; None for a shortened slug (see the column `queue`)."""
    if _CUT in slug:
        return None
    data = bytearray()
    at = 0
    while at < len(slug):
        if slug[at] == "_":
            data.append(int(slug[at + 1 : at + 3], 16))
            at += 3
        else:
            data.append(ord(slug[at]))
            at += 1
    return data.decode()


def _escaped(data: bytes) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"_{byte:02x}" for byte in data)


class Folder:
    """Location of a table: a path, or a URI of a file system that pyarrow knows."""

    def __init__(self, uri: str) -> None:
        self.local = scheme_of(uri) is None
        self._files, root = file_system(uri)
        self.root = os.path.abspath(root) if self.local else root
        # Object stores have no folders: creating one would leave an object that nothing removes.
        self._has_folders = self._files.type_name not in _WITHOUT_FOLDERS

    def write(self, path: str, table: pa.Table, statistics: list[str] | bool | None = None) -> int:
        """Writes and syncs a file; returns its size.

        Args:
            statistics: columns with statistics, or all; by default those of captured rows.
        """
        whole = posixpath.join(self.root, path)
        names = [name for name in table.column_names if name not in _NO_DICTIONARY]
        flat = [name for name in names if not pa.types.is_nested(table.schema.field(name).type)]
        if self.local:
            os.makedirs(os.path.dirname(whole), exist_ok=True)
        elif self._has_folders:
            self._files.create_dir(posixpath.dirname(whole), recursive=True)
        told = list(STATISTICS) if statistics is None else statistics
        with self._files.open_output_stream(whole) as out:
            pq.write_table(table, out, compression=COMPRESSION, use_dictionary=flat, write_statistics=told)
        if self.local:
            sync(whole)
            sync(os.path.dirname(whole))
        return int(self._files.get_file_info(whole).size)

    def sizes(self, paths: list[str]) -> list[int | None]:
        """Sizes in bytes; None for missing files."""
        found = self._files.get_file_info([posixpath.join(self.root, path) for path in paths])
        return [None if each.type == fs.FileType.NotFound else int(each.size) for each in found]

    def open(self, path: str) -> pq.ParquetFile:
        """Opens a file for reading. Frequent texts stay dictionary-encoded."""
        whole = posixpath.join(self.root, path)
        return pq.ParquetFile(
            self._files.open_input_file(whole), read_dictionary=["queue", "journal", "event"]
        )


def sync(path: str) -> None:
    """Syncs a local file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(eq=False, repr=False)
class FileWriter:
    """Collects rows up to a bound, and writes a file for each queue and hour among them."""

    _folder: Folder
    _buffer_bytes: int = SPARK_LAKE_BUFFER_BYTES
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _bytes: int = 0
    files: list[File] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds rows with all columns of the source."""
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= self._buffer_bytes:
            self.flush()

    def flush(self) -> None:
        """Writes the collected rows."""
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches)
        self._batches, self._bytes = [], 0
        for queue, hour, rows in _partitions(table):
            self._write(queue, hour, rows)

    def _write(self, queue: str, hour: int, rows: pa.Table) -> None:
        begin = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hour)
        partition = {"queue_slug": slug_of(queue), "date": begin.date().isoformat(), "hour": str(begin.hour)}
        path = "/".join(
            [*(f"{name}={value}" for name, value in partition.items()), f"part-{uuid.uuid4()}{_SUFFIX}"]
        )
        size = self._folder.write(path, rows)
        self.files.append(File(path, size, now_ms(), partition, json.dumps(statistics(rows))))


def now_ms() -> int:
    """Milliseconds since 1970, as in Delta's log."""
    return int(datetime.now(UTC).timestamp() * 1000)


def _partitions(table: pa.Table) -> list[tuple[str, int, pa.Table]]:
    """(queue, hours since 1970, rows), in order of arrival."""
    if not table.num_rows:
        return []
    table = table.combine_chunks()
    encoded = pa.compute.dictionary_encode(table["queue"]).combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().chunk(0)
    names = encoded.dictionary.to_pylist()
    queues = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    hours = table["event_time"].cast(pa.int64()).to_numpy() // _HOUR_US
    codes = hours * len(names) + queues
    kinds, counts = np.unique(codes, return_counts=True)
    if len(kinds) == 1:
        return [(names[int(kinds[0]) % len(names)], int(kinds[0]) // len(names), table)]
    table = table.take(pa.array(np.argsort(codes, kind="stable")))
    ends = np.cumsum(counts)
    return [
        (names[code % len(names)], code // len(names), table.slice(int(end - count), int(count)))
        for code, end, count in zip(kinds.tolist(), ends, counts, strict=True)
    ]


def statistics(rows: pa.Table) -> dict[str, Any]:
    """The entry of a file in Delta's log."""
    least, greatest = {}, {}
    for name in STATISTICS:
        if name in rows.column_names:
            both = pa.compute.min_max(rows[name])
            least[name], greatest[name] = (_plain(both[end].as_py()) for end in ("min", "max"))
    return {
        "numRecords": rows.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": dict.fromkeys(least, 0),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        # Times of journals are whole milliseconds, so the division loses nothing.
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
    return value.isoformat() if isinstance(value, date) else value
