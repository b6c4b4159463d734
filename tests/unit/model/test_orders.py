"""Orders: the levels of AMQP priorities."""

import pytest

from lightrail.model import orders


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (1, [0] * 11),
        (2, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]),
        (3, [0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2]),
        (5, [0, 0, 0, 1, 2, 3, 4, 4, 4, 4, 4]),
        (10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]),
    ],
)
def test_priorities_are_told_apart_around_the_normal_one(levels: int, expected: list[int]) -> None:
    assert [orders.level(priority, levels) for priority in range(11)] == expected
