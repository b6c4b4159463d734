"""Declaring a topology at a LightRail broker: missing names are created, rules that differ are changed.

Many requests are sent at once, over several links: the broker executes the requests of one link in turn.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from lightrail.client import ClientError, Connection, Management, ManagementError
from lightrail.client.management import NAME, QUEUE, ROUTER, SUBSCRIPTION
from lightrail.transport.errors import TransportError
from lightrail.transport.topology import Subscription, Topology, TopologyError, attributes_of

LINKS: Final = 4
REQUESTS: Final = 10
"""Unanswered requests of one link; the broker allows 20."""
FEW: Final = 50
"""Up to this number entities are read one by one; for more, all names are listed, 500 in a request."""
ROUTER_ATTRIBUTES: Final = {"unroutable": "drop"}
"""An event without subscribers is no error."""
AWAY: Final = 503
"""Errors that may pass: a shard or the coordinator is not connected, or full."""
EXISTS: Final = 409
MISSING: Final = 404
CHANGED: Final = 412
"""Another process has changed the entity while this one did."""
ATTEMPTS: Final = 5
"""How often an entity is read again that other processes change as well."""

Item = TypeVar("Item")


async def declare(connection: Connection, topology: Topology) -> None:
    """Creates queues, routers and subscriptions.

    Raises:
        TopologyError: a name has another role, or the user may not create a missing name.
        TransportError: the connection was lost, or a shard is not connected: try again.
    """
    managements = [connection.management() for _ in range(LINKS)]
    try:
        await asyncio.gather(*(management.opened() for management in managements))
        await _Declaration(managements).run(topology)
    except ManagementError as error:
        if error.status == AWAY:
            raise TransportError(f"the topology can't be made now: {error}") from error
        raise TopologyError(f"the topology could not be made: {error}") from error
    except ClientError as error:
        raise TransportError(f"the topology can't be made now: {error}") from error
    finally:
        await asyncio.gather(*(management.close() for management in managements))


class _Declaration:
    def __init__(self, managements: list[Management]) -> None:
        self._managements = managements

    async def run(self, topology: Topology) -> None:
        names: dict[str, tuple[str, Mapping[str, Any]]] = {
            name: (QUEUE, attributes_of(rules)) for name, rules in topology.queues.items()
        }
        names |= dict.fromkeys(topology.routers, (ROUTER, ROUTER_ATTRIBUTES))
        found = await self._found(NAME, names)
        await self._each(
            names, lambda management, name: self._name(management, name, *names[name], found.get(name))
        )
        subscriptions = {f"{each.router}//{each.id}": each for each in topology.subscriptions}
        found = await self._found(SUBSCRIPTION, subscriptions)
        await self._each(
            subscriptions,
            lambda management, key: self._subscription(management, key, subscriptions[key], found.get(key)),
        )

    async def _found(self, type: str, wanted: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """The entities that exist, by name."""
        names = set(wanted)
        found: dict[str, Mapping[str, Any]] = {}
        if len(names) > FEW:
            shown = ("name", "type", "given") if type == NAME else ("name", "target", "filter")
            async for each in self._managements[0].query(type, *shown):
                if each["name"] in names:
                    found[str(each["name"])] = each
            return found

        async def read(management: Management, name: str) -> None:
            try:
                found[name] = await management.read(name, type)
            except ManagementError as error:
                if error.status != MISSING:
                    raise

        await self._each(names, read)
        return found

    async def _each(self, items: Iterable[Item], call: Callable[[Management, Item], Awaitable[None]]) -> None:
        """Calls a function for all items, each with one of the links; a few calls share a link."""
        left = iter(list(items))

        async def work(management: Management) -> None:
            for item in left:
                await call(management, item)

        try:
            async with asyncio.TaskGroup() as tasks:
                for management in self._managements:
                    for _ in range(REQUESTS):
                        tasks.create_task(work(management))
        except ExceptionGroup as group:
            # Other calls have failed for similar reasons.
            raise group.exceptions[0] from None

    async def _name(
        self,
        management: Management,
        name: str,
        type: str,
        attributes: Mapping[str, Any],
        found: Mapping[str, Any] | None,
    ) -> None:
        if found is None:
            found = await self._created(management, type, name, attributes)
        for attempt in range(ATTEMPTS):
            if found is None:
                return
            changes = _changes(name, type, attributes, found)
            if not changes or await self._updated(management, name, NAME, changes, attempt):
                return
            found = await management.read(name)

    async def _subscription(
        self, management: Management, key: str, wanted: Subscription, found: Mapping[str, Any] | None
    ) -> None:
        fields = {
            "target": wanted.target,
            "filter": None if wanted.subject is None else {"subject": wanted.subject},
        }
        if found is None:
            made = {name: value for name, value in fields.items() if value is not None}
            found = await self._created(management, SUBSCRIPTION, key, made)
        for attempt in range(ATTEMPTS):
            if found is None or {name: found.get(name) for name in fields} == fields:
                return
            if await self._updated(management, key, SUBSCRIPTION, fields, attempt):
                return
            found = await management.read(key, SUBSCRIPTION)

    @staticmethod
    async def _created(
        management: Management, type: str, name: str, attributes: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Creates an entity; returns the one that another process has created meanwhile."""
        try:
            await management.create(type, name, attributes)
        except ManagementError as error:
            if error.status != EXISTS:
                raise
            return await management.read(name, SUBSCRIPTION if type == SUBSCRIPTION else NAME)
        return None

    @staticmethod
    async def _updated(
        management: Management, name: str, type: str, changes: Mapping[str, Any], attempt: int
    ) -> bool:
        """Changes an entity; False if another process has changed it meanwhile."""
        try:
            await management.update(name, changes, type=type)
        except ManagementError as error:
            if error.status != CHANGED or attempt == ATTEMPTS - 1:
                raise
            return False
        return True


def _changes(name: str, type: str, attributes: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """What differs between wanted attributes and those of a name. Raises TopologyError for another role."""
    wanted = dict(attributes)
    if found["type"] != type:
        if found["type"] != NAME:
            raise TopologyError(
                f"{name}: expected {_role(type)}, found {_role(str(found['type']))} at the broker: "
                "delete it, or give the bus other names by its conventions"
            )
        wanted = {"role": type.rpartition(".")[2]} | wanted
    given = found.get("given") or {}
    return {key: value for key, value in wanted.items() if given.get(key, _DEFAULTS.get(key)) != value}


_DEFAULTS: Final[Mapping[str, Any]] = {"delay": False, "groups": False}
"""Default values, which the broker leaves out of the attributes that it returns."""


def _role(type: str) -> str:
    return f"a {type.rpartition('.')[2]}"
