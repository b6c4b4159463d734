"""Locks: deliveries that are locked for their consumer for a limited time, by the end of that time.

A heap has one entry per delivered run. Entries are not removed when deliveries are settled: they
are dropped at the head, or when the heap has grown far beyond the number of locks. A renewal is noted beside
the entry, so that renewing a lock a thousand times costs one number.

Locks are in memory only: after a restart of the shard all locked messages are ready again.
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from lightrail.model import conditions, limits
from lightrail.shard.queue.lines.consumers import Consumer, Consumers
from lightrail.shard.queue.values.commands import ConsumerOptions
from lightrail.shard.queue.values.counters import TurnWork
from lightrail.shard.queue.values.effects import Refused


class Locks:
    """Timed locks of ranges of delivery numbers; an entry may be stale, never missing."""

    __slots__ = ("_consumers", "_thin_at", "by_key", "heap")

    def __init__(self, consumers: Consumers) -> None:
        self._consumers = consumers
        self.heap: list[tuple[int, int, int, int]] = []
        """(milliseconds since the epoch, consumer, first and last delivery number)."""
        self.by_key: dict[str, Consumer] = {}
        """Consumers whose locks have a name, attached or departed."""
        self._thin_at = limits.STALE_ENTRIES_MIN

    def add(self, consumer: Consumer, first: int, last: int, until_ms: int) -> None:
        """Locks deliveries, which are in flight, until a time."""
        heappush(self.heap, (until_ms, consumer.id, first, last))
        if len(self.heap) > self._thin_at:
            self._thin()

    def begin(self, consumer: Consumer, now_ms: int) -> None:
        """Begins timed locks for a consumer that had none, also for its deliveries in flight."""
        line = consumer.in_flight
        for number, run in zip(line.keys[line.head :], line.runs[line.head :], strict=True):
            self.add(consumer, number, number + run.count, now_ms + consumer.lock_ms)

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
            for number in _within(consumer, first, last):
                until_ms = consumer.renewed[number]
                if until_ms > now_ms:
                    heappush(heap, (until_ms, identity, number, number + 1))
                    if first < number:
                        yield consumer, first, number
                    first = number + 1
                else:
                    del consumer.renewed[number]
            if first < last:
                yield consumer, first, last

    def holder(self, key: str, number: int, sequence: int | None) -> Consumer | None:
        """The consumer with a delivery locked under this key; None if there is none with this sequence."""
        consumer = self.by_key.get(key)
        if consumer is None or not _holds(consumer, number, number + 1):
            return None
        line = consumer.in_flight
        index = line.index(number)
        found = line.runs[index].sequence + number - line.keys[index]
        return consumer if sequence is None or sequence == found else None

    def renew(self, key: str, number: int, sequence: int | None, now_ms: int) -> int | None:
        """Renews the lock of a delivery; returns its end, or None if there is no such lock."""
        consumer = self.holder(key, number, sequence)
        if consumer is None or not consumer.lock_ms:
            return None
        return self._renew(consumer, number, now_ms, consumer.lock_ms)

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
        if lock_ms < consumer.lock_ms_before and until_ms < renewed.get(number, until_ms + 1):
            # Its entry may stand for a longer time, and the note beside it be found too late.
            self.add(consumer, number, number + 1, until_ms)
        renewed[number] = until_ms
        return until_ms

    # --- consumers with a key --------------------------------------------------------------------------

    def refusal(self, identity: int, options: ConsumerOptions) -> Refused | None:
        """Why a consumer may not have this key, or None."""
        former = self.by_key.get(options.lock_key) if options.lock_key else None
        if former is None:
            return None
        if former.id in self._consumers.by_id:
            found = "found an attached consumer with the same one"
        elif options.first < former.next:
            found = f"found deliveries locked under it up to number {former.next - 1}, this one begins with "
            found += f"{options.first}"
        else:
            return None
        return Refused(identity, conditions.ILLEGAL_STATE, f"expected a lock key of its own, {found}")

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
        self.heap = [
            (until_ms, consumer.id if identity == former.id else identity, first, last)
            for until_ms, identity, first, last in self.heap
        ]
        heapify(self.heap)

    def detached(self, consumer: Consumer) -> bool:
        """Notes that a consumer has detached; returns whether its deliveries stay locked."""
        key = consumer.options.lock_key
        if not key:
            return False
        if consumer.lock_ms and len(consumer.in_flight):
            self._consumers.departed[consumer.id] = consumer
            consumer.departed = True
            return True
        del self.by_key[key]
        return False

    def settled(self, consumer: Consumer) -> None:
        """Drops the key of a detached consumer after the settlement of its last delivery."""
        if not len(consumer.in_flight) and self._consumers.departed.pop(consumer.id, None) is not None:
            self.by_key.pop(consumer.options.lock_key, None)

    def restored(self, consumer: Consumer) -> None:
        """Gives a detached consumer its key again, for returned deliveries; no other one has the key."""
        self.by_key[consumer.options.lock_key] = self._consumers.departed[consumer.id] = consumer

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
            for number in _within(consumer, first, last):
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
        self.heap = kept
        self._thin_at = limits.STALE_ENTRIES_MIN + 2 * len(kept)


def _holds(consumer: Consumer, first: int, last: int) -> bool:
    """Whether a delivery from number `first` to before `last` is in flight."""
    line = consumer.in_flight
    index = line.index(first)
    return index < len(line.runs) and line.keys[index] < last


def _within(consumer: Consumer, first: int, last: int) -> list[int]:
    """The renewed numbers of a range, in order."""
    renewed = consumer.renewed
    if not renewed:
        return []
    if last - first <= len(renewed):
        return [number for number in range(first, last) if number in renewed]
    return sorted(number for number in renewed if first <= number < last)
