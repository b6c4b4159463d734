"""Ages: when messages expire in the queues behind a router, and which actions decide it."""

import pytest

from lightrail.namespace.ages import NEVER, OWN, ages_behind, expiry, living

NOW = 1_000_000


@pytest.mark.parametrize(
    ("age_ms", "life_ms", "expires_at_ms"),
    [
        (OWN, None, 7),
        (OWN, 5_000, NOW + 5_000),
        (OWN, NEVER, 0),
        (2_000, 5_000, NOW + 2_000),
        (9_000, 5_000, NOW + 5_000),
        (9_000, NEVER, NOW + 9_000),
        (NEVER, 5_000, 0),
    ],
)
def test_a_time_to_live_that_an_action_has_set_counts_in_place_of_the_senders(
    age_ms: int, life_ms: int | None, expires_at_ms: int
) -> None:
    message = b"m" if life_ms is None else living(b"m", life_ms)
    assert message == b"m"
    assert expiry(7, NOW, age_ms, message) == expires_at_ms


def test_queues_behind_an_action_that_sets_it_are_looked_at_and_others_are_not() -> None:
    targets = {"r": ["a", "source", "inner", "b"], "inner": ["c"], "source": ["end"]}
    ages: dict[str, int | None] = dict.fromkeys(targets)
    none = ages_behind("r", targets, {"source"}, ages, ())
    assert none == {}
    assert ages_behind("r", targets, {"source"}, ages, {"a"}) == {"a": OWN}
    assert ages_behind("r", targets, {"source"}, ages, {"inner"}) == {"inner": OWN, "c": OWN}
    assert ages_behind("r", targets, {"source"}, ages, {"source"}) == {"source": OWN, "end": OWN}
    of_inner = ages | {"inner": 3_000}
    assert ages_behind("r", targets, {"source"}, of_inner, {"a", "inner"}) == {
        "c": 3_000,
        "a": OWN,
        "inner": OWN,
    }
