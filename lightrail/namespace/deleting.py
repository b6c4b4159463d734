"""What is deleted with a name: everything that depends on it, such as own queues of subscriptions.

Deleting: the writes that delete a name with everything that depends on it.

Own queues: a subscription may have a queue for itself, named after it, which ends with the router.

TOPIC/Subscriptions/NAME is the own queue of the subscription NAME of TOPIC, if the subscription sends to it:
administration clients of Azure Service Bus create it. It is a name like others: it may be listed and
exported, and rights at the topic apply to it.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from lightrail.cluster.coordinator import WRITES_MAX, Write, unchanged
from lightrail.cluster.map import unplacing
from lightrail.model import names as spelling
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import NAMES, PLACED, Name, Subscription

OWN_QUEUE: Final = "Subscriptions"
NO_GUARDS: Final[Mapping[str, int]] = {}


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


def writes_of(directory: Directory, record: Name, guards: Mapping[str, int] = NO_GUARDS) -> list[Write]:
    """The writes that delete a name, its subscriptions and those to it, and for a router their queues.

    The last one deletes the name itself, at this revision; those before it concern the keys of `guards`, at
    their revisions: what is not deleted has to be as it is, 0 for an entry that is not there.
    """
    name = record.name
    leaving = [record]
    if record.role is Role.ROUTER:
        # The queues of its subscriptions are deleted as well.
        leaving += _queues_of(directory, name)
        for queue in own_queues(directory, name):
            leaving += [queue, *_queues_of(directory, queue.name)]
    elif record.role is Role.QUEUE:
        leaving += _queues_of(directory, name)
    gone = {each.name for each in leaving} | {spelling.dead_letter_name(each.name) for each in leaving}
    ended = dict.fromkeys(NAMES + each.name for each in leaving[1:])
    ended |= {each.key: None for each in directory.subscriptions(name)}
    for each in gone:
        ended |= {found.key: None for found in directory.subscriptions_to(each)}
        # The queue of a subscription that is pushed to a URL.
        router, _, id = each.rpartition(f"/{spelling.SUBSCRIPTIONS_SEGMENT}/")
        if (pushed := directory.subscription(router, id)) and pushed.push:
            ended[pushed.key] = None
    writes = [Write(key, None) for key in ended if key not in guards]
    writes += unplacing(each.name for each in reversed(leaving) if each.role in PLACED)
    writes += [Write(key, None, guard) for key, guard in guards.items() if key in ended]
    writes += [unchanged(key, guard) for key, guard in guards.items() if key not in ended]
    return [*writes, Write(NAMES + name, None, record.revision)]


def transactions_of(
    directory: Directory, record: Name, guards: Mapping[str, int] = NO_GUARDS
) -> Iterator[list[Write]]:
    """The transactions with the writes of `writes_of`.

    The name itself is deleted in the last one, so that a deletion that fails can be repeated.
    """
    *before, last = writes_of(directory, record, guards)
    most = WRITES_MAX - 1
    for end in range(len(before) % most or most, len(before), most):
        # A deletion that the name outlives, as somebody has changed it since, is not applied late.
        yield [*before[max(0, end - most) : end], unchanged(NAMES + record.name, record.revision)]
    yield [*before[-most:], last]


def left_behind(directory: Directory, record: Name) -> Iterator[list[Write]]:
    """The transactions that delete what was written between the look and the deletion of a name.

    Such a write depends on the name, so there are none after the deletion; what a later name of this spelling
    has is newer.
    """
    name = record.name
    later = directory.find(name)

    def is_left(created: int) -> bool:
        return later is None or created < later.created

    targets = name, spelling.dead_letter_name(name)
    to = [each for target in targets for each in directory.subscriptions_to(target)]
    for each in [*directory.subscriptions(name), *to]:
        if is_left(each.revision):
            yield [Write(each.key, None, each.revision)]
    for queue in _queues_of(directory, name):
        if is_left(queue.created):
            yield [Write(NAMES + queue.name, None, queue.revision), *unplacing([queue.name])]


def _queues_of(directory: Directory, name: str) -> list[Name]:
    """The queues of subscriptions, of scheduled messages, and of what is not forwarded, of a name."""
    segments = (spelling.SUBSCRIPTIONS_SEGMENT, spelling.SCHEDULED_SEGMENT, spelling.TRANSFER_SEGMENT)
    return [each for segment in segments for each in directory.below(f"{name}/{segment}")]
