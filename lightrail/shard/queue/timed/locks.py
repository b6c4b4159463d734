"""Locks: deliveries that are locked for their consumer for a limited time, by the end of that time.

A heap has one entry per delivered run. Entries are not removed when deliveries are settled: they
are dropped at the head, or when the heap has grown far beyond the number of locks. A renewal is noted beside
the entry, so that renewing a lock a thousand times costs one number.

With a key, locks outlive their link (ADR 68): then the consumer is departed, and its deliveries stay in
flight until they are settled by key and number, or the lock ends. The ends of such locks are beside the heap
(lines/ends.py), as a number may be given again.

Those under a key outlive the process as well, by a file of the shard (lock_changes.py); all others are in
memory only, and their messages are ready again after a restart.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from lightrail.model import conditions, limits
from lightrail.model.links import LockEnding
from lightrail.shard.queue.lines.consumers import Consumer, Consumers
from lightrail.shard.queue.lines.ends import Ends
from lightrail.shard.queue.timed.lock_changes import LockChanges, within
from lightrail.shard.queue.values.commands import ConsumerOptions
from lightrail.shard.queue.values.counters import TurnWork
from lightrail.shard.queue.values.effects import Refused
from lightrail.shard.queue.values.runs import Run


class Locks:
    """Timed locks of ranges of delivery numbers; an entry may be stale, never missing."""

    __slots__ = ("_consumers", "_thin_at", "by_key", "changes", "heap", "of_sessions")

    def __init__(self, consumers: Consumers, changes: LockChanges | None = None) -> None:
        self._consumers = consumers
        self.changes = changes
        """What changes of locks under a key; None if nobody asks for it."""
        self.heap: list[tuple[int, int, int, int]] = []
        """(milliseconds since the epoch, consumer, first and last delivery number)."""
        self.by_key: dict[str, Consumer] = {}
        """Consumers whose locks have a name, attached or departed."""
        self.of_sessions: dict[int, list[Consumer]] = {}
        """By consumer of a session: those whose deliveries, deferred messages, its lock is for."""
        self._thin_at = limits.STALE_ENTRIES_MIN

    def add(self, consumer: Consumer, first: int, last: int, until_ms: int) -> None:
        """Locks deliveries, which are in flight, until a time."""
        if consumer.ends is not None:
            if consumer.ends.is_crowded:
                consumer.ends.thin(lambda first, last: _holds(consumer, first, last))
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

    def _push(self, consumer: Consumer, first: int, last: int, until_ms: int) -> None:
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
        parts = list(self._parts(consumer))
        consumer.ends = Ends()
        for first, last, given_ms in parts:
            # An end that was given stays, since the client believes in it.
            consumer.ends.add(first, given_ms or until_ms)
            if not given_ms:
                self._push(consumer, first, last, until_ms)
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
            _, identity, first, last = heappop(heap)
            consumer = self._find(identity)
            if consumer is None:
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
        consumer = self.by_key.get(key)
        if consumer is None or not _holds(consumer, number, number + 1):
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
        keyed = {consumer.id: consumer for consumer in self.by_key.values()}
        yield from (entry for entry in self.heap if entry[1] not in keyed)
        for consumer in keyed.values():
            for first, last, until_ms in self._parts(consumer):
                if until_ms:
                    yield until_ms, consumer.id, first, last

    def _parts(self, consumer: Consumer) -> Iterator[tuple[int, int, int]]:
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

    def renew(self, key: str, number: int, sequence: int | None, now_ms: int) -> int | None:
        """Renews the lock of a delivery; returns its end, or None if there is no such lock."""
        consumer = self.holder(key, number, sequence)
        if consumer is None or not consumer.lock_ms:
            return None
        return self._renew(consumer, number, now_ms, consumer.lock_ms)

    def renew_all(self, locks: Sequence[tuple[str, int]], now_ms: int) -> list[int | None]:
        """Renews locks by key and number; see effects.Renewed for the answer."""
        found: list[int | None] = []
        for key, number in locks:
            consumer = self.by_key.get(key)
            found += [0] if consumer is None else self.renew_deliveries(consumer, [number], now_ms)
        return found

    def renew_deliveries(self, consumer: Consumer, numbers: Sequence[int], now_ms: int) -> list[int | None]:
        """Renews the locks of deliveries of a consumer; see effects.Renewed for the answer.

        If the policy no longer has a lock time, deliveries from the time when it had one are locked for that
        time, and so are later ones, because the two are not distinguished.
        """
        lock_ms = consumer.lock_ms or consumer.lock_ms_before
        locked: list[int | None] = []
        for number in numbers:
            if not _holds(consumer, number, number + 1):
                locked.append(0)
            elif not lock_ms:
                locked.append(None)
            else:
                self._renew(consumer, number, now_ms, lock_ms)
                locked.append(lock_ms)
        if not consumer.lock_ms and len(consumer.renewed) > limits.STALE_ENTRIES_MIN:
            # Numbers without an entry in the heap would never be removed.
            consumer.renewed = {
                number: until_ms
                for number, until_ms in consumer.renewed.items()
                if _holds(consumer, number, number + 1)
            }
        return locked

    def _renew(self, consumer: Consumer, number: int, now_ms: int, lock_ms: int) -> int:
        until_ms = now_ms + lock_ms
        renewed = consumer.renewed
        if consumer.ends is not None:
            given_ms = self.end_of(consumer, number)
            is_late = not given_ms or until_ms < given_ms
        else:
            is_late = lock_ms < consumer.lock_ms_before and until_ms < renewed.get(number, until_ms + 1)
        if is_late:
            # Its entry may stand for a longer time, and the note beside it be found too late.
            self._push(consumer, number, number + 1, until_ms)
        renewed[number] = until_ms
        if consumer.blame is not None:
            consumer.blame.renew(number)
        self.note(consumer, number, number + 1)
        return until_ms

    # --- consumers with a key --------------------------------------------------------------------------

    def refusal(self, identity: int, options: ConsumerOptions) -> Refused | None:
        """Why a consumer may not have this key, or None."""
        former = self.by_key.get(options.lock_key) if options.lock_key else None
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
        former = self.by_key.get(options.lock_key) if options.lock_key else None
        if former is None or options.first >= former.next:
            return None, []
        for number in [number for number in former.renewed if number >= options.first]:
            del former.renewed[number]
        return former, former.in_flight.take(options.first, former.next)

    def attached(self, consumer: Consumer) -> None:
        """Gives an attached consumer with a key the deliveries that are still locked under this key."""
        key = consumer.options.lock_key
        former = self.by_key.get(key)
        self.by_key[key] = consumer
        if former is None:
            return
        del self._consumers.departed[former.id]
        consumer.in_flight = former.in_flight
        consumer.renewed = former.renewed
        consumer.lock_ms_before = max(former.lock_ms, former.lock_ms_before)
        consumer.ends = former.ends
        for first, last, until_ms in self._parts(consumer):
            if until_ms:
                # The entries of the former one are stale from now on.
                self._push(consumer, first, last, until_ms)
        # Stale ones may be dropped meanwhile.
        for number, until_ms in list(consumer.renewed.items()):
            self._push(consumer, number, number + 1, until_ms)
        assert consumer.ends is not None, "it is that of the former one"
        consumer.ends.add(consumer.next, 0)
        self.note(consumer)

    def detached(self, consumer: Consumer) -> bool:
        """Notes that a consumer has detached; returns whether its deliveries stay locked."""
        key = consumer.options.lock_key
        if not key:
            return False
        consumer.departed = True
        if len(consumer.in_flight) and consumer.keeps_locks:
            self._consumers.departed[consumer.id] = consumer
            return True
        del self.by_key[key]
        return False

    def endless(self, consumer: Consumer) -> list[Run]:
        """Takes out the deliveries of a departed consumer whose locks have no end: its queue had no lock time
        when they were delivered."""
        found: list[Run] = []
        for first, last, until_ms in [] if consumer.ends is None else list(self._parts(consumer)):
            if not until_ms:
                stops = [*within(consumer.renewed, first, last), last]
                for start, stop in zip([first, *(number + 1 for number in stops)], stops, strict=False):
                    found += consumer.in_flight.take(start, stop)
        return found

    def settled(self, consumer: Consumer) -> None:
        """Drops the key of a detached consumer after the settlement of its last delivery."""
        if len(consumer.in_flight) or self._consumers.departed.take(consumer.id) is None:
            return
        if self.by_key.get(consumer.options.lock_key) is consumer:
            del self.by_key[consumer.options.lock_key]

    def restored(self, consumer: Consumer) -> None:
        """Gives a detached consumer its key again, for returned deliveries; no other one has the key."""
        self.by_key[consumer.options.lock_key] = self._consumers.departed[consumer.id] = consumer
        if consumer.session_of is not None:
            others = self.of_sessions.get(consumer.session_of, ())
            left = [each for each in others if len(each.in_flight) and each is not consumer]
            self.of_sessions[consumer.session_of] = [*left, consumer]

    def lock_again(self, consumer: Consumer, number: int, until_ms: int) -> None:
        """Locks a delivery that is in flight again under its number until a time, 0 for no end."""
        if until_ms:
            consumer.renewed[number] = until_ms
            self._push(consumer, number, number + 1, until_ms)
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
        _, identity, first, last = entry
        consumer = self._find(identity)
        return consumer is not None and _holds(consumer, first, last)

    def _drop(self, entry: tuple[int, int, int, int]) -> None:
        _, identity, first, last = entry
        consumer = self._find(identity)
        if consumer is not None:
            for number in within(consumer.renewed, first, last):
                del consumer.renewed[number]

    def _thin(self) -> None:
        """Drops stale entries; repeated when the number of entries has doubled."""
        kept = []
        for entry in self.heap:
            if self._held(entry):
                kept.append(entry)
            else:
                self._drop(entry)
        heapify(kept)
        # The same list, since a wait after a failed delivery is added while `due` takes from it.
        self.heap[:] = kept
        self._thin_at = limits.STALE_ENTRIES_MIN + 2 * len(kept)


def _holds(consumer: Consumer, first: int, last: int) -> bool:
    """Whether a delivery from number `first` to before `last` is in flight."""
    line = consumer.in_flight
    index = line.index(first)
    return index < len(line.runs) and line.keys[index] < last
