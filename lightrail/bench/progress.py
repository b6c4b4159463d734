"""What a person sees while a run goes on: a bar on a terminal, a line a second without one."""

import sys
from typing import Final, TextIO

from lightrail.bench.plan import Options

BAR: Final = 30
_TERMINAL_EVERY_S: Final = 0.2
_PLAIN_EVERY_S: Final = 1.0


class Progress:
    """Writes to standard error, so that results on standard output can be read by machines."""

    def __init__(self, options: Options, out: TextIO | None = None) -> None:
        self.options = options
        self.out = out or sys.stderr
        self.terminal = self.out.isatty()
        self._last_s = 0.0
        self._last = (0, 0)
        self._drawn = False

    def update(self, elapsed_s: float, sent: int, received: int) -> None:
        """Draw when it is time to."""
        if self.options.quiet or elapsed_s <= 0:
            return
        passed = elapsed_s - self._last_s
        if passed < (_TERMINAL_EVERY_S if self.terminal else _PLAIN_EVERY_S):
            return
        rates = [(new - old) / passed for new, old in zip((sent, received), self._last, strict=True)]
        self._last_s, self._last = elapsed_s, (sent, received)
        text = f"{elapsed_s:6.1f} s  sent {rates[0]:>9,.0f}/s  received {rates[1]:>9,.0f}/s"
        if not self.terminal:
            print(text, file=self.out, flush=True)
            return
        part = self._part(elapsed_s, received if not self.options.send_only else sent)
        bar = "█" * round(part * BAR)
        print(f"\r{bar:░<{BAR}} {part:4.0%} {text}\x1b[K", end="", file=self.out, flush=True)
        self._drawn = True

    def finish(self) -> None:
        """Take the bar away."""
        if self._drawn:
            print("\r\x1b[K", end="", file=self.out, flush=True)
            self._drawn = False

    def _part(self, elapsed_s: float, counted: int) -> float:
        options = self.options
        if options.count is not None:
            return min(counted / options.count, 1.0) if options.count else 1.0
        if options.drain_only:
            return 0.0
        return min(elapsed_s / (options.warm_up_s + options.duration_s), 1.0)
