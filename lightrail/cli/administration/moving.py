"""Progress of moves: a bar for each on a terminal, otherwise a line at intervals."""

import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

from lightrail.console.progress import PLAIN_EVERY_S, bar
from lightrail.console.text import printable

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

    def look(self, state: Mapping[str, Any]) -> bool:
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
