"""Progress of moves: a bar for each on a terminal, otherwise a line at intervals.

Execution of a plan of moves: begins the moves, and waits until the last one has ended.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

from lightrail.cli.administration.client import (
    AnswerError,
    Client,
    CommandError,
    UnreachableError,
    UsageError,
)
from lightrail.cli.administration.commands import printed_json
from lightrail.console.terminal import PLAIN_EVERY_S, bar, counted, printable
from lightrail.model import limits, setting_values

BARS_MAX: Final = 12
"""Largest number of moves that are drawn; the others are counted."""
BAR: Final = 20
ERROR_SHOWN: Final = 60


class Watching:
    """Draws the moves that the gateway reports, and remembers their results.

    Args:
        before: moves that had ended before, which are ignored.
    """

    def __init__(self, before: Iterable[Mapping[str, Any]] = (), out: TextIO | None = None) -> None:
        self._before = {_key(each) for each in before}
        self._wanted: set[str] = set()
        self._seen: set[str] = set()
        self._ended: dict[str, dict[str, Any]] = {}
        self._out = out or sys.stderr
        self._terminal = self._out.isatty()
        self._drawn = 0
        self._said_s = time.monotonic()

    def expect(self, queues: Iterable[str]) -> None:
        """Add moves of this command; others that are under way are watched as well."""
        self._wanted |= set(queues)

    @property
    def ended(self) -> list[dict[str, Any]]:
        """Results of the watched moves; a move that is no longer reported has only its queue."""
        return [self._ended.get(queue, {"queue": queue}) for queue in sorted(self._wanted | self._seen)]

    @property
    def unknown(self) -> list[str]:
        """Queues whose moves are no longer under way and have no result yet."""
        return sorted((self._wanted | self._seen) - self._ended.keys())

    def show_moves(self, state: Mapping[str, Any]) -> bool:
        """Show an answer of /!moves; True while a move is under way."""
        running: Sequence[dict[str, Any]] = state["moves"]
        self._seen |= {move["queue"] for move in running}
        watched = self._wanted | self._seen
        for each in state["ended"]:
            if each["queue"] in watched and _key(each) not in self._before:
                self._ended[each["queue"]] = each
        self._show(running)
        return bool(running)

    def close(self) -> None:
        """Clears the bars."""
        self._clear()

    def _show(self, running: Sequence[dict[str, Any]]) -> None:
        total = len(self._wanted | self._seen)
        done = total - len(running)
        active = [move for move in running if move["phase"] != "waiting"]
        if not self._terminal:
            if running and time.monotonic() - self._said_s >= PLAIN_EVERY_S:
                self._said_s = time.monotonic()
                print(f"{done:,} of {total:,} queues moved, {len(active)} active", file=self._out, flush=True)
                for move in [move for move in running if move.get("error")][:1]:
                    print(printable(f"{move['queue']} waits: {move['error']}"), file=self._out, flush=True)
            return
        self._clear()
        # A wrapped line would have to be cleared as two lines.
        width = shutil.get_terminal_size().columns - 1
        # Moves that wait for a shard or for etcd are drawn with the reason.
        drawn = [*active, *(move for move in running if move["phase"] == "waiting" and move.get("error"))]
        lines = [_bar(move) for move in drawn[:BARS_MAX]]
        if running:
            lines.append(f"{done:,} of {total:,} queues moved, {len(running) - len(active):,} wait")
        for line in lines:
            print(f"{line[:width]}\x1b[K", file=self._out)
        self._out.flush()
        self._drawn = len(lines)

    def _clear(self) -> None:
        if self._drawn:
            print(f"\x1b[{self._drawn}A\x1b[J", end="", file=self._out, flush=True)
            self._drawn = 0


def _bar(move: Mapping[str, Any]) -> str:
    total = int(move.get("messages_total") or 0)
    part = min(int(move.get("messages") or 0) / total, 1.0) if total else 0.0
    if move["phase"] in ("freeze", "switch"):
        part = 1.0
    copied = megabytes(int(move.get("bytes") or 0))
    error = f" ({move['error']})"[:ERROR_SHOWN] if move.get("error") else ""
    return printable(
        f"{bar(part, BAR)} {move['phase']:<8} {move['queue'][:40]} "
        f"{move['from']} → {move['to']} {copied}{error}"
    )


def _key(ended: Mapping[str, Any]) -> tuple[Any, ...]:
    return ended["queue"], ended.get("to"), ended.get("ended_ms")


def megabytes(size: int) -> str:
    """A size in readable form."""
    return f"{size / 1_000_000:,.1f} MB"


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
        if not printed_json(parsed, {"begun": begun, "left_out": left_out}):
            print(f"{counted(len(begun), 'move')} begun; `lightrail-admin rebalance` shows their progress")
        return 0
    _watch(client, watching)
    ended = watching.ended
    failed = [each for each in ended if each.get("result") not in (None, "done")]
    if printed_json(parsed, {"begun": begun, "left_out": left_out, "ended": ended}):
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
        while watching.show_moves(_moves(client)):
            time.sleep(POLL_S)
        # The shard that a queue moved to may report the result a moment later.
        until_s = time.monotonic() + RESULT_WAIT_S
        while watching.unknown and time.monotonic() < until_s:
            time.sleep(POLL_S)
            watching.show_moves(_moves(client))
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
