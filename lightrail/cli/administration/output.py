"""Output: tables for people, JSON for scripts, and how long something takes."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

BAR: Final = 30
TERMINAL_EVERY_S: Final = 0.1
PLAIN_EVERY_S: Final = 2.0


def show_json(value: Any) -> None:
    """One JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], out: TextIO | None = None) -> None:
    """Rows under headings; numbers to the right. Nothing but the headings where there are no rows."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    heads = [column.replace("_", " ").upper() for column in columns]
    widths = [max(len(row[i]) for row in [heads, *cells]) for i in range(len(columns))]
    right = [
        bool(rows) and all(isinstance(row.get(column), (int, float)) for row in rows) for column in columns
    ]
    for line in [heads, *cells]:
        text = "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        print(text.rstrip(), file=out or sys.stdout)


def pairs(values: Mapping[str, Any]) -> None:
    """One `name  value` per line."""
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        print(f"{name:<{width}}  {_cell(value)}")


def _cell(value: Any) -> str:
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.2f}"
        case list() | dict():
            return json.dumps(value, ensure_ascii=False)
    return printable(str(value))


def printable(text: str) -> str:
    """Without what would move a terminal: names are other people's."""
    return "".join(c if c.isprintable() else "�" for c in text)


def counted(count: int, what: str) -> str:
    """``1 queue``, ``1,200 queues``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


class Progress:
    """A bar on a terminal, a line now and then without one; on standard error, so results stay readable."""

    def __init__(self, what: str, out: TextIO | None = None) -> None:
        self._what = what
        self._out = out or sys.stderr
        self._terminal = self._out.isatty()
        self._last_s = time.monotonic()
        self._drawn = False

    def update(self, done: int, total: int | None) -> None:
        """Draw when it is time to."""
        now = time.monotonic()
        if now - self._last_s < (TERMINAL_EVERY_S if self._terminal else PLAIN_EVERY_S):
            return
        self._last_s = now
        of = f" of {total:,}" if total else ""
        text = f"{self._what}: {done:,}{of}"
        if not self._terminal:
            print(text, file=self._out, flush=True)
            return
        part = min(done / total, 1.0) if total else 0.0
        bar = "█" * round(part * BAR)
        print(f"\r{bar:░<{BAR}} {part:4.0%} {text}\x1b[K", end="", file=self._out, flush=True)
        self._drawn = True

    def finish(self) -> None:
        """Take the bar away."""
        if self._drawn:
            print("\r\x1b[K", end="", file=self._out, flush=True)
            self._drawn = False
