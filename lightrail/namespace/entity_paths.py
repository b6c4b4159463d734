"""Entity paths: paths of Azure Service Bus, TOPIC/Subscriptions/NAME, and the queues that they stand for.

In Service Bus, clients receive from a subscription at a path of its topic. Here a subscription sends to a
queue, which may have any name: the path stands for the queue to which the subscription with this id sends. A
name that has a role is never read as a path. `Subscriptions` is compared without regard to case, unlike ids
and topics.
A subscription that an administration client of Service Bus creates has its own queue, whose name is its path,
with a capital S. This queue is deleted with its subscription or its topic.
"""

from collections.abc import Iterator
from typing import Final

from lightrail.model.names import DEAD_LETTER_SEGMENT
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name, Subscription

SUBSCRIPTIONS: Final = "subscriptions"


OWN_QUEUE: Final = "Subscriptions"


class UnknownSubscriptionError(Exception):
    """A path of a router without such a subscription to a queue."""


def entity_name(directory: Directory, name: str) -> str:
    """The name of the queue that a path stands for; any other name unchanged.

    Raises UnknownSubscriptionError.
    """
    if f"/{SUBSCRIPTIONS}/" not in name.lower():
        return name
    path, slash, end = name.rpartition("/")
    dead = slash + end if end == DEAD_LETTER_SEGMENT else ""
    segments = (path if dead else name).split("/")
    if len(segments) < 3 or segments[-2].lower() != SUBSCRIPTIONS:
        return name
    router = "/".join(segments[:-2])
    if directory.get(router).role is not Role.ROUTER or directory.find("/".join(segments)) is not None:
        return name
    found = directory.subscription(router, segments[-1])
    if found is None or found.push:
        what = "no such subscription" if found is None else "a subscription that pushes to a URL"
        raise UnknownSubscriptionError(
            f"{router} has {what}: {segments[-1]!a:.200}; create one that sends to a queue, with this id"
        )
    return found.target + dead


def subscription_at(directory: Directory, path: str) -> Subscription | None:
    """The subscription to a queue that a path such as TOPIC/Subscriptions/NAME stands for."""
    segments = path.split("/")
    if len(segments) < 3 or segments[-2].lower() != SUBSCRIPTIONS:
        return None
    found = directory.subscription("/".join(segments[:-2]), segments[-1])
    return None if found is None or found.push else found


def own_queue(router: str, id: str) -> str:
    """The name of a subscription's own queue."""
    return f"{router}/{OWN_QUEUE}/{id}"


def has_own_queue(subscription: Subscription) -> bool:
    """Whether the target of a subscription is its own queue."""
    return subscription.target == own_queue(subscription.router, subscription.id)


def own_queues(directory: Directory, router: str) -> Iterator[Name]:
    """The own queues of a router's subscriptions."""
    for each in directory.subscriptions(router):
        queue = directory.find(each.target) if has_own_queue(each) else None
        if queue is not None and queue.role is Role.QUEUE:
            yield queue


def is_subscription_queue(directory: Directory, name: str) -> bool:
    """Whether a name is that of a subscription's own queue."""
    router, _, id = name.rpartition(f"/{OWN_QUEUE}/")
    found = directory.subscription(router, id) if router else None
    return found is not None and has_own_queue(found)
