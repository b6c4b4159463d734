"""Deleting: the writes that delete a name with everything that depends on it."""

from collections.abc import Iterator

from lightrail.cluster.coordinator import Write
from lightrail.cluster.map import unplacing
from lightrail.model import names as spelling
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.own_queues import own_queues
from lightrail.namespace.records import NAMES, PLACED, Name


def writes_of(directory: Directory, record: Name) -> list[Write]:
    """The writes that delete a name, its subscriptions and those to it, and for a router their queues.

    The last one deletes the name itself, at this revision.
    """
    name = record.name
    leaving = [record]
    if record.role is Role.ROUTER:
        # The queues of its subscriptions are deleted as well.
        leaving += _queues_of(directory, name)
        leaving += own_queues(directory, name)
    gone = {each.name for each in leaving} | {spelling.dead_letter_name(each.name) for each in leaving}
    writes = [Write(NAMES + each.name, None) for each in leaving[1:]]
    ended = {each.key: None for each in directory.subscriptions(name)}
    for each in gone:
        ended |= {found.key: None for found in directory.subscriptions_to(each)}
        # The queue of a subscription that is pushed to a URL.
        router, _, id = each.rpartition(f"/{spelling.SUBSCRIPTIONS_SEGMENT}/")
        if (pushed := directory.subscription(router, id)) and pushed.push:
            ended[pushed.key] = None
    writes += [Write(key, None) for key in ended]
    writes += unplacing(each.name for each in reversed(leaving) if each.role in PLACED)
    return [*writes, Write(NAMES + name, None, record.revision)]


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


def _queues_of(directory: Directory, router: str) -> list[Name]:
    """The queues of the subscriptions of a router, and that of its scheduled messages."""
    return [
        *directory.below(f"{router}/{spelling.SUBSCRIPTIONS_SEGMENT}"),
        *directory.below(spelling.scheduled_name(router)),
    ]
