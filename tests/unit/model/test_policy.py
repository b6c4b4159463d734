"""Policies: what is given is kept, what is wrong is refused by field, value and what is allowed."""

from typing import Any

import pytest

from lightrail.model.orders import PRIORITIES_MAX
from lightrail.model.policy import BY_NAME, InvalidPolicyError, Policy, Role, fields_of
from lightrail.model.policy_fields import BYTES_MAX, FIELDS


def test_a_policy_is_kept_as_it_was_given() -> None:
    policy = Policy.parse({"role": "queue", "lock_duration": 30, "max_delivery_count": 5})
    assert policy.to_json() == {"role": "queue", "lock_duration": 30, "max_delivery_count": 5}
    assert policy["lock_duration"] == 30
    assert policy["overflow"] == "reject"
    assert policy.milliseconds("lock_duration") == 30_000
    assert policy.milliseconds("max_age") is None


def test_what_is_said_as_the_default_says_is_not_kept() -> None:
    assert Policy.parse({"role": "queue", "overflow": "reject", "max_length": None}).given == {}


def test_effective_says_every_field() -> None:
    effective = Policy.parse({"role": "router"}).effective()
    assert set(effective) == {"role", *(field.name for field in fields_of(Role.ROUTER))}
    assert effective["distribution"] == "all"


@pytest.mark.parametrize(
    ("value", "field", "allowed"),
    [
        ([], "", "a JSON object"),
        ({}, "role", "one of none, metadata, connection-point, queue, router"),
        ({"role": "topic"}, "role", "one of none"),
        ({"role": ["queue"]}, "role", "one of none"),
        ({"role": "queue", "max_lenght": 3}, "max_lenght", "no such field for role queue"),
        ({"role": "router", "max_length": 3}, "max_length", "no such field for role router"),
        ({"role": "queue", "max_consumers": 0}, "max_consumers", "a whole number from 1"),
        ({"role": "queue", "max_readers": 1}, "max_readers", "no such field for role queue"),
        ({"role": "router", "capture": True}, "capture", "subscribe a queue with capture to it"),
        ({"role": "queue", "max_age": -1}, "max_age", "seconds as a number from 0.001"),
        ({"role": "queue", "max_age": float("nan")}, "max_age", "seconds"),
        ({"role": "queue", "max_age": "3"}, "max_age", "seconds"),
        ({"role": "queue", "max_length": 1.5}, "max_length", "a whole number from 0"),
        ({"role": "queue", "max_length": True}, "max_length", "a whole number from 0"),
        ({"role": "queue", "groups": 1}, "groups", "true or false"),
        ({"role": "queue", "overflow": "drop"}, "overflow", "one of reject, discard_incoming"),
        ({"role": "queue", "overflow": None}, "overflow", "one of reject"),
        ({"role": "queue", "dead_letter": "a//b"}, "dead_letter", "a name such as"),
        ({"role": "queue", "expires_at": "tomorrow"}, "expires_at", "a time in UTC"),
        ({"role": "queue", "expires_at": "2030-02-31T00:00:00Z"}, "expires_at", "a time in UTC"),
        ({"role": "queue", "order": "sorted"}, "order_key", "subject, message-id"),
        ({"role": "queue", "retry_delay": 0}, "retry_delay", "seconds as a number from 0.001"),
        ({"role": "queue", "retry_growth": 2}, "retry_delay", "seconds as a number from 0.001"),
        ({"role": "queue", "retry_delay_max": 2}, "retry_delay", "(retry_delay_max is set)"),
        ({"role": "queue", "retry_delay": 1, "retry_growth": 0.5}, "retry_growth", "a number from 1 to 100"),
        ({"role": "queue", "retry_delay": 1, "retry_growth": True}, "retry_growth", "a number from 1 to 100"),
        ({"role": "queue", "retry_delay": 3, "retry_delay_max": 2}, "retry_delay_max", "which is 3"),
        ({"role": "router", "retry_delay": 1}, "retry_delay", "no such field for role router"),
        ({"role": "queue", "order_key": "subject"}, "order", "last_value or sorted"),
        ({"role": "queue", "order": "sorted", "order_key": "body"}, "order_key", "subject, message-id"),
        ({"role": "queue", "groups": True, "priorities": 3}, "groups", "only one of"),
        ({"role": "metadata"}, "reference", "a text of at most"),
        ({"role": "none", "template": {"role": "router"}}, "template", "policy of role queue"),
        ({"role": "none", "template": {"max_age": 0}}, "template.max_age", "seconds"),
    ],
)
def test_what_is_wrong_is_refused_with_field_value_and_what_is_allowed(
    value: Any, field: str, allowed: str
) -> None:
    with pytest.raises(InvalidPolicyError) as caught:
        Policy.parse(value)
    assert caught.value.field == field
    assert allowed in caught.value.allowed
    assert allowed in str(caught.value)


def test_the_end_of_a_name_is_a_time_in_utc() -> None:
    policy = Policy.parse({"role": "queue", "expires_at": "1970-01-01T00:00:01.5Z"})
    assert policy.expires_at_ms == 1_500
    later = Policy.parse({"role": "queue", "expires_at": "1970-01-01T00:00:01.500001Z"})
    assert later.expires_at_ms == 1_501, "before its time"
    assert Policy.parse({"role": "queue"}).expires_at_ms is None


def test_every_field_has_its_words() -> None:
    for field in FIELDS:
        assert field.doc
        assert field.allowed
        assert BY_NAME[field.name] is field
        if field.kind == "choice":
            assert field.default in field.choices


def test_a_queue_tells_at_most_so_many_priorities_apart() -> None:
    assert Policy.parse({"role": "queue", "priorities": PRIORITIES_MAX})["priorities"] == 10
    for beyond in (0, PRIORITIES_MAX + 1):
        with pytest.raises(InvalidPolicyError) as refused:
            Policy.parse({"role": "queue", "priorities": beyond})
        assert refused.value.field == "priorities"


def test_a_queue_has_a_bound_of_at_most_so_many_bytes() -> None:
    assert Policy.parse({"role": "queue", "max_bytes": BYTES_MAX})["max_bytes"] == BYTES_MAX
    with pytest.raises(InvalidPolicyError) as refused:
        Policy.parse({"role": "queue", "max_bytes": BYTES_MAX + 1})
    assert refused.value.field == "max_bytes"
