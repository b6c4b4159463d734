"""Sizes and times: what is read is what is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.model.setting_values import duration_ms, format_duration, format_size, size


@given(st.integers(0, 1 << 50))
def test_a_size_is_read_as_it_was_written(value: int) -> None:
    assert size(0, 1 << 50)(format_size(value)) == value


@given(st.integers(0, 86_400_000))
def test_a_duration_is_read_as_it_was_written(value: int) -> None:
    assert duration_ms(0, 86_400_000)(format_duration(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("64MB", 64_000_000), ("64 MiB", 64 << 20), ("1g", 10**9), ("0.5kB", 500), (" 7 ", 7), ("7B", 7)],
)
def test_sizes(text: str, value: int) -> None:
    assert size(0, 1 << 50)(text) == value


@pytest.mark.parametrize("text", ["", "MB", "-1", "1e3", "1,5MB", "1 M B", "٣MB", "1" * 30, "0x10"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="a size from 0B to 1024TiB"):
        size(0, 1 << 50)(text)


@pytest.mark.parametrize(
    ("text", "value"), [("1.5", 1_500), ("250ms", 250), ("2m", 120_000), ("1h", 3_600_000)]
)
def test_durations(text: str, value: int) -> None:
    assert duration_ms(0, 86_400_000)(text) == value
