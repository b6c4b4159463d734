"""Opening a table as a frame of Spark: on a local disk by Spark itself, elsewhere by pyarrow in executors.

Spark as pip installs it opens no object store, and would want credentials in its own configuration.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import DeltaTable

from lightrail.spark.columns import SCHEMA
from lightrail.spark.lake.files import Folder
from lightrail.spark.stores import scheme_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS: Final = 16_384
"""At once: messages are in them."""


def frame(
    spark: "SparkSession",
    table: DeltaTable,
    uri: str,
    columns: Sequence[str],
    wanted: Callable[[str], bool] = lambda path: True,
) -> "DataFrame":
    """Rows of a table of capture, at the version that is open.

    Args:
        uri: of the table, as it was given.
        columns: names of SCHEMA.
        wanted: whether the file of a path is read.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = pa.schema([SCHEMA.field(name) for name in columns])
    schema = from_arrow_schema(rows)
    files = [each for each in table.file_uris() if wanted(each)]
    if not files:
        return spark.createDataFrame([], schema)
    if scheme_of(uri) is None:
        return spark.read.schema(schema).parquet(*files)
    root = table.table_uri.rstrip("/") + "/"
    paths = [(each.removeprefix(root),) for each in files]
    tasks = min(len(paths), 4 * spark.sparkContext.defaultParallelism)
    named = spark.createDataFrame(paths, "path string").repartition(tasks)
    return named.mapInArrow(_Opened(uri, rows), schema)


@dataclass(frozen=True, slots=True)
class _Opened:
    """The rows of files; called in executors."""

    uri: str
    rows: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folder = Folder(self.uri)
        for path in (path for batch in batches for path in batch.column(0).to_pylist()):
            with folder.open(path) as file:
                there = set(file.schema_arrow.names)
                columns = [name for name in self.rows.names if name in there]
                for batch in file.iter_batches(_ROWS, columns=columns):
                    yield self._whole(batch)

    def _whole(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """With all columns: those that came with a newer version are not in files of an older one."""
        arrays = [
            batch.column(field.name).cast(field.type)
            if field.name in batch.schema.names
            else pa.nulls(batch.num_rows, field.type)
            for field in self.rows
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.rows)
