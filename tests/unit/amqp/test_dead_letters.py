"""How often a message was a dead letter, by annotations that its sender may have written."""

from typing import Any

import pytest

from lightrail.amqp.dead_letters import COUNT, COUNT_MAX, HOPS, count_of, history_of
from lightrail.amqp.values import UInt
from tests.support.amqp.letters import dead_letter, message


def test_a_dead_letter_has_a_history_and_another_message_none() -> None:
    assert count_of(history_of(dead_letter(b"x", "q"), 0)) == 2
    assert history_of(message(b"x"), 0) == {}
    assert history_of(dead_letter(b"x", "q"), 1) == {}, "not AMQP's sections"
    assert history_of(b"\x00\x53\x72 no map with x-opt-dead-letter-", 0) == {}


@pytest.mark.parametrize(
    ("found", "count"),
    [({}, 0), ({"x-opt-dead-letter-reason": "expired"}, 1), ({COUNT: UInt(7)}, 7), ({COUNT: "7"}, 0)]
    + [({COUNT: -1}, 0), ({COUNT: COUNT_MAX}, 0), ({COUNT: COUNT_MAX - 1}, COUNT_MAX - 1)],
)
def test_what_is_no_count_counts_nothing(found: dict[Any, Any], count: int) -> None:
    assert count_of(found) == count


def test_a_reason_alone_is_no_hop() -> None:
    assert count_of({"x-opt-dead-letter-reason": "expired"}, HOPS) == 0
    assert count_of({HOPS: UInt(3)}, HOPS) == 3
