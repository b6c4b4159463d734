"""Resolving: the name in an address, its record, and the client's right there."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.scheduling import NO_DELAY, asks_for_delay
from lightrail.frontend.links.terminus import name_of, node_of_message
from lightrail.model import conditions, names
from lightrail.model.policy import Role
from lightrail.namespace.records import Name, Right, policy_at_first_use

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend


def names_entities(link: "Link", frontend: "Frontend") -> bool:
    """Whether the names in a link's addresses are those of entities, see FrontendHooks.names_entities."""
    return frontend.hooks.names_entities(link.session.connection.peer_open, link.attach)


async def resolve(
    connection: "ClientConnection",
    name: str,
    right: Right,
    owner: str,
    expected: Role | None = None,
    *,
    entity: bool = False,
) -> Name:
    """The record of a name after a check of the right; a name without a role becomes a queue if allowed.

    Args:
        owner: owner id for a new queue whose policy has a lifetime.
        expected: the role that the client requests; a name without a role becomes a router only if requested.
        entity: whether it is the name of an entity, see FrontendHooks.names_entities.

    Raises ConditionError.
    """
    frontend = connection.frontend
    frontend.directory.refresh()
    if frontend.lifetimes.is_ending(former := frontend.directory.get(name)):
        await frontend.lifetimes.end_of(former)
    record, role = _find(connection, name, right, expected, entity=entity)
    if entity and _lacks(record, role):
        # Created a moment ago by another process, perhaps: an administration client was answered before.
        await frontend.service.catch_up(record.name)
        record, role = _find(connection, name, right, expected, entity=entity)
        if _lacks(record, role):
            raise no_entity(record.name)
    if role is not None:
        record = await frontend.first_use(record.name, owner, role)
    if frontend.lifetimes.is_ending(record):
        # The first use, which may just have become known here, was that of a connection that has ended.
        raise ConditionError(conditions.RESOURCE_DELETED, f"{record.name} was just deleted; attach again")
    frontend.guard.demand(connection.client, right, record)
    frontend.guard.demand_open(right, record)
    return record


def _lacks(record: Name, role: Role | None) -> bool:
    """Whether a name has no role and gets none, and somebody has to give it one."""
    return record.role is Role.NONE and role is None and not names.is_temporary(record.name)


def _find(
    connection: "ClientConnection", name: str, right: Right, expected: Role | None, *, entity: bool
) -> tuple[Name, Role | None]:
    """The record of a name, and the role that its first use gives it; None if it has one, or gets none.

    Rights are checked first: a client without the right gets no information about the name and creates
    nothing. Raises ConditionError.
    """
    frontend = connection.frontend
    directory = frontend.directory
    directory.refresh()
    record = directory.get(name)
    role: Role | None = None
    if record.role is Role.NONE:
        try:
            record = directory.get(name := frontend.hooks.name_at(directory, name, entity))
        except names.InvalidNameError as error:
            raise ConditionError(conditions.NOT_ALLOWED, str(error)) from None
        except ConditionError:
            frontend.guard.demand(connection.client, right, record)
            raise
    if record.role is Role.NONE and not names.is_temporary(name):
        explicit = entity and not frontend.settings.service_bus_auto_create
        template = directory.template(names.owner(name), explicit=explicit)
        wanted = Role.ROUTER if expected is Role.ROUTER else Role.QUEUE
        given = policy_at_first_use(wanted, template, record) if template else record.policy
        connection.frontend.guard.demand(connection.client, right, Name(name, given))
        if template is not None:
            return Name(name, given), wanted
    return record, role


def check_sendable(
    connection: "ClientConnection",
    address: str,
    messages: Sequence[bytes],
    *,
    delays: bool,
    entity: bool = False,
) -> None:
    """Checks that messages may be sent to an address; its name may be created later. Raises ConditionError.

    Args:
        delays: whether messages may request a delay.
        entity: see `resolve`.
    """
    name, expected = name_of(address), node_of_message(messages[0], address)
    record, role = _find(connection, name, Right.SEND, expected, entity=entity)
    connection.frontend.guard.demand(connection.client, Right.SEND, record)
    connection.frontend.guard.demand_open(Right.SEND, record)
    if entity:
        connection.frontend.hooks.admit_address(connection.frontend.directory, record, name)
    if (role or record.role) not in (Role.QUEUE, Role.ROUTER):
        raise no_target(record.name, record.role)
    most, largest = record.policy["max_message_bytes"], max(map(len, messages))
    if most is not None and largest > most:
        raise ConditionError(
            conditions.MESSAGE_SIZE_EXCEEDED,
            f"expected messages of at most {most} bytes for {record.name}, found one of {largest}",
        )
    if delays and (role or record.role) is Role.ROUTER and asks_for_delay(messages):
        raise ConditionError(conditions.NOT_IMPLEMENTED, NO_DELAY)


def no_entity(name: str) -> ConditionError:
    """The error for the name of an entity that nobody has created."""
    queue = names.owner(name)
    return ConditionError(
        conditions.NOT_FOUND,
        f"there is no queue, topic or subscription {name!a:.300}; create it by an administration client or "
        f"`lightrail-admin names set {queue} role=queue`, or set service_bus_auto_create, by which the first "
        "use of a name makes a queue",
    )


def no_target(name: str, role: Role) -> ConditionError:
    """The error for messages to a name that is no queue or router."""
    condition = conditions.NOT_FOUND if role is Role.NONE else conditions.NOT_ALLOWED
    return ConditionError(
        condition, f"{name} has role {role}; messages without a target go to queues and routers"
    )
