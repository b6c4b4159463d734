"""A queue that moved behaves as one that stayed: same messages, same order, same attempts, same answers."""

from typing import Any

import pytest

from tests.support.shard.moving import Twins

POLICIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "few attempts": {"max_delivery_count": 2},
    "priorities": {"priorities": 3},
    "sorted": {"order": "sorted", "order_key": "application-properties.k"},
    "last_value": {"order": "last_value", "order_key": "application-properties.k"},
    "last_value delayed": {
        "order": "last_value",
        "order_key": "application-properties.k",
        "delay": True,
    },
    "groups": {"groups": True},
    "groups delayed": {"groups": True, "delay": True},
    "delay": {"delay": True},
    "locks": {"lock_duration": 0.2},
    "retries": {"retry_delay": 0.1, "retry_growth": 3, "retry_delay_max": 0.5, "max_delivery_count": 5},
    "groups with retries": {"groups": True, "retry_delay": 0.1},
    "locks and delays with retries": {"delay": True, "lock_duration": 0.2, "retry_delay": 0.3},
    "captured retries": {"capture": True, "retry_delay": 0.1, "max_age": 0.6},
    "single active": {"single_active": True},
    "exclusive": {"exclusive": True},
    "max readers": {"max_consumers": 2},
    "full": {"max_length": 12, "overflow": "reject"},
    "flow": {"max_length": 12, "overflow": "flow_control"},
    "flow gives up": {"max_length": 12, "overflow": "flow_control", "enqueue_timeout": 0.3},
    "oldest go": {"max_length": 12, "overflow": "discard_existing"},
    "newest go": {"max_length": 12, "overflow": "discard_incoming"},
    "duplicates": {"duplicate_window": 1},
    "age": {"max_age": 0.5},
    "captured": {"capture": True, "max_delivery_count": 3},
    "captured groups": {"capture": True, "groups": True, "delay": True},
    "captured and bounded": {
        "capture": True,
        "max_length": 12,
        "overflow": "discard_existing",
        "max_age": 0.6,
    },
    "everything": {
        "groups": True,
        "delay": True,
        "max_length": 20,
        "overflow": "discard_existing",
        "duplicate_window": 1,
        "lock_duration": 0.3,
        "max_age": 2,
    },
}
SEEDS = range(2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_queue_that_moved_behaves_as_one_that_stayed(policy: str, seed: int) -> None:
    twins = Twins(seed, POLICIES[policy])
    twins.run(60)
    twins.move(between=5)
    twins.run(60)
    twins.empty()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", POLICIES)
def test_so_does_one_whose_messages_are_mostly_on_disk(policy: str, seed: int) -> None:
    twins = Twins(seed, POLICIES[policy], memory_mark=600)
    twins.run(60)
    twins.move(between=5)
    twins.run(60)
    twins.empty()
