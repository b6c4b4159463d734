"""Refusals of batches by the policy of a queue."""

from lightrail.model import conditions, limits
from lightrail.shard.queue.values.policy import largest_message, refusal_text, room_for
from lightrail.shard.queue.values.runs import Batch
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.bodies import Refusal


def queue_full(queue: Queue) -> Refusal:
    """Why a batch does not fit into a queue."""
    policy = queue.view.policy
    description = refusal_text(policy, queue.name, queue.held, queue.held_bytes)
    return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, description)


def too_large(queue: Queue, batch: Batch, index: int) -> Refusal:
    """Why a queue does not accept a message, by its index in the batch."""
    policy = queue.view.policy
    largest = largest_message(policy)
    return Refusal(
        conditions.MESSAGE_SIZE_EXCEEDED,
        f"queue {queue.name} takes messages of at most {largest} bytes, this one has "
        f"{len(batch.message(index))}",
    )


def never_fits(queue: Queue, batch: Batch, first: int, count: int) -> Refusal | None:
    """Why `count` messages of a batch that is stored whole don't fit into the empty queue, or None."""
    policy = queue.view.policy
    most = room_for(policy, 0, 0, batch, first)
    if most >= count:
        return None
    return Refusal(
        conditions.RESOURCE_LIMIT_EXCEEDED,
        f"queue {queue.name} takes at most {most} of the {count} messages of this batch even when it is "
        "empty; send smaller batches",
    )


def index_full(queue: Queue) -> Refusal:
    """Why a queue with an index accepts no messages now."""
    return Refusal(
        conditions.RESOURCE_LIMIT_EXCEEDED,
        f"queue {queue.name} looks into its messages or expires them, and what its shard keeps of such "
        f"messages in memory has reached its share, memory_mark divided by {limits.INDEX_SHARE}: send again "
        "when receivers have settled some, or give the shard a larger memory_mark",
    )
