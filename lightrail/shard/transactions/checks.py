"""Checks: whether this shard can do all work of a transaction, before it does any."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from lightrail.model import conditions
from lightrail.shard.effects.answers import RequestError, demand
from lightrail.shard.effects.peers import Peer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.links.ingress.selection import Ahead, Share, index_full, queue_full, share, too_large
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.policy import DISCARD_INCOMING, first_too_large, refuses_batches
from lightrail.shard.queue.values.runs import Batch, Run
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue
from lightrail.shard.transactions.applying import SettledPart, Shares

if TYPE_CHECKING:
    from lightrail.shard.transactions.work import Cancellation, Post, Retirement


Targets = list[tuple[list[Queue], Batch, int | None]]
"""The queues of each post, its messages, and the sequence of the first if it was taken before."""


class Settled(NamedTuple):
    """Deliveries of a consumer of a queue that are not settled, and their runs."""

    queue: Queue
    consumer: Consumer
    retirement: "Retirement"
    runs: list[Run]

    @property
    def part(self) -> SettledPart:
        """Their part of the work."""
        first, last, outcome = self.retirement.first, self.retirement.last, self.retirement.outcome
        command: commands.Settle | commands.SettleDetached
        if self.retirement.key:
            command = commands.SettleDetached(self.retirement.key, first, last, outcome)
        else:
            command = commands.Settle(self.consumer.id, first, last, outcome)
        return SettledPart(self.queue, self.runs, command)


@dataclass(slots=True, eq=False, repr=False)
class Checks:
    """Checks of one shard; each raises RequestError, and nothing has changed."""

    _queues: Queues
    _performer: Performer
    _memory: Memory

    def targets(self, post: "Post", now_ms: int) -> list[Queue]:
        """The queues of a post."""
        found: list[Queue] = []
        for name in post.queues:
            queue = demand(self._queues.open(name, now_ms))
            if self._memory.must_wait(queue):
                # Unlike a full queue, this is no property of the queue: it has room when others are shorter.
                raise RequestError(conditions.RESOURCE_LOCKED, index_full(queue).description)
            found.append(queue)
        return found

    def posts(self, posts: list["Post"], now_ms: int) -> Targets:
        """The queues of all posts; those that take messages under numbers have them free."""
        found = [(self.targets(post, now_ms), post.batch, post.sequence) for post in posts]
        taken: dict[Queue, list[tuple[int, int]]] = {}
        for queues, batch, sequence in found:
            if sequence is not None:
                taken.setdefault(queues[0], []).append((sequence, sequence + batch.count))
        for queue, ranges in taken.items():
            _check_numbers(queue, sorted(ranges))
        return found

    def cancelled(self, cancellations: list["Cancellation"]) -> list[tuple[Queue, int]]:
        """The messages that a transaction cancels, all of which have to be delayed."""
        found: dict[tuple[Queue, int], None] = {}
        for each in cancellations:
            queue = demand(self._queues.for_request(each.queue))
            for sequence in range(each.first, each.last):
                view = queue.view
                if not view.is_delayed(sequence) or view.is_withheld(sequence) or (queue, sequence) in found:
                    raise RequestError(
                        conditions.TRANSACTION_ROLLBACK,
                        f"expected message {sequence} of {queue.name}, which the transaction cancels, to be "
                        "scheduled; it was enqueued, or cancelled before, or another transaction that waits "
                        "for its decision cancels it",
                    )
                found[queue, sequence] = None
        return list(found)

    def shares(self, posts: Targets, now_ms: int) -> Shares:
        """What each queue stores of the batches, by the rules for batches outside of transactions.

        A queue has room for all of its messages, or discards what does not fit, if that is its policy.
        """
        return shares_of(posts, _share, now_ms)

    def all_settled(self, peer: Peer, retirements: list["Retirement"], now_ms: int) -> list[Settled]:
        """The deliveries that a transaction settles, all of which have to be locked."""
        for queue in {self._queues.find(each.queue) for each in retirements if each.key}:
            if queue is not None and queue.is_serving:
                # Ends locks of deferred messages whose time is over.
                self._performer.apply(queue, commands.Tick(), now_ms)
        return [self.settled(peer, each, now_ms) for each in retirements]

    def settled(self, peer: Peer, retirement: "Retirement", now_ms: int) -> Settled:
        """The deliveries of a retirement, all of which have to be locked."""
        queue = demand(self._queues.for_request(retirement.queue))
        first, last = retirement.first, retirement.last
        found = queue.view.holder_of(retirement.key) if retirement.key else _receiver(queue, peer, retirement)
        runs = [] if found is None else found.in_flight.between(first, last)
        if found is None or sum(run.count for run in runs) < last - first:
            raise RequestError(
                conditions.TRANSACTION_ROLLBACK,
                f"deliveries of {queue.name} that the transaction settles are no longer locked: "
                "their lock has expired, or the shard was restarted",
            )
        sessions = queue.view.sessions
        if sessions is not None and not sessions.has_lock(found, now_ms):
            raise RequestError(
                conditions.SESSION_LOCK_LOST,
                f"the lock of the session {found.options.session or ''!a:.80} of {queue.name} has ended",
            )
        return Settled(queue, found, retirement, runs)


def _check_numbers(queue: Queue, ranges: list[tuple[int, int]]) -> None:
    """Checks that a queue adds messages under these numbers. Raises RequestError."""
    apart = all(end <= first for (_, end), (first, _) in pairwise(ranges))
    if not (apart and takes_numbers(queue, ranges)):
        raise RequestError(
            conditions.TRANSACTION_ROLLBACK,
            f"{queue.name} can't schedule messages under the numbers that it gave them: it was deleted and "
            "created again, or delays no messages any more",
        )


def takes_numbers(queue: Queue, ranges: list[tuple[int, int]]) -> bool:
    """Whether a queue adds messages under these sequences, which are in rising order and apart."""
    return queue.view.policy.delay and queue.view.are_free(ranges)


def shares_of(posts: Targets, select: Callable[[Queue, Batch, int, Ahead], Share], now_ms: int) -> Shares:
    """What each queue stores of batches, which are stored one after the other."""
    ahead: dict[Queue, Ahead] = {}
    return [
        (batch, [select(queue, batch, now_ms, ahead.setdefault(queue, Ahead())) for queue in queues], number)
        for queues, batch, number in posts
    ]


def _share(queue: Queue, batch: Batch, now_ms: int, ahead: Ahead) -> Share:
    """The messages of a batch that a queue stores, as in `Admission._admit`. Raises RequestError."""
    policy = queue.view.policy
    if not policy.guarded:
        return share(queue, batch, now_ms, ahead)
    large = first_too_large(policy, batch, 0)
    refusal = None if large is None else too_large(queue, batch, large)
    # Batches that wait for room were sent before.
    if refusal is None and queue.parked and refuses_batches(policy):
        refusal = queue_full(queue)
    if refusal is None:
        found = share(queue, batch, now_ms, ahead)
        if not found.dropped or policy.overflow == DISCARD_INCOMING:
            return found
        # Others may wait for room; a transaction would lock its deliveries meanwhile.
        refusal = queue_full(queue)
        refusal.description += f"; the transaction sends {ahead.messages + found.dropped} messages to it"
    queue.machine.not_stored(refused=batch.count)
    raise RequestError(refusal.condition, refusal.description)


def _receiver(queue: Queue, peer: Peer, retirement: "Retirement") -> Consumer | None:
    """The consumer of a link. Raises RequestError if the link has none here now."""
    consumer = peer.consumers.get(retirement.link)
    if consumer is None or consumer.queue is not queue:
        # The link will be opened in a moment, or has ended: the frontend knows it, and may ask again.
        raise RequestError(
            conditions.MOVED, f"no consumer of {queue.name} has the number {retirement.link} here now"
        )
    return queue.view.consumer(consumer.id)


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
