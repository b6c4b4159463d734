"""Opening a table as a frame of Spark: on a local disk by Spark itself, elsewhere by pyarrow in executors.

Spark as installed by pip can't open object stores, and would need credentials in its own configuration.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lightrail.spark.columns import SCHEMA
from lightrail.spark.lake.files import Folder
from lightrail.spark.stores import scheme_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS: Final = 16_384
"""Rows per batch; small, because rows contain messages."""
_TASKS_PER_CORE: Final = 4


def frame(
    spark: "SparkSession",
    table: DeltaTable,
    uri: str,
    columns: Sequence[str],
    wanted: Callable[[str], bool] = lambda path: True,
) -> "DataFrame":
    """Rows of a table of capture, at the opened version.

    Args:
        uri: the URI of the table, as in the command.
        columns: names of SCHEMA.
        wanted: whether to read the file of a path.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(pa.schema([SCHEMA.field(name) for name in columns]))
    files = [each for each in table.file_uris() if wanted(each)]
    if not files:
        return spark.createDataFrame([], schema)
    if scheme_of(uri) is None:
        return spark.read.schema(schema).parquet(*files)
    root = table.table_uri.rstrip("/") + "/"
    spark.dataSource.register(LakeSource)
    return (
        spark.read.format(LakeSource.name())
        .option("table", uri)
        .option("files", json.dumps([each.removeprefix(root) for each in files]))
        .option("columns", json.dumps(list(columns)))
        .option("tasks", str(_TASKS_PER_CORE * spark.sparkContext.defaultParallelism))
        .load()
    )


class LakeSource(DataSource):
    """Files of a table, read by pyarrow."""

    @classmethod
    def name(cls) -> str:
        """Name of the format; only this module uses it."""
        return "lightrail-lake"

    @property
    def rows(self) -> pa.Schema:
        """The requested columns as an Arrow schema."""
        return pa.schema([SCHEMA.field(name) for name in json.loads(self.options["columns"])])

    def schema(self) -> StructType:
        """The requested columns."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.rows)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of all files."""
        files = json.loads(self.options["files"])
        return LakeReader(self.options["table"], files, self.rows, int(self.options["tasks"]))


@dataclass
class LakeReader(DataSourceReader):
    """Reads some files in each task."""

    uri: str
    files: list[str]
    rows: pa.Schema
    tasks: int

    def partitions(self) -> Sequence[InputPartition]:
        """Assigns the files to tasks."""
        count = min(self.tasks, len(self.files))
        return [InputPartition(self.files[first::count]) for first in range(count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Record batches of the schema."""
        folder = Folder(self.uri)
        for path in partition.value:
            with folder.open(path) as file:
                there = set(file.schema_arrow.names)
                columns = [name for name in self.rows.names if name in there]
                for batch in file.iter_batches(_ROWS, columns=columns):
                    yield self._whole(batch)

    def _whole(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Adds missing columns: files of an older version lack those of a newer one."""
        arrays = [
            batch.column(field.name).cast(field.type)
            if field.name in batch.schema.names
            else pa.nulls(batch.num_rows, field.type)
            for field in self.rows
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.rows)
