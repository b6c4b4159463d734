"""Special: what a queue with priorities, keys, groups or delays does with a message before it is ready.

It cuts batches into single messages where the queue looks into them, holds back what is delayed, lets newer
messages replace older ones, and builds all of this anew after a restart or a change of policy: message by
message, in the order of their sequences, as they come from disk. Until all have been looked into, nobody
gets any.

Everything that the order has to know of a message is read when it is looked into and kept as long as it is
here, so that its bytes may leave memory at any time (eviction.py).
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final

from lightrail.model import limits, orders
from lightrail.shard.queue.commands import Fetched, Past
from lightrail.shard.queue.consumers import Consumers
from lightrail.shard.queue.counters import Counters
from lightrail.shard.queue.delays import Delays
from lightrail.shard.queue.deliveries import Deliveries
from lightrail.shard.queue.effects import Effect, Fetch, Reason, Removed
from lightrail.shard.queue.eviction import Eviction, gaps_of, pieces_of
from lightrail.shard.queue.groups import Groups
from lightrail.shard.queue.in_flight import InFlight
from lightrail.shard.queue.keys import MISSING, Key, key_of, size_of
from lightrail.shard.queue.last_values import LastValues
from lightrail.shard.queue.line import GONE
from lightrail.shard.queue.merging import sized, slim_singles, whole
from lightrail.shard.queue.order import Order
from lightrail.shard.queue.policy import Policy
from lightrail.shard.queue.ranked import Ranked
from lightrail.shard.queue.runs import Batch, Run
from lightrail.shard.queue.sparse import Sparse
from lightrail.shard.queue.work import Work

Look = Callable[[str], Callable[[bytes], Any]]
"""Makes of a path what reads that field from an encoded message; None where there is none."""

GROUP_PATH: Final = "properties.group-id"
_EVERYTHING: Final = 1 << 64
"""Above every sequence."""


class Special:
    """The way in of one special queue, and the order that it feeds."""

    __slots__ = (
        "_consumers",
        "_counters",
        "_deliveries",
        "_eviction",
        "_held",
        "_key",
        "_key_bytes",
        "_keys",
        "_learning",
        "_looked_to",
        "_removed",
        "_superseded",
        "_swept_to",
        "_values",
        "_work",
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
        work: Work,
    ) -> None:
        self._work = work
        self.ready = ready
        self._consumers = consumers
        self._eviction = eviction
        self._deliveries = deliveries
        self._counters = counters
        self.singles = policy.reads_messages
        """Whether every message is a run of its own."""
        self.loading = False
        """Whether there are messages that have not been looked into, perhaps because they are on disk."""
        self._looked_to = 0
        """While it is loading: sequences below were looked into."""
        self._learning = False
        """While it is loading: whether some in flight have yet to be looked into, before all that waits."""
        self._superseded: list[int] = []
        """While it is loading: what newer messages replace; it leaves when all of them are known."""
        self._swept_to = 0
        self._keys: dict[int, Key] = {}
        """By sequence, of delayed messages: what the order wants to know when their time comes; the same of
        those in flight that are only on disk, for when they come back."""
        self._held: set[int] = set()
        """Of them, those in flight."""
        self.delays = Delays(look) if policy.delay else None
        self._removed: list[Effect] = []
        """What was replaced since the last dispatch."""
        self._key_bytes = 0
        """Of the largest key since the index was empty."""
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
            self.order = Ranked(ready, eviction, deliveries, self._key_of, joins=False)
        elif policy.priorities > 1:
            ranks = orders.ranks(policy.priorities)
            self.order = Ranked(ready, eviction, deliveries, lambda run: ranks[run.batch.priority])
        else:
            self.order = Order(ready, eviction, deliveries)
        eviction.follow(ready, None if self.delays is None else self.delays.line, joins=not self.singles)
        for consumer in consumers.by_id.values():
            self.order.attach(consumer)

    # --- what a message says --------------------------------------------------------------------------

    def _key_of(self, run: Run) -> Key:
        if self._key is None or run.batch.message_format:
            return MISSING
        if self._keys and run.sequence in self._keys:
            return self._keys[run.sequence]
        key = key_of(self._key(run.batch.message(run.first)))
        kind = key[0]
        if (kind == 4 or kind >= 6) and key is not MISSING and len(key[1]) > self._key_bytes:
            self._key_bytes = size_of(key)
        return key

    def _group_of(self, run: Run) -> Hashable:
        key = self._key_of(run)
        return None if key == MISSING else key

    # --- memory -----------------------------------------------------------------------------------------

    @property
    def is_keyed(self) -> bool:
        """Whether the order looks at a message that comes back."""
        return self._key is not None

    @property
    def kept_bytes(self) -> int:
        """What is kept of a message in flight that is only on disk; see `Remembering`."""
        return limits.KEYED_BYTES + self._key_bytes

    def remember(self, run: Run) -> None:
        """A run in flight is about to leave memory: what the order wants to know of it is kept."""
        for piece in self._pieces(run):
            self._keys[piece.sequence] = self._key_of(piece)
            self._held.add(piece.sequence)

    def forget(self, run: Run) -> None:
        """A run is in flight no more, or is in memory again."""
        if self._held:
            for sequence in range(run.sequence, run.end):
                if sequence in self._held:
                    self._held.discard(sequence)
                    self._keys.pop(sequence, None)

    def _unknown(self) -> Iterator[Run]:
        """What is in flight and only on disk, and can't come back before this queue has looked into it."""
        for consumer in self._consumers:
            for run in consumer.in_flight.runs[consumer.in_flight.head :]:
                if run.batch.data is None and self._is_unknown(run):
                    yield run

    def _is_unknown(self, run: Run) -> bool:
        unsized = run.batch.ends is None and run.last - run.first > 1
        return unsized or (self._key is not None and run.sequence not in self._held)

    def learn(self, answer: Fetched) -> tuple[list[Run], bool]:
        """While it is loading: looks into deliveries that were read, and are only on disk again after that.

        Returns:
            Those that are lost and were taken out, and whether something has to be asked for again.
        """
        asked = self._eviction.fetching.get(answer.sequence)
        lost: list[Run] = []
        missing = False
        for consumer in self._consumers:
            line = consumer.in_flight
            for index in range(len(line.runs) - 1, line.head - 1, -1):
                run = line.runs[index]
                if run.batch.data is not None or not self._is_unknown(run):
                    continue
                pieces = pieces_of(answer.runs, run)
                if sum(piece.count for piece in pieces) == run.count:
                    self._keep(line, index, pieces)
                elif run.sequence == answer.sequence:
                    if answer.damaged and run.end == asked:
                        lost += self._keep(line, index, pieces)
                    else:
                        missing = True
        return lost, missing

    def _keep(self, line: InFlight, index: int, pieces: list[Run]) -> list[Run]:
        """Looks into what was read of a delivery on disk; takes out the rest, and returns it."""
        run, key = line.runs[index], line.keys[index]
        lost = gaps_of(pieces, run)
        keys: list[int] = []
        kept: list[Run] = []
        low = 0
        for start, stop in [(gap.sequence, gap.end) for gap in lost] + [(run.end, run.end)]:
            high = start - run.sequence
            if low < high:
                part = run.cut(low, high)
                read = pieces_of(pieces, part)
                if self._key is not None:
                    for piece in read:
                        self.remember(piece)
                keys.append(key + low)
                kept.append(sized(part, read))
                self._deliveries.resized(part, kept[-1])
            low = stop - run.sequence
        line.replace(index, index + 1, keys, kept)
        return lost

    @property
    def batch_bytes(self) -> int:
        """Bytes in memory around single messages: of their batches."""
        delayed = 0 if self.delays is None else self.delays.line.batch_bytes
        return self.ready.batch_bytes + delayed

    @property
    def index_bytes(self) -> int:
        """What is kept in memory of messages that are on disk as well as of others."""
        if not self.singles:
            return limits.RUN_ON_DISK_BYTES * self.ready.evicted_runs
        delayed = 0 if self.delays is None else len(self.delays.line)
        keys = self.order.keys + len(self._keys) + (0 if self._values is None else len(self._values))
        if not keys:
            self._key_bytes = 0
        return (
            limits.SINGLE_BYTES * (len(self.ready) + delayed)
            + self.order.index_bytes
            + keys * (limits.KEYED_BYTES + self._key_bytes)
        )

    def sweep(self) -> None:
        """Frees batches of which few messages are left: some of the line at a time, round and round."""
        ready = self.ready
        start = ready.index(self._swept_to)
        if start >= len(ready.runs):
            start = ready.head
        stop = min(start + limits.LOOK_AHEAD_MESSAGES, len(ready.runs))
        runs = [run for run in ready.runs[start:stop] if run is not GONE]
        if not runs:
            self._swept_to = 0
            return
        self._swept_to = runs[-1].end
        found = slim_singles(runs)
        if any(one is not other for one, other in zip(runs, found, strict=True)):
            ready.swap(start, stop, found)

    # --- ways in --------------------------------------------------------------------------------------

    def enqueue(self, batch: Batch, sequence: int, now_ms: int) -> Run:
        """Takes a batch in under its first sequence."""
        self.order.enqueued(sequence + batch.count)
        run = Run(batch, 0, batch.count, sequence)
        if self.loading and self._looked_to < _EVERYTHING:
            self.ready.add(run)
        else:
            self._take_in(run, now_ms)
        return run

    def give_back(self, run: Run) -> None:
        """Takes in what was in flight; its time has come before."""
        if self.loading and run.sequence >= self._looked_to:
            self.ready.give_back(whole(run))
            self.forget(run)
            return
        for piece in self._pieces(run if self.singles else whole(run)):
            if not self._is_replaced(piece):
                self.ready.give_back(piece)
                self.order.returned(piece)
        self.forget(run)

    def give_back_all(self, runs: list[Run]) -> None:
        """The same of many runs, by sequence."""
        if self._values is not None or len(runs) < limits.GIVEN_BACK_ONE_BY_ONE:
            # Among last values one of them may replace the one before it.
            for run in runs:
                self.give_back(run)
            return
        pieces: list[Run] = []
        looked: list[Run] = []
        for run in runs:
            if self.loading and run.sequence >= self._looked_to:
                pieces.append(run)
            else:
                cut = self._pieces(run)
                pieces += cut
                looked += cut
        self.ready.give_back_all(pieces)
        for piece in looked:
            self.order.returned(piece)

    def put_off(self, run: Run) -> list[Run]:
        """Keeps messages that come back with annotations that ask for a time; returns the others of the run.

        A time that has passed keeps a message until the next wake, which is at once.
        """
        delays = self.delays
        if delays is None or run.batch.message_format or (self.loading and run.sequence >= self._looked_to):
            return [run]
        ready: list[Run] = []
        for piece in self._pieces(run):
            due_ms = delays.due_ms(piece)
            if due_ms <= piece.batch.enqueued_at_ms:
                ready.append(piece)
                continue
            self.forget(piece)
            if self._key is not None:
                self._keys[piece.sequence] = self._key_of(piece)
            delays.add(piece, due_ms)
        return ready

    def _take_in(self, run: Run, now_ms: int) -> None:
        delays = self.delays
        for piece in self._pieces(run):
            if delays is not None and self._is_delayed(piece, delays, now_ms):
                continue
            if self._values is None or not self._is_replaced(piece):
                self.ready.add(piece)
                self.order.arrived(piece)

    def _is_delayed(self, piece: Run, delays: Delays, now_ms: int) -> bool:
        """Holds a message back whose time has not come; False for one that is ready."""
        if piece.batch.message_format:
            return False
        due_ms = delays.due_ms(piece)
        if due_ms <= now_ms:
            return False
        if self._key is not None:
            self._keys[piece.sequence] = self._key_of(piece)
        delays.add(piece, due_ms)
        return True

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
        if self._values is None:
            return False
        key = self._key_of(run)
        if key == MISSING:
            return False
        older = self._values.note(key, run.sequence)
        if self.loading:
            if older >= 0:
                self._superseded.append(older)
            return False
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
        found = None if self.delays is None else self.delays.take(sequence)
        if found is not None:
            self._keys.pop(sequence, None)
        return found

    def clear(self) -> list[Run]:
        """Takes out everything that is ready or delayed."""
        runs = self.waiting()
        self.ready.clear()
        if self.delays is not None:
            self.delays.clear()
        # What is in flight stays, and is to come back to where it belongs.
        self._keys = {sequence: self._keys[sequence] for sequence in self._held}
        self._superseded.clear()
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
            self._load(now_ms)
        if self.loading:
            self._ask(effects)
            return
        if self._values is not None and self._values.many:
            self._thin(self._values)
        if self._eviction.taken_bytes >= limits.SLIM_AT_BYTES and self.singles:
            self._eviction.taken_bytes = 0
            self.sweep()
        if self.delays is not None:
            line, held = self.delays.line, self._held
            if len(self._keys) > limits.STALE_ENTRIES_MIN + 2 * (len(line) + len(held)):
                self._keys = {each: key for each, key in self._keys.items() if each in held or line.has(each)}
        self.tell(effects)

    def tell(self, effects: list[Effect]) -> None:
        """Says what was replaced: not before the engine has given its batch a place."""
        if self._removed:
            effects.extend(self._removed)
            self._removed = []

    def wake(self, now_ms: int) -> None:
        """What is due becomes ready, at its place by sequence."""
        if self.delays is not None and (due := self.delays.take_due(now_ms, self._work)):
            due.sort(key=_sequence)
            self.give_back_all(due)
            for run in due:
                self._keys.pop(run.sequence, None)
            if self._consumers.passed_over:
                self._consumers.look_again(due[0].sequence)

    @property
    def next_ms(self) -> int | None:
        """When something has to be done: 0 for at once."""
        loads = self.loading and not self._learning and (self._may_look or self._may_ask)
        if self._removed or self.order.unfinished or loads:
            return 0
        return None if self.delays is None else self.delays.next_ms

    # --- building -------------------------------------------------------------------------------------

    def build(self, now_ms: int) -> None:
        """Puts what is in the line, in no order yet, into its order: what is in memory at once."""
        if not self.singles:
            # With priorities alone, all of it stays where it is in the line.
            self.order.begin_with(self.ready.waiting())
            return
        self.loading = self.order.loading = self._learning = True
        self._looked_to = 0
        self._load(now_ms)

    def _load(self, now_ms: int) -> None:
        """Looks into what is next and in memory, some of it in each step."""
        if self._learning:
            self._learning = next(self._unknown(), None) is not None
        left = 0 if self._learning else limits.LOADING_LOOKS
        while left > 0:
            pieces, start, stop = self._next_pieces(left)
            if stop > start:
                left -= max(1, len(pieces))
                self._look_into(pieces, start, stop, now_ms)
            elif self.ready.index(self._looked_to) == len(self.ready.runs):
                self._end_loading(left)
                return
            else:
                return

    def _next_pieces(self, wanted: int) -> tuple[list[Run], int, int]:
        """Messages that are next to be looked into, and from where to where their runs are in the line."""
        runs = self.ready.runs
        start = stop = self.ready.index(self._looked_to)
        pieces: list[Run] = []
        while stop < len(runs) and len(pieces) < wanted:
            run = runs[stop]
            if run.batch.data is None:
                break
            if run.last > run.first:
                pieces += self._pieces(run)
            stop += 1
        return pieces, start, stop

    def _look_into(self, pieces: list[Run], start: int, stop: int, now_ms: int) -> None:
        ready: list[Run] = []
        for piece in pieces:
            if self.delays is None or not self._is_delayed(piece, self.delays, now_ms):
                ready.append(piece)
            elif (above := (self.past.newest or {}).get(piece.sequence)) is not None:
                self._outdate(self._key_of(piece), above)
        self.ready.swap(start, stop, ready)
        if pieces:
            self._looked_to = pieces[-1].end
        owners = self.past.owners if isinstance(self.order, Groups) else None
        for piece in ready:
            self._is_replaced(piece)
            self.order.arrived(piece)
        for piece in pieces if owners else ():
            owner = owners.get(piece.sequence) if owners else None
            if owner in self._consumers.by_id and isinstance(self.order, Groups):
                self.order.assign(piece, owner)

    def _outdate(self, key: Key, above: int) -> None:
        """A message with this key and a higher sequence was seen elsewhere."""
        if self._values is not None:
            older = self._values.note(key, above)
            if older >= 0:
                self._superseded.append(older)

    def _end_loading(self, left: int) -> None:
        """All of the line was looked into: what is in flight counts now, and what was replaced leaves."""
        if self._looked_to < _EVERYTHING:
            self._looked_to = _EVERYTHING
            self._add_in_flight()
        while self._superseded and left > 0:
            left -= 1
            sequence = self._superseded.pop()
            index = self.ready.find(sequence, sequence + 1)
            if index >= 0:
                self._drop(self.ready.take_single(index)[0])
        self.loading = self.order.loading = bool(self._superseded)

    def _add_in_flight(self) -> None:
        past, self.past = self.past, Past()
        order = self.order
        newest = past.newest or {}
        for consumer in self._consumers if isinstance(order, Groups) or self._values is not None else ():
            stays = consumer.id in self._consumers.by_id and past.owners is None
            for run in consumer.in_flight.runs[consumer.in_flight.head :]:
                for piece in self._pieces(run):
                    if isinstance(order, Groups):
                        owner = (past.owners or {}).get(piece.sequence)
                        if owner in self._consumers.by_id and owner is not None:
                            order.assign(piece, owner)
                    elif (key := self._key_of(piece)) != MISSING:
                        self._outdate(key, newest.get(piece.sequence, piece.sequence))
            if isinstance(order, Groups):
                for run in consumer.in_flight.runs[consumer.in_flight.head :]:
                    for piece in self._pieces(run):
                        order.held(consumer, piece, stays)

    def known(self) -> Past:
        """What the messages themselves don't say: for the same queue elsewhere."""
        order, values = self.order, self._values
        if self.loading and self._looked_to < _EVERYTHING:
            # Not all of this is built in yet.
            return Past(
                {**(self.past.owners or {})} if isinstance(order, Groups) else None,
                None if values is None else {**(self.past.newest or {})},
            )
        owners = order.owners(self._consumers) if isinstance(order, Groups) else None
        newest: dict[int, int] | None = None
        if values is not None:
            newest = {}
            for run in self._held_back():
                for piece in self._pieces(run):
                    above = values.newest(self._key_of(piece))
                    if above > piece.sequence:
                        newest[piece.sequence] = above
        return Past(owners, newest)

    @property
    def _may_look(self) -> bool:
        """Whether the next message to be looked into is in memory, or there is none."""
        ready = self.ready
        index = ready.index(self._looked_to)
        while index < len(ready.runs) and ready.runs[index] is GONE:
            index += 1
        return index == len(ready.runs) or ready.runs[index].batch.data is not None

    @property
    def _may_ask(self) -> bool:
        """Whether more may be read than is under way."""
        return self._under_way_bytes < limits.LOADING_BYTES and any(
            run.sequence not in self._eviction.fetching for run in self._unread()
        )

    def _unread(self) -> Iterator[Run]:
        """What is on disk of what has not been looked into."""
        runs = self.ready.runs
        for index in range(self.ready.index(self._looked_to), len(runs)):
            if runs[index].batch.data is None:
                yield runs[index]

    @property
    def _under_way_bytes(self) -> int:
        ready, total = self.ready, 0
        for first in self._eviction.fetching:
            index = ready.find(first, first + 1)
            total += ready.runs[index].size if index >= 0 else 0
        return total

    def _ask(self, effects: list[Effect]) -> None:
        """Asks for what is only on disk and has to be looked into next, what is in flight before the rest."""
        if self._learning:
            room = limits.LOADING_BYTES
            for run in self._unknown():
                if room <= 0:
                    break
                room -= run.size
                if self._eviction.ask(run):
                    effects.append(Fetch(run))
            return
        under_way = self._under_way_bytes
        for run in self._unread():
            if under_way >= limits.LOADING_BYTES:
                break
            if self._eviction.ask(run):
                effects.append(Fetch(run))
                under_way += run.size


def _sequence(run: Run) -> int:
    return run.sequence
