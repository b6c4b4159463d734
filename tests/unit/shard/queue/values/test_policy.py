"""The policy of a queue machine: what does not go together, and what each field asks of the machine."""

import pytest

from lightrail.shard.queue.values.policy import Policy
from tests.support.shard.checked_queue import DELAY, GROUPS, LAST_VALUE, SORTED


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Policy(groups=True, priorities=2), "groups and priorities"),
        (Policy(groups=True, order="sorted", order_key="key"), "groups and order sorted"),
        (Policy(priorities=3, order="last_value", order_key="key"), "priorities and order last_value"),
        (Policy(order="sorted"), "order_key: expected"),
        (Policy(order_key="key"), "order_key: expected none"),
        (Policy(order="random"), "one of fifo, last_value, sorted, found random"),
        (Policy(priorities=11), "1 to 10 levels, found 11"),
    ],
)
def test_a_policy_says_what_does_not_go_together(policy: Policy, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        policy.check()


@pytest.mark.parametrize(
    ("policy", "guarded", "examines", "reads", "special"),
    [
        (Policy(), False, False, False, False),
        (Policy(priorities=2), False, False, False, True),
        (SORTED, False, True, True, True),
        (LAST_VALUE, False, True, True, True),
        (GROUPS, False, True, True, True),
        (DELAY, False, True, True, True),
        (Policy(duplicate_window_ms=1), True, True, False, False),
        (Policy(durable="never"), True, False, False, False),
        (Policy(max_age_ms=1), True, False, False, False),
        (Policy(max_length=1), True, False, False, False),
        (Policy(max_bytes=1), True, False, False, False),
        (Policy(max_message_bytes=1), True, False, False, False),
        (Policy(lock_ms=1, max_consumers=1, exclusive=True), False, False, False, False),
    ],
)
def test_what_a_policy_asks_of_new_messages(
    policy: Policy, guarded: bool, examines: bool, reads: bool, special: bool
) -> None:
    found = policy.guarded, policy.examines, policy.reads_messages, policy.is_special
    assert found == (guarded, examines, reads, special)


def test_only_another_order_arranges_messages_anew() -> None:
    assert Policy().arrangement == Policy(max_length=5, lock_ms=20, dead_letter=False).arrangement
    others = (Policy(), Policy(priorities=2), SORTED, LAST_VALUE, GROUPS, DELAY)
    assert len({each.arrangement for each in others}) == len(others)
