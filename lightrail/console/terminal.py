"""Output for people and programs: texts, tables, JSON and progress.

Progress of what takes long; on standard error, so that results stay readable.

Text for a terminal: quotes names that users chose, and writes numbers with their unit.

Results: tables and pairs for people, JSON for scripts; on standard output.
"""

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

_DRAWN: Final = re.compile(r"\x1b\[[0-9;]*m|↳")


def printable(text: str) -> str:
    """Text with control characters as escapes, a new line as \\n, because names come from other people."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(count: int, what: str) -> str:
    """``1 queue``, ``1,200 queues``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def one_line(text: object) -> str:
    """The text of an error, without the colours and frames that some libraries add."""
    return " ".join(_DRAWN.sub("", str(text)).split())


def show_json(value: Any) -> None:
    """One JSON document; values without a JSON form (a time, a path) become their text."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], out: TextIO | None = None) -> None:
    """Rows under headings; numbers to the right. Only the headings where there are no rows."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    heads = [column.replace("_", " ").upper() for column in columns]
    widths = [max(len(row[i]) for row in [heads, *cells]) for i in range(len(columns))]
    right = [
        bool(rows) and all(isinstance(row.get(column), int | float) for row in rows) for column in columns
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


BAR: Final = 30
TERMINAL_EVERY_S: Final = 0.2
PLAIN_EVERY_S: Final = 2.0


def say(text: str) -> None:
    """One line on standard error."""
    print(text, file=sys.stderr, flush=True)


def bar(part: float, width: int = BAR) -> str:
    """``███░░░░░░░  30%`` for 0.3."""
    return f"{'█' * round(part * width):░<{width}} {part:4.0%}"


class Progress:
    """One line that changes on a terminal; without one, a line now and then."""

    def __init__(
        self, out: TextIO | None = None, *, every_s: float = PLAIN_EVERY_S, begin_s: float | None = None
    ) -> None:
        """`every_s`: interval without a terminal. `begin_s`: start on the clock that `due` gets its time
        from."""
        self._out = out or sys.stderr
        self._terminal = self._out.isatty()
        self._every_s = TERMINAL_EVERY_S if self._terminal else every_s
        self._last_s = time.monotonic() if begin_s is None else begin_s
        self._drawn = False

    def update(self, text: str, part: float | None = None) -> None:
        """Show the line if it is due, with a bar where there is a part of a whole."""
        now_s = time.monotonic()
        if self.due(now_s):
            self.show(now_s, text, part)

    def due(self, now_s: float) -> bool:
        """Whether the line is due."""
        return now_s - self._last_s >= self._every_s

    def show(self, now_s: float, text: str, part: float | None = None) -> None:
        """Show it now."""
        self._last_s = now_s
        text = printable(text)
        if not self._terminal:
            print(text, file=self._out, flush=True)
            return
        drawn = "" if part is None else f"{bar(part)} "
        print(f"\r{drawn}{text}\x1b[K", end="", file=self._out, flush=True)
        self._drawn = True

    def finish(self) -> None:
        """Clear the line."""
        if self._drawn:
            print("\r\x1b[K", end="", file=self._out, flush=True)
            self._drawn = False
