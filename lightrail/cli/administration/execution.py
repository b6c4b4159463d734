"""Execution of a plan of moves: begins the moves, and waits until the last one has ended."""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from lightrail.cli.administration.client import AnswerError, Client, UnreachableError
from lightrail.cli.administration.commands import CommandError, UsageError
from lightrail.cli.administration.moving import Watching
from lightrail.console.results import show_json
from lightrail.console.text import counted, printable
from lightrail.model import limits, setting_values

POLL_S: Final = 0.2
GATEWAY_WAIT_S: Final = 60.0
"""How long the command repeats its requests to a gateway that does not answer. The moves continue without
the command."""
RESULT_WAIT_S: Final = 3.0
"""How long the command waits for the results of moves that are no longer under way."""
MOVES_SHOWN: Final = 20


def carry_out(
    client: Client, parsed: argparse.Namespace, plan: dict[str, Any], throttle: int | None, *, skip: bool
) -> int:
    """Begins the moves of a plan, and waits until no move is under way.

    Args:
        skip: leave out moves of queues that changed since the plan was made; otherwise such a queue fails the
            plan.
    """
    # Moves that ended before this command do not belong to it, even those of the same queues.
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
            print(f"{counted(len(begun), 'move')} begun; `lightrail-admin rebalance` shows their progress")
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
        print(f"the result is no longer known: {some(unknown)}; see `lightrail-admin rebalance --verify`")
    for each in failed:
        print(printable(f"{each['queue']}: {each.get('error') or 'not moved'}"), file=sys.stderr)
    if left_out:
        print(f"left out, as deleted, moving or moved already: {some(left_out)}")
    return 1 if failed else 0


def _watch(client: Client, watching: Watching) -> None:
    """Waits until no move is under way; the gateway may be unreachable for a while."""
    try:
        while watching.look(_moves(client)):
            time.sleep(POLL_S)
        # The shard that a queue moved to may report the result a moment later.
        until_s = time.monotonic() + RESULT_WAIT_S
        while watching.unknown and time.monotonic() < until_s:
            time.sleep(POLL_S)
            watching.look(_moves(client))
    except KeyboardInterrupt:
        raise CommandError(
            "the moves continue; `lightrail-admin rebalance` shows them again, --cancel cancels them"
        ) from None
    finally:
        watching.close()


def _moves(client: Client) -> dict[str, Any]:
    """The moves under way. Raises UnreachableError or AnswerError after GATEWAY_WAIT_S without an answer."""
    until_s = time.monotonic() + GATEWAY_WAIT_S
    while True:
        try:
            state: dict[str, Any] = client.get("/!moves")
            return state
        except (UnreachableError, AnswerError) as error:
            if isinstance(error, AnswerError) and error.status != 503:
                raise
            if time.monotonic() >= until_s:
                raise type(error)(*_with_moves_note(error)) from None
        time.sleep(POLL_S)


def _with_moves_note(error: UnreachableError | AnswerError) -> tuple[Any, ...]:
    text = f"{error}; the moves continue without it"
    return (error.status, text) if isinstance(error, AnswerError) else (text,)


def some(queues: list[str]) -> str:
    """The first MOVES_SHOWN names, and the number of the others."""
    more = f" and {len(queues) - MOVES_SHOWN:,} more" if len(queues) > MOVES_SHOWN else ""
    return printable(", ".join(queues[:MOVES_SHOWN])) + more


def throttle_of(text: str | None) -> int | None:
    """Bytes per second of the option --throttle. Raises UsageError."""
    if text is None:
        return None
    parse: Callable[[str], int] = setting_values.size(1_000, limits.MOVE_THROTTLE_MAX)
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"--throttle is {text!r}; expected {error}") from None
