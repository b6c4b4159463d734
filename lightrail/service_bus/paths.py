"""Entity paths: paths of Azure Service Bus, TOPIC/Subscriptions/NAME, and the queues that they stand for.

In Service Bus, clients receive from a subscription at a path of its topic. Here a subscription sends to a
queue, which may have any name: the path stands for the queue to which the subscription with this id sends. A
name that has a role is never read as a path. `Subscriptions` is compared without regard to case.

To these clients case makes no difference in names at all: what they address is the name that exists
(Directory.resolve). Other clients write ids and topics as they are.
"""

from lightrail.frontend.errors import ConditionError
from lightrail.model import conditions
from lightrail.model.names import DEAD_LETTER_SEGMENT, TRANSFER_SEGMENT
from lightrail.model.policy import Role
from lightrail.namespace.deleting import OWN_QUEUE
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Subscription
from lightrail.service_bus.spelling import SUBSCRIPTIONS


def entity_name(directory: Directory, name: str, folds: bool = True) -> str:
    """The name of the queue that a path stands for; any other name unchanged, or as it is spelled.

    Args:
        folds: whether case makes no difference.

    Raises:
        ConditionError: a path of a router without such a subscription to a queue.
        InvalidNameError: case alone distinguishes several names.
    """
    if folds:
        name = directory.resolve(name)
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
    router, id = "/".join(segments[:-2]), segments[-1]
    if folds:
        router = directory.resolve(router)
    if directory.get(router).role is not Role.ROUTER or directory.find("/".join(segments)) is not None:
        return name
    found = directory.subscription(router, directory.resolve_subscription(router, id) if folds else id)
    if found is None or found.push:
        what = "no such subscription" if found is None else "a subscription that pushes to a URL"
        raise ConditionError(
            conditions.NOT_FOUND,
            f"{router} has {what}: {id!a:.200}; create one that sends to a queue, with this id",
        )
    return found.target + dead


def is_of_subscription(queue: str) -> bool:
    """Whether a queue has the name of a subscription's own queue, or is that of its dead letters."""
    return f"/{OWN_QUEUE}/" in queue


def subscription_at(directory: Directory, path: str) -> Subscription | None:
    """The subscription to a queue that a path such as TOPIC/Subscriptions/NAME stands for."""
    segments = path.split("/")
    if len(segments) < 3 or segments[-2].lower() != SUBSCRIPTIONS:
        return None
    router = directory.resolve("/".join(segments[:-2]))
    found = directory.subscription(router, directory.resolve_subscription(router, segments[-1]))
    return None if found is None or found.push else found
