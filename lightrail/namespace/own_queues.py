"""Own queues: a subscription may have a queue for itself, named after it, which ends with the router.

TOPIC/Subscriptions/NAME is the own queue of the subscription NAME of TOPIC, if the subscription sends to it:
administration clients of Azure Service Bus create it. It is a name like others: it may be listed and
exported, and rights at the topic apply to it.
"""

from collections.abc import Iterator
from typing import Final

from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name, Subscription

OWN_QUEUE: Final = "Subscriptions"


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
