"""Progress of what takes long; on standard error, so that results stay readable."""

import sys
import time
from typing import Final, TextIO

from lightrail.console.text import printable

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
