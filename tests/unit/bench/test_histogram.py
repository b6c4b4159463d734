"""lightrail.bench.histogram: buckets cover every value, percentiles are within the promised error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.bench.histogram import BUCKETS, Histogram, bucket_of, upper_bound

times = st.integers(0, 2**63)


@given(times)
def test_a_bucket_holds_its_value_within_the_promised_error(value: int) -> None:
    bucket = bucket_of(value)
    assert 0 <= bucket < BUCKETS
    assert value <= upper_bound(bucket) <= value * 1.008 + 1


@given(times, times)
def test_buckets_keep_the_order(a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert bucket_of(low) <= bucket_of(high)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200), st.floats(0.1, 100))
def test_percentiles_agree_with_the_sorted_values(values: list[int], percent: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    rank = max(0, -int(-percent / 100 * len(values) // 1) - 1)
    exact = sorted(values)[min(rank, len(values) - 1)]
    assert exact * 0.99 - 1 <= histogram.percentile(percent) <= max(values)
    assert histogram.max_ns == max(values)
    assert histogram.min_ns == min(values)


@given(st.lists(times), st.lists(times))
def test_merged_is_the_same_as_recorded_together(first: list[int], second: list[int]) -> None:
    one, other, both = Histogram(), Histogram(), Histogram()
    for value in first:
        one.record(value)
        both.record(value)
    for value in second:
        other.record(value)
        both.record(value)
    one.merge(other)
    for name in Histogram.__slots__:
        assert getattr(one, name) == getattr(both, name)


def test_many_at_once_count_as_many() -> None:
    histogram = Histogram()
    histogram.record(1_000, 99)
    histogram.record(1_000_000)
    assert histogram.count == 100
    assert histogram.percentile(99) == pytest.approx(1_000, rel=0.008)
    assert histogram.percentile(99.9) == 1_000_000
    assert histogram.mean_ns == pytest.approx((99 * 1_000 + 1_000_000) / 100)


def test_nothing_recorded_is_zero() -> None:
    assert Histogram().percentile(50) == 0
    assert Histogram().mean_ns == 0
