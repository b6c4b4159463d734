"""The command `shard`: lists shards, drains them, and gives up their disks."""

import argparse
from typing import Any, Final

from lightrail.cli.administration.client import Client, CommandError, path_of
from lightrail.cli.administration.commands import Subparsers, add, group, listed, printed_json
from lightrail.cli.administration.moving import carry_out, throttle_of
from lightrail.console.terminal import counted, pairs, printable

LOST_SHOWN: Final = 1_000
DRAIN: Final = """Its queues move to the other shards while their clients stay attached. When it is empty,
stop its process and run `lightrail-admin shard remove`. The moves continue after Ctrl-C; run the command
again to watch them.
"""
ACCEPT_DISK: Final = """let a directory that was refused as a copy or as outdated serve

Works on etcd (--etcd), or on the file in the data directory (--data), not through a gateway. The next
directory that is started with the disk of this shard serves its messages; messages that were stored elsewhere
later are lost, and messages that were consumed later are delivered again. For a restored backup of a running
cluster, and for a copy of the directory of a lost machine.

examples:
  lightrail-admin --etcd 10.0.0.1:2379 shard accept-disk 3
  lightrail-admin --etcd 10.0.0.1:2379 shard accept-disk 0 1 2      after the restore of all of them
"""
REMOVE: Final = """examples:
  lightrail-admin shard remove 3                        a drained, stopped shard
  lightrail-admin shard remove 3 --lose-queues          its disk is lost: shows its queues
  lightrail-admin shard remove 3 --lose-queues --yes    gives up their messages

Such queues keep their names, policies and subscriptions; at its next use each is empty and on another shard.
"""


def register(things: Subparsers) -> None:
    """Adds these commands."""
    shards = group(things, "shard", "the shards of the cluster")
    add(shards, "list", _list, "all shards, alive or not")
    command = add(shards, "drain", _drain, "move all queues away from a shard", DRAIN)
    command.add_argument("id", metavar="ID", type=int)
    command.add_argument("--throttle", metavar="SIZE", help="bytes per second of each copy, such as 20MB")
    command.add_argument("--no-wait", action="store_true", help="begin, and do not wait for the end")
    command = add(shards, "revive", _revive, "let a draining shard receive queues again")
    command.add_argument("id", metavar="ID", type=int)
    command = add(shards, "forget-disk", _forget_disk, "give up a disk that is lost, with its messages")
    command.add_argument("id", metavar="ID", type=int)
    # This command uses no gateway, because the gateway may wait for this shard; see cli/files.py.
    command = shards.add_parser(
        "accept-disk",
        help="let a directory that was refused as a copy or as outdated serve",
        description=ACCEPT_DISK,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("ids", metavar="ID", type=int, nargs="+")
    command = add(shards, "remove", _remove, "forget a shard that has no queues and was stopped", REMOVE)
    command.add_argument("id", metavar="ID", type=int)
    command.add_argument(
        "--lose-queues", action="store_true", help="its disk is lost: give up its queues and their messages"
    )
    command.add_argument("--yes", action="store_true", help="with --lose-queues: confirm it")


def _list(client: Client, parsed: argparse.Namespace) -> int:
    shards = client.get("/!shards")["shards"]
    return listed(
        parsed,
        shards,
        ("id", "state", "serving", "queues", "moving_in", "moving_out", "host", "zone", "address"),
    )


def _drain(client: Client, parsed: argparse.Namespace) -> int:
    throttle = throttle_of(parsed.throttle)
    client.request("PUT", path_of("!shards", str(parsed.id)), json_body={"state": "draining"})
    plan = client.get("/!plan", sample=0)
    plan["moves"] = [move for move in plan["moves"] if move["from"] == parsed.id]
    if parsed.id in plan["silent"]:
        raise CommandError(
            f"shard {parsed.id} receives no more queues, but it does not answer, so its queues can't be "
            "copied: start it and run this again"
        )
    if not parsed.json:
        print(f"shard {parsed.id} drains: {counted(len(plan['moves']), 'queue')} to move")
    status = carry_out(client, parsed, plan, throttle, skip=True)
    if status or parsed.no_wait:
        return status
    left = _shard(client, parsed.id)
    if left is not None and left["queues"]:
        raise CommandError(
            f"shard {parsed.id} still has {counted(left['queues'], 'queue')}: run this again; for those "
            "that stay then, `lightrail-admin rebalance --verify` has the reason"
        )
    if not parsed.json:
        print(f"shard {parsed.id} is empty: stop it, then `lightrail-admin shard remove {parsed.id}`")
    return 0


def _shard(client: Client, id: int) -> dict[str, Any] | None:
    shards: list[dict[str, Any]] = client.get("/!shards")["shards"]
    return next((each for each in shards if each["id"] == id), None)


def _revive(client: Client, parsed: argparse.Namespace) -> int:
    body = {"state": "active"}
    shown = client.request("PUT", path_of("!shards", str(parsed.id)), json_body=body).json()
    if not printed_json(parsed, shown):
        pairs({key: shown[key] for key in ("id", "state", "serving", "queues")})
    return 0


def _forget_disk(client: Client, parsed: argparse.Namespace) -> int:
    shown = client.request("PUT", path_of("!shards", str(parsed.id)), json_body={"disk": ""}).json()
    if not printed_json(parsed, shown):
        print(f"shard {parsed.id} has no disk now: start one with --id {parsed.id}, its queues will be empty")
    return 0


def _remove(client: Client, parsed: argparse.Namespace) -> int:
    path = path_of("!shards", str(parsed.id))
    if not parsed.lose_queues:
        client.request("DELETE", path)
        lost: list[str] = []
    else:
        lost = _queues_of(client, parsed.id)
        if not parsed.yes:
            if not printed_json(parsed, {"would_lose": lost}):
                for queue in lost[:LOST_SHOWN]:
                    print(printable(queue))
                if len(lost) > LOST_SHOWN:
                    print(f"and {len(lost) - LOST_SHOWN:,} more")
            raise CommandError(
                f"{counted(len(lost), 'queue')} of shard {parsed.id} would lose all messages, for good; "
                "confirm with --yes"
            )
        client.request("DELETE", path, query={"lose_queues": "true"})
    if not printed_json(parsed, {"removed": parsed.id, "lost": lost}):
        if lost:
            print(f"{counted(len(lost), 'queue')} lost their messages, and are on other shards now")
        print(f"shard {parsed.id} is removed; its data directory can be deleted")
    return 0


def _queues_of(client: Client, id: int) -> list[str]:
    """All queues that are placed on a shard, whether it runs or not."""
    found = client.get(path_of("!shards", str(id)))
    return [str(queue) for queue in found["queue_names"]]
