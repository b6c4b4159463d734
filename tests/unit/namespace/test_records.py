"""Shared policies: equal ones are one object, and none is read otherwise than alone."""

import re
from typing import Any

import pytest

from lightrail.model import limits
from lightrail.model.policy import InvalidPolicyError, Policy
from lightrail.namespace.records import _parsed, shared_policy


def test_equal_policies_are_parsed_once_and_are_one_object() -> None:
    first, again = (shared_policy({"role": "queue", "max_length": 3}) for _ in range(2))
    assert first is again
    assert first == Policy.parse({"role": "queue", "max_length": 3})
    # A value that Python calls equal is not the same in JSON.
    assert shared_policy({"role": "queue", "capture": True})["capture"] is True
    with pytest.raises(InvalidPolicyError, match="capture"):
        shared_policy({"role": "queue", "capture": 1})


@pytest.mark.parametrize(
    "value", [{"role": "queue", "template": {"max_length": 1}}, ["role"], None, {"role": []}]
)
def test_what_can_not_be_shared_is_parsed(value: Any) -> None:
    try:
        expected: object = Policy.parse(value)
    except InvalidPolicyError as error:
        with pytest.raises(InvalidPolicyError, match=re.escape(str(error))):
            shared_policy(value)
    else:
        assert shared_policy(value) == expected


def test_only_so_many_different_policies_are_kept() -> None:
    assert _parsed.cache_parameters()["maxsize"] == limits.EQUAL_VALUES_MAX
