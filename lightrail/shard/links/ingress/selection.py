"""Selects the messages of a batch that a queue stores according to its policy.

A batch of which the policy admits nothing gets one of the refusals that are written here.
"""

from typing import NamedTuple

from lightrail.model import conditions, limits
from lightrail.shard.queue.values.policy import (
    DISCARD_INCOMING,
    Policy,
    disabled_text,
    first_too_large,
    largest_message,
    refusal_text,
    refuses_batches,
    room_for,
)
from lightrail.shard.queue.values.runs import Batch, Run, joined
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.bodies import Refusal


def queue_full(queue: Queue) -> Refusal:
    """Why a batch does not fit into a queue."""
    policy = queue.view.policy
    description = refusal_text(policy, queue.name, queue.held, queue.held_bytes)
    return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, description)


def send_disabled(queue: Queue) -> Refusal:
    """Why a queue accepts no messages of senders while its status says so."""
    return Refusal(conditions.ENTITY_DISABLED, disabled_text("sent to"))


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


class Ahead:
    """Messages that a queue will store before those of a batch, as they are in the same transaction."""

    __slots__ = ("bytes", "digests", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.digests: set[bytes] = set()
        """Of their message-ids, if the queue has a window of duplicates."""


class Chosen:
    """The messages of a batch that are not duplicates: `first` to before `stop` of `source`."""

    __slots__ = ("digests", "first", "source", "stop", "where")

    def __init__(
        self, queue: Queue, batch: Batch, first: int, end: int, now_ms: int, ahead: Ahead | None = None
    ) -> None:
        self.source = batch
        self.first = first
        self.stop = end
        self.where: list[int] | None = None
        """The messages' indexes in the batch, if they differ from those in `source`."""
        self.digests: list[bytes | None] | None = None
        """Digests of the message-ids, from `first` on; None without a window of duplicates."""
        fresh = queue.view.fresh(
            batch, first, end, now_ms, ahead.digests if ahead is not None else frozenset()
        )
        if fresh is None:
            return
        self.digests = [each.digest for each in fresh]
        if len(fresh) < end - first:
            self.where = [each.at for each in fresh]
            runs = [Run(batch, at, at + 1, 0) for at in self.where]
            self.source = joined(runs, None) if runs else batch
            self.first = 0
            self.stop = len(runs)

    def after(self, count: int, end: int) -> int:
        """Number of messages of the batch up to the `count`-th chosen one and the duplicates after it."""
        if count == self.stop - self.first:
            return end
        return self.first + count if self.where is None else self.where[count]

    def cut(self, count: int) -> Batch:
        """The first `count` chosen messages as a separate batch."""
        if not self.first and count == self.source.count:
            return self.source
        return joined([Run(self.source, self.first, self.first + count, 0)], None)


class Share(NamedTuple):
    """The messages of a routed batch that one queue stores."""

    queue: Queue
    batch: Batch
    """The routed batch itself if the policy changes nothing about it."""
    digests: list[bytes]
    duplicates: int
    dropped: int


def fitting(queue: Queue, batch: Batch, now_ms: int) -> tuple[int, Refusal | None]:
    """Number of the first messages of a routed batch that fit into a queue now, and why not all fit."""
    policy = queue.view.policy
    large = first_too_large(policy, batch, 0)
    end = batch.count if large is None else large
    if refuses_batches(policy) and policy.overflow != DISCARD_INCOMING:
        chosen = Chosen(queue, batch, 0, end, now_ms)
        room = room_for(policy, queue.held, queue.held_bytes, chosen.source, chosen.first)
        if room < chosen.stop - chosen.first:
            return chosen.after(room, end), queue_full(queue)
    return end, None if large is None else too_large(queue, batch, large)


def share(
    queue: Queue, batch: Batch, now_ms: int, ahead: Ahead | None = None, *, promised: bool = False
) -> Share:
    """The messages of a batch that a queue stores.

    Args:
        ahead: what the queue will store before; the share is added.
        promised: the queue may not refuse messages any more, only discard them, if that is its policy.
    """
    policy = queue.view.policy
    ahead = Ahead() if ahead is None else ahead
    if batch.durable and not policy.guarded:
        # Nothing of the policy concerns it.
        ahead.messages += batch.count
        ahead.bytes += batch.size
        return Share(queue, batch, [], 0, 0)
    mine = batch.copy()
    conform(policy, mine, now_ms)
    chosen = Chosen(queue, mine, 0, mine.count, now_ms, ahead)
    wanted = fits = chosen.stop - chosen.first
    if refuses_batches(policy) and (not promised or policy.overflow == DISCARD_INCOMING):
        held, held_bytes = queue.held + ahead.messages, queue.held_bytes + ahead.bytes
        fits = min(wanted, room_for(policy, held, held_bytes, chosen.source, chosen.first))
    digests = [digest for digest in (chosen.digests or ())[:fits] if digest is not None]
    same = (mine.durable, mine.expires_at_ms) == (batch.durable, batch.expires_at_ms)
    if fits != batch.count:
        mine = chosen.cut(fits) if fits else mine.alike(mine.data, mine.ends, 0, 0, mine.base, mine.location)
    elif same and batch.durable:
        mine = batch
    ahead.messages += mine.count
    ahead.bytes += mine.size
    ahead.digests.update(digests)
    return Share(queue, mine, digests, batch.count - wanted, wanted - fits)


def conform(policy: Policy, batch: Batch, now_ms: int) -> None:
    """Applies the policy to every message: the latest expiry, and whether it is durable."""
    if policy.max_age_ms is not None:
        expires_at_ms = now_ms + policy.max_age_ms
        batch.expires_at_ms = min(batch.expires_at_ms or expires_at_ms, expires_at_ms)
    if policy.durable != "default":
        batch.durable = policy.durable == "always"
