"""The data source `lightrail` of Spark: `spark.read.format("lightrail")`, streams, and writing.

Spark finds the source in pyspark_lightrail. For each read it creates one object of this class in a worker on
the driver's machine, reads the schema, and sends the object to other processes; so nothing is opened here.
"""

import sys
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from lightrail.spark.columns import SCHEMA
from lightrail.spark.reading.batch import BatchReader, PushingBatchReader
from lightrail.spark.reading.options import OptionError, check_columns, read_options
from lightrail.spark.reading.stream import StreamReader
from lightrail.spark.writing.sink import batch_writer, stream_writer

_PUSHES: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The worker that calls pushFilters of readers, which Spark runs where the setting
spark.sql.python.filterPushdown.enabled is true. Other workers refuse a reader with this method."""


class LightRailSource(DataSource):
    """See docs/operate/spark.md for its options."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "lightrail"

    def schema(self) -> StructType:
        """The columns that the options select.

        Raises:
            OptionError: an option has a wrong value.
        """
        options = read_options(self.options)
        return from_arrow_schema(pa.schema([SCHEMA.field(name) for name in options.columns]))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read.

        Raises:
            OptionError: an option has a wrong value.
        """
        options = read_options(self.options)
        kind = PushingBatchReader if _pushes() else BatchReader
        return kind(options, _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # as Spark names it
        """A streaming read.

        Raises:
            OptionError: an option has a wrong value.
        """
        return StreamReader(read_options(self.options, streaming=True), _columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writes rows of a table to queues or routers; docs/operate/spark-sink.md has the options.

        Raises:
            SinkError: an option or column is wrong.
        """
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Writes rows of a stream to queues or routers.

        Raises:
            SinkError: an option or column is wrong.
        """
        return stream_writer(self.options, schema, overwrite)


def _pushes() -> bool:
    """Whether this process is the worker that pushes filters down."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSHES in sys.modules or (spec is not None and spec.name == _PUSHES)


def _columns(schema: StructType) -> tuple[str, ...]:
    """The columns that Spark requests, which users may have named by a schema."""
    names = tuple(schema.fieldNames())
    check_columns(names)
    for field in to_arrow_schema(schema, timezone="UTC"):
        if field.type != SCHEMA.field(field.name).type:
            raise OptionError(
                f"schema: expected {field.name} to be {SCHEMA.field(field.name).type}, found {field.type}: "
                "leave the schema out, and name columns by the option columns"
            )
    return names
