"""A histogram of times with a relative error below 0.8 %, in the manner of HdrHistogram.

Values below 256 ns have a bucket each; above, every power of two is cut into 128 equal buckets.
"""

from collections.abc import Iterable
from typing import Final

_EXACT: Final = 256
_SUB_BUCKETS: Final = 128
_SUB_BITS: Final = 8
BUCKETS: Final = _EXACT + (64 - _SUB_BITS) * _SUB_BUCKETS
"""Enough for every 64-bit value."""


def bucket_of(value_ns: int) -> int:
    """The bucket of a value; negative ones (clocks of two machines) count as 0."""
    if value_ns < _EXACT:
        return max(value_ns, 0)
    shift = value_ns.bit_length() - _SUB_BITS
    return min(_EXACT + (shift - 2) * _SUB_BUCKETS + (value_ns >> shift), BUCKETS - 1)


def upper_bound(bucket: int) -> int:
    """The largest value of a bucket, in ns."""
    if bucket < _EXACT:
        return bucket
    shift, rest = divmod(bucket - _EXACT, _SUB_BUCKETS)
    return ((rest + _SUB_BUCKETS + 1) << (shift + 1)) - 1


class Histogram:
    """Counts of times in nanoseconds."""

    __slots__ = ("buckets", "count", "max_ns", "min_ns", "total_ns")

    def __init__(self) -> None:
        self.buckets = [0] * BUCKETS
        self.count = 0
        self.total_ns = 0
        self.min_ns = 0
        self.max_ns = 0

    def record(self, value_ns: int, times: int = 1) -> None:
        """Count a value ``times`` times."""
        self.buckets[bucket_of(value_ns)] += times
        if value_ns > self.max_ns:
            self.max_ns = value_ns
        if value_ns < self.min_ns or not self.count:
            self.min_ns = value_ns
        self.count += times
        self.total_ns += value_ns * times

    def merge(self, other: "Histogram") -> None:
        """Add the counts of another histogram."""
        if not other.count:
            return
        self.min_ns = min(self.min_ns, other.min_ns) if self.count else other.min_ns
        self.max_ns = max(self.max_ns, other.max_ns)
        self.count += other.count
        self.total_ns += other.total_ns
        self.buckets = [a + b for a, b in zip(self.buckets, other.buckets, strict=True)]

    @property
    def mean_ns(self) -> float:
        """The mean; 0 when nothing was recorded."""
        return self.total_ns / self.count if self.count else 0.0

    def percentile(self, percent: float) -> int:
        """The value in ns that ``percent`` of the recorded ones do not exceed; 0 when there are none."""
        wanted = percent / 100 * self.count
        reached = 0
        for bucket, count in enumerate(self.buckets):
            reached += count
            if count and reached >= wanted:
                return min(upper_bound(bucket), self.max_ns)
        return self.max_ns

    def percentiles(self, percents: Iterable[float]) -> dict[float, int]:
        """Several percentiles, in ns."""
        return {percent: self.percentile(percent) for percent in percents}
