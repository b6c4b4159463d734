"""Replacing a Delta table by a frame of Spark: executors write files, and one commit replaces the old ones.

A run that is killed has replaced the table or left it unchanged; the vacuum of a later run removes
uncommitted files.
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lightrail.model.limits import SPARK_LAKE_BUFFER_BYTES
from lightrail.spark.command import CommandError
from lightrail.spark.lake.files import NOTE, Folder, now_ms
from lightrail.spark.lake.table import made, synced
from lightrail.spark.stores import delta_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KIND_KEY: Final = "lightrail.computed"
_VACUUM_HOURS: Final = 168
"""Hours for which files of the previous run are kept for readers."""


def replace(frame: "DataFrame", uri: str, run: str) -> None:
    """Replaces the table by the frame, or creates it.

    Args:
        run: stored in the commit: tables with the same value are of one run.

    Raises:
        CommandError: there is a table of another kind.
        UnreachableError: its store does not answer.
    """
    schema = to_arrow_schema(frame.schema, timezone="UTC")
    table = made(uri, schema, {_KIND_KEY: "1"})
    if _KIND_KEY not in table.metadata().configuration:
        raise CommandError(f"the table at {uri} was not made by this command: name another folder")
    frame.sparkSession.dataSource.register(ReplacingSource)
    writer = frame.write.format(ReplacingSource.name()).mode("overwrite")
    writer.option("table", uri).option("run", run).save()
    table.update_incremental()
    synced(table)
    table.vacuum(retention_hours=_VACUUM_HOURS, dry_run=False, enforce_retention_duration=False, full=True)


class ReplacingSource(DataSource):
    """A table that is only written, and always replaced as a whole."""

    @classmethod
    def name(cls) -> str:
        """Name of the format; only this module uses it."""
        return "lightrail-replacing"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of the whole table."""
        assert overwrite
        return ReplacingWriter(
            self.options["table"], self.options["run"], to_arrow_schema(schema, timezone="UTC")
        )


@dataclass
class Files(WriterCommitMessage):
    """The files that a task wrote: path, size, milliseconds and number of rows of each."""

    written: list[tuple[str, int, int, int]] = field(default_factory=list)


@dataclass
class ReplacingWriter(DataSourceArrowWriter):
    """Writes one file for each task, or several if one would be too large for memory."""

    uri: str
    run: str
    schema: pa.Schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Files:
        """Runs in a task. The files belong to no commit yet."""
        folder, done = Folder(self.uri), Files()
        batches: list[pa.RecordBatch] = []
        for batch in iterator:
            batches.append(batch)
            if sum(each.nbytes for each in batches) >= SPARK_LAKE_BUFFER_BYTES:
                self._file(folder, batches, done)
                batches = []
        self._file(folder, batches, done)
        return done

    def _file(self, folder: Folder, batches: list[pa.RecordBatch], done: Files) -> None:
        rows = pa.Table.from_batches(batches, self.schema) if batches else None
        if rows is not None and rows.num_rows:
            path = f"part-{uuid.uuid4()}.parquet"
            done.written.append((path, folder.write(path, rows, statistics=True), now_ms(), rows.num_rows))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commits the files of all tasks."""
        actions: list[AddAction | RemoveAction] = [
            AddAction(path, size, {}, at_ms, True, json.dumps({"numRecords": rows}))
            for each in messages
            if isinstance(each, Files)
            for path, size, at_ms, rows in each.written
        ]
        table = DeltaTable(self.uri, storage_options=delta_options(self.uri))
        properties = CommitProperties(custom_metadata={NOTE: json.dumps({"run": self.run})})
        table.create_write_transaction(actions, "overwrite", self.schema, commit_properties=properties)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Written files stay until a vacuum, because a commit may name them."""


def is_table(uri: str) -> bool:
    """Whether there is a Delta table."""
    options: dict[str, Any] = delta_options(uri)
    return bool(DeltaTable.is_deltatable(uri, options))
