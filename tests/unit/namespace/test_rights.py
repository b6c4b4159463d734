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
from lightrail.namespace.rights import Caller, ForbiddenError, demand_look


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
