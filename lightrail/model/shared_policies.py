"""Shared policies: equal policies are parsed once and are one object, since many names have the same."""

from functools import lru_cache
from itertools import chain
from typing import Any

from lightrail.model import limits
from lightrail.model.policy import Policy


def shared_policy(value: Any) -> Policy:
    """See Policy.parse."""
    try:
        return _parsed(*chain.from_iterable(value.items()))
    except (TypeError, AttributeError):
        # Values that can't be hashed, such as a template, and what is no object at all.
        return Policy.parse(value)


@lru_cache(maxsize=limits.EQUAL_VALUES_MAX, typed=True)
def _parsed(*items: Any) -> Policy:
    """The policy of these names and values, one after the other; `typed`, since 1 is no flag and True is."""
    return Policy.parse(dict(zip(items[::2], items[1::2], strict=True)))
