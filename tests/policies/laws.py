"""Laws: which fields of a policy a test checks; test_every_field_has_a_law.py reads the marks."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from tests.policies.driver import Names

Function = TypeVar("Function", bound=Callable[..., object])
Story = Callable[[Names], Iterator[None]]
"""A law in two halves with a kill -9 of the whole broker between them: a generator that prepares, yields, and
looks at what is left. All stories share one broker, and live through its end once (test_after_kill_9.py)."""


def checks(*fields: str) -> Callable[[Function], Function]:
    """The test holds for these fields."""
    return lambda function: function


def survives(*fields: str) -> Callable[[Function], Function]:
    """The test or story holds for these fields when the broker was killed and started again."""
    return lambda function: function
