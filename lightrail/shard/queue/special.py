"""Special: what a queue with priorities, keys, groups or delays does with a message before it is ready.

It cuts batches into single messages where the queue looks into them, holds back what is delayed, lets newer
messages replace older ones, and builds all of this anew after a restart or a change of policy. Until every
message that has to be looked into is in memory, nobody gets any.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from lightrail.model import limits, orders
from lightrail.shard.queue.commands import Past
from lightrail.shard.queue.consumers import Consumers
from lightrail.shard.queue.counters import Counters
from lightrail.shard.queue.delays import Delays
from lightrail.shard.queue.deliveries import Deliveries
from lightrail.shard.queue.effects import Effect, Fetch, Reason, Removed
from lightrail.shard.queue.eviction import Eviction
from lightrail.shard.queue.groups import Groups
from lightrail.shard.queue.keys import MISSING, Key, key_of
from lightrail.shard.queue.last_values import LastValues
from lightrail.shard.queue.order import Order
from lightrail.shard.queue.policy import Policy
from lightrail.shard.queue.ranked import Ranked
from lightrail.shard.queue.runs import Batch, Run
from lightrail.shard.queue.sparse import Sparse

Look = Callable[[str], Callable[[bytes], Any]]
"""Makes of a path what reads that field from an encoded message; None where there is none."""

GROUP_PATH: Final = "properties.group-id"


class Special:
    """The way in of one special queue, and the order that it feeds."""

    __slots__ = (
        "_consumers",
        "_counters",
        "_eviction",
        "_key",
        "_policy",
        "_removed",
        "_values",
        "delays",
        "loading",
        "order",
        "past",
        "ready",
        "singles",
    )

    def __init__(
        self,
        policy: Policy,
        look: Look,
        ready: Sparse,
        consumers: Consumers,
        eviction: Eviction,
        deliveries: Deliveries,
        counters: Counters,
    ) -> None:
        self._policy = policy
        self.ready = ready
        self._consumers = consumers
        self._eviction = eviction
        self._counters = counters
        self.singles = policy.reads_messages
        """Whether every message is a run of its own, in memory."""
        self.loading = False
        """Whether messages have to come from disk before they can be looked into."""
        self.delays = Delays(look) if policy.delay else None
        self._removed: list[Effect] = []
        """What was replaced since the last dispatch."""
        self._key: Callable[[bytes], Any] | None = None
        if policy.order != orders.FIFO:
            self._key = look(policy.order_key)
        elif policy.groups:
            self._key = look(GROUP_PATH)
        self.past = Past()
        """What was known elsewhere, and has yet to be built in."""
        self._values = LastValues() if policy.order == orders.LAST_VALUE else None
        self.order: Order
        if policy.groups:
            self.order = Groups(ready, eviction, deliveries, self._group_of)
        elif policy.order == orders.SORTED:
            self.order = Ranked(ready, eviction, deliveries, self._key_of)
        elif policy.priorities > 1:
            self.order = Ranked(ready, eviction, deliveries, self._level_of)
        else:
            self.order = Order(ready, eviction, deliveries)
        eviction.joins = not self.singles
        for consumer in consumers.by_id.values():
            self.order.attach(consumer)

    # --- what a message says --------------------------------------------------------------------------

    def _level_of(self, run: Run) -> int:
        return -orders.level(run.batch.priority, self._policy.priorities)

    def _key_of(self, run: Run) -> Key:
        if self._key is None or run.batch.message_format:
            return MISSING
        return key_of(self._key(run.batch.message(run.first)))

    def _group_of(self, run: Run) -> Hashable:
        key = self._key_of(run)
        return None if key == MISSING else key

    # --- ways in --------------------------------------------------------------------------------------

    def enqueue(self, batch: Batch, sequence: int, now_ms: int) -> Run:
        """Takes a batch in under its first sequence."""
        self.order.enqueued(sequence + batch.count)
        run = Run(batch, 0, batch.count, sequence)
        if self.loading:
            self.ready.add(run)
        else:
            self._take_in(run, now_ms)
        return run

    def give_back(self, run: Run) -> None:
        """Takes in what was in flight; its time has come before."""
        if self.loading:
            self.ready.give_back(run)
            return
        for piece in self._pieces(run):
            if self._values is None or not self._is_replaced(piece):
                self.ready.give_back(piece)
                self.order.returned(piece)

    def _take_in(self, run: Run, now_ms: int) -> None:
        delays = self.delays
        for piece in self._pieces(run):
            if delays is not None and not piece.batch.message_format:
                due_ms = delays.due_ms(piece)
                if due_ms > now_ms:
                    delays.add(piece, due_ms)
                    continue
            if self._values is None or not self._is_replaced(piece):
                self.ready.add(piece)
                self.order.arrived(piece)

    def _pieces(self, run: Run) -> list[Run]:
        """The run, message by message where the queue looks into them."""
        if not self.singles or run.last - run.first == 1:
            return [run]
        batch, shift = run.batch, run.sequence - run.first
        return [
            Run(batch, index, index + 1, shift + index, run.attempts, run.barred)
            for index in range(run.first, run.last)
        ]

    # --- last values ----------------------------------------------------------------------------------

    def _is_replaced(self, run: Run) -> bool:
        """Replaces the older one of a message and the one with its key; True if the older one is this."""
        key = self._key_of(run)
        if self._values is None or key == MISSING:
            return False
        older = self._values.note(key, run.sequence)
        if older == run.sequence:
            self._drop(run)
            return True
        if older >= 0:
            index = self.ready.find(older, older + 1)
            if index >= 0:
                self._drop(self.ready.take_single(index)[0])
        return False

    def _drop(self, run: Run) -> None:
        self._counters.replaced += 1
        self._removed.append(Removed(run.batch, run.sequence, run.end, run.size, Reason.REPLACED))

    def _thin(self, values: LastValues) -> None:
        """Forgets keys that are not needed, when many: between steps, when every message is somewhere."""
        pieces = [piece for run in self._held_back() for piece in self._pieces(run)]
        values.thin({self._key_of(piece) for piece in pieces}, len(pieces), self.ready.has)

    def _held_back(self) -> list[Run]:
        """What is in flight or delayed: it may come back to a newer one of its key."""
        runs = [run for each in self._consumers for run in each.in_flight.runs[each.in_flight.head :]]
        if self.delays is not None:
            runs += self.delays.line.waiting()
        return runs

    # --- ways out -------------------------------------------------------------------------------------

    def cancel(self, sequence: int) -> Run | None:
        """Takes a delayed message out, None if it is not delayed."""
        return None if self.delays is None else self.delays.take(sequence)

    def clear(self) -> list[Run]:
        """Takes out everything that is ready or delayed."""
        runs = self.waiting()
        self.ready.clear()
        if self.delays is not None:
            self.delays.line.clear()
        self.order.cleared()
        return runs

    def waiting(self) -> list[Run]:
        """Everything that is ready or delayed, by sequence."""
        runs = self.ready.waiting()
        if self.delays is not None:
            runs = sorted(runs + self.delays.line.waiting(), key=lambda run: run.sequence)
        return runs

    # --- time -----------------------------------------------------------------------------------------

    def prepare(self, now_ms: int, effects: list[Effect]) -> None:
        """Before a dispatch: wakes what is due, asks for what is missing, tells what was replaced."""
        self.wake(now_ms)
        if self.loading:
            self._load(now_ms, effects)
        if self._values is not None and self._values.many:
            self._thin(self._values)
        self.tell(effects)

    def tell(self, effects: list[Effect]) -> None:
        """Says what was replaced: not before the engine has given its batch a place."""
        if self._removed:
            effects.extend(self._removed)
            self._removed = []

    def wake(self, now_ms: int) -> None:
        """What is due becomes ready, at its place by sequence."""
        if self.delays is not None:
            for run in self.delays.take_due(now_ms):
                self.give_back(run)
                if self._consumers.passed_over:
                    self._consumers.look_again(run.sequence)

    @property
    def next_ms(self) -> int | None:
        """When something has to be done: 0 for at once."""
        if self._removed or self.order.unfinished or (self.loading and self._may_ask):
            return 0
        return None if self.delays is None else self.delays.next_ms

    # --- building -------------------------------------------------------------------------------------

    def build(self, now_ms: int) -> None:
        """Puts what is in the line, in no order yet, into its order; what has to be read first is awaited."""
        self.loading = self.order.loading = self.singles and self.ready.evicted_runs > 0
        if self.loading:
            return
        past, self.past = self.past, Past()
        if isinstance(self.order, Groups):
            self._own(self.order, past.owners)
        newest = past.newest or {}
        if isinstance(self.order, Groups) or self._values is not None:
            for consumer in self._consumers:
                for run in consumer.in_flight.runs[consumer.in_flight.head :]:
                    for piece in self._pieces(run):
                        if isinstance(self.order, Groups):
                            stays = consumer.id in self._consumers.by_id and past.owners is None
                            self.order.held(consumer, piece, stays)
                        elif self._values is not None and (key := self._key_of(piece)) != MISSING:
                            self._values.note(key, newest.get(piece.sequence, piece.sequence))
        if self._values is not None:
            for sequence, above in newest.items():
                waiting = self._waiting_at(sequence)
                if waiting is not None:
                    self._values.note(self._key_of(waiting), above)
        for run in self.ready.clear():
            self._take_in(run, now_ms)

    def _own(self, order: Groups, owners: Mapping[int, int] | None) -> None:
        """Groups have the owners that they had elsewhere, as far as those are still here."""
        if not owners:
            return
        for consumer in self._consumers:
            for run in consumer.in_flight.runs[consumer.in_flight.head :]:
                for piece in self._pieces(run):
                    if owners.get(piece.sequence) in self._consumers.by_id:
                        order.assign(piece, owners[piece.sequence])
        for sequence, owner in owners.items():
            waiting = self._waiting_at(sequence)
            if owner in self._consumers.by_id and waiting is not None:
                order.assign(waiting, owner)

    def _waiting_at(self, sequence: int) -> Run | None:
        """One message of the line, before it is built."""
        index = self.ready.find(sequence, sequence + 1)
        if index < 0:
            return None
        run = self.ready.runs[index]
        return run.cut(sequence - run.sequence, sequence - run.sequence + 1)

    def known(self) -> Past:
        """What the messages themselves don't say: for the same queue elsewhere."""
        order, values = self.order, self._values
        owners = order.owners(self._consumers) if isinstance(order, Groups) else None
        newest: dict[int, int] | None = None
        if values is not None:
            newest = {}
            for run in self._held_back():
                for piece in self._pieces(run):
                    above = values.newest(self._key_of(piece))
                    if above > piece.sequence:
                        newest[piece.sequence] = above
        if self.loading:
            # Nothing of this is built in yet.
            owners = None if owners is None else {**(self.past.owners or {})}
            newest = None if newest is None else {**(self.past.newest or {})}
        return Past(owners, newest)

    @property
    def _may_ask(self) -> bool:
        under_way = len(self._eviction.fetching)
        return under_way < self.ready.evicted_runs and self._under_way_bytes < limits.LOADING_BYTES

    @property
    def _under_way_bytes(self) -> int:
        ready, total = self.ready, 0
        for first in self._eviction.fetching:
            index = ready.find(first, first + 1)
            total += ready.runs[index].size if index >= 0 else 0
        return total

    def _load(self, now_ms: int, effects: list[Effect]) -> None:
        """Asks for what is only on disk, or goes on once everything has come."""
        if not self.ready.evicted_runs:
            self.build(now_ms)
            return
        under_way = self._under_way_bytes
        for run in self.ready.waiting():
            if under_way >= limits.LOADING_BYTES:
                break
            if run.batch.data is None and self._eviction.ask(run):
                effects.append(Fetch(run))
                under_way += run.size
