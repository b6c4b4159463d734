"""The namespace of a broker under test, changed as another process would: by its coordinator's file."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from lightrail.cluster.sqlite import FILE_NAME, SqliteCoordinator
from lightrail.model.policy import Policy
from lightrail.namespace.directory import Directory
from lightrail.namespace.listing import every_name
from lightrail.namespace.records import Name, Right, Subscription
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service

Value = TypeVar("Value")


def with_service(data: Path | str, work: Callable[[Service], Awaitable[Value]]) -> Value:
    """Does something with the names of a data directory."""

    async def run() -> Value:
        coordinator = await SqliteCoordinator.open(str(Path(data) / FILE_NAME))
        try:
            directory = Directory(coordinator)
            directory.refresh()
            return await work(Service(coordinator, directory))
        finally:
            await coordinator.close()

    return asyncio.run(run())


def give(data: Path | str, name: str, owner: str = "", **policy: Any) -> Name:
    """Give a name a role: give(data, "a", role="router")."""
    return with_service(data, lambda service: service.give(ANYBODY, name, Policy.parse(policy), owner=owner))


def give_all(data: Path | str, names: Iterable[str], **policy: Any) -> None:
    """Give many names the same role: each change from outside opens the namespace anew."""

    async def work(service: Service) -> None:
        for name in names:
            await service.give(ANYBODY, name, Policy.parse(policy))

    with_service(data, work)


def change(data: Path | str, name: str, **policy: Any) -> Name:
    """Another policy of the same role."""
    return with_service(data, lambda service: service.change(ANYBODY, name, Policy.parse(policy)))


def drop(data: Path | str, name: str) -> None:
    """Take the role of a name away."""
    with_service(data, lambda service: service.drop(ANYBODY, name))


def permit(data: Path | str, user: str, prefix: str, *rights: str) -> None:
    """Set what a user may do; no rights clear it."""
    with_service(data, lambda service: service.permit(ANYBODY, user, prefix, frozenset(map(Right, rights))))


def named(data: Path | str, prefix: str = "") -> list[str]:
    """Names with a role at and below a prefix."""

    async def look(service: Service) -> list[str]:
        found = every_name(service.directory, lambda _: ANYBODY, prefix)
        return [record.name async for record in found]

    return with_service(data, look)


def subscribe(data: Path | str, router: str, target: str, **fields: Any) -> Subscription:
    """Send messages of a router to a target from now on."""
    return with_service(data, lambda service: service.subscribe(ANYBODY, router, target, **fields))


def unsubscribe(data: Path | str, subscription: Subscription) -> None:
    """They do no longer."""
    with_service(data, lambda service: service.unsubscribe(ANYBODY, subscription.router, subscription.id))
