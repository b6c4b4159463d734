"""Progress: a line that changes on a terminal, lines now and then elsewhere."""

import io

import pytest

from lightrail.console.progress import Progress, bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, which stands until it is set."""
    clock = [0.0]
    monkeypatch.setattr("lightrail.console.progress.time.monotonic", lambda: clock[0])
    return clock


def test_progress_is_plain_lines_without_a_terminal(now: list[float]) -> None:
    out = io.StringIO()
    progress = Progress(out)
    for second in range(6):
        now[0] = second
        progress.update(f"second {second}\x1b[2J", second / 6)
    progress.finish()
    assert out.getvalue() == "second 2\\x1b[2J\nsecond 4\\x1b[2J\n"


def test_progress_is_one_line_on_a_terminal_and_goes_away(now: list[float]) -> None:
    out = Terminal()
    progress = Progress(out)
    progress.update("too early")
    now[0] = 1.0
    progress.update("one\x1b[2J")
    now[0] = 2.0
    progress.update("two", 0.5)
    progress.finish()
    progress.finish()
    assert out.getvalue() == f"\rone\\x1b[2J\x1b[K\r{'█' * 15}{'░' * 15}  50% two\x1b[K\r\x1b[K"


def test_progress_that_was_never_shown_is_not_taken_away(now: list[float]) -> None:
    out = Terminal()
    Progress(out).finish()
    assert out.getvalue() == ""


def test_a_bar_is_as_long_as_its_part() -> None:
    assert bar(0.0, 10) == "░░░░░░░░░░   0%"
    assert bar(0.3, 10) == "███░░░░░░░  30%"
    assert bar(1.0, 10) == "██████████ 100%"
