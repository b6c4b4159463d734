"""Ranges of delivery numbers in frames."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.wire.columns import decode_ranges, decode_suspended, encode_ranges, encode_suspended, joined
from lightrail.wire.frames import WireError

U64 = st.integers(0, (1 << 64) - 1)
RANGES = st.lists(st.tuples(U64, st.integers(0, (1 << 32) - 1)))


@given(ranges=RANGES, terminus=U64, number=U64)
def test_what_is_encoded_is_decoded(ranges: list[tuple[int, int]], terminus: int, number: int) -> None:
    assert decode_ranges(encode_ranges(ranges)) == ranges
    assert decode_suspended(encode_suspended(terminus, number, ranges)) == (terminus, number, ranges)


@given(numbers=st.sets(st.integers(0, 50)))
def test_neighbours_are_joined(numbers: set[int]) -> None:
    found = list(joined(sorted(numbers)))
    assert [each for first, count in found for each in range(first, first + count)] == sorted(numbers)
    assert all(one[0] + one[1] < other[0] for one, other in pairwise(found))


@pytest.mark.parametrize("size", [1, 13])
def test_a_body_of_another_length_is_an_error(size: int) -> None:
    with pytest.raises(WireError, match="expected ranges of 12 bytes each"):
        decode_ranges(bytes(size))
    with pytest.raises(WireError, match="expected at least 16 bytes, found 3"):
        decode_suspended(bytes(3))
