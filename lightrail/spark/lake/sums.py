"""Sums of rows: equal for equal sets of rows, in any order and files.

They are computed from lsn, sequence, queue and event, which together with the journal identify a row.
"""

from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa

COLUMNS: Final = ("lsn", "sequence", "queue", "event")
"""Columns that `marks` needs."""
_FACTORS: Final = tuple(
    np.uint64(each)
    for each in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xFF51AFD7ED558CCD)
)
_SHIFT: Final = np.uint64(29)


def marks(table: pa.Table | pa.RecordBatch) -> Any:
    """A number of 64 bits for each row, as an array of numpy; sums are modulo 2^64."""
    mixed = (
        _numbers(table["lsn"]) * _FACTORS[0]
        ^ _numbers(table["sequence"]) * _FACTORS[1]
        ^ _texts(table["queue"]) * _FACTORS[2]
        ^ _texts(table["event"])
    )
    mixed ^= mixed >> _SHIFT
    mixed *= _FACTORS[3]
    return mixed ^ (mixed >> _SHIFT)


def signed(total: int) -> int:
    """A sum as a signed integer of 64 bits, for columns of tables."""
    total &= 2**64 - 1
    return total - 2**64 if total >= 2**63 else total


def _numbers(column: Any) -> Any:
    return _flat(column).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)


def _texts(column: Any) -> Any:
    flat = _flat(column)
    encoded = flat if pa.types.is_dictionary(flat.type) else flat.dictionary_encode()
    codes = np.array([crc32(str(each).encode()) for each in encoded.dictionary.to_pylist()] or [0], np.uint64)
    return codes[encoded.indices.to_numpy(zero_copy_only=False)]


def _flat(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return (
        column.combine_chunks()
        if not pa.types.is_dictionary(column.type)
        else column.unify_dictionaries().combine_chunks()
    )
