"""What commands say: results on standard output, progress as lines on standard error."""

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

EVERY_S: Final = 2.0
TERMINAL_EVERY_S: Final = 0.2
_DRAWN: Final = re.compile(r"\x1b\[[0-9;]*m|↳")


def show_json(value: Any) -> None:
    """One JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], out: TextIO | None = None) -> None:
    """Rows under headings; numbers to the right. Nothing but the headings where there are no rows."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    heads = [column.replace("_", " ").upper() for column in columns]
    widths = [max(len(line[i]) for line in [heads, *cells]) for i in range(len(columns))]
    right = [
        bool(rows) and all(isinstance(row.get(column), int | float) for row in rows) for column in columns
    ]
    for line in [heads, *cells]:
        text = "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        print(text.rstrip(), file=out or sys.stdout)


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
    return printable(str(value))


def printable(text: str) -> str:
    """Without what would move a terminal: names are other people's."""
    return "".join(c if c.isprintable() else "�" for c in text)


def one_line(error: Exception) -> str:
    """What an error says, without the colours and the lines in which some libraries draw theirs."""
    return " ".join(_DRAWN.sub("", str(error)).split())


def say(text: str) -> None:
    """One line on standard error."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """One line that changes on a terminal, a line now and then without one; on standard error."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._terminal = self._out.isatty()
        self._last_s = time.monotonic()
        self._drawn = False

    def update(self, text: str) -> None:
        """Show it when it is time to."""
        now = time.monotonic()
        if now - self._last_s < (TERMINAL_EVERY_S if self._terminal else EVERY_S):
            return
        self._last_s = now
        if self._terminal:
            print(f"\r{printable(text)}\x1b[K", end="", file=self._out, flush=True)
            self._drawn = True
        else:
            print(printable(text), file=self._out, flush=True)

    def finish(self) -> None:
        """Take the line away."""
        if self._drawn:
            print("\r\x1b[K", end="", file=self._out, flush=True)
            self._drawn = False
