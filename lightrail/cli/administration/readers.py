"""The commands `journal list` and `reader`: journals of shards, and the positions of their readers."""

import argparse
from datetime import UTC, datetime
from typing import Any, Final

from lightrail.cli.administration.client import Client, UsageError, path_of
from lightrail.cli.administration.commands import Subparsers, add, group, printed_json
from lightrail.console.terminal import counted, pairs, printable, show_json, table
from lightrail.model import limits, setting_values

JOURNAL_COLUMNS: Final = (
    "shard",
    "journal",
    "segments",
    "first_lsn",
    "next_lsn",
    "messages",
    "bytes",
    "newest",
)
SEGMENT_COLUMNS: Final = ("segment", "first_lsn", "next_lsn", "messages", "bytes", "newest", "sealed")
READER_COLUMNS: Final = (
    "name",
    "journals",
    "messages_behind",
    "bytes_behind",
    "hold_hours",
    "hold_bytes",
    "moved",
)
POSITION_COLUMNS: Final = ("shard", "journal", "position", "records", "messages", "bytes", "missed", "oldest")

LIST: Final = """examples:
  lightrail-admin journal list                 one line per journal, with its id for offsets and positions
  lightrail-admin journal list 3f2a9c0e…       the segments of one journal
  lightrail-admin journal list --json          the answer of GET /!journals

A journal belongs to a shard on a disk. `away`: its shard does not answer now. Only committed records are
counted.
"""
SET: Final = """examples:
  lightrail-admin reader set capture                          a new reader, at the earliest records
  lightrail-admin reader set capture --latest                 a new reader, at the next records
  lightrail-admin reader set capture --position 3f2a9c=1200   it has read the records before 1200
  lightrail-admin reader set capture --hold-hours 48 --hold-bytes 20GB
  lightrail-admin reader set capture --position 3f2a9c=0 --reset     back to the beginning

Shards keep segments that a reader has not read, up to its bounds. Positions decrease only with --reset.
"""


def register(things: Subparsers, journals: Subparsers) -> None:
    """Adds these commands; `journals` are the actions of `journal`."""
    command = add(journals, "list", _journals, "journals of all shards, and their segments", LIST)
    command.add_argument("journal", metavar="JOURNAL", nargs="?", help="show the segments of this journal")
    readers = group(things, "reader", "readers of journals and their positions")
    add(readers, "list", _list, "all readers, with their lag")
    command = add(readers, "show", _show, "one reader, with its position in each journal")
    command.add_argument("name", metavar="NAME")
    command = add(readers, "set", _set, "make a reader, move its positions, change its bounds", SET)
    command.add_argument("name", metavar="NAME")
    command.add_argument(
        "--position",
        metavar="JOURNAL=LSN",
        action="append",
        default=[],
        help="its next record in a journal; may be repeated",
    )
    command.add_argument("--latest", action="store_true", help="all present records count as read")
    command.add_argument(
        "--forget", metavar="JOURNAL", action="append", default=[], help="delete its position in a journal"
    )
    command.add_argument(
        "--hold-hours",
        metavar="HOURS",
        type=float,
        help=f"hours for which unread segments are kept for it ({limits.READER_HOLD_HOURS:g} for a new one)",
    )
    command.add_argument(
        "--hold-bytes",
        metavar="SIZE",
        help="bytes of unread segments kept for it at each shard, such as 20GB "
        f"({setting_values.format_size(limits.READER_HOLD_BYTES)} for a new one)",
    )
    command.add_argument("--reset", action="store_true", help="positions may decrease")
    command = add(readers, "remove", _remove, "delete a reader; its unread segments are no longer kept")
    command.add_argument("name", metavar="NAME")


# --- journals ------------------------------------------------------------------------------------------


def _journals(client: Client, parsed: argparse.Namespace) -> int:
    rows = client.get("/!journals", journal=parsed.journal)["journals"]
    if parsed.json:
        show_json(rows)
    elif parsed.journal is None:
        table([_journal_row(row) for row in rows], JOURNAL_COLUMNS)
    elif not rows or rows[0].get("away"):
        print(f"journal {printable(parsed.journal)} is {'away' if rows else 'not known'} now")
        return 1
    else:
        table(
            [
                {**each, "bytes": each["end"], "newest": _time(each["last_ms"])}
                for each in rows[0]["segments"]
            ],
            SEGMENT_COLUMNS,
        )
    return 0


def _journal_row(row: dict[str, Any]) -> dict[str, Any]:
    segments = row["segments"]
    shown = {"shard": row["shard"], "journal": row["journal"]}
    if row.get("away"):
        return shown | {"segments": "away"}
    return shown | {
        "segments": len(segments),
        "first_lsn": segments[0]["first_lsn"] if segments else None,
        "next_lsn": segments[-1]["next_lsn"] if segments else None,
        "messages": sum(each["messages"] for each in segments),
        "bytes": sum(each["end"] for each in segments),
        "newest": _time(segments[-1]["last_ms"]) if segments else None,
    }


# --- readers -------------------------------------------------------------------------------------------


def _list(client: Client, parsed: argparse.Namespace) -> int:
    rows = client.get("/!readers")["readers"]
    if printed_json(parsed, rows):
        return 0
    table(
        [
            {
                **row,
                "journals": len(row["positions"]),
                "messages_behind": row["behind"]["messages"],
                "bytes_behind": row["behind"]["bytes"],
                "moved": _time(row["moved_ms"]),
            }
            for row in rows
        ],
        READER_COLUMNS,
    )
    return 0


def _show(client: Client, parsed: argparse.Namespace) -> int:
    reader = client.get(path_of("!readers", parsed.name))
    if printed_json(parsed, reader):
        return 0
    pairs(
        {
            "name": reader["name"],
            "moved": _time(reader["moved_ms"]),
            "hold_hours": reader["hold_hours"],
            "hold_bytes": reader["hold_bytes"],
            "messages_behind": reader["behind"]["messages"],
            "bytes_behind": reader["behind"]["bytes"],
        }
    )
    print()
    rows = [
        {
            **row,
            "position": row["position"] if row["position"] is not None else "earliest",
            "records": "away" if row.get("away") else row["lsns"],
            "oldest": _time(row.get("oldest_ms")),
        }
        for row in reader["journals"]
    ]
    rows += [
        {"journal": disk, "position": reader["positions"][disk], "records": "gone"} for disk in reader["gone"]
    ]
    table(rows, POSITION_COLUMNS)
    return 0


def _set(client: Client, parsed: argparse.Namespace) -> int:
    positions: dict[str, int | None] = {}
    if parsed.latest:
        positions = _latest(client)
    for text in parsed.position:
        disk, equals, lsn = text.partition("=")
        if not (disk and equals and lsn.isascii() and lsn.isdigit()):
            raise UsageError(f"--position is {text[:80]!a}; expected JOURNAL=LSN, such as 3f2a9c=1200")
        positions[disk] = int(lsn)
    positions |= dict.fromkeys(parsed.forget)
    body: dict[str, Any] = {"positions": positions}
    if parsed.hold_hours is not None:
        body["hold_hours"] = parsed.hold_hours
    if parsed.hold_bytes is not None:
        try:
            body["hold_bytes"] = setting_values.size(0, limits.READER_HOLD_BYTES_MAX)(parsed.hold_bytes)
        except ValueError as error:
            raise UsageError(f"--hold-bytes is {parsed.hold_bytes[:40]!a}; expected {error}") from None
    query = {"reset": "true"} if parsed.reset else None
    answer = client.request("PUT", path_of("!readers", parsed.name), query=query, json_body=body)
    reader = answer.json()
    if not printed_json(parsed, reader):
        count = counted(len(reader["positions"]), "position")
        what = "is created now" if answer.status == 201 else "is changed"
        print(
            f"reader {printable(reader['name'])} {what}: {count}, holds {reader['hold_hours']:g} h and "
            f"{setting_values.format_size(reader['hold_bytes'])} at most"
        )
    return 0


def _latest(client: Client) -> dict[str, int | None]:
    """The end of each journal."""
    rows = client.get("/!journals")["journals"]
    away = [str(row["shard"]) for row in rows if row.get("away")]
    if away:
        raise UsageError(
            f"--latest is unknown while shard {', '.join(away)} is away: start it, or use --position"
        )
    return {row["journal"]: row["segments"][-1]["next_lsn"] for row in rows if row["segments"]}


def _remove(client: Client, parsed: argparse.Namespace) -> int:
    client.request("DELETE", path_of("!readers", parsed.name))
    print(f"reader {printable(parsed.name)} is deleted; its unread segments are no longer kept")
    return 0


def _time(ms: int | None) -> str | None:
    if not ms:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
