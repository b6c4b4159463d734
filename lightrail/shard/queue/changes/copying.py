"""Copying: builds the contents of a queue from those of the same queue at another shard.

A copy is a machine without a policy, which is not dispatched: all its messages are in the ready line, in
memory or on disk, with the sequences, attempts and bars that they have at the source. `Open` makes it the
queue.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lightrail.shard.queue.changes.contents import Contents
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.lines.ends import Blame
from lightrail.shard.queue.lines.merging import parts_of
from lightrail.shard.queue.lines.ready import Ready
from lightrail.shard.queue.values.commands import Holder
from lightrail.shard.queue.values.runs import Run


class IncompleteCopyError(Exception):
    """Messages are missing from a copy."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(f"messages {first} to {last - 1} are at the source and not in the copy")


class Stretch(NamedTuple):
    """Messages with these sequences exist, and have equal attempts and bars."""

    first: int
    last: int
    attempts: int
    barred: tuple[int, ...]


class Reconciled(NamedTuple):
    """The corrections of a copy."""

    removed: list[Run]
    """Messages that were removed."""
    changed: list[Run]
    """Messages with a new number of attempts."""


@dataclass(slots=True, eq=False, repr=False)
class Copy:
    """A queue that is built from its copy at another shard."""

    _contents: Contents

    def add(self, run: Run) -> None:
        """Appends messages behind all others."""
        ready = self._contents.ready
        assert not len(ready) or ready.runs[-1].end <= run.sequence, "a copy grows at its end"
        ready.add(run)
        self._contents.counters.restored += run.count
        self._contents.next_sequence = max(self._contents.next_sequence, run.end)

    def drop_below(self, first: int) -> list[Run]:
        """Removes the messages below a sequence."""
        ready = self._contents.ready
        index = ready.head
        gone: list[Run] = []
        rest: list[Run] = []
        while index < len(ready.runs) and ready.runs[index].sequence < first:
            run = ready.runs[index]
            index += 1
            if run.end > first:
                run, after = parts_of(run, first - run.sequence)
                rest.append(after)
            gone.append(run)
        if gone:
            ready.swap(ready.head, index, rest)
            self._contents.counters.restored -= sum(run.count for run in gone)
        return gone

    def put_over(self, run: Run) -> tuple[list[Run], list[Run]]:
        """Replaces messages by others with the same sequences.

        Returns:
            The new runs and the replaced ones; messages that are not in the copy are added, as they were
            enqueued under numbers of which the copy had later ones.
        """
        ready = self._contents.ready
        low = index = ready.index(run.sequence)
        old: list[Run] = []
        new: list[Run] = []
        window: list[Run] = []
        at = run.sequence
        """Messages of the run below are in the window."""
        while index < len(ready.runs) and ready.runs[index].sequence < run.end:
            each = ready.runs[index]
            index += 1
            if each.sequence < run.sequence:
                before, each = parts_of(each, run.sequence - each.sequence)
                window.append(before)
            after: list[Run] = []
            if each.end > run.end:
                each, behind = parts_of(each, run.end - each.sequence)
                after = [behind]
            if at < each.sequence:
                new.append(run.cut(at - run.sequence, each.sequence - run.sequence))
                window.append(new[-1])
                self._contents.counters.restored += new[-1].count
            at = each.end
            piece = run.cut(each.sequence - run.sequence, each.end - run.sequence)
            piece.attempts, piece.barred = each.attempts, each.barred
            old.append(each)
            new.append(piece)
            window += [piece, *after]
        if at < run.end:
            new.append(run.cut(at - run.sequence, run.count))
            window.append(new[-1])
            self._contents.counters.restored += new[-1].count
        ready.swap(low, index, window)
        return new, old

    def reconcile(self, stretches: Iterable[Stretch], next_sequence: int) -> Reconciled:
        """Corrects a copy to exactly these messages, in rising order.

        Raises:
            IncompleteCopyError: some of them are missing; nothing has changed.
        """
        ready = self._contents.ready
        runs = iter(ready.waiting())
        run = next(runs, None)
        kept: list[Run] = []
        removed: list[Run] = []
        changed: list[Run] = []
        for first, last, attempts, barred in stretches:
            while first < last:
                while run is not None and run.end <= first:
                    removed.append(run)
                    run = next(runs, None)
                if run is None or run.sequence > first:
                    raise IncompleteCopyError(first, last if run is None else min(last, run.sequence))
                if run.sequence < first:
                    before, run = parts_of(run, first - run.sequence)
                    removed.append(before)
                if run.end > last:
                    part, run = parts_of(run, last - run.sequence)
                else:
                    part, run = run, next(runs, None)
                if part.attempts != attempts or part.barred != barred:
                    failed = part.attempts != attempts
                    part = Run(part.batch, part.first, part.last, part.sequence, attempts, barred)
                    if failed:
                        changed.append(part)
                kept.append(part)
                first = part.end
        if run is not None:
            removed += [run, *runs]
        ready.swap(ready.head, len(ready.runs), kept)
        self._contents.counters.restored -= sum(gone.count for gone in removed)
        self._contents.next_sequence = max(self._contents.next_sequence, next_sequence)
        return Reconciled(removed, changed)


def holders_of(holders: Sequence[Holder], ready: Ready) -> Iterator[tuple[Holder, Consumer]]:
    """The consumers with their deliveries, which are removed from the ready line, in memory or on disk."""
    wanted = sorted(
        (sequence, count, number, index)
        for index, holder in enumerate(holders)
        for number, sequence, count in holder.deliveries
    )
    collected: list[list[tuple[int, Run]]] = [[] for _ in holders]
    runs = iter(ready.waiting())
    run = next(runs, None)
    kept: list[Run] = []
    for sequence, count, number, index in wanted:
        shift = number - sequence
        end = sequence + count
        while run is not None and run.sequence < end:
            if run.end <= sequence:
                kept.append(run)
                run = next(runs, None)
                continue
            if run.sequence < sequence:
                before, run = parts_of(run, sequence - run.sequence)
                kept.append(before)
            if run.end > end:
                part, run = parts_of(run, end - run.sequence)
            else:
                part, run = run, next(runs, None)
            collected[index].append((part.sequence + shift, part))
    if run is not None:
        kept += [run, *runs]
    if wanted:
        ready.swap(ready.head, len(ready.runs), kept)
    for holder, mine in zip(holders, collected, strict=True):
        yield holder, _consumer(holder, sorted(mine, key=_number))


def _number(delivery: tuple[int, Run]) -> int:
    return delivery[0]


def _consumer(holder: Holder, deliveries: list[tuple[int, Run]]) -> Consumer:
    consumer = Consumer(holder.consumer, holder.options, None, holder.lock_ms)
    consumer.next = consumer.limit = holder.next
    consumer.lock_ms_before = holder.lock_ms_before
    consumer.renewed = holder.renewed
    consumer.cursor = holder.cursor
    consumer.departed = holder.departed
    consumer.session_of = holder.session_of
    if holder.blame is not None:
        oldest, renewed = holder.blame
        consumer.blame = Blame(oldest, set(renewed))
    for number, run in deliveries:
        consumer.in_flight.append(number, run.until(0) if run.waits else run)
    return consumer
