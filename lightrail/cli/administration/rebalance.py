"""The command `rebalance`: plans and executes moves that spread the load of queues over the shards."""

import argparse
import json
import math
import sys
from typing import Any, Final

from lightrail.cli.administration.client import Client, UsageError
from lightrail.cli.administration.commands import Subparsers, add, printed_json
from lightrail.cli.administration.moving import MOVES_SHOWN, carry_out, megabytes, some, throttle_of
from lightrail.console.terminal import counted, printable, table

REBALANCE: Final = """examples:
  lightrail-admin rebalance --dry-run          the moves, and the load of each shard before and after
  lightrail-admin rebalance                    make the moves, with progress; they continue after Ctrl-C
  lightrail-admin rebalance                    run again: shows the unfinished moves
  lightrail-admin rebalance --cancel           cancel every move that has not frozen its queue
  lightrail-admin rebalance --throttle 20MB --max-moves 50
  lightrail-admin rebalance --dry-run --json > plan.json
  lightrail-admin rebalance --plan plan.json   a plan that was saved, or that another tool made
  lightrail-admin rebalance --verify           checks that every queue is at its shard, and only there

The load of a queue is 1 and its messages per second, in and out. Exit status: 0 done, or nothing to do;
1 a move failed, or --verify found a problem; 2 wrong use; 3 no gateway answers.
"""


def register(things: Subparsers) -> None:
    """Adds these commands."""
    command = add(things, "rebalance", _rebalance, "spread the load of queues over the shards", REBALANCE)
    what = command.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="only show the plan")
    what.add_argument("--cancel", action="store_true", help="cancel moves that have not frozen their queue")
    what.add_argument("--verify", action="store_true", help="only check the placement of queues")
    what.add_argument("--plan", metavar="FILE", help="execute this plan (docs/formats/plan.md); - is stdin")
    command.add_argument("--throttle", metavar="SIZE", help="bytes per second of each copy, such as 20MB")
    command.add_argument("--max-moves", metavar="N", type=int, help="move at most so many queues")
    command.add_argument(
        "--sample",
        metavar="SECONDS",
        type=float,
        help="count messages for so long (default 1; 0: only queues)",
    )
    command.add_argument("--no-wait", action="store_true", help="begin, and do not wait for the end")


def _rebalance(client: Client, parsed: argparse.Namespace) -> int:
    throttle = throttle_of(parsed.throttle)
    if parsed.max_moves is not None and parsed.max_moves < 0:
        raise UsageError(f"--max-moves is {parsed.max_moves}; expected 0 or more")
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
        if not printed_json(parsed, plan):
            _show_plan(plan)
        return 0
    if not parsed.json:
        _show_plan(plan)
    return carry_out(client, parsed, plan, throttle, skip=not parsed.plan)


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
    if not printed_json(parsed, answer):
        print(f"{counted(len(answer['cancelled']), 'move')} cancelled")
        if answer["too_late"]:
            print(f"too late for {some(answer['too_late'])}: these moves end soon")
    return 0


def _verify(client: Client, parsed: argparse.Namespace) -> int:
    found = client.get("/!verify")
    if not printed_json(parsed, found):
        problems = found["problems"]
        print(f"{counted(found['queues'], 'queue')} placed")
        for problem in problems[:MOVES_SHOWN]:
            print(printable(f"  {problem}"))
        if len(problems) > MOVES_SHOWN:
            print(f"  and {len(problems) - MOVES_SHOWN:,} more")
        print(counted(len(problems), "problem") if problems else "each is served once, by its owner")
    return 1 if found["problems"] else 0


def _read(path: str) -> dict[str, Any]:
    try:
        if path == "-":
            plan = json.load(sys.stdin)
        else:
            with open(path, encoding="utf-8") as file:
                plan = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"the plan {path} can't be read: {error}") from None
    if not isinstance(plan, dict) or not isinstance(plan.get("moves"), list):
        raise UsageError(
            f"{path} is no plan: expected an object with a list of moves, as in docs/formats/plan.md"
        )
    for index, move in enumerate(plan["moves"]):
        if not isinstance(move, dict) or not isinstance(move.get("queue"), str) or "to" not in move:
            raise UsageError(f'{path}: moves[{index}] is expected to be {{"queue": NAME, "to": SHARD}}')
        size = move.get("bytes", 0)
        if not isinstance(size, (int, float)) or not math.isfinite(size):
            raise UsageError(f"{path}: moves[{index}].bytes is expected to be a number")
    for key, kind, what in (("shards", dict, "objects"), ("silent", int, "numbers")):
        rows = plan.get(key, [])
        if not isinstance(rows, list) or not all(isinstance(row, kind) for row in rows):
            raise UsageError(f"{path}: {key} is expected to be a list of {what}")
    return plan
