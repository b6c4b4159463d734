"""Attaches that Azure Service Bus refuses to its clients, and that other clients may make."""

from typing import TYPE_CHECKING

from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.terminus import name_of, terminus_of
from lightrail.model import conditions
from lightrail.model.names import is_dead_letter, is_system, is_temporary, scheduled_router
from lightrail.model.policy import Role
from lightrail.service_bus.links.sessions import SESSION_FILTER
from lightrail.service_bus.paths import subscription_at

if TYPE_CHECKING:
    from lightrail.frontend.links.bound import Attach
    from lightrail.namespace.directory import Directory
    from lightrail.namespace.records import Name


def refuse_foreign(attach: "Attach") -> None:
    """Raises ConditionError, as the SDKs expect it: they make an InvalidOperationException of it, and do not
    try again."""
    if attach.link.is_sender:
        problem = _receiving(attach)
    else:
        name = name_of(terminus_of(attach.link).address)
        problem = sending_problem(attach.frontend.directory, attach.record, name)
    if problem:
        raise ConditionError(conditions.NOT_ALLOWED, problem)


def refuse_address(directory: "Directory", record: "Name", path: str) -> None:
    """The same for messages that have the path in them. Raises ConditionError.

    Service Bus has no links for such messages. Here they have them, where nothing has to be looked at in each
    message.
    """
    problem = sending_problem(directory, record, path)
    if not problem and record.policy["groups"]:
        problem = f"{record.name} requires sessions: send to it on a link with this target"
    if problem:
        raise ConditionError(conditions.NOT_ALLOWED, problem)


def _receiving(attach: "Attach") -> str:
    name, policy = attach.record.name, attach.record.policy
    # A client that peeks may have a link, as that for Python: what waits in a topic stays visible by it.
    is_open = is_temporary(name) or is_dead_letter(name) or scheduled_router(name) is not None
    if is_system(name) and not is_open:
        return f"{name} is the broker's own, and nobody receives from it"
    if attach.record.role is Role.ROUTER:
        return f"{name} is a topic, from which nobody receives: receive from one of its subscriptions"
    has_sessions = attach.record.role is Role.QUEUE and policy["groups"] and not policy["single_active"]
    if has_sessions and SESSION_FILTER not in (attach.link.source.filter or ()):
        return (
            "It is not possible for an entity that requires sessions to create a non-sessionful message "
            f"receiver: accept a session of {name}"
        )
    return ""


def sending_problem(directory: "Directory", record: "Name", path: str) -> str:
    """Why nobody sends or schedules messages at a path that stands for a name; "" where they may."""
    if is_dead_letter(record.name):
        return f"{record.name} has dead letters, and nobody sends there: send to the queue or the topic"
    if subscription_at(directory, path) is not None:
        return f"{path!a:.300} is a subscription, to which nobody sends: send to its topic"
    return ""
