"""What is deleted with a name: everything that depends on it, such as own queues of subscriptions.

Deleting: the writes that delete a name with everything that depends on it.

Own queues: a subscription may have a queue for itself, named after it, which ends with the router.

TOPIC/Subscriptions/NAME is the own queue of the subscription NAME of TOPIC, if the subscription sends to it:
administration clients of Azure Service Bus create it. It is a name like others: it may be listed and
exported, and rights at the topic apply to it.
"""

from collections.abc import Iterable, Iterator, Mapping
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


def owner_of(queue: str) -> tuple[str, str]:
    """Router and id of the subscription whose own queue may have this name; empty for other names."""
    router, _, id = queue.rpartition(f"/{OWN_QUEUE}/")
    return router, id if router else ""


def topic_of(queue: str) -> str:
    """The router with which a queue of this name is deleted; empty for other names."""
    name = spelling.transferring(queue)
    return owner_of(name)[0] or spelling.router_of(name) or spelling.scheduled_router(name) or ""


def own_queues(directory: Directory, router: str) -> Iterator[Name]:
    """The own queues of a router's subscriptions."""
    for each in directory.subscriptions(router):
        queue = directory.find(each.target) if has_own_queue(each) else None
        if queue is not None and queue.role is Role.QUEUE:
            yield queue


def is_subscription_queue(directory: Directory, name: str) -> bool:
    """Whether a name is that of a subscription's own queue."""
    router, id = owner_of(name)
    found = directory.subscription(router, id) if router else None
    return found is not None and has_own_queue(found)


def deleted_with(directory: Directory, record: Name) -> list[Name]:
    """The names that are deleted with a name, and the name itself, which is the first."""
    found = [record]
    if record.role is Role.ROUTER:
        # The queues of its subscriptions are deleted as well.
        found += _queues_of(directory, record.name)
        for queue in own_queues(directory, record.name):
            found += [queue, *_queues_of(directory, queue.name)]
    elif record.role is Role.QUEUE:
        found += _queues_of(directory, record.name)
    return found


def transactions_of(
    directory: Directory, record: Name, guards: Mapping[str, int] = NO_GUARDS
) -> Iterator[list[Write]]:
    """The transactions that delete a name, its subscriptions and those to it, and for a router their queues.

    A queue, its placement and the subscription whose own queue it is are deleted together. The name itself is
    deleted in the last one, at this revision, so that a deletion that fails can be repeated.

    Args:
        guards: revisions that keys have to have, 0 for an entry that is not there. What is not deleted is
            checked with the queue on which it depends, or in each transaction.
    """
    *groups, last = _groups(directory, record, dict(guards))
    checks = groups.pop(0)
    # A deletion that the name outlives, as somebody has changed it since, is not applied late.
    kept = [unchanged(each.key, each.guard) for each in last if each.guard is not None]
    most = WRITES_MAX - len(checks) - len(last)
    part: list[Write] = []
    for group in groups:
        if len(part) + len(group) > most:
            yield [*checks, *part, *kept]
            part = []
        part += group
    yield [*checks, *part, *last]


def _groups(directory: Directory, record: Name, guards: dict[str, int]) -> Iterator[list[Write]]:
    """First the checks of each transaction, last the deletion of the name, between them what is deleted at
    once."""
    unplaced = unplacing([record.name]) if record.role in PLACED else []
    of_name = [each._replace(guard=guards.pop(each.key, None)) for each in unplaced]
    queues = deleted_with(directory, record)[1:]
    names = [each.name for each in queues]
    ended = dict.fromkeys(_subscriptions_of(directory, record.name, names))
    ended |= dict.fromkeys(NAMES + each for each in names)
    beside = {each: NAMES + spelling.transfer_name(each) for each in names}
    checked = {key: guards.pop(key) for key in beside.values() if key in guards and key not in ended}
    yield [unchanged(key, guard) for key, guard in guards.items() if key not in ended]
    groups: list[list[Write]] = []
    for each in queues:
        subscription = directory.subscription(*owner_of(each.name))
        keys = [NAMES + each.name, "" if subscription is None else subscription.key]
        group = [Write(key, None, guards.get(key)) for key in keys if key in ended]
        for key in keys:
            ended.pop(key, None)
        group += unplacing([each.name]) if each.role in PLACED else ()
        key = beside[each.name]
        groups.append([*group, unchanged(key, checked[key])] if key in checked else group)
    yield from ([Write(key, None, guards.get(key))] for key in ended)
    yield from groups
    yield [*of_name, Write(NAMES + record.name, None, record.revision)]


def _subscriptions_of(directory: Directory, name: str, queues: Iterable[str]) -> Iterator[str]:
    """The keys of subscriptions from and to a name, and to the queues that are deleted with it."""
    yield from (each.key for each in directory.subscriptions(name))
    for queue in (name, *queues):
        for target in (queue, spelling.dead_letter_name(queue)):
            yield from (found.key for found in directory.subscriptions_to(target))
        # The queue of a subscription that is pushed to a URL.
        router, _, id = queue.rpartition(f"/{spelling.SUBSCRIPTIONS_SEGMENT}/")
        if (pushed := directory.subscription(router, id)) and pushed.push:
            yield pushed.key


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
