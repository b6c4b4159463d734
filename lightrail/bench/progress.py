"""Progress of a run: a bar on a terminal, else a line per second."""

from typing import Final, TextIO

from lightrail.bench.plan import Options
from lightrail.console import progress

PLAIN_EVERY_S: Final = 1.0


class Progress:
    """Rates since the last line, and the part of the run that is done."""

    def __init__(self, options: Options, out: TextIO | None = None) -> None:
        self.options = options
        self._shown = progress.Progress(out, every_s=PLAIN_EVERY_S, begin_s=0.0)
        self._last_s = 0.0
        self._last = (0, 0)

    def update(self, elapsed_s: float, sent: int, received: int) -> None:
        """Draw if it is due."""
        if self.options.quiet or elapsed_s <= 0 or not self._shown.due(elapsed_s):
            return
        passed = elapsed_s - self._last_s
        rates = [(new - old) / passed for new, old in zip((sent, received), self._last, strict=True)]
        self._last_s, self._last = elapsed_s, (sent, received)
        text = f"{elapsed_s:6.1f} s  sent {rates[0]:>9,.0f}/s  received {rates[1]:>9,.0f}/s"
        self._shown.show(elapsed_s, text, self._part(elapsed_s, sent if self.options.send_only else received))

    def finish(self) -> None:
        """Clear the bar."""
        self._shown.finish()

    def _part(self, elapsed_s: float, counted: int) -> float:
        options = self.options
        if options.count is not None:
            return min(counted / options.count, 1.0) if options.count else 1.0
        if options.drain_only:
            return 0.0
        return min(elapsed_s / (options.warm_up_s + options.duration_s), 1.0)
