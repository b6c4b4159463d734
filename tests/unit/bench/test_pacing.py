"""lightrail.bench.pacing: intended times are even, also over several senders."""

from itertools import pairwise

from lightrail.bench.options import parse_options
from lightrail.bench.pacing import Pace
from lightrail.bench.sending import pace_of


def test_the_senders_together_send_at_even_intervals() -> None:
    paces = [Pace(1_000, 4, number) for number in range(4)]
    for pace in paces:
        pace.start_ns = 5_000
    moments = sorted(pace.intended_ns(sequence) for pace in paces for sequence in range(10))
    assert {b - a for a, b in pairwise(moments)} == {1_000_000}
    assert moments[0] == 5_000


def test_what_is_due_is_what_was_intended_and_not_sent() -> None:
    pace = Pace(100, 1, 0)
    pace.start_ns = 1_000
    assert pace.due(999) == 0
    assert pace.due(1_000) == 1
    pace.sent = 1
    assert pace.due(1_000 + 9_999_999) == 0
    assert pace.due(1_000 + 35_000_000) == 3


def test_slow_senders_have_a_rate_each_and_the_others_share_theirs() -> None:
    options = parse_options(
        ["--senders", "6", "--receivers", "6", "--slow", "4", "--slow-rate", "2", "--rate", "100"]
    )
    paces = [pace_of(options, number) for number in range(6)]
    assert [pace.interval_ns for pace in paces if pace] == [5e8] * 4 + [2e7] * 2
    assert [pace.shift_ns for pace in paces if pace] == [0, 1.25e8, 2.5e8, 3.75e8, 0, 1e7]
    unpaced = parse_options(["--senders", "2", "--receivers", "2", "--slow", "1"])
    assert pace_of(unpaced, 0) is not None
    assert pace_of(unpaced, 1) is None
