"""Durations of ISO 8601, read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.service_bus.administration.durations import FOREVER, duration_of, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT1M", 60),
        ("PT0S", 0),
        ("P1D", 86_400),
        ("P14D", 14 * 86_400),
        ("P1DT12H30M1.5S", 131_401.5),
        ("PT0.0010000S", 0.001),
        (FOREVER, None),
        ("P10675199DT2H48M5.477581S", None),
    ],
)
def test_a_duration_is_read(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1", "1M", "P1Y", "P1M", "PT1D", "P1DT", "-PT1S", "PT1S ", "x"]
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as"):
        seconds_of(text)


@given(st.integers(0, 10**12))
def test_what_is_written_reads_as_the_same(ms: int) -> None:
    assert seconds_of(duration_of(ms / 1000)) == pytest.approx(ms / 1000, abs=1e-6)


def test_no_limit_has_a_word() -> None:
    assert seconds_of(duration_of(None)) is None
