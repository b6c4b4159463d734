"""Footprint: what a queue has in memory, and how it gets less.

Messages are spilled (they get a location on disk), evicted (their bytes leave memory) and relocated (the
cleaner of the journal wrote them elsewhere). `memory/disk.py` brings them back.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from lightrail.model import limits
from lightrail.model.limits import RUN_BYTES, RUN_EVICTED_BYTES, RUN_ON_DISK_BYTES, RUNS_UNCOUNTED_MAX
from lightrail.shard.queue.changes.contents import Contents
from lightrail.shard.queue.lines.consumers import bytes_of
from lightrail.shard.queue.memory.disk import large_head
from lightrail.shard.queue.values.runs import Location, Run

Sizes = tuple[int, tuple[int, int, int, int]]
"""What changes with most batches, and what most batches leave as it is; see `Footprint.sizes`."""
NO_SIZES: Final[Sizes] = (0, (0, 0, 0, 0))


class Footprint:
    """The memory of one queue: of its messages, their index, its consumers and its message-ids."""

    __slots__ = ("_contents", "consumers")

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self.consumers = contents.consumers

    # --- sizes --------------------------------------------------------------------------------------------

    def sizes(self) -> Sizes:
        """What the queue has in memory; in one call, because each step counts it for each touched queue.

        Returns:
            Bytes in memory of messages and index. And apart from these: bytes of the index, which stay in
            memory when all messages are on disk; those that stay for unsettled deliveries; bytes of
            consumers, of attached ones and of those that have departed, without their deliveries; and the
            number of message-ids in the window of duplicates.
        """
        contents = self._contents
        special, ready, deliveries = contents.special, contents.ready, contents.deliveries
        count = deliveries.count
        size = ready.bytes - ready.evicted_bytes + deliveries.bytes - deliveries.evicted_bytes
        size += deliveries.spare_bytes
        if special is None:
            if ready.count or ready.spare_bytes:
                size += ready.kept_bytes
            evicted = ready.evicted_runs
            index = RUN_ON_DISK_BYTES * evicted
            # A part of a batch counts as well, because it is a separate run on disk.
            size += RUN_BYTES * (len(ready.runs) - ready.head - evicted)
        else:
            index = special.index_bytes
            if special.delays is not None:
                delayed = special.delays.line
                size += delayed.bytes - delayed.evicted_bytes
            if special.singles:
                index += limits.SINGLE_BYTES * count
                size += special.batch_bytes
            else:
                size += ready.kept_bytes
                size += RUN_BYTES * (len(ready) - ready.evicted_runs)
        unsettled = ids = 0
        if count > RUNS_UNCOUNTED_MAX:
            runs = deliveries.run_count.of(count)
            if runs > RUNS_UNCOUNTED_MAX:
                size += RUN_EVICTED_BYTES * min(runs, count - deliveries.evicted_count)
                if special is None or not special.singles:
                    unsettled = RUN_ON_DISK_BYTES * runs
                    size += unsettled
                else:
                    unsettled = limits.SINGLE_BYTES * runs
        links = self.consumers.attached_bytes
        if contents.deadlines.heap or contents.locks.heap:
            index += self._timed_bytes()
            links += limits.ENDED_LINK_BYTES * len(contents.locks.ended.by_key)
        if contents.duplicates is not None:
            ids = len(contents.duplicates)
            size += limits.REMEMBERED_ID_BYTES * ids
        if self.consumers.departed:
            links += limits.CONSUMER_BYTES * len(self.consumers.departed)
        return index + size, (index, unsettled, links, ids)

    def _timed_bytes(self) -> int:
        """Bytes of the times of messages and of locks."""
        least = limits.STALE_ENTRIES_MIN
        expiring, locked = len(self._contents.deadlines.heap), len(self._contents.locks.heap)
        return limits.TIMED_BYTES * (expiring * (expiring > least) + locked * (locked > least))

    @property
    def message_bytes(self) -> int:
        """Bytes in memory of the messages alone."""
        return self._contents.resident_message_bytes

    @property
    def in_flight_bytes(self) -> int:
        """Bytes in memory of messages that are in flight."""
        deliveries = self._contents.deliveries
        return deliveries.bytes - deliveries.evicted_bytes

    @property
    def users(self) -> Iterator[tuple[str, int]]:
        """User and bytes of each attached consumer."""
        for consumer in self._contents.consumers.by_id.values():
            yield consumer.options.user, bytes_of(consumer.options)

    def take_changed_users(self) -> dict[str, int] | None:
        """By user: how many bytes more its consumers have than at the last call; None: no change."""
        changed, self.consumers.changed = self.consumers.changed, None
        return changed

    @property
    def is_parted(self) -> bool:
        """Whether messages keep more of their batches in memory, as far as that is known."""
        return bool(self._contents.deliveries.spare_bytes or self._contents.ready.kept_bytes)

    # --- less of it -----------------------------------------------------------------------------------------

    def slim(self) -> None:
        """Copies messages that keep much more of their batches in memory."""
        self._contents.deliveries.slim()
        self._contents.ready.slim()

    def forget_ids(self, count: int) -> None:
        """Forgets the oldest message-ids before the end of their window."""
        if self._contents.duplicates is not None:
            self._contents.duplicates.forget(count)

    @property
    def head_bytes(self) -> int:
        """How many bytes stay in memory at the head of the queue."""
        return self._contents.eviction.head_bytes

    @head_bytes.setter
    def head_bytes(self, size: int) -> None:
        self._contents.eviction.head_bytes = size

    def large_head(self) -> Run | None:
        """The run at the head if it is in memory and larger than what may stay there; see `large_head`."""
        eviction = self._contents.eviction
        return large_head(eviction.ready, eviction.head_bytes)

    def evict_head(self) -> int:
        """Drops the run of `large_head` from memory; returns the bytes that were freed."""
        return self._contents.eviction.evict_head()

    def evict(self, bytes_wanted: int, batch_bytes: int = 0) -> int:
        """Drops messages that are on disk from memory; returns the bytes that were freed.

        Evicts waiting messages first, from the tail, then those in flight.
        """
        contents = self._contents
        freed = contents.eviction.evict(bytes_wanted, batch_bytes)
        deliveries = contents.deliveries
        if freed < bytes_wanted and deliveries.bytes > deliveries.evicted_bytes:
            special = contents.special
            memory = special.keys if special is not None and special.keys.are_read else None
            freed += deliveries.evict(bytes_wanted - freed, memory)
        return freed

    def spill_candidates(self, bytes_wanted: int, batch_bytes: int = 0) -> list[Run]:
        """Runs that can be evicted once they have a location; the engine writes them and sets it."""
        contents = self._contents
        found = contents.eviction.spill_candidates(bytes_wanted, batch_bytes)
        deliveries = contents.deliveries
        if deliveries.bytes > deliveries.evicted_bytes:
            # Waiting messages first; the window at the head stays.
            waiting = contents.ready.bytes - contents.ready.evicted_bytes
            waiting += contents.delayed.bytes - contents.delayed.evicted_bytes
            bytes_wanted -= max(0, waiting - contents.eviction.head_bytes)
            found += deliveries.spill_candidates(bytes_wanted)
        return found

    # --- places on disk -------------------------------------------------------------------------------------

    def runs_in(self, segment: int) -> list[Run]:
        """Every run, ready or in flight, whose location is in a segment of the journal."""
        return [
            run
            for run in self._contents.runs()
            if run.batch.location is not None and run.batch.location.segment == segment
        ]

    def relocate(self, moves: Sequence[tuple[Run, Location]]) -> None:
        """Sets the new locations of messages that are still in the queue.

        Each run has the old location. It is one of `runs_in`, or a part of one that was read from disk;
        messages that were settled meanwhile are skipped. Consumers are looked through once for all runs, as
        each transaction over several shards has one.
        """
        contents = self._contents
        left: list[tuple[Run, Location, int]] = []
        for run, location in sorted(moves, key=_first_sequence):
            old = run.batch.location
            if contents.eviction.relocate(run, location) < run.count and old is not None:
                left.append((run, location, old.segment))
        if not left:
            return
        ends = [run.end for run, _, _ in left]
        for consumer in contents.consumers:
            line = consumer.in_flight
            here: dict[int, None] = {}
            for each in line.runs[line.head :]:
                index = bisect_right(ends, each.sequence)
                while index < len(left) and left[index][0].sequence < each.end:
                    here[index] = None
                    index += 1
            for index in here:
                run, location, segment = left[index]
                line.relocate(run, segment, location)
        contents.deliveries.run_count.outdate()


def _first_sequence(move: tuple[Run, Location]) -> int:
    return move[0].sequence
