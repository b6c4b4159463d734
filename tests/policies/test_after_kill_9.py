"""Every story of a policy, with one kill -9 of all processes in the middle of all of them."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.policies import (
    stories_of_combinations,
    stories_of_messages,
    stories_of_names,
    stories_of_queues,
    stories_of_routes,
)
from tests.policies.driver import Names
from tests.policies.laws import Story
from tests.support.broker import Broker

MODULES = (
    stories_of_messages,
    stories_of_queues,
    stories_of_names,
    stories_of_combinations,
    stories_of_routes,
)
STORIES: dict[str, Story] = {
    name: function
    for module in MODULES
    for name, function in vars(module).items()
    if inspect.isgeneratorfunction(function) and function.__module__ == module.__name__
}


@dataclass
class Half:
    """A story that was told up to the kill."""

    names: Names
    rest: Iterator[None]
    error: Exception | None = None


@pytest.fixture(
    scope="module",
    params=[("journal", 1), ("journal", 3), ("sqlite", 1)],
    ids=["journal", "journal thrice", "sqlite"],
)
def halves(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Half]]:
    """Killed once, or again as soon as it serves: what recovery made of a journal can be recovered."""
    store, times = request.param
    flags = ("--shards", "2", "--store", store, "--push-allow", "127.0.0.1")
    data = tmp_path_factory.mktemp("stories") / "data"
    found = {}
    with Broker(data, *flags) as broker:
        for name, story in STORIES.items():
            names = Names(broker, name)
            half = found[name] = Half(names, story(names))
            try:
                next(half.rest)
            except Exception as error:
                half.error = error
        broker.kill_everything()
    for _ in range(times - 1):
        with Broker(data, *flags) as broker:
            broker.kill_everything()
    with Broker(data, *flags) as broker:
        for half in found.values():
            half.names.move_to(broker)
        yield found
        for half in found.values():
            half.names.close()


@pytest.mark.parametrize("story", STORIES)
def test_after_a_kill_9(halves: dict[str, Half], story: str) -> None:
    half = halves[story]
    if half.error is not None:
        raise half.error
    assert list(half.rest) == []
