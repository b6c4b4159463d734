"""Rights: how a name is protected on its way is asked of everybody, whatever else they may do."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from lightrail.cluster.coordinator import Write
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.request import Request
from lightrail.gateway.resources.queues import demand_queue
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Right
from lightrail.namespace.rights import Caller, ForbiddenError, Resource, demand_look, resource_of


@pytest.mark.parametrize(
    ("resource", "path", "exact"),
    [
        ("sb://host/a/b", "a/b", False),
        ("AMQPS://127.0.0.1:5671/a/", "a", False),
        ("https://[::1]:8080/a?api-version=1", "a", True),
        ("sb://host", "", False),
        ("http://host/", "", False),
        ("sb://host/a/$management", "a", False),
        ("sb://host/a/$DeadLetterQueue", "a/$dlq", False),
        ("sb://host/a%20b", "a b", False),
        ("sb://host/a/!messages", "a/!messages", False),
        ("host/a", "host/a", False),
        ("host:5671", "host:5671", False),
        ("/a/b", "a/b", False),
        ("a?b", "a?b", False),
        ("other://host/a", "other://host/a", False),
        ("//host/a", "host/a", False),
    ],
)
def test_what_a_resource_names_is_in_its_text(resource: str, path: str, exact: bool) -> None:
    assert resource_of(resource) == Resource(path, exact)


def test_a_resource_bounds_names_unless_it_is_everything_or_a_path_of_the_broker() -> None:
    bound = ["a", "a/!messages", "$temporary/key"]
    assert [each for each in (*bound, "", "!status", "$Resources/queues") if Resource(each).is_name] == bound


def protected() -> Directory:
    """A queue that asks for TLS, a manager and a listener."""
    coordinator = MemoryCoordinator()
    entries = {
        "names/q": '{"policy": {"role": "queue", "transport_protection": "tls"}}',
        "permissions/boss//": '{"rights": ["manage"]}',
        "permissions/reader//": '{"rights": ["listen"]}',
        "permissions/sender//": '{"rights": ["send"]}',
    }
    asyncio.run(coordinator.write([Write(key, value) for key, value in entries.items()]))
    directory = Directory(coordinator)
    directory.refresh()
    return directory


def by_request(directory: Directory, caller: Caller) -> None:
    Request(SimpleNamespace(directory=directory), None, caller, "q", ()).record(Right.LISTEN)  # type: ignore[arg-type]


def by_page(directory: Directory, caller: Caller) -> None:
    demand_queue(directory, caller, "q", Right.LISTEN)


def by_rule(directory: Directory, caller: Caller) -> None:
    demand_look(directory, caller, directory.get("q"))


@pytest.mark.parametrize("ways", [by_request, by_page, by_rule])
@pytest.mark.parametrize("user", ["boss", "reader"])
def test_managers_and_listeners_look_over_tls_alone(
    ways: Callable[[Directory, Caller], None], user: str
) -> None:
    directory = protected()
    ways(directory, Caller(user, tls=True))
    with pytest.raises(ForbiddenError, match="asks for TLS"):
        ways(directory, Caller(user, tls=False))


def test_who_only_sends_may_not_look() -> None:
    directory = protected()
    with pytest.raises(ForbiddenError, match="no right to listen"):
        by_rule(directory, Caller("sender", tls=True))
