"""The ledger: the records of each journal that each commit of the table covers, and rows that retention
deleted.

Each commit has its coverage in its metadata. The ledger, a separate Delta table, copies the coverage of each
commit once, in order. So the ledger is never ahead of the table; after a crash it may be behind, and the next
capture updates it. It outlives the log of the table, which Delta cleans after 30 days.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from lightrail.model.limits import SPARK_LAKE_AGAIN
from lightrail.spark.command import CommandError
from lightrail.spark.lake.files import COVERAGE, NOTE
from lightrail.spark.stores import delta_options

COVERED: Final = "covered"
UNWATCHED: Final = "unwatched"
RETIRED: Final = "retired"

SCHEMA: Final = pa.schema(
    [
        ("version", pa.int64()),
        ("kind", pa.string()),
        ("query", pa.string()),
        ("batch", pa.int64()),
        ("committed_at", pa.timestamp("us", tz="UTC")),
        ("journal", pa.string()),
        ("shard", pa.int32()),
        ("first_lsn", pa.int64()),
        ("next_lsn", pa.int64()),
        ("records", pa.int64()),
        ("rows", pa.int64()),
        ("checksum", pa.int64()),
    ]
)
"""`kind`: covered, a range of a batch; unwatched, a range that was never archived, because no queue was
captured at the time; retired, rows of a covered range that retention deleted."""
_TRANSACTION: Final = "lightrail-coverage"
"""Application transaction of the ledger; its version is that of the last commit that the ledger has."""


@dataclass(slots=True)
class Ledger:
    """The ledger of one table."""

    table: DeltaTable
    """The table of the rows."""
    uri: str
    """URI of the table, as given by the caller."""

    @property
    def own_uri(self) -> str:
        """URI of the ledger."""
        return f"{self.uri.rstrip('/')}/{COVERAGE}"

    def _own(self) -> DeltaTable | None:
        options = delta_options(self.uri)
        if not DeltaTable.is_deltatable(self.own_uri, options):
            return None
        return DeltaTable(self.own_uri, storage_options=options)

    def news(self) -> tuple[int, list[dict[str, Any]]]:
        """The last version of the table in the ledger, and rows for later commits.

        Raises:
            CommandError: the table's log has been cleaned of commits that the ledger does not have.
        """
        own = self._own()
        last = -1 if own is None else _last(own)
        return last, list(_notes(self.table, last))

    def catch_up(self) -> None:
        """Updates the ledger from the table.

        Raises:
            CommandError: the table's log has been cleaned of commits that the ledger does not have.
        """
        for _ in range(SPARK_LAKE_AGAIN):
            own = self._own()
            last = -1 if own is None else _last(own)
            version = self.table.version()
            if last >= version:
                return
            if own is None:
                options = delta_options(self.uri)
                DeltaTable.create(self.own_uri, schema=SCHEMA, mode="ignore", storage_options=options)
                continue
            rows = list(_notes(self.table, last))
            # Because of this transaction, one of two concurrent updates fails.
            properties = CommitProperties(app_transactions=[Transaction(_TRANSACTION, version)])
            try:
                if rows:
                    data = pa.Table.from_pylist(rows, schema=SCHEMA)
                    write_deltalake(own, data, mode="append", commit_properties=properties)
                else:
                    own.create_write_transaction([], "append", SCHEMA, commit_properties=properties)
                return
            except CommitFailedError:
                continue
        raise CommandError(f"{SPARK_LAKE_AGAIN} times another commit to {self.own_uri} came first; try again")

    def rows(self) -> pa.Table:
        """The complete ledger including newer commits of the table's log; writes nothing."""
        last, news = self.news()
        own = self._own()
        parts = [pa.Table.from_pylist(news, schema=SCHEMA)]
        if own is not None:
            written = own.to_pyarrow_table().select(SCHEMA.names).cast(SCHEMA)
            parts.insert(0, written.filter(pc.less_equal(written["version"], last)))
        return pa.concat_tables(parts).sort_by(
            [("version", "ascending"), ("journal", "ascending"), ("first_lsn", "ascending")]
        )

    def tidy(self, hours: int) -> None:
        """Merges small files of the ledger; the merged ones are removed after `hours`."""
        own = self._own()
        if own is not None:
            # If the ledger is being written now, the next run merges them.
            with contextlib.suppress(CommitFailedError):
                own.optimize.compact()
            own.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)

    def positions(self) -> dict[str, int]:
        """The first record of each journal that is not covered."""
        rows = self.rows()
        covered = rows.filter(pc.not_equal(rows["kind"], RETIRED))
        ends = covered.group_by("journal").aggregate([("next_lsn", "max")])
        return dict(zip(ends["journal"].to_pylist(), ends["next_lsn_max"].to_pylist(), strict=True))


def _last(own: DeltaTable) -> int:
    version = own.transaction_version(_TRANSACTION)
    return -1 if version is None else int(version)


def _notes(table: DeltaTable, after: int) -> Iterable[dict[str, Any]]:
    """Metadata of commits after a version, the oldest first."""
    count = table.version() - after
    if count <= 0:
        return
    history = table.history(count)
    versions = {int(commit["version"]) for commit in history}
    gone = [
        version
        for version in range(max(after, 0) + (after >= 0), table.version() + 1)
        if version not in versions
    ]
    if gone:
        raise CommandError(
            f"the log of {table.table_uri} has been cleaned of the versions {gone[0]} to {gone[-1]}, which "
            "its ledger does not have: their coverage is unknown"
        )
    for commit in sorted(history, key=lambda each: int(each["version"])):
        if NOTE not in commit:
            continue
        note = json.loads(commit[NOTE])
        at = datetime.fromtimestamp(commit["timestamp"] / 1000, UTC)
        common = {"version": commit["version"], "committed_at": at}
        for kind in (COVERED, UNWATCHED, RETIRED):
            for each in note.get(kind, ()):
                yield {**common, "kind": kind, "query": note.get("query"), "batch": note.get("batch"), **each}
