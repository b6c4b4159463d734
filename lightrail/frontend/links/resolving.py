"""Resolving: the name in an address, its record, and the client's right there."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.scheduling import NO_DELAY, asks_for_delay
from lightrail.frontend.links.terminus import name_of, node_of_message
from lightrail.model import conditions, names
from lightrail.model.policy import Role
from lightrail.namespace.records import Name, Right
from lightrail.namespace.service import policy_at_first_use

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection


async def resolve(
    connection: "ClientConnection", name: str, right: Right, owner: str, expected: Role | None = None
) -> Name:
    """The record of a name after a check of the right; a name without a role becomes a queue if allowed.

    Args:
        owner: owner id for a new queue whose policy has a lifetime.
        expected: the role that the client requests; a name without a role becomes a router only if requested.

    Raises ConditionError.
    """
    frontend = connection.frontend
    frontend.directory.refresh()
    if frontend.lifetimes.is_ending(former := frontend.directory.get(name)):
        await frontend.lifetimes.end_of(former)
    record, role = _find(connection, name, right, expected)
    if role is not None:
        record = await frontend.first_use(record.name, owner, role)
    if frontend.lifetimes.is_ending(record):
        # The first use, which may just have become known here, was that of a connection that has ended.
        raise ConditionError(conditions.RESOURCE_DELETED, f"{record.name} was just deleted; attach again")
    frontend.guard.demand(connection.client, right, record)
    frontend.guard.demand_open(right, record)
    return record


def _find(
    connection: "ClientConnection", name: str, right: Right, expected: Role | None
) -> tuple[Name, Role | None]:
    """The record of a name, and the role that its first use gives it; None if it has one, or gets none.

    Rights are checked first: a client without the right gets no information about the name and creates
    nothing. Raises ConditionError.
    """
    directory = connection.frontend.directory
    directory.refresh()
    record, role = directory.get(name), None
    if record.role is Role.NONE:
        record = directory.get(name := connection.frontend.hooks.name_at(directory, name))
    if record.role is Role.NONE and not names.is_temporary(name):
        template = directory.template(names.owner(name))
        wanted = Role.ROUTER if expected is Role.ROUTER else Role.QUEUE
        given = policy_at_first_use(wanted, template, record) if template else record.policy
        connection.frontend.guard.demand(connection.client, right, Name(name, given))
        if template is not None:
            return Name(name, given), wanted
    return record, role


def check_sendable(
    connection: "ClientConnection", address: str, messages: Sequence[bytes], *, delays: bool
) -> None:
    """Checks that messages may be sent to an address; its name may be created later. Raises ConditionError.

    Args:
        delays: whether messages may request a delay.
    """
    name, expected = name_of(address), node_of_message(messages[0], address)
    record, role = _find(connection, name, Right.SEND, expected)
    connection.frontend.guard.demand(connection.client, Right.SEND, record)
    connection.frontend.guard.demand_open(Right.SEND, record)
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


def no_target(name: str, role: Role) -> ConditionError:
    """The error for messages to a name that is no queue or router."""
    condition = conditions.NOT_FOUND if role is Role.NONE else conditions.NOT_ALLOWED
    return ConditionError(
        condition, f"{name} has role {role}; messages without a target go to queues and routers"
    )
