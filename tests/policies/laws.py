"""Laws: which field of a policy a test checks, so that none is without one, alive and after a kill -9.

A story is a law told in two halves with a kill -9 of the whole broker between them: a generator that
prepares, yields, and looks at what is left. All stories share one broker, and die with it once.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

from tests.policies.driver import Names

Function = TypeVar("Function", bound=Callable[..., object])
Story = Callable[[Names], Iterator[None]]

STORIES: dict[str, Story] = {}


def checks(*fields: str) -> Callable[[Function], Function]:
    """The test holds for these fields; test_every_field_has_a_law.py reads it."""

    def mark(function: Function) -> Function:
        return function

    return mark


def survives(*fields: str) -> Callable[[Story], Story]:
    """The story holds for these fields; test_after_kill_9.py tells it."""

    def tell(story: Story) -> Story:
        name = getattr(story, "__name__", "")
        assert name not in STORIES, f"two stories are called {name}"
        STORIES[name] = story
        return story

    return tell
