"""The commands `rebalance` and `shard`: an even load over the shards, and shards that come and go."""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from lightrail.cli.administration.client import Client, Failed, Unreachable, path_of
from lightrail.cli.administration.commands import Refused, Subparsers, Usage, add, group
from lightrail.cli.administration.moving import Watching, megabytes
from lightrail.console.results import pairs, show_json, table
from lightrail.console.text import counted, printable
from lightrail.model import limits, units

POLL_S: Final = 0.2
AWAY_S: Final = 60.0
"""How long the progress of moves is asked for in vain before the command ends; the moves go on anyhow."""
SAID_S: Final = 3.0
MOVES_SHOWN: Final = 20
LOST_SHOWN: Final = 1_000

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
ACCEPT_DISK: Final = """let a directory that was refused as a copy or as behind serve

Asks etcd (--etcd), or the file in the data directory (--data), not a gateway. The next directory that is
started with the disk of this shard serves what it has; what was stored later elsewhere is given up, and
what was consumed later comes again. For a restored backup of a running cluster, and for a copy of a machine
that is lost for good.

examples:
  lightrail-admin --etcd 10.0.0.1:2379 shard accept-disk 3
  lightrail-admin --etcd 10.0.0.1:2379 shard accept-disk 0 1 2      after the restore of all of them
"""
REMOVE: Final = """examples:
  lightrail-admin shard remove 3                        it was drained and stopped
  lightrail-admin shard remove 3 --lose-queues          its disk is lost for good: shows what goes with it
  lightrail-admin shard remove 3 --lose-queues --yes    gives that up

Queues that were given up keep their names, policies and subscriptions; each is empty, on another shard,
when it is used next.
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
    # Without a gateway, which may wait for this very shard: cli/files.py does it.
    command = shards.add_parser(
        "accept-disk",
        help="let a directory that was refused as a copy or as behind serve",
        description=ACCEPT_DISK,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("ids", metavar="ID", type=int, nargs="+")
    command = add(shards, "remove", _remove, "forget a shard that has no queues and was stopped", REMOVE)
    command.add_argument("id", metavar="ID", type=int)
    command.add_argument(
        "--lose-queues", action="store_true", help="its disk is lost: give up its queues and their messages"
    )
    command.add_argument("--yes", action="store_true", help="with --lose-queues: really do it")


# --- rebalance ---------------------------------------------------------------------------------------------


def _rebalance(client: Client, parsed: argparse.Namespace) -> int:
    throttle = _throttle(parsed.throttle)
    if parsed.max_moves is not None and parsed.max_moves < 0:
        raise Usage(f"--max-moves is {parsed.max_moves}; expected 0 or more")
    if parsed.verify:
        return _verify(client, parsed)
    if parsed.cancel:
        return _cancel(client, parsed)
    if parsed.plan:
        plan = _read(parsed.plan)
        if parsed.max_moves is not None:
            plan["moves"] = plan["moves"][: parsed.max_moves]
    else:
        plan = client.get("/!plan", sample=parsed.sample, max_moves=parsed.max_moves)
    if parsed.dry_run:
        if parsed.json:
            show_json(plan)
        else:
            _show_plan(plan)
        return 0
    if not parsed.json:
        _show_plan(plan)
    return _carry_out(client, parsed, plan, throttle, skip=not parsed.plan)


def _carry_out(
    client: Client, parsed: argparse.Namespace, plan: dict[str, Any], throttle: int | None, *, skip: bool
) -> int:
    """Begins the moves of a plan, and waits until no move is under way.

    Args:
        skip: the plan was made just now: queues that come and go meanwhile are no reason not to do the rest.
    """
    # What ended before is not ours, even where it is of the same queue.
    watching = Watching(client.get("/!moves")["ended"])
    begun: list[dict[str, Any]] = []
    left_out: list[str] = []
    if plan["moves"]:
        query = {"throttle": throttle, "skip": "true" if skip else None}
        answer = client.request("POST", "/!moves", query=query, json_body=plan).json()
        begun, left_out = answer["begun"], answer["left_out"]
    watching.expect(move["queue"] for move in begun)
    if parsed.no_wait:
        if parsed.json:
            show_json({"begun": begun, "left_out": left_out})
        else:
            print(f"{counted(len(begun), 'move')} begun; `lightrail-admin rebalance` shows how far they are")
        return 0
    _watch(client, watching)
    ended = watching.ended
    failed = [each for each in ended if each.get("result") not in (None, "done")]
    if parsed.json:
        show_json({"begun": begun, "left_out": left_out, "ended": ended})
        return 1 if failed else 0
    moved = [each for each in ended if each.get("result") == "done"]
    if moved:
        longest = max(int(each.get("pause_ms") or 0) for each in moved)
        print(f"{counted(len(moved), 'queue')} moved; the longest pause was {longest:,} ms")
    unknown = [each["queue"] for each in ended if each.get("result") is None]
    if unknown:
        print(
            f"no shard says any more how it ended: {_some(unknown)}; see `lightrail-admin rebalance --verify`"
        )
    for each in failed:
        print(printable(f"{each['queue']}: {each.get('error') or 'not moved'}"), file=sys.stderr)
    if left_out:
        print(f"left out, as gone, moving or there already: {_some(left_out)}")
    return 1 if failed else 0


def _watch(client: Client, watching: Watching) -> None:
    """Until nothing moves any more; the gateway may be away for a while."""
    try:
        while watching.look(_ask(client)):
            time.sleep(POLL_S)
        # The shard that got a queue may say a moment later how that went.
        until_s = time.monotonic() + SAID_S
        while watching.unknown and time.monotonic() < until_s:
            time.sleep(POLL_S)
            watching.look(_ask(client))
    except KeyboardInterrupt:
        raise Refused(
            "the moves go on; `lightrail-admin rebalance` shows them again, --cancel calls them off"
        ) from None
    finally:
        watching.close()


def _ask(client: Client) -> dict[str, Any]:
    """What moves now. Raises Unreachable, Failed when that could not be had for AWAY_S."""
    until_s = time.monotonic() + AWAY_S
    while True:
        try:
            state: dict[str, Any] = client.get("/!moves")
            return state
        except (Unreachable, Failed) as error:
            if isinstance(error, Failed) and error.status != 503:
                raise
            if time.monotonic() >= until_s:
                raise type(error)(*_and_the_moves_go_on(error)) from None
        time.sleep(POLL_S)


def _and_the_moves_go_on(error: Unreachable | Failed) -> tuple[Any, ...]:
    text = f"{error}; the moves go on without it"
    return (error.status, text) if isinstance(error, Failed) else (text,)


def _some(queues: list[str]) -> str:
    more = f" and {len(queues) - MOVES_SHOWN:,} more" if len(queues) > MOVES_SHOWN else ""
    return printable(", ".join(queues[:MOVES_SHOWN])) + more


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
        print(f"shard {shard} does not answer: its queues stay where they are")
    if not moves:
        print("nothing to move")
        return
    print()
    table(moves[:MOVES_SHOWN], ("queue", "from", "to", "load", "bytes"))
    if len(moves) > MOVES_SHOWN:
        print(f"and {len(moves) - MOVES_SHOWN} more")
    total = sum(int(move.get("bytes", 0)) for move in moves)
    print(f"{counted(len(moves), 'move')}, {megabytes(total)} to copy")


def _cancel(client: Client, parsed: argparse.Namespace) -> int:
    answer = client.request("DELETE", "/!moves").json()
    if parsed.json:
        show_json(answer)
    else:
        print(f"{counted(len(answer['cancelled']), 'move')} called off")
        if answer["too_late"]:
            print(f"too late for {_some(answer['too_late'])}: these end in a moment")
    return 0


def _verify(client: Client, parsed: argparse.Namespace) -> int:
    found = client.get("/!verify")
    if parsed.json:
        show_json(found)
    else:
        problems = found["problems"]
        print(f"{counted(found['queues'], 'queue')} placed")
        for problem in problems[:MOVES_SHOWN]:
            print(printable(f"  {problem}"))
        if len(problems) > MOVES_SHOWN:
            print(f"  and {len(problems) - MOVES_SHOWN:,} more")
        print(counted(len(problems), "problem") if problems else "each is where it should be, once")
    return 1 if found["problems"] else 0


def _read(path: str) -> dict[str, Any]:
    try:
        if path == "-":
            plan = json.load(sys.stdin)
        else:
            with open(path, encoding="utf-8") as file:
                plan = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise Usage(f"the plan {path} can't be read: {error}") from None
    if not isinstance(plan, dict) or not isinstance(plan.get("moves"), list):
        raise Usage(
            f"{path} is no plan: expected an object with a list of moves, as docs/formats/plan.md says"
        )
    for index, move in enumerate(plan["moves"]):
        if not isinstance(move, dict) or not isinstance(move.get("queue"), str) or "to" not in move:
            raise Usage(f'{path}: moves[{index}] is expected to be {{"queue": NAME, "to": SHARD}}')
        size = move.get("bytes", 0)
        if not isinstance(size, (int, float)) or not math.isfinite(size):
            raise Usage(f"{path}: moves[{index}].bytes is expected to be a number")
    for key, kind, what in (("shards", dict, "objects"), ("silent", int, "numbers")):
        rows = plan.get(key, [])
        if not isinstance(rows, list) or not all(isinstance(row, kind) for row in rows):
            raise Usage(f"{path}: {key} is expected to be a list of {what}")
    return plan


def _throttle(text: str | None) -> int | None:
    if text is None:
        return None
    parse: Callable[[str], int] = units.size(1_000, limits.MOVE_THROTTLE_MAX)
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
    throttle = _throttle(parsed.throttle)
    client.request("PUT", path_of("!shards", str(parsed.id)), json_body={"state": "draining"})
    plan = client.get("/!plan", sample=0)
    plan["moves"] = [move for move in plan["moves"] if move["from"] == parsed.id]
    if parsed.id in plan["silent"]:
        raise Refused(
            f"shard {parsed.id} gets no queues any more, but it does not answer, so those it has can't be "
            "copied: start it and run this again"
        )
    if not parsed.json:
        print(f"shard {parsed.id} drains: {counted(len(plan['moves']), 'queue')} to move")
    status = _carry_out(client, parsed, plan, throttle, skip=True)
    if status or parsed.no_wait:
        return status
    left = _shard(client, parsed.id)
    if left is not None and left["queues"]:
        raise Refused(
            f"shard {parsed.id} still has {counted(left['queues'], 'queue')}: run this again; of what stays "
            "then, `lightrail-admin rebalance --verify` says why"
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
    path = path_of("!shards", str(parsed.id))
    if not parsed.lose_queues:
        client.request("DELETE", path)
        lost: list[str] = []
    else:
        lost = _queues_of(client, parsed.id)
        if not parsed.yes:
            if parsed.json:
                show_json({"would_lose": lost})
            else:
                for queue in lost[:LOST_SHOWN]:
                    print(printable(queue))
                if len(lost) > LOST_SHOWN:
                    print(f"and {len(lost) - LOST_SHOWN:,} more")
            raise Refused(
                f"{counted(len(lost), 'queue')} of shard {parsed.id} would lose all messages, for good; "
                "with --yes it is done"
            )
        client.request("DELETE", path, query={"lose_queues": "true"})
    if parsed.json:
        show_json({"removed": parsed.id, "lost": lost})
    else:
        if lost:
            print(f"{counted(len(lost), 'queue')} lost what they held, and are at other shards now")
        print(f"shard {parsed.id} is removed; its data directory can be deleted")
    return 0


def _queues_of(client: Client, id: int) -> list[str]:
    """All queues that are placed on a shard, which need not be there."""
    found = client.get(path_of("!shards", str(id)))
    return [str(queue) for queue in found["queue_names"]]
