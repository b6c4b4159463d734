"""The commands `coordinator` and `transactions`: what an operator decides after a loss.

An etcd that was set back to an older snapshot gets the lost entries again, and transactions that wait for the
decision of a lost shard are decided.
"""

import argparse
from typing import Any, Final

from lightrail.cli.administration.client import Client, CommandError, path_of
from lightrail.cli.administration.commands import Subparsers, add, group, printed_json
from lightrail.console.terminal import counted, pairs, printable, show_json, table

DECIDE: Final = """Only for a shard that is lost for good, with its disk. It may have decided otherwise and
answered its clients before: then its part of the transaction contradicts this decision at the other shards.
If the shard can be started, start it instead: the other shards request its decision again.

`commit` sends the messages of the transaction and settles its deliveries. `abort` sends nothing, and delivers
what the transaction had settled again.

examples:
  lightrail-admin transactions list
  lightrail-admin transactions decide abort shard-3          shows all that shard 3 would have decided
  lightrail-admin transactions decide abort shard-3 --yes    decides them, at all shards that wait
  lightrail-admin transactions decide commit 0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f --yes
"""
PUT_BACK: Final = """
For an etcd that was restored from an older snapshot while the cluster ran. The gateway writes the entries
that it has and this etcd lacks: names, policies, users, rights, subscriptions, readers, shards and
placements. After that all processes continue with this etcd. Nothing is deleted: entries that had been
deleted after the snapshot exist again, and are listed.
"""
SHOWN: Final = 20
"""Number of keys of each kind that are printed; --json prints all."""
COLUMNS: Final = ("id", "shard", "decides", "seconds", "messages", "deliveries", "queues")


def register(things: Subparsers) -> None:
    """Adds these commands."""
    coordinator = group(things, "coordinator", "etcd, after it was set back to an older snapshot")
    add(coordinator, "show", _show, "show whether etcd was set back; exit status 1 if it was")
    add(
        coordinator,
        "put-back",
        _put_back,
        "write the lost entries again, and continue with this etcd",
        PUT_BACK,
    )
    transactions = group(things, "transactions", "transactions that wait for the decision of another shard")
    add(transactions, "list", _list, "all of them, with the deciding shard; a row per waiting shard")
    command = add(transactions, "decide", _decide, "decide those of a shard that is lost for good", DECIDE)
    command.add_argument("decision", metavar="commit|abort", choices=("commit", "abort"))
    command.add_argument(
        "which",
        metavar="ID|shard-N",
        nargs="+",
        help="a transaction, or all that a lost shard would have decided",
    )
    command.add_argument("--yes", action="store_true", help="confirm it")


def _show(client: Client, parsed: argparse.Namespace) -> int:
    found = client.get("/!coordinator")["set_back"]
    if parsed.json:
        show_json(found)
    elif found is None:
        print("etcd has all revisions that this gateway knows")
    else:
        pairs({key: found[key] for key in ("known_at", "revision", "reason")})
    return 0 if found is None else 1


def _put_back(client: Client, parsed: argparse.Namespace) -> int:
    done = client.request("POST", "/!coordinator/put-back", json_body={}).json()
    if printed_json(parsed, done):
        return 0
    for key, what in (
        ("written", "entries were written again"),
        ("kept", "entries were changed since, and stay as they are"),
        ("again", "entries had been deleted, or were created since: check whether they are wanted"),
    ):
        print(f"{len(done[key]):,} {what}")
        for each in done[key][:SHOWN]:
            print(f"    {printable(each)}")
        if len(done[key]) > SHOWN:
            print(f"    and {len(done[key]) - SHOWN:,} more")
    return 0


def _list(client: Client, parsed: argparse.Namespace) -> int:
    found = client.get("/!transactions")
    if printed_json(parsed, found):
        return 0
    table([_row(each) for each in found["transactions"]], COLUMNS)
    more = found["count"] - len(found["transactions"])
    if more > 0:
        print(f"and {more:,} more")
    if found["silent"]:
        print(f"no answer of the shards {', '.join(map(str, found['silent']))}")
    return 0


def _row(each: dict[str, Any]) -> dict[str, Any]:
    queues = ", ".join(each["queues"])
    more = each["queue_count"] - len(each["queues"])
    return {
        **each,
        "seconds": each["age_ms"] // 1000,
        "queues": f"{queues} and {more} more" if more else queues,
    }


def _decide(client: Client, parsed: argparse.Namespace) -> int:
    found = client.get("/!transactions")["transactions"]
    rows = [each for each in found if {each["id"], f"shard-{each['decides']}"} & set(parsed.which)]
    known = {name for each in rows for name in (each["id"], f"shard-{each['decides']}")}
    for which in parsed.which:
        if which not in known:
            raise CommandError(
                f"{printable(which)}: no such transaction waits at a shard that answers; expected an ID or "
                "shard-N, as `lightrail-admin transactions list` has them"
            )
    ids = sorted({each["id"] for each in rows})
    if not parsed.yes:
        if not printed_json(parsed, {"would_decide": rows}):
            table([_row(each) for each in rows], COLUMNS)
        shards = ", ".join(str(each) for each in sorted({each["decides"] for each in rows}))
        raise CommandError(
            f"{counted(len(ids), 'transaction')} would be decided by hand ({parsed.decision}). This may "
            f"contradict the decision of shard {shards} and answers to clients; confirm with --yes"
        )
    body = {"decision": parsed.decision}
    done = [client.request("POST", path_of("!transactions", id), json_body=body).json() for id in ids]
    if not printed_json(parsed, done):
        for each in done:
            shards = ", ".join(map(str, each["shards"]))
            print(f"transaction {each['id']}: {each['decision']}, applied at shard {shards}")
    return 0
