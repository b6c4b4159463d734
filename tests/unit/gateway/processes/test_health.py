"""Health: what a gateway reads from the metrics of other processes."""

import pytest

from lightrail.gateway.processes.health import ahead_s


@pytest.mark.parametrize(
    ("clock_s", "asked_s", "answered_s", "ahead"),
    [
        (100.0, 100.0, 100.2, 0.0),
        (100.2, 100.0, 100.2, 0.0),
        (103.2, 100.0, 100.2, 3.0),
        (97.0, 100.0, 100.2, -3.0),
        # A slow answer proves little.
        (103.0, 100.0, 105.0, 0.0),
    ],
)
def test_a_clock_is_apart_only_by_what_the_time_of_the_answer_does_not_explain(
    clock_s: float, asked_s: float, answered_s: float, ahead: float
) -> None:
    assert ahead_s(clock_s, asked_s, answered_s) == pytest.approx(ahead)
