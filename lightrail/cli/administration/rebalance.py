"""The commands `rebalance` and `shard`: an even load over the shards, and shards that come and go."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from lightrail.cli.administration.client import Client, Unreachable, path_of
from lightrail.cli.administration.commands import Refused, Subparsers, Usage, add, group
from lightrail.cli.administration.moving import Watching, megabytes
from lightrail.cli.administration.output import pairs, show_json, table
from lightrail.model import units

POLL_S: Final = 0.2
MOVES_SHOWN: Final = 20

REBALANCE: Final = """examples:
  lightrail-admin rebalance --dry-run          what would move, and the load of each shard before and after
  lightrail-admin rebalance                    do it, with progress; Ctrl-C leaves the moves going on
  lightrail-admin rebalance                    run again: shows the moves that are still under way
  lightrail-admin rebalance --cancel           call off every move that has not frozen its queue
  lightrail-admin rebalance --throttle 20MB --max-moves 50
  lightrail-admin rebalance --dry-run --json > plan.json
  lightrail-admin rebalance --plan plan.json   a plan that was saved, or that another tool made
  lightrail-admin rebalance --verify           is every queue where it should be, once?

The load of a queue is 1 and its messages per second, in and out. Exit status: 0 done, or nothing to do;
1 a move failed, or --verify found something; 2 wrong use; 3 nobody answers.
"""
DRAIN: Final = """Its queues move to the other shards while their clients stay attached. When it is empty,
stop its process and `lightrail-admin shard remove` it. Ctrl-C leaves the moves going on; run it again to
watch them.
"""


def register(things: Subparsers) -> None:
    """Adds these commands."""
    command = add(things, "rebalance", _rebalance, "spread the load of queues over the shards", REBALANCE)
    what = command.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="only show the plan")
    what.add_argument("--cancel", action="store_true", help="call off moves that have not frozen their queue")
    what.add_argument("--verify", action="store_true", help="only check where queues are")
    what.add_argument("--plan", metavar="FILE", help="execute this plan (docs/formats/plan.md); - is stdin")
    command.add_argument("--throttle", metavar="SIZE", help="bytes per second of each copy, such as 20MB")
    command.add_argument("--max-moves", metavar="N", type=int, help="move at most so many queues this time")
    command.add_argument(
        "--sample",
        metavar="SECONDS",
        type=float,
        help="count messages for so long (default 1; 0: only queues)",
    )
    command.add_argument("--no-wait", action="store_true", help="begin, and do not wait for the end")
    shards = group(things, "shard", "the shards of the cluster")
    add(shards, "list", _list, "all shards, alive or not")
    command = add(shards, "drain", _drain, "take all queues from a shard", DRAIN)
    command.add_argument("id", metavar="ID", type=int)
    command.add_argument("--throttle", metavar="SIZE", help="bytes per second of each copy, such as 20MB")
    command.add_argument("--no-wait", action="store_true", help="begin, and do not wait for the end")
    command = add(shards, "revive", _revive, "let a shard that drains take queues again")
    command.add_argument("id", metavar="ID", type=int)
    command = add(shards, "forget-disk", _forget_disk, "give up a disk that is lost, with its messages")
    command.add_argument("id", metavar="ID", type=int)
    command = add(shards, "remove", _remove, "forget a shard that has no queues and was stopped")
    command.add_argument("id", metavar="ID", type=int)


# --- rebalance ---------------------------------------------------------------------------------------------


def _rebalance(client: Client, parsed: argparse.Namespace) -> int:
    if parsed.verify:
        return _verify(client, parsed)
    if parsed.cancel:
        return _cancel(client, parsed)
    if parsed.plan:
        plan = _read(parsed.plan)
    else:
        plan = client.get("/!plan", sample=parsed.sample, max_moves=parsed.max_moves)
    if parsed.dry_run:
        if parsed.json:
            show_json(plan)
        else:
            _show_plan(plan)
        return 0
    if parsed.plan and parsed.max_moves is not None:
        plan["moves"] = plan["moves"][: parsed.max_moves]
    if not parsed.json:
        _show_plan(plan)
    return _carry_out(client, parsed, plan)


def _carry_out(client: Client, parsed: argparse.Namespace, plan: dict[str, Any]) -> int:
    """Begins the moves of a plan, and waits until no move is under way."""
    throttle = None if parsed.throttle is None else _throttle(parsed.throttle)
    begun: list[dict[str, Any]] = []
    left_out: list[str] = []
    if plan["moves"]:
        answer = client.request("POST", "/!moves", query={"throttle": throttle}, json_body=plan).json()
        begun, left_out = answer["begun"], answer["left_out"]
    if parsed.no_wait:
        if parsed.json:
            show_json({"begun": begun, "left_out": left_out})
        else:
            print(f"{len(begun)} moves have begun; `lightrail-admin rebalance` shows them")
        return 0
    ended = _watch(client, {move["queue"] for move in begun})
    failed = [each for each in ended if each.get("error")]
    if parsed.json:
        show_json({"begun": begun, "left_out": left_out, "ended": ended})
    else:
        moved = [each for each in ended if not each.get("error")]
        if moved:
            longest = max(int(each.get("pause_ms") or 0) for each in moved)
            print(f"{len(moved)} queues moved; the longest pause was {longest} ms")
        for each in failed:
            print(f"{each['queue']}: {each['error']}", file=sys.stderr)
        if left_out:
            print(f"left out, since somebody else moved or dropped them: {', '.join(left_out[:MOVES_SHOWN])}")
    return 1 if failed else 0


def _watch(client: Client, begun: set[str]) -> list[dict[str, Any]]:
    """Until nothing moves any more; what became of the moves that were seen."""
    watching = Watching(begun)
    try:
        while True:
            state = client.get("/!moves")
            if not watching.look(state):
                return watching.ended
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        raise Refused(
            "the moves go on; `lightrail-admin rebalance` shows them again, --cancel calls them off"
        ) from None
    finally:
        watching.close()


def _show_plan(plan: dict[str, Any]) -> None:
    moves = plan["moves"]
    if plan.get("shards"):
        table(
            plan["shards"],
            (
                "id",
                "state",
                "queues_before",
                "queues_after",
                "load_before",
                "load_after",
                "bytes_before",
                "bytes_after",
            ),
        )
    for shard in plan.get("silent", []):
        print(f"shard {shard} does not answer: its queues stay and count as idle")
    if not moves:
        print("nothing to move")
        return
    print()
    table(moves[:MOVES_SHOWN], ("queue", "from", "to", "load", "bytes"))
    if len(moves) > MOVES_SHOWN:
        print(f"and {len(moves) - MOVES_SHOWN} more")
    total = sum(int(move.get("bytes", 0)) for move in moves)
    print(f"{len(moves)} moves, {megabytes(total)} to copy")


def _cancel(client: Client, parsed: argparse.Namespace) -> int:
    answer = client.request("DELETE", "/!moves").json()
    if parsed.json:
        show_json(answer)
    else:
        print(f"{len(answer['cancelled'])} moves are called off")
        if answer["too_late"]:
            print(f"too late for {', '.join(answer['too_late'][:MOVES_SHOWN])}: these end in a moment")
    return 0


def _verify(client: Client, parsed: argparse.Namespace) -> int:
    found = client.get("/!verify")
    if parsed.json:
        show_json(found)
    else:
        print(f"{found['queues']} queues are placed")
        for problem in found["problems"][:MOVES_SHOWN]:
            print(f"  {problem}")
        print(
            f"{len(found['problems'])} problems" if found["problems"] else "each is where it should be, once"
        )
    return 1 if found["problems"] else 0


def _read(path: str) -> dict[str, Any]:
    try:
        if path == "-":
            plan = json.load(sys.stdin)
        else:
            with open(path, encoding="utf-8") as file:
                plan = json.load(file)
    except (OSError, ValueError) as error:
        raise Unreachable(f"the plan {path} can't be read: {error}") from None
    if not isinstance(plan, dict) or not isinstance(plan.get("moves"), list):
        raise Usage(
            f"{path} is no plan: expected an object with a list of moves, as docs/formats/plan.md says"
        )
    return plan


def _throttle(text: str) -> int:
    parse: Callable[[str], int] = units.size(1_000, 1 << 40)
    try:
        return parse(text)
    except ValueError as error:
        raise Usage(f"--throttle is {text!r}; expected {error}") from None


# --- shards ------------------------------------------------------------------------------------------------


def _list(client: Client, parsed: argparse.Namespace) -> int:
    shards = client.get("/!shards")["shards"]
    if parsed.json:
        show_json(shards)
    else:
        table(
            shards, ("id", "state", "serving", "queues", "moving_in", "moving_out", "host", "zone", "address")
        )
    return 0


def _drain(client: Client, parsed: argparse.Namespace) -> int:
    client.request("PUT", path_of("!shards", str(parsed.id)), json_body={"state": "draining"})
    plan = client.get("/!plan", sample=0)
    plan["moves"] = [move for move in plan["moves"] if move["from"] == parsed.id]
    if not parsed.json:
        print(f"shard {parsed.id} drains: {len(plan['moves'])} queues to move")
    status = _carry_out(client, parsed, plan)
    if status or parsed.no_wait:
        return status
    (left,) = [each for each in client.get("/!shards")["shards"] if each["id"] == parsed.id]
    if left["queues"]:
        raise Refused(f"shard {parsed.id} still has {left['queues']} queues: run this again")
    if not parsed.json:
        print(f"shard {parsed.id} is empty: stop it, then `lightrail-admin shard remove {parsed.id}`")
    return 0


def _revive(client: Client, parsed: argparse.Namespace) -> int:
    body = {"state": "active"}
    shown = client.request("PUT", path_of("!shards", str(parsed.id)), json_body=body).json()
    if parsed.json:
        show_json(shown)
    else:
        pairs({key: shown[key] for key in ("id", "state", "serving", "queues")})
    return 0


def _forget_disk(client: Client, parsed: argparse.Namespace) -> int:
    shown = client.request("PUT", path_of("!shards", str(parsed.id)), json_body={"disk": ""}).json()
    if parsed.json:
        show_json(shown)
    else:
        print(f"shard {parsed.id} has no disk now: start one with --id {parsed.id}, its queues will be empty")
    return 0


def _remove(client: Client, parsed: argparse.Namespace) -> int:
    client.request("DELETE", path_of("!shards", str(parsed.id)))
    if parsed.json:
        show_json({"removed": parsed.id})
    else:
        print(f"shard {parsed.id} is removed; its data directory can be deleted")
    return 0
