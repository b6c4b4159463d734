"""The job `plan`: moves that even out the load of shards, from the loads of queues over hours or days."""

import argparse
import json
import os
import sys
import time
from typing import Any, Final

from lightrail.console.terminal import say
from lightrail.model.limits import PLAN_MOVES_MAX
from lightrail.spark.analysis.events import add_events, check_events, check_sources, events
from lightrail.spark.command import (
    DONE,
    CommandError,
    Subparsers,
    UnreachableError,
    UsageError,
    access_options,
    add_allow_loss,
    add_command,
    add_spark,
    session,
)

SPARK_PLAN_QUEUES_MAX: Final[int] = 1_000_000
"""Queues whose loads the driver of `lightrail-spark plan` keeps in memory."""
_EXAMPLES: Final = """
  lightrail-spark plan /lake/messages --last 24 --gateway http://127.0.0.1:8080 --out plan.json
  lightrail-admin rebalance --plan plan.json
  lightrail-spark plan --from /var/lib/lightrail/archive --gateway https://broker:8080 --user ops \\
      --password-file /run/secrets/ops --weigh bytes --out plan.json
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Adds the parser of the command."""
    parser = add_command(
        subparsers,
        "plan",
        "a plan of moves, from the load of queues over hours or days",
        "Measures each queue's messages or bytes per second in the selected events, requests the shards of "
        "queues from the gateway, and writes the plan that `lightrail-admin rebalance --plan` carries out. "
        "It moves nothing itself. Queues that are not captured stay at their shards.",
        _EXAMPLES,
    )
    add_events(parser)
    add_allow_loss(parser, "the log lists them")
    group = parser.add_argument_group("the plan")
    group.add_argument(
        "--out", metavar="FILE", default="-", help="file of the plan (default -: standard output)"
    )
    group.add_argument(
        "--weigh",
        choices=("messages", "bytes"),
        default="messages",
        help="which load per second to even out (default messages)",
    )
    group.add_argument(
        "--max-moves", metavar="N", type=int, help="at most N moves; the next plan has the rest"
    )
    add_spark(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Exit status: 0 done, also where nothing needs to move.

    Raises:
        CommandError: the events can't be read, or no plan can be made from them.
        UnreachableError: an archive or gateway does not answer.
        UsageError: the options do not go together.
    """
    from lightrail.spark.http import Access, GatewayAwayError, GatewayClient, GatewayError
    from lightrail.spark.placement import READ, UnsettledError, ask, document, loads, propose

    _check(args)
    check_sources(args)
    spark = session(args, "plan")
    found = loads(events(spark, args, READ), SPARK_PLAN_QUEUES_MAX)
    if found is None:
        raise CommandError(
            f"more than {SPARK_PLAN_QUEUES_MAX:,} queues were read: name fewer with --queue-pattern"
        )
    if not found.queues:
        raise CommandError(
            "no event was read, so there are no loads to plan by: capture queues, or select another time"
        )
    # Read last, so that the placement is recent when the plan is executed.
    try:
        with GatewayClient(Access.of_options(access_options(args, args.gateway))) as client:
            placement = ask(client)
        proposal = propose(placement, found.queues, weigh=args.weigh, max_moves=args.max_moves)
    except GatewayAwayError as error:
        raise UnreachableError(str(error)) from None
    except (GatewayError, UnsettledError, ValueError) as error:
        raise CommandError(str(error)) from None
    made = document(placement, proposal.plan, time.time_ns() // 1_000_000)
    _put(made, args.out)
    say(
        f"{len(made['moves']):,} moves from {len(found.queues):,} queues over {found.seconds:,.0f} s; "
        f"{proposal.unknown:,} queues have no known load and stay"
    )
    return DONE


def _check(args: argparse.Namespace) -> None:
    check_events(args, gateway_is_asked=True)
    if args.max_moves is not None and not 0 <= args.max_moves <= PLAN_MOVES_MAX:
        raise UsageError(f"--max-moves {args.max_moves}: expected 0 to {PLAN_MOVES_MAX}")
    if args.out != "-" and not os.path.isdir(os.path.dirname(os.path.abspath(args.out))):
        raise UsageError(f"--out {args.out!a}: its folder does not exist; create it first")


def _put(made: dict[str, Any], out: str) -> None:
    text = json.dumps(made, indent=2, ensure_ascii=False) + "\n"
    if out == "-":
        sys.stdout.write(text)
        return
    try:
        with open(f"{out}.new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{out}.new", out)
    except OSError as error:
        raise CommandError(f"the plan can't be written: {error}") from None
