"""Arrangement: the data structures of a queue's messages, by its policy and the selectors of its consumers.

The arrangement is made again after a restart, after a move of the queue, and when the policy changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappush
from typing import Any, Final

from lightrail.model.attempts import failures, waits_until_ms
from lightrail.shard.queue.changes import reserved
from lightrail.shard.queue.changes.contents import Contents, Joining
from lightrail.shard.queue.changes.copying import holders_of
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.lines.merging import join_neighbours, merge_evicted, on_disk, whole
from lightrail.shard.queue.lines.ready import Ready, rejoined
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.order.order import Order
from lightrail.shard.queue.order.ordering import Ordering
from lightrail.shard.queue.timed.windows import Duplicates
from lightrail.shard.queue.values.commands import Open, Past, Restore
from lightrail.shard.queue.values.effects import Effect
from lightrail.shard.queue.values.keys import Look
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Run

DEAD_LETTER_SUFFIX: Final = "/$dlq"


class Arrangement:
    """Arranges the contents of one queue.

    Args:
        name: of the queue; one that ends with `/$dlq` never dead-letters.
        look: see `Look`; without it no message has a key, a group, a delay or an id.
    """

    __slots__ = ("_contents", "_joining", "_look", "_name", "_selecting", "_withheld", "effects")

    def __init__(self, name: str, contents: Contents, joining: Joining, look: Look | None) -> None:
        self._name = name
        self._contents = contents
        self._joining = joining
        self._look = look or _no_fields
        self._selecting = 0
        """Number of consumers with selectors."""
        self._withheld: Sequence[int] = ()
        """Of a copy: sequences of messages that stay delayed when it is opened; see Withhold."""
        self.effects: list[Effect] = []
        """Effects of messages that left the queue under its last policy, for the next dispatch."""

    def restore(self, command: Restore, now_ms: int) -> None:
        """Adds the messages that a store recovered to a new queue."""
        contents = self._contents
        assert not contents.next_sequence, "expected a new machine to restore into"
        runs = [
            on_disk(run, run.count, run.size, run.batch.location) if run.batch.data is None else run
            for run in command.runs
        ]
        special = contents.special
        if command.joins and (special is None or not special.singles):
            # Joined messages share the earliest time of arrival, but delays need the time of each message.
            runs = join_neighbours(runs)
        if not command.is_copy:
            runs = [_bounded(run, contents.policy, now_ms) for run in runs]
        for run in merge_evicted(runs, {}):
            contents.counters.restored += run.count
            if run.is_aside and not command.is_copy:
                contents.set_aside(run)
                continue
            contents.ready.add(run)
            contents.deadlines.add(run)
        if command.reserved:
            reserved.restore(contents, command.reserved)
        contents.next_sequence = command.next_sequence
        self._joining.begin(command.next_sequence)
        contents.deliveries.seen_to = command.seen_to
        if special is not None:
            if special.delays is not None:
                special.delays.withheld = dict.fromkeys(command.withheld)
            special.build(Past(), now_ms)
        elif command.is_copy:
            self._withheld = command.withheld
        if contents.deliveries.order is not None:
            contents.deliveries.order.enqueued(command.next_sequence)
        self._know(command.ids)

    def open(self, command: Open, now_ms: int) -> None:
        """Makes a copy the queue itself, with its consumers and their deliveries."""
        contents = self._contents
        active: Consumer | None = None
        deliveries = contents.deliveries
        found = [*holders_of(command.holders, contents.ready)]
        reserved.own_again(contents, [each for each in found if each[1].keeps_locks], command.locks)
        for holder, consumer in found:
            if consumer.departed and not len(consumer.in_flight):
                # A transaction has reserved its deliveries, or they were removed.
                continue
            contents.consumers.adopt(consumer)
            self._selecting += consumer.options.selects is not None and not consumer.departed
            if consumer.options.lock_key and consumer.departed:
                contents.locks.restored(consumer)
            elif consumer.options.lock_key:
                contents.locks.by_key[consumer.options.lock_key] = consumer
            if holder.active:
                active = consumer
            for run in consumer.in_flight.runs:
                deliveries.take_over(run)
        contents.locks.restore(command.locks)
        for consumer in contents.locks.keyed():
            contents.locks.note(consumer)
        self._set_all_aside(command.policy, now_ms)
        deliveries.seen_to = command.seen_to
        self._know(command.ids)
        self._joining.begin(contents.next_sequence)
        self.follow(command.policy, now_ms, command.past)
        self._withheld = ()
        contents.locks.pack()
        if active is not None:
            contents.consumers.activate(active)
        contents.deadlines.thin(contents.expiring())

    def _set_all_aside(self, policy: Policy, now_ms: int) -> None:
        """Moves deferred and waiting messages out of the line of a copy."""
        ready = self._contents.ready
        runs = ready.waiting()
        if any(run.is_aside for run in runs):
            runs = [_bounded(run, policy, now_ms) for run in runs]
            ready.swap(ready.head, len(ready.runs), [run for run in runs if not run.is_aside])
            for run in runs:
                if run.is_aside:
                    self._contents.set_aside(run)

    def _wait_anew(self, policy: Policy, now_ms: int) -> None:
        """Lets no message wait longer than another policy says, from now on."""
        contents = self._contents
        for run in [] if contents.retries is None else contents.retries.everything():
            contents.deliveries.leave(run)
            bounded = _bounded(run, policy, now_ms)
            # The end of a lock makes it ready, in this turn's work.
            contents.set_aside(bounded if bounded.waits else run.until(now_ms))

    def _know(self, ids: Sequence[tuple[int, bytes]]) -> None:
        if ids:
            contents = self._contents
            # The policy, which may be set later, decides whether they are needed.
            contents.duplicates = contents.duplicates or Duplicates(self._look)
            contents.duplicates.restore(ids)

    def follow(self, policy: Policy, now_ms: int, past: Past | None = None) -> None:
        """Applies another policy, and arranges the waiting messages accordingly.

        Messages in flight stay with their consumers. A dispatch should follow. Raises ValueError for a policy
        with features that do not combine.
        """
        contents = self._contents
        policy.check()
        if self._name.endswith(DEAD_LETTER_SUFFIX):
            policy = replace(policy, dead_letter=False)
        before, contents.policy = contents.policy, policy
        if policy.retries != before.retries:
            self._wait_anew(policy, now_ms)
        if past is not None or policy.arrangement != before.arrangement:
            self._arrange(policy, now_ms, past)
        contents.locks.ended.follow(policy.lock_ms)
        for consumer in contents.consumers.follow(policy):
            contents.locks.begin(consumer, now_ms)
        if policy.duplicate_window_ms is None:
            contents.duplicates = None
        elif contents.duplicates is None:
            contents.duplicates = Duplicates(self._look)

    def _arrange(self, policy: Policy, now_ms: int, past: Past | None) -> None:
        """Arranges the waiting messages for this policy."""
        contents = self._contents
        runs = contents.waiting()
        delays = None if contents.special is None else contents.special.delays
        withheld = self._withheld if delays is None else delays.withheld
        if contents.special is not None:
            contents.special.replacing.tell(self.effects)
            if self.effects:
                # An entry that expires nothing, so that the next dispatch reaches its time and adds the
                # effects.
                heappush(contents.deadlines.heap, (0, 0, 0))
        sparse = Sparse(singles=policy.reads_messages) if policy.is_special else None
        ready = Ready() if sparse is None else sparse
        for run in merge_evicted([whole(run) for run in rejoined(runs)], contents.eviction.fetching):
            ready.add(run)
        contents.ready = contents.deliveries.ready = ready
        contents.eviction.follow(ready, None, joins=True)
        for consumer in contents.consumers:
            consumer.in_flight.evicted_to = 0
            if consumer.ring is not None:
                consumer.cursor = 0
        contents.consumers.passed_over = False
        contents.special = contents.deliveries.order = None
        if policy.groups:
            contents.deferred.disown()
            reserved.disown(contents)
        if sparse is not None:
            contents.special = Ordering(
                policy,
                self._look,
                sparse,
                contents.consumers,
                contents.eviction,
                contents.deliveries,
                contents.counters,
                contents.work,
            )
            if contents.special.delays is not None:
                contents.special.delays.withheld = dict.fromkeys(withheld)
            contents.special.build(past or Past(), now_ms)
            contents.deliveries.order = contents.special.order
            contents.special.order.enqueued(contents.next_sequence)
        elif self._selecting:
            order = contents.deliveries.order = Order(
                ready, contents.eviction, contents.deliveries, contents.next_sequence
            )
            for consumer in contents.consumers.by_id.values():
                order.attach(consumer)

    def attached(self, consumer: Consumer) -> None:
        """Notes that a consumer with a selector has attached, or any consumer to a queue with an order."""
        self._selecting += consumer.options.selects is not None
        contents = self._contents
        order = contents.deliveries.order
        if order is None:
            order = Order(contents.ready, contents.eviction, contents.deliveries, contents.next_sequence)
            contents.deliveries.order = order
        order.attach(consumer)

    def detached(self, consumer: Consumer, order: Order) -> None:
        """Notes that a consumer of a queue with an order has detached."""
        contents = self._contents
        self._selecting -= consumer.options.selects is not None
        order.detach(consumer)
        if contents.special is None and not self._selecting:
            contents.deliveries.order = None

    @property
    def may_keep(self) -> bool:
        """Whether messages may be ready that no consumer can get, whatever its credit."""
        contents = self._contents
        return bool(self._selecting or contents.policy.groups or contents.ready.barred_runs)


def _bounded(run: Run, policy: Policy, now_ms: int) -> Run:
    """The same messages; waiting ones wait no longer than the policy says, counted from now, and not at all
    if their time has come."""
    if not run.waits:
        return run
    until_ms = min(waits_until_ms(run.attempts), now_ms + policy.retry_ms(failures(run.attempts)))
    return run.until(until_ms if until_ms > now_ms else 0)


def _no_fields(path: str) -> Callable[[bytes], Any]:
    """A `Look` that finds no field in any message."""
    return lambda message: None
