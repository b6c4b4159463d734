"""Ended links: deliveries that are locked under the keys of links that have ended, packed.

Such locks outlive their links (ADR 68). There may be very many of these links, each with few messages, so
nothing is kept of a link but what its locks need: 380 bytes where a consumer has 2,100. The messages are in
flight at one internal consumer, under their sequences, as deferred ones are (aside.py): what goes through all
messages goes through one line, and visits no link.

A command on a key unpacks the consumer with its deliveries, and packs what is left of it again (locks.py). So
everything else knows consumers alone. A consumer with more than PACKED_RUNS_MAX runs is not packed, as each
command would move all of them; its objects are few beside its messages.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from lightrail.model import limits
from lightrail.model.links import LockEnding
from lightrail.shard.queue.lines.consumers import Consumer, Consumers
from lightrail.shard.queue.lines.ends import Blame
from lightrail.shard.queue.lines.line import InFlight
from lightrail.shard.queue.lines.merging import slim
from lightrail.shard.queue.lines.ready import one_run
from lightrail.shard.queue.timed.aside import NOBODY_WITH_RETRIES
from lightrail.shard.queue.timed.lock_changes import LockedPart, parts_at
from lightrail.shard.queue.values.commands import ConsumerOptions
from lightrail.shard.queue.values.runs import Run

NOBODY_WITH_ENDED_LINKS: Final = NOBODY_WITH_RETRIES - 1
"""The number of the internal consumer that has the packed deliveries."""
PACKED_RUNS_MAX: Final[int] = 16
"""Runs, and ranges of locks with one end, of a consumer that is packed."""


class Terms(NamedTuple):
    """What the locks of many ended links have in common, stored once for links that end one after another."""

    lock_ms: int
    lock_ms_before: int
    own_lock_ms: int
    lock_ends: LockEnding
    is_blamed: bool
    """Whether the ends of locks count by the rule of whose fault they are; else each counts."""
    changes: int
    """The changes of the policy that the lock times follow; see EndedLinks.follow."""


@dataclass(slots=True, eq=False, repr=False)
class EndedLink:
    """What a consumer without a link needs for its locks. Its key is that of `EndedLinks.by_key`."""

    id: int
    terms: Terms
    next: int
    until_ms: int
    """The first end of its locks."""
    number: int
    """The first part is stored in this object, as most links have one; see LockedPart."""
    sequence: int
    length: int
    first_until_ms: int
    counts: bool
    others: tuple[LockedPart, ...]
    """The further parts."""

    @property
    def parts(self) -> tuple[LockedPart, ...]:
        """Its locks, by number."""
        first = LockedPart(self.number, self.sequence, self.length, self.first_until_ms, self.counts)
        return (first, *self.others)


@dataclass(slots=True, eq=False, repr=False)
class EndedLinks:
    """The ended links of one queue that are packed. Callers keep the sums of deliveries."""

    _consumers: Consumers
    by_key: dict[str, EndedLink] = field(default_factory=dict)
    count: int = 0
    """Number of messages."""
    _firsts: list[int] = field(default_factory=list)
    """The first sequence of each part of locks, in order."""
    _owners: list[EndedLink] = field(default_factory=list)
    """The link of each of these parts."""
    _heap: list[tuple[int, str]] = field(default_factory=list)
    """(first end in milliseconds since the epoch, key); entries of renewed and unpacked links are stale."""
    wakes_ms: int = 0
    """The time of the one entry in the heap of Locks that stands for all packed consumers; 0 for none."""
    _thin_at: int = limits.STALE_ENTRIES_MIN
    _lock_ms: int = 0
    """The last lock time of the policy since there are links, if it was not none."""
    _changes: int = 0
    """How often the policy was set while it had a lock time."""
    _terms: Terms | None = None
    """Those of the link that was packed last."""
    _holder: Consumer | None = None
    """The internal consumer; made at its first use, as most queues never need it."""

    def follow(self, lock_ms: int | None) -> None:
        """Notes a change of the policy: from now on, renewals are for its lock time, if it has one.

        Ends that were given stay. No link is visited: each follows when it is unpacked.
        """
        if lock_ms and self.by_key:
            self._lock_ms = lock_ms
            self._changes += 1

    # --- packing ----------------------------------------------------------------------------------------

    def pack(self, consumer: Consumer) -> bool:
        """Packs a detached consumer; False if it has too many runs, or locks without an end.

        The consumer keeps its line: notes of this step may be about it (lock_changes.py).
        """
        line = consumer.in_flight
        if max(len(line), len(consumer.renewed)) > PACKED_RUNS_MAX:
            return False
        first, *others = _parts_of(consumer)
        if len(others) >= PACKED_RUNS_MAX or not (first.until_ms and all(each.until_ms for each in others)):
            return False
        packed = self._packed
        for run in line.runs[line.head :]:
            _add(packed, run)
            self.count += run.count
        self._consumers.packed = self._holder
        until_ms = min([first.until_ms, *(each.until_ms for each in others)])
        key = consumer.options.lock_key
        link = self.by_key[key] = EndedLink(
            consumer.id, self._terms_of(consumer), consumer.next, until_ms, *first, tuple(others)
        )
        for part in (first, *others):
            index = bisect_right(self._firsts, part.sequence)
            self._firsts.insert(index, part.sequence)
            self._owners.insert(index, link)
        heappush(self._heap, (until_ms, key))
        if len(self._heap) > self._thin_at:
            self._heap = [(each.until_ms, key) for key, each in self.by_key.items()]
            heapify(self._heap)
            self._thin_at = limits.STALE_ENTRIES_MIN + 2 * len(self._heap)
        return True

    def unpack(self, key: str) -> Consumer:
        """Removes and returns the consumer that was packed under a key."""
        link = self.by_key.pop(key)
        packed = self._packed
        runs = [packed.take(part.sequence, part.sequence + part.length) for part in link.parts]
        for part in link.parts:
            self.count -= part.length
            index = bisect_right(self._firsts, part.sequence) - 1
            del self._firsts[index], self._owners[index]
        if not self.count:
            self._consumers.packed = None
        return self._consumer(key, link, runs)

    def copy(self, key: str) -> Consumer:
        """The consumer that is packed under a key, to be read."""
        link = self.by_key[key]
        packed = self._packed
        runs = [packed.between(part.sequence, part.sequence + part.length) for part in link.parts]
        return self._consumer(key, link, runs)

    def copies(self) -> Iterator[Consumer]:
        """Each consumer that is packed, to be read."""
        return map(self.copy, self.by_key)

    @property
    def _packed(self) -> InFlight:
        """The messages by sequence."""
        if self._holder is None:
            self._holder = Consumer(NOBODY_WITH_ENDED_LINKS, ConsumerOptions(), None)
        return self._holder.in_flight

    def _terms_of(self, consumer: Consumer) -> Terms:
        options = consumer.options
        terms = Terms(
            consumer.lock_ms,
            consumer.lock_ms_before,
            options.lock_ms,
            options.lock_ends,
            consumer.blame is not None,
            self._changes,
        )
        if self._terms != terms:
            self._terms = terms
        return self._terms

    def _consumer(self, key: str, link: EndedLink, runs: list[list[Run]]) -> Consumer:
        terms = link.terms
        options = ConsumerOptions(
            first=link.next, lock_ms=terms.own_lock_ms, lock_key=key, lock_ends=terms.lock_ends
        )
        consumer = Consumer(link.id, options, None, terms.lock_ms)
        consumer.lock_ms_before = terms.lock_ms_before
        consumer.departed = True
        if terms.is_blamed:
            consumer.blame = Blame()
        if terms.changes != self._changes:
            consumer.locks(terms.own_lock_ms or self._lock_ms)
        assert consumer.ends is not None, "it has a key"
        for part, found in zip(link.parts, runs, strict=True):
            for run in found:
                consumer.in_flight.append(part.number + run.sequence - part.sequence, run)
            consumer.ends.add(part.number, part.until_ms)
            consumer.ends.add(part.number + part.length, 0)
            if part.counts and consumer.blame is not None:
                for number in range(part.number, part.number + part.length):
                    consumer.blame.renew(number)
        return consumer

    # --- ends of locks ----------------------------------------------------------------------------------

    @property
    def next_ms(self) -> int | None:
        """The first end of all locks; None if there is none."""
        heap = self._heap
        while heap:
            until_ms, key = heap[0]
            link = self.by_key.get(key)
            if link is not None and link.until_ms == until_ms:
                return until_ms
            heappop(heap)
        return None

    def end_of(self, sequence: int) -> int:
        """The end of the lock of a packed message."""
        link = self._owners[bisect_right(self._firsts, sequence) - 1]
        return next(each.until_ms for each in link.parts if 0 <= sequence - each.sequence < each.length)

    @property
    def next_key(self) -> str:
        """The key of the lock that ends first; there is one."""
        return self._heap[0][1]


def _parts_of(consumer: Consumer) -> list[LockedPart]:
    """The locks of a consumer, by number, as few as can be."""
    line = consumer.in_flight
    found: list[LockedPart] = []
    for index in range(line.head, len(line.runs)):
        for part in parts_at(consumer, index, 0, consumer.next):
            before = found[-1] if found else part
            if (
                found
                and before.number + before.length == part.number
                and before.sequence + before.length == part.sequence
                and (before.until_ms, before.counts) == (part.until_ms, part.counts)
            ):
                found[-1] = before._replace(length=before.length + part.length)
            else:
                found.append(part)
    return found


def _add(line: InFlight, run: Run) -> None:
    """Adds a run under its sequence; parts of one batch that follow each other become one again."""
    index = stop = bisect_right(line.keys, run.sequence, line.head)
    start = index
    whole = run
    if start > line.head and one_run(line.runs[start - 1], whole):
        start -= 1
        before = line.runs[start]
        whole = Run(run.batch, before.first, run.last, before.sequence, run.attempts, run.barred)
    if stop < len(line.runs) and one_run(whole, line.runs[stop]):
        after = line.runs[stop]
        whole = Run(run.batch, whole.first, after.last, whole.sequence, run.attempts, run.barred)
        stop += 1
    if run.batch.data is not None:
        line.evicted_to = min(line.evicted_to, whole.sequence)
        line.slimmed_to = min(line.slimmed_to, whole.sequence)
        whole = slim(whole) if whole is run else whole
    line.replace(start, stop, [whole.sequence], [whole])
