"""Columns: the figures of a queue that moves, as arrays one after another, and a checksum over them.

A queue may have a hundred thousand single messages; encoding an object of JSON for each of them would take
longer than a move may stop a queue. The JSON beside a blob lists the columns in it: `{"columns": [[name,
type, items], ...], "crc": CRC-32 of the blob}`; types are those of Python's array (B, I, Q, q: 1, 4, 8, 8
bytes, little-endian), and `b` for plain bytes.
"""

from array import array
from collections.abc import Iterable, Mapping
from typing import Any, Final
from zlib import crc32

BYTES: Final = "b"
_TYPES: Final = frozenset("BIQq")

Column = array
Columns = dict[str, Any]
"""By name: an array, or bytes."""


class ColumnsError(Exception):
    """A blob does not match its JSON, or is damaged."""


def table(types: str, rows: Iterable[tuple[int, ...]]) -> list["Column[int]"]:
    """One array for each field of the rows."""
    columns = [array(code) for code in types]
    for row in rows:
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    return columns


def pack(columns: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The JSON and the blob of some columns: arrays, or bytes, or lists of pieces of bytes."""
    said: list[list[Any]] = []
    pieces: list[Any] = []
    for name, column in columns.items():
        if isinstance(column, array):
            said.append([name, column.typecode, len(column)])
            pieces.append(memoryview(column).cast("B") if len(column) else b"")
        else:
            parts = column if isinstance(column, list) else [column]
            said.append([name, BYTES, sum(len(part) for part in parts)])
            pieces += parts
    blob = b"".join(pieces)
    return {"columns": said, "crc": crc32(blob)}, blob


def unpack(header: Mapping[str, Any], blob: bytes | memoryview) -> Columns:
    """The columns of a blob.

    Raises:
        ColumnsError: the checksum is wrong, or the columns do not fill the blob.
    """
    found = crc32(blob)
    if header.get("crc") != found:
        raise ColumnsError(f"expected {len(blob)} bytes with checksum {header.get('crc')}, found {found}")
    view = memoryview(blob)
    columns: Columns = {}
    position = 0
    try:
        for name, code, items in header["columns"]:
            if code != BYTES and code not in _TYPES:
                raise ColumnsError(f"column {name!r} has the unknown type {code!r}")
            column: Column[int] = array("B" if code == BYTES else code)
            end = position + items * column.itemsize
            if end > len(view):
                raise ColumnsError(f"column {name!r} ends at {end} of {len(view)} bytes")
            if code == BYTES:
                columns[name] = view[position:end]
            else:
                column.frombytes(view[position:end])
                columns[name] = column
            position = end
    except (KeyError, TypeError, ValueError) as error:
        raise ColumnsError(f"the list of columns is not as expected: {error!r}") from error
    if position != len(view):
        raise ColumnsError(f"the columns have {position} bytes, found {len(view)}")
    return columns


def rows(columns: Columns, *names: str) -> Iterable[tuple[int, ...]]:
    """Some columns of the same length, row by row. Raises ColumnsError if one is missing or shorter."""
    try:
        wanted = [columns[name] for name in names]
    except KeyError as error:
        raise ColumnsError(f"expected a column {error}, found {', '.join(columns)}") from None
    if len({len(column) for column in wanted}) > 1:
        raise ColumnsError(f"the columns {', '.join(names)} are not of one length")
    return zip(*wanted, strict=True)


def put(columns: Columns, prefix: str, types: Mapping[str, str], rows: Iterable[tuple[int, ...]]) -> None:
    """Adds a column for each field of the rows, named `PREFIX.NAME`, or `NAME` without a prefix."""
    made = table("".join(types.values()), rows)
    for name, column in zip(types, made, strict=True):
        columns[f"{prefix}.{name}" if prefix else name] = column
