"""Restoring: the durable receivers of a recovered queue, as consumers without a link; what is kept."""

import logging
from dataclasses import replace
from typing import Final

from lightrail.filters.errors import FilterError
from lightrail.model.policy import Role
from lightrail.shard.effects.performer import Performer
from lightrail.shard.effects.receiving_link import Key, Origin
from lightrail.shard.journal.store import RecoveredQueue
from lightrail.shard.links.receiving.consumer_options import options_of
from lightrail.shard.links.receiving.receiving_links import ReceivingLinks
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.commands import Holder
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import WireError

LOG_NAMES_MAX: Final[int] = 20
"""Queues that the log names; the others are counted."""

log = logging.getLogger("lightrail.shard.links.receiving.restoring")


def receivers_of(
    found: RecoveredQueue, queues: Queues, receiving: ReceivingLinks
) -> tuple[list[Holder], dict[int, Origin]]:
    """The consumers of a recovered queue with their deliveries, and the origin of each by its number.

    A receiver whose opening can't be read is skipped, and its messages are ready.
    """
    holders: list[Holder] = []
    origins: dict[int, Origin] = {}
    for each in found.receivers:
        try:
            opened = ConsumerOpen.decode(each.opening)
            options = options_of(opened, queues.looks)
        except (WireError, FilterError) as error:
            log.error("a suspended link of queue %s can't be restored: %s", found.name, error)
            continue
        id = receiving.next_number()
        holders.append(Holder(id, replace(options, first=each.next), each.next, each.runs))
        origins[id] = Origin(_key_of(opened), opened, has_ended=True)
    return holders, origins


def open_restored(
    queue: Queue,
    holders: list[Holder],
    origins: dict[int, Origin],
    queues: Queues,
    receiving: ReceivingLinks,
    performer: Performer,
    now_ms: int,
) -> None:
    """Opens a queue that was restored as a copy, with suspended consumers that have these deliveries."""
    seen_to = queue.view.deliveries.seen_to
    opened = commands.Open(queues.policy_of(queue.record), holders, seen_to=seen_to)
    # The machine ends links of sessions at once if the queue has none any more.
    receiving.add(queue, origins, {each.consumer: each.deliveries for each in holders})
    performer.apply(queue, opened, now_ms)
    receiving.restore(queue, now_ms)


def report_kept(unknown: list[Queue]) -> None:
    """Logs queues that are kept and not served after a start."""
    for queue in unknown[:LOG_NAMES_MAX]:
        if queue.record.role is Role.QUEUE:
            log.warning(
                "queue %s, which has %d messages, has no placement at this shard in the coordinator: it "
                "is kept, not served",
                queue.name,
                queue.view.held,
            )
            continue
        log.warning(
            "the coordinator knows no queue %s, which has %d messages: it is kept, not served. Give the "
            "name the role queue to have them again, and drop it after that to be rid of them",
            queue.name,
            queue.view.held,
        )
    if len(unknown) > LOG_NAMES_MAX:
        log.warning("%d further queues are kept, not served", len(unknown) - LOG_NAMES_MAX)


def _key_of(opened: ConsumerOpen) -> Key:
    """The frontend's link that was the first one of a client's link, for a consumer without a later one."""
    return opened.terminus >> 32, opened.terminus & 0xFFFF_FFFF
