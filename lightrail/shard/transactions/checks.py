"""Checks: whether this shard can do all work of a transaction, before it does any."""

from itertools import pairwise
from typing import NamedTuple

from lightrail.model import conditions
from lightrail.shard.ingress.holding import looks_and_full
from lightrail.shard.ingress.refusals import index_full, queue_full
from lightrail.shard.ingress.selection import fitting
from lightrail.shard.memory import Memory
from lightrail.shard.peers import Peer
from lightrail.shard.queue import bounds
from lightrail.shard.queue.consumers import Consumer
from lightrail.shard.queue.runs import Batch, Run, joined
from lightrail.shard.queues import Queues
from lightrail.shard.requests import RequestError
from lightrail.shard.shard_queue import Queue
from lightrail.shard.transactions.work import Post, Retirement
from lightrail.wire.bodies import Refusal


class Settled(NamedTuple):
    """Deliveries of a consumer of a queue that are not settled, and their runs."""

    queue: Queue
    consumer: Consumer
    retirement: Retirement
    runs: list[Run]


class Checks:
    """Checks of one shard; each raises RequestError, and nothing has changed."""

    __slots__ = ("_memory", "_queues")

    def __init__(self, queues: Queues, memory: Memory) -> None:
        self._queues = queues
        self._memory = memory

    def targets(self, post: Post, now_ms: int) -> list[Queue]:
        """The queues of a post."""
        found: list[Queue] = []
        for name in post.queues:
            queue = self._queues.open(name, now_ms)
            if isinstance(queue, Refusal):
                raise RequestError(queue.condition, queue.description)
            if looks_and_full(queue, self._memory):
                refusal = index_full(queue)
                raise RequestError(refusal.condition, refusal.description)
            found.append(queue)
        return found

    def check_room(self, posts: list[tuple[list[Queue], Batch]]) -> None:
        """All messages of the transaction fit into their queues, or none is sent."""
        by_queue: dict[Queue, list[Batch]] = {}
        for queues, batch in posts:
            for queue in queues:
                if queue.machine.contents.policy.guarded or queue.parked:
                    by_queue.setdefault(queue, []).append(batch)
        for queue, batches in by_queue.items():
            whole_batch = batches[0]
            if len(batches) > 1:
                whole_batch = joined([Run(each, 0, each.count, 0) for each in batches], None)
            fits, why = fitting(queue, whole_batch, whole_batch.enqueued_at_ms)
            if fits < whole_batch.count or (queue.parked and bounds.refuses(queue.machine.contents.policy)):
                refusal = why or queue_full(queue)
                queue.machine.contents.counters.refused += whole_batch.count
                raise RequestError(refusal.condition, refusal.description)

    def settled(self, peer: Peer, retirement: Retirement, now_ms: int) -> Settled:
        """The deliveries of a retirement, all of which have to be locked."""
        queue = self._queues.look(retirement.queue)
        if isinstance(queue, Refusal):
            raise RequestError(queue.condition, queue.description)
        first, last = retirement.first, retirement.last
        found = _holder(queue, retirement.key) if retirement.key else _receiver(queue, peer, retirement)
        runs = [] if found is None else found.in_flight.between(first, last)
        if found is None or sum(run.count for run in runs) < last - first:
            raise RequestError(
                conditions.TRANSACTION_ROLLBACK,
                f"deliveries of {queue.name} that the transaction settles are no longer locked: "
                "their lock has expired, or the shard was restarted",
            )
        special = queue.machine.contents.special
        if found.options.is_session and not (
            special is not None and special.sessions is not None and special.sessions.has(found.id, now_ms)
        ):
            raise RequestError(
                conditions.SESSION_LOCK_LOST,
                f"the lock of the session {found.options.session!a:.80} of {queue.name} has ended",
            )
        return Settled(queue, found, retirement, runs)


def _receiver(queue: Queue, peer: Peer, retirement: Retirement) -> Consumer | None:
    """The consumer of a link. Raises RequestError if the link has none here now."""
    consumer = peer.consumers.get(retirement.link)
    if consumer is None or consumer.queue is not queue:
        # The link will be opened in a moment, or has ended: the frontend knows it, and may ask again.
        raise RequestError(
            conditions.MOVED, f"no consumer of {queue.name} has the number {retirement.link} here now"
        )
    return queue.machine.contents.consumers.by_id.get(consumer.id)


def _holder(queue: Queue, key: str) -> Consumer | None:
    """The consumer of deferred messages that are locked under a key, by their sequences."""
    found = queue.machine.contents.locks.by_key.get(key)
    # Other keys are those of links of a gateway, whose deliveries have other numbers.
    return found if found is not None and found.departed else None


def check_apart(settled: list[Settled]) -> None:
    """Checks that no delivery is settled twice. Raises RequestError."""
    by_consumer: dict[int, list[tuple[int, int]]] = {}
    for each in settled:
        by_consumer.setdefault(each.consumer.id, []).append((each.retirement.first, each.retirement.last))
    for ranges in by_consumer.values():
        ranges.sort()
        for (_, end), (first, _) in pairwise(ranges):
            if first < end:
                raise RequestError(
                    conditions.INVALID_FIELD, f"expected each delivery once, found delivery {first} twice"
                )
