"""The table of rows: opened or created, checked, and extended by one transaction per batch."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.schema import Field
from deltalake.transaction import AddAction, RemoveAction

from lightrail.console.terminal import one_line
from lightrail.model.limits import SPARK_LAKE_AGAIN
from lightrail.spark.command import CommandError, UnreachableError
from lightrail.spark.lake.files import (
    FORMAT,
    JOURNAL_TRANSACTION,
    LAKE_SCHEMA,
    NOTE,
    PARTITIONS,
    STATISTICS,
    Bounds,
    Covered,
    File,
    sync,
)
from lightrail.spark.stores import StoreError, delta_options

_FORMAT_KEY: Final = "lightrail.format"
_SELECTION_KEY: Final = "lightrail.selection"
_CONFIGURATION: Final = {_FORMAT_KEY: str(FORMAT), "delta.dataSkippingStatsColumns": ",".join(STATISTICS)}


def open_table(uri: str) -> DeltaTable:
    """Opens an existing table.

    Raises:
        CommandError: there is no table, or it is not a table of capture.
        UnreachableError: the store does not answer.
    """
    try:
        table = DeltaTable(uri, storage_options=_options(uri))
    except TableNotFoundError:
        raise CommandError(
            f"expected a Delta table at {uri}, found none: `lightrail-spark capture` makes one"
        ) from None
    except OSError as error:
        raise _unreachable(uri, error) from None
    given = table.metadata().configuration.get(_FORMAT_KEY)
    if given is None:
        raise CommandError(
            f"the table at {uri} was not made by `lightrail-spark capture`: name another place"
        )
    if int(given) > FORMAT:
        raise CommandError(
            f"the table at {uri} has format {given}, this version knows up to {FORMAT}: use a newer version"
        )
    return table


def open_or_make(uri: str, selection: Mapping[str, Any]) -> DeltaTable:
    """Opens the table of a capture; creates it, or adds columns of a newer version.

    Args:
        selection: the rows of the journals that the table has; it never changes, because the coverage refers
        to it.

    Raises:
        CommandError: the table is another one, has other rows, or columns that this version does not know.
        UnreachableError: the store does not answer.
    """
    text = json.dumps(selection, sort_keys=True)
    made(uri, LAKE_SCHEMA, {**_CONFIGURATION, _SELECTION_KEY: text}, PARTITIONS)
    table = open_table(uri)
    had = table.metadata().configuration.get(_SELECTION_KEY, text)
    if had != text:
        raise CommandError(
            f"the table at {uri} has the rows of {had}, and {text} was requested: its coverage would be "
            "wrong for both. Give the same --queues and --queue-pattern, or another table"
        )
    _extend(table, uri)
    return table


def made(
    uri: str, schema: pa.Schema, configuration: Mapping[str, str], partitions: Sequence[str] = ()
) -> DeltaTable:
    """Opens a table, or creates it; an existing one may have another schema and configuration.

    Raises:
        CommandError: there is a secret in the URI.
        UnreachableError: the store does not answer.
    """
    options = _options(uri)
    try:
        if not DeltaTable.is_deltatable(uri, options):
            if "://" not in uri:
                os.makedirs(uri, exist_ok=True)
            # Another process may create it at the same time; then this one opens it.
            DeltaTable.create(
                uri,
                schema=schema,
                mode="ignore",
                partition_by=list(partitions),
                configuration=dict(configuration),
                raise_if_key_not_exists=False,
                storage_options=options,
            )
        return DeltaTable(uri, storage_options=options)
    except OSError as error:
        raise _unreachable(uri, error) from None


def _options(uri: str) -> dict[str, str]:
    try:
        return delta_options(uri)
    except StoreError as error:
        raise CommandError(str(error)) from None


def _unreachable(uri: str, error: OSError) -> UnreachableError:
    return UnreachableError(
        f"the table at {uri} can't be reached: {one_line(error)}: check the URI, and the environment "
        "variables with the store's address and credentials (docs/operate/capture.md)"
    )


def _extend(table: DeltaTable, uri: str) -> None:
    """Adds columns of this version that the table lacks; they are null in older rows."""
    there = pa.schema(table.schema().to_arrow())
    ours = {field.name: field for field in LAKE_SCHEMA}
    unknown = [name for name in there.names if name not in ours]
    if unknown:
        raise CommandError(
            f"the table at {uri} has the columns {', '.join(unknown)}, which this version does not know: "
            "capture with the version that created them"
        )
    for field in there:
        if field.type != ours[field.name].type:
            raise CommandError(
                f"the column {field.name} of the table at {uri} is {field.type}, expected "
                f"{ours[field.name].type}: capture to another table"
            )
    missing = [field for field in LAKE_SCHEMA if field.name not in there.names]
    if missing:
        table.alter.add_columns([Field.from_arrow(field) for field in missing])
        table.update_incremental()


def committed(table: DeltaTable, query: str, batch: int) -> bool:
    """Whether a batch of a query is in the table."""
    last = table.transaction_version(query)
    return last is not None and last >= batch


def position(table: DeltaTable, journal: str) -> int | None:
    """The first record of a journal that the table does not cover; None if it covers no record."""
    found: int | None = table.transaction_version(JOURNAL_TRANSACTION + journal)
    return found


class OrderError(Exception):
    """The table covers records of a batch already, or the batch does not continue its coverage."""


def follows(table: DeltaTable, bounds: Bounds) -> None:
    """Checks that a batch continues the coverage of the table.

    Raises:
        OrderError: it does not continue the coverage.
    """
    for journal, (first_lsn, next_lsn) in bounds.items():
        ends = position(table, journal)
        if ends is not None and ends != first_lsn:
            raise OrderError(
                f"the table covers journal {journal} up to before record {ends}, and the batch has "
                f"records {first_lsn} to before {next_lsn}"
            )


def commit_batch(table: DeltaTable, query: str, batch: int, files: Sequence[File], covered: Covered) -> bool:
    """Commits the files, the batch's id, and the new coverage in one transaction.

    Returns: False if the table has the batch already.

    Raises:
        OrderError: the batch does not continue the coverage.
        CommandError: every attempt conflicted with another commit.
    """
    note = {
        "format": FORMAT,
        "query": query,
        "batch": batch,
        "covered": [each.plain() for each in covered.ranges],
        "unwatched": [each.plain() for each in covered.unwatched],
    }
    actions: list[AddAction | RemoveAction] = [
        AddAction(each.path, each.size, each.partition, each.modified_ms, True, each.stats) for each in files
    ]
    transactions = [Transaction(query, batch)]
    transactions += [
        Transaction(JOURNAL_TRANSACTION + disk, end) for disk, (_, end) in covered.bounds.items()
    ]
    for _ in range(SPARK_LAKE_AGAIN):
        table.update_incremental()
        if committed(table, query, batch):
            return False
        follows(table, covered.bounds)
        try:
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                list(PARTITIONS),
                commit_properties=CommitProperties(
                    custom_metadata={NOTE: json.dumps(note)}, app_transactions=transactions
                ),
            )
        except CommitFailedError:
            # Another commit of the same batch or journal: the next attempt finds out which.
            continue
        table.update_incremental()
        synced(table)
        return True
    raise CommandError(
        f"{SPARK_LAKE_AGAIN} times another commit came first: is there a second capture to the same table?"
    )


def synced(table: DeltaTable) -> None:
    """Syncs the last commit of a local table, because Spark will not repeat the batch afterwards."""
    uri = table.table_uri
    if uri.startswith("file://") or "://" not in uri:
        folder = os.path.join(local_path(uri), "_delta_log")
        for name in (f"{table.version():020d}.json", ""):
            path = os.path.join(folder, name)
            if os.path.exists(path):
                sync(path)


def local_path(uri: str) -> str:
    """The path of a local table's URI."""
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(uri).path) if uri.startswith("file://") else uri


def active_files(table: DeltaTable) -> list[dict[str, Any]]:
    """The files of the table: path, size_bytes, num_records, min_lsn, max_lsn, queue_slug, date, hour."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names = {
        "path": "path",
        "size_bytes": "size_bytes",
        "num_records": "num_records",
        "min.lsn": "min_lsn",
        "max.lsn": "max_lsn",
        **{f"partition.{name}": name for name in PARTITIONS},
    }
    there = [name for name in names if name in actions.column_names]
    rows = actions.select(there).rename_columns([names[name] for name in there]).to_pylist()
    return [dict.fromkeys(names.values()) | row for row in rows]
