"""Bad policies are refused over HTTP with the field, the value that was found, and what is allowed."""

from typing import Any

import pytest

from tests.policies.driver import Names

BAD: dict[str, tuple[str, dict[str, Any], str, Any, str]] = {
    "seconds: negative": ("queue", {"lock_duration": -1}, "lock_duration", -1, "from 0.05 to"),
    "seconds: text": ("queue", {"max_age": "60"}, "max_age", "60", "seconds as a number"),
    "seconds: a flag": ("queue", {"max_age": True}, "max_age", True, "seconds as a number"),
    "seconds: too many": ("queue", {"max_age": 1e12}, "max_age", 1e12, "to 3.1536e+08"),
    "count: not whole": ("queue", {"max_length": 1.5}, "max_length", 1.5, "a whole number from 0"),
    "seconds: too few": ("queue", {"max_idle": 299.9}, "max_idle", 299.9, "seconds as a number from 300"),
    "count: too many": ("queue", {"priorities": 11}, "priorities", 11, "a whole number from 1 to 10"),
    "count: null": ("queue", {"priorities": None}, "priorities", None, "a whole number from 1 to 10"),
    "bytes: negative": ("queue", {"max_bytes": -1}, "max_bytes", -1, "a number of bytes from 0"),
    "bytes: none": ("router", {"max_message_bytes": 0}, "max_message_bytes", 0, "a number of bytes from 1"),
    "boolean: a number": ("queue", {"groups": 1}, "groups", 1, "true or false"),
    "choice": ("queue", {"overflow": "explode"}, "overflow", "explode", "one of reject, discard_incoming"),
    "choice: router": ("router", {"distribution": "some"}, "distribution", "some", "one of all, one"),
    "name": ("queue", {"dead_letter": "a//b"}, "dead_letter", "a//b", "a name such as"),
    "time: zone": ("queue", {"expires_at": "2030-01-01T00:00:00"}, "expires_at", None, "a time in UTC"),
    "time: no day": ("queue", {"expires_at": "2030-02-31T00:00:00Z"}, "expires_at", None, "a time in UTC"),
    "text": ("queue", {"description": "x" * 1025}, "description", None, "at most 1024 characters"),
    "key": (
        "queue",
        {"order": "sorted", "order_key": "body"},
        "order_key",
        "body",
        "application-properties.NAME",
    ),
    "object": ("none", {"template": {"lock_duration": 0}}, "template.lock_duration", 0, "seconds"),
    "object: no queue": ("none", {"template": []}, "template", [], "a policy of role queue"),
    "unknown": ("queue", {"lock_duratoin": 1}, "lock_duratoin", 1, "no such field for role queue"),
    "of another role": ("router", {"lock_duration": 1}, "lock_duration", 1, "it has"),
    "missing beside": ("queue", {"order": "sorted"}, "order_key", None, "(order is sorted)"),
    "without": ("queue", {"order_key": "subject"}, "order", "fifo", "last_value or sorted"),
    "not together": ("queue", {"groups": True, "priorities": 3}, "groups", True, "only one of"),
    "number": ("queue", {"retry_delay": 1, "retry_growth": 0}, "retry_growth", 0, "a number from 1 to 100"),
    "no delay to grow": ("queue", {"retry_growth": 2}, "retry_delay", None, "(retry_growth is set)"),
    "bound below": ("queue", {"retry_delay": 3, "retry_delay_max": 1}, "retry_delay_max", 1, "which is 3"),
    "metadata": ("metadata", {}, "reference", None, "metadata has nothing else"),
    "role": ("heap", {}, "role", "heap", "one of none, metadata, connection-point, queue, router"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_policy_is_refused_with_field_value_and_what_is_allowed(names: Names, case: str) -> None:
    role, fields, field, found, allowed = BAD[case]
    name = names.name("bad")
    refused = names.http("POST", f"/{name}", {"role": role, **fields})
    assert refused.status == 422
    assert refused.headers["content-type"].startswith("application/problem+json")
    problem = refused.json()
    assert problem["field"] == field
    assert found is None or problem["found"] == found
    assert allowed in problem["allowed"]
    # What is shown is short, the field stands in the sentence for people as well, and nothing was made.
    assert field in problem["detail"]
    assert len(problem["detail"]) < 1500
    assert names.role(name) == "none"


@pytest.mark.parametrize("case", ["seconds: negative", "choice", "unknown", "not together"])
def test_a_bad_change_leaves_the_policy_as_it_was(names: Names, case: str) -> None:
    role, fields, field, _, _ = BAD[case]
    queue = names.queue(max_length=3)
    refused = names.http("PUT", f"/{queue}/!policy", {"role": role, **fields})
    assert (refused.status, refused.json()["field"]) == (422, field)
    assert names.policy(queue) == {"max_length": 3}


def test_what_may_not_be_null_does_not_say_so(names: Names) -> None:
    refused = names.http("POST", f"/{names.name('bad')}", {"role": "queue", "replicas": None})
    assert (refused.status, refused.json()["field"]) == (422, "replicas")
    assert "null" not in refused.json()["allowed"]
