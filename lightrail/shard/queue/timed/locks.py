"""Locks: deliveries that are locked for their consumer for a limited time, by the end of that time.

A heap has one entry per delivered run. Entries are not removed when deliveries are settled: they
are dropped at the head, or when the heap has grown far beyond the number of locks. A renewal is noted beside
the entry, so that renewing a lock a thousand times costs one number.

With a key, locks outlive their link (ADR 68): then the consumer is departed, and its deliveries stay in
flight until they are settled by key and number, or the lock ends. The ends of such locks are beside the heap
(lines/ends.py), as a number may be given again. Between commands such a consumer is packed (ended_links.py):
`find` unpacks it, and `pack` follows each command that may have unpacked one.

Those under a key outlive the process as well, by a file of the shard (lock_changes.py); all others are in
memory only, and their messages are ready again after a restart.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from lightrail.model import conditions, limits
from lightrail.model.links import LockEnding
from lightrail.shard.queue.lines.consumers import Consumer, Consumers
from lightrail.shard.queue.lines.ends import Ends
from lightrail.shard.queue.timed.ended_links import NOBODY_WITH_ENDED_LINKS, EndedLink, EndedLinks
from lightrail.shard.queue.timed.lock_changes import LockChanges, within
from lightrail.shard.queue.values.commands import ConsumerOptions
from lightrail.shard.queue.values.counters import TurnWork
from lightrail.shard.queue.values.effects import Refused
from lightrail.shard.queue.values.runs import Run

NO_LINKS: Final = EndedLinks(Consumers())
"""Those of a queue before its first link has ended with locked messages; most queues have none."""


class Locks:
    """Timed locks of ranges of delivery numbers; an entry may be stale, never missing."""

    __slots__ = ("_consumers", "_thin_at", "_to_pack", "by_key", "changes", "ended", "heap", "of_sessions")

    def __init__(self, consumers: Consumers, changes: LockChanges | None = None) -> None:
        self._consumers = consumers
        self.changes = changes
        """What changes of locks under a key; None if nobody asks for it."""
        self.heap: list[tuple[int, int, int, int]] = []
        """(milliseconds since the epoch, consumer, first and last delivery number)."""
        self.by_key: dict[str, Consumer] = {}
        """Consumers whose locks have a name, attached or departed, that are not packed."""
        self.ended = NO_LINKS
        self._to_pack: list[tuple[Consumer, bool]] | None = None
        """Consumers that may be packed after this command, and whether they were packed before it."""
        self.of_sessions: dict[int, list[Consumer]] = {}
        """By consumer of a session: those whose deliveries, deferred messages, its lock is for."""
        self._thin_at = limits.STALE_ENTRIES_MIN

    def add(self, consumer: Consumer, first: int, last: int, until_ms: int) -> None:
        """Locks deliveries, which are in flight, until a time."""
        if consumer.ends is not None:
            if consumer.ends.is_crowded:
                consumer.ends.thin(lambda first, last: holds(consumer, first, last))
            consumer.ends.add(first, until_ms)
            if self.changes is not None:
                self.changes.locked(consumer, first, last)
        heappush(self.heap, (until_ms, consumer.id, first, last))
        if len(self.heap) > self._thin_at:
            self._thin()

    def note(self, consumer: Consumer, first: int = 0, last: int | None = None) -> None:
        """Notes a change of locks of a consumer: of all of them, or of a range of delivery numbers."""
        if self.changes is not None and consumer.ends is not None:
            self.changes.locked(consumer, first, consumer.next if last is None else last)

    def freed(self, consumer: Consumer, runs: list[Run]) -> None:
        """Notes that deliveries of a consumer return to the queue."""
        if self.changes is not None and consumer.keeps_locks:
            self.changes.freed(runs)

    def push(self, consumer: Consumer, first: int, last: int, until_ms: int) -> None:
        """Adds an entry for locks whose end is noted otherwise."""
        heappush(self.heap, (until_ms, consumer.id, first, last))
        if len(self.heap) > self._thin_at:
            self._thin()

    def begin(self, consumer: Consumer, now_ms: int) -> None:
        """Begins timed locks for a consumer that had none, also for its deliveries in flight."""
        until_ms = now_ms + consumer.lock_ms
        if consumer.ends is None:
            line = consumer.in_flight
            for number, run in zip(line.keys[line.head :], line.runs[line.head :], strict=True):
                self.add(consumer, number, number + run.count, until_ms)
            return
        parts = list(self.parts(consumer))
        consumer.ends = Ends()
        for first, last, given_ms in parts:
            # An end that was given stays, since the client believes in it.
            consumer.ends.add(first, given_ms or until_ms)
            if not given_ms:
                self.push(consumer, first, last, until_ms)
        self.note(consumer)

    @property
    def next_ms(self) -> int | None:
        """The time at which the next lock may expire, or None; settled deliveries are skipped."""
        heap = self.heap
        while heap and not self._held(heap[0]):
            self._drop(heappop(heap))
        return heap[0][0] if heap else None

    def due(self, now_ms: int, work: TurnWork) -> Iterable[tuple[Consumer, int, int]]:
        """Takes out the ranges of delivery numbers whose lock has expired, earliest first, while there is
        work left in this turn."""
        heap = self.heap
        while heap and heap[0][0] <= now_ms and work.left > 0:
            end_ms, identity, first, last = heappop(heap)
            consumer = self._find(identity)
            if consumer is None:
                if identity == NOBODY_WITH_ENDED_LINKS and end_ms == self.ended.wakes_ms:
                    yield from self._due_of_ended(end_ms, now_ms)
                continue
            for number in within(consumer.renewed, first, last):
                until_ms = consumer.renewed.get(number, 0)
                if until_ms > now_ms:
                    heappush(heap, (until_ms, identity, number, number + 1))
                    if first < number:
                        yield from self._ended(consumer, first, number, now_ms)
                    first = number + 1
                elif consumer.ends is None:
                    consumer.renewed.pop(number, None)
                else:
                    # Its end is this one, not that of the delivery.
                    consumer.renewed.pop(number, None)
                    yield from self._ended(consumer, first, number, now_ms)
                    yield consumer, number, number + 1
                    first = number + 1
            if first < last:
                yield from self._ended(consumer, first, last, now_ms)
        if self._to_pack:
            self.pack()

    def _due_of_ended(self, until_ms: int, now_ms: int) -> Iterator[tuple[Consumer, int, int]]:
        """The locks of a packed consumer that have ended, and the next entry for those that are packed."""
        if self.ended.next_ms == until_ms:
            consumer = self._unpacked(self.ended.next_key)
            for first, last, end_ms in list(self.parts(consumer)):
                if end_ms <= now_ms:
                    yield consumer, first, last
        self.ended.wakes_ms = 0
        self.pack()

    def _ended(
        self, consumer: Consumer, first: int, last: int, now_ms: int
    ) -> Iterator[tuple[Consumer, int, int]]:
        """Those of a range that was due whose locks have ended: a number that was given again has a later
        end."""
        if consumer.ends is None:
            yield consumer, first, last
            return
        for start, stop, until_ms in consumer.ends.parts(first, last):
            if until_ms > now_ms:
                heappush(self.heap, (until_ms, consumer.id, start, stop))
            elif until_ms:
                yield consumer, start, stop

    def holder(self, key: str, number: int, sequence: int | None) -> Consumer | None:
        """The consumer with a delivery locked under this key; None if there is none with this sequence."""
        consumer = self.find(key)
        if consumer is None or not holds(consumer, number, number + 1):
            return None
        line = consumer.in_flight
        index = line.index(number)
        found = line.runs[index].sequence + number - line.keys[index]
        return consumer if sequence is None or sequence == found else None

    def end_of(self, consumer: Consumer, number: int) -> int:
        """The end of a lock under a key; 0 for one without an end."""
        found = consumer.renewed.get(number, 0)
        return found or (0 if consumer.ends is None else consumer.ends.of(number))

    def entries(self) -> Iterator[tuple[int, int, int, int]]:
        """The locks as in `heap`, with one end for each delivery under a key, and without stale numbers."""
        keyed = {consumer.id for consumer in self.by_key.values()}
        yield from [entry for entry in self.heap if entry[1] not in keyed and self._find(entry[1])]
        for consumer in self.keyed():
            for first, last, until_ms in self.parts(consumer):
                if until_ms:
                    yield until_ms, consumer.id, first, last

    def parts(self, consumer: Consumer) -> Iterator[tuple[int, int, int]]:
        """(first, last, end) of the deliveries of a consumer with a key, without renewals."""
        line = consumer.in_flight
        assert consumer.ends is not None, "a consumer with a key knows the ends of its locks"
        for number, run in zip(line.keys[line.head :], line.runs[line.head :], strict=True):
            yield from consumer.ends.parts(number, number + run.count)

    def restore(self, entries: Iterable[tuple[int, int, int, int]]) -> None:
        """Takes over the locks of another shard's queue."""
        self.heap = list(entries)
        keyed = {consumer.id: consumer for consumer in self.by_key.values()}
        for until_ms, identity, first, last in sorted(self.heap, key=lambda entry: entry[2]):
            if (consumer := keyed.get(identity)) is not None and consumer.ends is not None:
                consumer.ends.add(first, until_ms)
                # What follows without an entry has no end.
                consumer.ends.add(last, 0)
        for consumer in keyed.values():
            # A delivery without an end may have got one by a renewal.
            self.heap += [
                (until_ms, consumer.id, each, each + 1) for each, until_ms in consumer.renewed.items()
            ]
        heapify(self.heap)

    # --- consumers with a key --------------------------------------------------------------------------

    def find(self, key: str) -> Consumer | None:
        """The consumer with this key, to be changed; `pack` has to follow."""
        found = self.by_key.get(key)
        return self._unpacked(key) if found is None and key in self.ended.by_key else found

    def seen(self, key: str) -> Consumer | None:
        """The consumer with this key, to be read."""
        return self.ended.copy(key) if key in self.ended.by_key else self.by_key.get(key)

    def keyed(self) -> Iterator[Consumer]:
        """All consumers with a key, to be read."""
        yield from self.by_key.values()
        yield from self.ended.copies()

    def _unpacked(self, key: str) -> Consumer:
        consumer = self.ended.unpack(key)
        self.by_key[key] = self._consumers.departed[consumer.id] = consumer
        self._pack_later(consumer, was_packed=True)
        return consumer

    def pack(self) -> None:
        """Packs the consumers without a link that commands have unpacked or left with locks.

        Deferred messages of a session stay with its consumer, whose lock is theirs.
        """
        for consumer, was_packed in self._to_pack or ():
            key = consumer.options.lock_key
            is_ended = consumer.id in self._consumers.departed and self.by_key.get(key) is consumer
            if not is_ended or consumer.session_of is not None:
                continue
            if self.ended is NO_LINKS:
                self.ended = EndedLinks(self._consumers)
            if self.ended.pack(consumer):
                del self.by_key[key], self._consumers.departed[consumer.id]
            elif was_packed:
                for first, last, until_ms in self.parts(consumer):
                    self.push(consumer, first, last, until_ms)
        self._to_pack = None
        self._await_ended()

    def _pack_later(self, consumer: Consumer, *, was_packed: bool = False) -> None:
        self._to_pack = [] if self._to_pack is None else self._to_pack
        self._to_pack.append((consumer, was_packed))

    def _await_ended(self) -> None:
        """Adds an entry for the first end of the locks of packed consumers."""
        next_ms = self.ended.next_ms
        if next_ms is not None and not 0 < self.ended.wakes_ms <= next_ms:
            self.ended.wakes_ms = next_ms
            heappush(self.heap, (next_ms, NOBODY_WITH_ENDED_LINKS, 0, 0))

    def refusal(self, identity: int, options: ConsumerOptions) -> Refused | None:
        """Why a consumer may not have this key, or None."""
        key = options.lock_key
        former: Consumer | EndedLink | None = self.by_key.get(key) or self.ended.by_key.get(key)
        if former is None:
            return None
        if former.id in self._consumers.by_id:
            found = "found an attached consumer with the same one"
        elif options.first < former.next and options.lock_ends is LockEnding.ALWAYS_BY_TIME:
            found = f"found deliveries locked under it up to number {former.next - 1}, this one begins with "
            found += f"{options.first}"
        else:
            return None
        return Refused(identity, conditions.ILLEGAL_STATE, f"expected a lock key of its own, {found}")

    def unsent(self, options: ConsumerOptions) -> tuple[Consumer | None, list[Run]]:
        """Takes out deliveries of a departed consumer whose link opens again, and does not know the numbers:
        they were lost on the way, so that the client has never had them."""
        former = self.find(options.lock_key) if options.lock_key else None
        if former is None or options.first >= former.next:
            return None, []
        for number in [number for number in former.renewed if number >= options.first]:
            del former.renewed[number]
        return former, former.in_flight.take(options.first, former.next)

    def attached(self, consumer: Consumer) -> None:
        """Gives an attached consumer with a key the deliveries that are still locked under this key."""
        key = consumer.options.lock_key
        former = self.find(key)
        self.by_key[key] = consumer
        if former is None:
            return
        del self._consumers.departed[former.id]
        consumer.in_flight = former.in_flight
        # Numbers are given again.
        consumer.in_flight.evicted_to = min(consumer.in_flight.evicted_to, consumer.next)
        consumer.renewed = former.renewed
        consumer.lock_ms_before = max(former.lock_ms, former.lock_ms_before)
        consumer.ends = former.ends
        for first, last, until_ms in self.parts(consumer):
            if until_ms:
                # The entries of the former one are stale from now on.
                self.push(consumer, first, last, until_ms)
        # Stale ones may be dropped meanwhile.
        for number, until_ms in list(consumer.renewed.items()):
            self.push(consumer, number, number + 1, until_ms)
        assert consumer.ends is not None, "it is that of the former one"
        consumer.ends.add(consumer.next, 0)
        self.note(consumer)
        self.pack()

    def detached(self, consumer: Consumer) -> bool:
        """Notes that a consumer has detached; returns whether its deliveries stay locked."""
        key = consumer.options.lock_key
        if not key:
            return False
        consumer.departed = True
        if len(consumer.in_flight) and consumer.keeps_locks:
            self._consumers.departed[consumer.id] = consumer
            self._pack_later(consumer)
            return True
        del self.by_key[key]
        return False

    def settled(self, consumer: Consumer) -> None:
        """Drops the key of a detached consumer after the settlement of its last delivery."""
        if len(consumer.in_flight):
            self._pack_later(consumer)
            return
        was_departed = self._consumers.departed.pop(consumer.id, None) is not None
        if was_departed and self.by_key.get(consumer.options.lock_key) is consumer:
            del self.by_key[consumer.options.lock_key]

    def restored(self, consumer: Consumer) -> None:
        """Gives a detached consumer its key again, for returned deliveries; no other one has the key."""
        self.by_key[consumer.options.lock_key] = self._consumers.departed[consumer.id] = consumer
        self._pack_later(consumer)
        if consumer.session_of is not None:
            others = self.of_sessions.get(consumer.session_of, ())
            left = [each for each in others if len(each.in_flight) and each is not consumer]
            self.of_sessions[consumer.session_of] = [*left, consumer]

    def lock_again(self, consumer: Consumer, number: int, until_ms: int) -> None:
        """Locks a delivery that is in flight again under its number until a time, 0 for no end."""
        if until_ms:
            consumer.renewed[number] = until_ms
            self.push(consumer, number, number + 1, until_ms)
            self.note(consumer, number, number + 1)

    # --- stale entries ---------------------------------------------------------------------------------

    def _find(self, identity: int) -> Consumer | None:
        consumers = self._consumers
        found = consumers.by_id.get(identity) or consumers.departed.get(identity)
        if found is None and consumers.retries is not None and consumers.retries.id == identity:
            found = consumers.retries
        return found

    def _held(self, entry: tuple[int, int, int, int]) -> bool:
        """Whether any delivery of an entry is still in flight."""
        until_ms, identity, first, last = entry
        consumer = self._find(identity)
        if consumer is None:
            is_for_all = identity == NOBODY_WITH_ENDED_LINKS
            return is_for_all and until_ms == self.ended.wakes_ms == self.ended.next_ms
        return holds(consumer, first, last)

    def _drop(self, entry: tuple[int, int, int, int]) -> None:
        until_ms, identity, first, last = entry
        consumer = self._find(identity)
        if consumer is not None:
            for number in within(consumer.renewed, first, last):
                del consumer.renewed[number]
        elif identity == NOBODY_WITH_ENDED_LINKS and until_ms == self.ended.wakes_ms:
            self.ended.wakes_ms = 0
            self._await_ended()

    def _thin(self) -> None:
        """Drops stale entries; repeated when the number of entries has doubled."""
        # The same list, since a wait after a failed delivery is added while `due` takes from it.
        heap = self.heap
        entries = heap.copy()
        heap.clear()
        for entry in entries:
            if self._held(entry):
                heap.append(entry)
            else:
                self._drop(entry)
        heapify(heap)
        self._thin_at = limits.STALE_ENTRIES_MIN + 2 * len(heap)


def holds(consumer: Consumer, first: int, last: int) -> bool:
    """Whether a delivery from number `first` to before `last` is in flight."""
    line = consumer.in_flight
    index = line.index(first)
    return index < len(line.runs) and line.keys[index] < last
