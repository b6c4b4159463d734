"""Progress: a line that changes on a terminal, lines now and then elsewhere."""

import io
import json
from datetime import UTC, datetime

import pytest

from lightrail.console.terminal import Progress, bar, pairs, show_json, table

Output = pytest.CaptureFixture[str]


def test_numbers_of_a_table_are_to_the_right_and_what_is_not_there_is_a_dash(capsys: Output) -> None:
    table([{"queue": "a", "rows": 1200}, {"queue": None, "rows": 3}], ("queue", "rows"))
    assert capsys.readouterr().out == "QUEUE   ROWS\na      1,200\n-          3\n"


def test_a_table_without_rows_is_its_headings(capsys: Output) -> None:
    table([], ("queue", "dead_letters"))
    assert capsys.readouterr().out == "QUEUE  DEAD LETTERS\n"


def test_pairs_show_each_kind_of_value_as_a_person_reads_it(capsys: Output) -> None:
    pairs({"a": True, "name": 0.5, "list": ["ü", 1], "empty": "", "many": 1_000_000})
    assert capsys.readouterr().out == (
        'a      yes\nname   0.50\nlist   ["ü", 1]\nempty  -\nmany   1,000,000\n'
    )


def test_a_name_does_not_move_the_terminal(capsys: Output) -> None:
    table([{"queue": "\x1b[2Jq\n"}], ("queue",))
    pairs({"queue": "\x1b[2Jq\n"})
    assert (
        capsys.readouterr().out
        == r"""QUEUE
\x1b[2Jq\n
queue  \x1b[2Jq\n
"""
    )


def test_json_is_one_document_with_times_as_text(capsys: Output) -> None:
    show_json({"rows": 1, "name": "ü\x1b", "first": datetime(2026, 11, 22, tzinfo=UTC)})
    out = capsys.readouterr().out
    assert json.loads(out) == {"rows": 1, "name": "ü\x1b", "first": "2026-11-22 00:00:00+00:00"}
    assert "\x1b" not in out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, which stands until it is set."""
    clock = [0.0]
    monkeypatch.setattr("lightrail.console.terminal.time.monotonic", lambda: clock[0])
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
