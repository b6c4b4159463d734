"""Batches of rows: joins small consecutive batches to batches of the wanted size."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from lightrail.spark.decoding.wanted import Wanted

_WORTH: Final = 4
"""A batch of at least this part (1/4) of the wanted size is not joined with others."""


def gathered(batches: Iterator[pa.RecordBatch], wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches, each within the wanted bounds of rows and bytes."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and (
            rows + batch.num_rows > wanted.batch_rows or size + batch.nbytes > wanted.batch_bytes
        ):
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows * _WORTH >= wanted.batch_rows or size * _WORTH >= wanted.batch_bytes:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
