"""Entity paths: names as Azure Service Bus spells them, TOPIC/Subscriptions/NAME, and what they are here.

A subscription there is received from under a path of its topic. Here a subscription sends to a queue, which
may have any name: the path stands for the queue that the subscription with this id sends to. A name that has
a role is never read as a path. `Subscriptions` is read without regard to case, ids and topics as they are.
"""

from typing import Final

from lightrail.model.names import DEAD_LETTER_SEGMENT
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory

SUBSCRIPTIONS: Final = "subscriptions"


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
            f"{router} has {what}: {segments[-1]!a:.200}; make one that sends to a queue, with this id"
        )
    return found.target + dead
