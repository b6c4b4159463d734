"""The report: it is bounded, escaped, the same for the same figures; its charts fit their values."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.spark.analysis import report
from lightrail.spark.analysis.charts import HEIGHT, WIDTH, bars, chart, scale
from lightrail.spark.analysis.figures import SPARK_REPORT_STEPS_MAX, Figures, step_of, steps
from lightrail.spark.analysis.report import SPARK_REPORT_TEXT_MAX
from tests.support.spark.figures import EVIL, shown

MORNING = datetime(2026, 11, 21, 8, 7, tzinfo=UTC)


@given(st.integers(1, 60 * 24 * 366 * 20), st.integers(0, 10_000))
def test_a_window_of_any_length_has_few_steps_and_each_of_its_minutes_lies_in_one(
    minutes: int, later: int
) -> None:
    first = MORNING + timedelta(minutes=later)
    last = first + timedelta(minutes=minutes - 1)
    length = step_of(minutes)
    found = steps(first, last, length)
    assert 1 <= len(found) <= SPARK_REPORT_STEPS_MAX
    assert found[0] <= first < found[0] + timedelta(minutes=length)
    assert found[-1] <= last < found[-1] + timedelta(minutes=length)


@given(st.floats(0, 1e15, allow_nan=False))
def test_an_axis_reaches_the_largest_value_with_few_round_labels(most: float) -> None:
    ticks = scale(most)
    assert ticks[0] == 0
    assert ticks == sorted(set(ticks))
    assert 2 <= len(ticks) <= 7
    assert ticks[-1] >= most * 0.99


def test_a_line_stays_within_its_chart_and_breaks_where_nothing_is_known() -> None:
    times = [MORNING + timedelta(minutes=i) for i in range(5)]
    made = chart("id", "title", "ms", times, timedelta(minutes=1), {"a": [0, 7, None, 3, None]})
    (line,) = made.lines
    assert line.path.count("M") == 2
    numbers = [
        float(each) for each in line.path.replace("M", " ").replace("L", " ").replace("h", " ").split()
    ]
    assert all(0 <= each <= max(WIDTH, HEIGHT) for each in numbers)
    assert [values for _, values in made.rows] == [["0"], ["7"], ["\N{EN DASH}"], ["3"], ["\N{EN DASH}"]]


def test_bars_are_as_long_as_their_values() -> None:
    made = bars("id", "title", "messages", [("expired", 200), ("rejected", 100), ("none", 0)])
    longest, half, none = (bar.width for bar in made.bars)
    assert longest == pytest.approx(2 * half)
    assert none == 1
    assert longest < WIDTH


def test_names_of_others_are_text_and_never_markup() -> None:
    page = report.page(shown(), title=EVIL)
    assert EVIL not in page
    assert "<script" not in page.lower()
    assert "\x1b" not in page
    for word in ("http://", "https://", "src=", "@import", "url("):
        assert word not in page


def test_the_same_figures_give_the_same_page_and_its_size_has_a_bound() -> None:
    pages = {report.page(shown(queues=50, points=SPARK_REPORT_STEPS_MAX), title="Messages") for _ in range(2)}
    (page,) = pages
    assert len(page.encode()) < 500_000


def test_long_names_are_shown_by_their_end() -> None:
    assert len(report.shortened("a" * 5_000 + "/orders")) == SPARK_REPORT_TEXT_MAX
    assert report.shortened("a" * 5_000 + "/orders").endswith("/orders")
    assert report.shortened("team/orders") == "team/orders"


def test_nothing_at_all_is_a_page_as_well() -> None:
    assert "Nothing was read" in report.page(Figures(), title="Messages")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        (0, "0 ms"),
        (35, "35 ms"),
        (1_500, "1.5 s"),
        (120_000, "2.0 min"),
        (9e7, "1.0 d"),
    ],
)
def test_durations_are_for_people(value: float | None, text: str) -> None:
    assert report.duration(value) == text


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    report.write("one", str(target))
    with pytest.raises(UnicodeEncodeError):
        report.write("\ud800", str(target))
    assert target.read_text() == "one"
