"""The command `shard`: lists shards and their members, drains them, and gives up their disks."""

import argparse
import time
from collections.abc import Sequence
from typing import Any, Final

from lightrail.cli.administration.client import Client, CommandError, path_of
from lightrail.cli.administration.commands import Subparsers, add, group, printed_json
from lightrail.cli.administration.moving import carry_out, throttle_of
from lightrail.console.terminal import counted, pairs, printable, table

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
REPLICAS: Final = """shows the members of a shard, or changes how many it is to have and how many it needs

examples:
  lightrail-admin shard replicas 3                      owner, epoch, and each member: in sync, running
  lightrail-admin shard replicas 3 --replicas 3         further directories may join: lightrail shard --id 3
  lightrail-admin shard replicas 3 --min-in-sync 2      once they are in sync: nothing is accepted with fewer
  lightrail-admin shard replicas 3 --min-in-sync 1      two members are lost: the last one goes on alone

The first change of a shard without replicas restarts its process, as the only member. With a minimum of 1,
what the last member in sync accepts alone is lost with its disk.
"""
HANDOVER: Final = """lets another member own a shard, as before maintenance of the owner's machine

The owner goes on until the other member has read its journal, then ends in order, and its supervisor starts
it again as a member that follows. Clients stay attached and notice a short pause.

examples:
  lightrail-admin shard handover 3                      to any other member in sync
  lightrail-admin shard handover 3 --to host-b          to the one on this host
  lightrail-admin shard handover 3 --to 9f2c            by its id, or the beginning of it
"""
HANDOVER_S: Final = 60.0
"""How long the command waits for the new owner."""
HANDOVER_LOOK_S: Final = 0.2
REMOVE_MEMBER: Final = """examples:
  lightrail-admin shard remove-member 3 host-b          the member whose last start was on this host
  lightrail-admin shard remove-member 3 9f2c            by its id, or the beginning of it

The member is out of sync, and was stopped. Its directory can be deleted; a process that is started on it
joins again.
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
    command = add(shards, "replicas", _replicas, "show or change the members of a shard", REPLICAS)
    command.add_argument("id", metavar="ID", type=int)
    command.add_argument("--replicas", metavar="N", type=int, help="members that the shard is to have")
    command.add_argument(
        "--min-in-sync", metavar="N", type=int, help="members that must have a message before it is accepted"
    )
    command = add(shards, "handover", _handover, "let another member own a shard", HANDOVER)
    command.add_argument("id", metavar="ID", type=int)
    command.add_argument("--to", metavar="MEMBER", help="its host, its id, or the beginning of its id")
    command = add(shards, "remove-member", _remove_member, "remove a member that is lost", REMOVE_MEMBER)
    command.add_argument("id", metavar="ID", type=int)
    command.add_argument("member", metavar="MEMBER", help="its host, its id, or the beginning of its id")
    command = add(shards, "remove", _remove, "forget a shard that has no queues and was stopped", REMOVE)
    command.add_argument("id", metavar="ID", type=int)
    command.add_argument(
        "--lose-queues", action="store_true", help="its disk is lost: give up its queues and their messages"
    )
    command.add_argument("--yes", action="store_true", help="with --lose-queues: confirm it")


def _list(client: Client, parsed: argparse.Namespace) -> int:
    shards = client.get("/!shards")["shards"]
    if printed_json(parsed, shards):
        return 0
    columns = ["id", "state", "serving", "queues", "moving_in", "moving_out", "host", "zone", "address"]
    if any(each.get("replicas") for each in shards):
        columns[3:3] = ["epoch", "in_sync"]
    table([each | _in_sync(each.get("replicas")) for each in shards], columns)
    return 0


def _in_sync(replicas: dict[str, Any] | None) -> dict[str, Any]:
    """The columns of a shard with replicas."""
    if replicas is None:
        return {"epoch": "", "in_sync": ""}
    return {"epoch": replicas["epoch"], "in_sync": f"{replicas['in_sync']} of {replicas['replicas']}"}


def _replicas(client: Client, parsed: argparse.Namespace) -> int:
    path = path_of("!shards", str(parsed.id), "replicas")
    wanted = {
        name: number for name in ("replicas", "min_in_sync") if (number := getattr(parsed, name)) is not None
    }
    if wanted:
        shown = client.request("PUT", path, json_body=wanted).json()["replicas"]
    else:
        shown = client.get(path)["replicas"]
    return _show_replicas(parsed, shown)


def _show_replicas(parsed: argparse.Namespace, shown: dict[str, Any] | None) -> int:
    if printed_json(parsed, shown):
        return 0
    if shown is None:
        print(f"shard {parsed.id} has no replicas; `lightrail-admin shard replicas {parsed.id} --replicas 3`")
        return 0
    pairs({"shard": parsed.id} | {key: shown[key] for key in ("epoch", "replicas", "min_in_sync", "in_sync")})
    print()
    table(shown["members"], ("host", "owns", "in_sync", "running", "member"))
    return 0


def _handover(client: Client, parsed: argparse.Namespace) -> int:
    path = path_of("!shards", str(parsed.id), "replicas")
    before = client.get(path)["replicas"] or {"members": [], "owner": ""}
    others = [each for each in before["members"] if each["in_sync"] and each["running"] and not each["owns"]]
    if parsed.to is not None:
        member = _member(before["members"], parsed.to, parsed.id)
    elif others:
        member = others[0]["member"]
    else:
        raise CommandError(
            f"expected another member of shard {parsed.id} that runs and is in sync, found none: see "
            f"`lightrail-admin shard replicas {parsed.id}`"
        )
    shown = client.request("PUT", path, json_body={"owner": member}).json()["replicas"]
    until = time.monotonic() + HANDOVER_S
    while shown["owner"] == before["owner"] != member:
        if time.monotonic() > until:
            raise CommandError(
                f"shard {parsed.id} was not handed over within {HANDOVER_S:g} s: its owner's log has the "
                "reason"
            )
        time.sleep(HANDOVER_LOOK_S)
        shown = client.get(path)["replicas"]
    return _show_replicas(parsed, shown)


def _remove_member(client: Client, parsed: argparse.Namespace) -> int:
    path = path_of("!shards", str(parsed.id), "replicas")
    member = _member((client.get(path)["replicas"] or {"members": []})["members"], parsed.member, parsed.id)
    shown = client.request("DELETE", f"{path}/{member}").json()["replicas"]
    return _show_replicas(parsed, shown)


def _member(members: Sequence[dict[str, Any]], text: str, shard: int) -> str:
    """The id of the member with this host or beginning of its id. Raises CommandError."""
    chosen = [each["member"] for each in members if each["host"] == text or each["member"].startswith(text)]
    if len(chosen) != 1:
        known = ", ".join(f"{each['member']} on {each['host']}" for each in members) or "none"
        raise CommandError(
            f"expected one member of shard {shard} with the host or id {text!a}, found {len(chosen)}: its "
            f"members are {known}"
        )
    return str(chosen[0])


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
