"""Entity paths: paths of Azure Service Bus, TOPIC/Subscriptions/NAME, and the queues that they stand for.

In Service Bus, clients receive from a subscription at a path of its topic. Here a subscription sends to a
queue, which may have any name: the path stands for the queue to which the subscription with this id sends. A
name that has a role is never read as a path. `Subscriptions` is compared without regard to case, unlike ids
and topics.
"""

from typing import Final

from lightrail.frontend.errors import ConditionError
from lightrail.model import conditions
from lightrail.model.names import DEAD_LETTER_SEGMENT, TRANSFER_SEGMENT
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Subscription

SUBSCRIPTIONS: Final = "subscriptions"


def entity_name(directory: Directory, name: str) -> str:
    """The name of the queue that a path stands for; any other name unchanged.

    Raises ConditionError: a path of a router without such a subscription to a queue.
    """
    if f"/{SUBSCRIPTIONS}/" not in name.lower():
        return name
    path, slash, end = name.rpartition("/")
    dead = slash + end if end == DEAD_LETTER_SEGMENT else ""
    if dead and path.endswith(f"/{TRANSFER_SEGMENT}"):
        path = path.removesuffix(f"/{TRANSFER_SEGMENT}")
        dead = f"/{TRANSFER_SEGMENT}{dead}"
    segments = (path if dead else name).split("/")
    if len(segments) < 3 or segments[-2].lower() != SUBSCRIPTIONS:
        return name
    router = "/".join(segments[:-2])
    if directory.get(router).role is not Role.ROUTER or directory.find("/".join(segments)) is not None:
        return name
    found = directory.subscription(router, segments[-1])
    if found is None or found.push:
        what = "no such subscription" if found is None else "a subscription that pushes to a URL"
        raise ConditionError(
            conditions.NOT_FOUND,
            f"{router} has {what}: {segments[-1]!a:.200}; create one that sends to a queue, with this id",
        )
    return found.target + dead


def subscription_at(directory: Directory, path: str) -> Subscription | None:
    """The subscription to a queue that a path such as TOPIC/Subscriptions/NAME stands for."""
    segments = path.split("/")
    if len(segments) < 3 or segments[-2].lower() != SUBSCRIPTIONS:
        return None
    found = directory.subscription("/".join(segments[:-2]), segments[-1])
    return None if found is None or found.push else found
