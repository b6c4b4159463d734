"""The import of a queue from another shard: a copy that is not served until it is complete and opened.

See docs/adr/0010-moving-queues.md. mover.py makes the calls in this order, and the transaction:

    begin(now_ms)
    take(answer to a piece from `next` on) until that returns None     (copying, and again when frozen)
    take(answer to a rewritten piece from 0 on) until it returns None   (when frozen)
    finish(state); sync what was appended; the transaction
    open(name, epoch, now_ms), or drop(now_ms)

After a start, `Importing.recovered` makes one for each copy in the journal, to be opened or dropped.
"""

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lightrail.journal import record
from lightrail.journal.record import MOVED, MOVED_REASON, REWRITTEN, SPILLED, Ids, Numbers, QueueEvent, Settle
from lightrail.model.names import is_dead_letter
from lightrail.model.policy import Role
from lightrail.namespace.records import Name
from lightrail.shard.effects.performer import Performer
from lightrail.shard.effects.receiving_link import Origin
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.store import Store, StoreError
from lightrail.shard.moving.pieces import ColumnsError, decode_runs, unpack
from lightrail.shard.moving.state import QueueState, decode_state
from lightrail.shard.queue.changes.copying import IncompleteCopyError
from lightrail.shard.queue.lines.merging import join_neighbours
from lightrail.shard.queue.values.commands import Holder, Open
from lightrail.shard.queue.values.runs import Batch, Run, ends_of
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue

if TYPE_CHECKING:
    from lightrail.shard.links.links import Links

log = logging.getLogger("lightrail.shard.moving")


class ImportFailedError(Exception):
    """The copy can't be completed: drop it, and begin again or give up. The source still has all messages."""


@dataclass(slots=True, eq=False, repr=False)
class Importing:
    """One copy, from `begin` to `open` or `drop`.

    `begin`, `take` and `finish` may raise StoreError (no room, or the store failed): drop the copy then.
    """

    queue: Queue = field(init=False)
    """The copy, which becomes the queue when it is opened."""

    _queues: Queues
    _performer: Performer
    _store: Store
    _memory: Memory
    _links: "Links"
    name: str
    epoch: int
    next: int = 0
    """The sequence from which to request the next piece."""
    _joins: bool = False
    _export: str | None = None
    _noted: int = 0
    """Number of rewritten ranges at the source when all of them were copied."""
    _state: QueueState = field(default_factory=QueueState)

    @classmethod
    def recovered(
        cls, queue: Queue, queues: Queues, performer: Performer, store: Store, memory: Memory, links: "Links"
    ) -> "Importing":
        """A recovered copy: open it if its placement was committed, or drop it."""
        importing = cls(queues, performer, store, memory, links, queue.name, queue.epoch)
        importing.queue = queue
        return importing

    def restored(self, holders: list[Holder], origins: dict[int, Origin]) -> None:
        """Sets the consumers of a recovered copy, and the origin of each by its number."""
        self._state.holders, self._state.origins = holders, origins

    def begin(self, now_ms: int) -> None:
        """Creates the copy and declares it in the journal, with `"copy": true`.

        Raises:
            ImportFailedError: this shard has a queue or a copy of that name, or too many queues.
        """
        queues = self._queues
        if queues.find(self.name) is not None or queues.copy_of(self.name) is not None:
            raise ImportFailedError(f"expected no queue {self.name} in this shard, found one")
        if len(queues) + len(queues.copying) >= queues.queues_max and not is_dead_letter(self.name):
            raise ImportFailedError(
                f"this shard has as many queues as memory_mark allows: {queues.queues_max}"
            )
        found = queues.names.get(self.name)
        # Joined messages share their time of arrival, so they are not joined if the queue needs each time.
        self._joins = found.role is Role.QUEUE and not queues.policy_of(found).reads_messages
        self.queue = queues.begin_copy(found, self.epoch, now_ms)

    # --- pieces ----------------------------------------------------------------------------------------

    def take(self, header: dict[str, Any], blob: bytes, now_ms: int) -> int | None:
        """Adds the messages of a piece; a piece may be repeated.

        Returns:
            The sequence of the next piece, None if the source had no more; `next` has the sequence of the
            next request in both cases.

        Raises:
            ImportFailedError: the bytes are damaged, or the source began again or could not read its
            messages.
        """
        try:
            self._same(header)
            runs = decode_runs(unpack(header, blob))
            further, mark, lowest, notes = header["next"], header["mark"], header["lowest"], header["notes"]
        except (ColumnsError, KeyError, TypeError, ValueError) as error:
            raise ImportFailedError(f"a piece of queue {self.name} can't be used: {error}") from error
        if header.get("rewritten"):
            self._put_over(runs, now_ms)
            self._noted = notes if further is None else self._noted
        else:
            self._append([run for run in map(self._beyond, runs) if run is not None], now_ms)
            self.next = max(self.next, mark if further is None else further)
            self.trim(lowest, now_ms)
        self._memory.update(self.queue)
        if "failed" in header and not runs:
            raise ImportFailedError(f"queue {self.name} can't be copied: {header['failed']}")
        return None if further is None else int(further)

    def trim(self, below: int, now_ms: int) -> None:
        """Drops messages below this sequence, which have left the queue at the source."""
        self._removed(self.queue.machine.as_copy().drop_below(below), now_ms)

    def _same(self, header: dict[str, Any]) -> None:
        if self._export is None:
            self._export = header["export"]
        elif self._export != header["export"]:
            raise ImportFailedError(f"the source of queue {self.name} began again: so must the copy")

    def _beyond(self, run: Run) -> Run | None:
        """The part of a run that is not copied yet."""
        if run.end <= self.next:
            return None
        return run if run.sequence >= self.next else _alone(run, self.next - run.sequence)

    def _append(self, runs: list[Run], now_ms: int) -> None:
        queue, copy = self.queue, self.queue.machine.as_copy()
        for run in join_neighbours(runs) if self._joins else runs:
            batch = run.batch
            if self._is_kept(batch):
                flags = MOVED if batch.durable else MOVED | SPILLED
                batch.location = self._store.append(
                    Append([(queue.id, run.sequence)], 0, 0, batch, run.first, run.last, run.attempts, flags),
                    now_ms,
                )
                self._performer.messages_unsynced += run.count
            copy.add(run)
            self.next = run.end

    def _is_kept(self, batch: Batch) -> bool:
        """Whether messages are written to the journal: durable ones, and all of a captured queue."""
        return batch.durable or self.queue.captured

    def _put_over(self, runs: list[Run], now_ms: int) -> None:
        """Replaces messages that were rewritten at the source."""
        copy = self.queue.machine.as_copy()
        for run in runs:
            new, old = copy.put_over(run)
            for piece in new:
                # The parts may be evicted or settled separately, and a batch has one location.
                piece.batch = piece.batch.copy() if len(new) > 1 else piece.batch
                if self._is_kept(piece.batch):
                    piece.batch.location = self._store.append(
                        Append(
                            [(self.queue.id, piece.sequence)],
                            0,
                            0,
                            piece.batch,
                            piece.first,
                            piece.last,
                            piece.attempts,
                            REWRITTEN if piece.batch.durable else REWRITTEN | SPILLED,
                        ),
                        now_ms,
                    )
            for before in old:
                if before.batch.location is not None:
                    self._store.release(before.batch.location.segment, before.size)

    def _removed(self, runs: list[Run], now_ms: int) -> None:
        """Releases and settles messages that have left the queue at the source."""
        ranges: list[tuple[int, int]] = []
        for run in runs:
            if run.batch.location is not None:
                self._store.release(run.batch.location.segment, run.size)
            if self._is_kept(run.batch):
                if ranges and ranges[-1][1] == run.sequence:
                    ranges[-1] = ranges[-1][0], run.end
                else:
                    ranges.append((run.sequence, run.end))
        if ranges:
            self._store.append(Settle(self.queue.id, ranges, record.Outcome.PURGED, MOVED_REASON), now_ms)

    # --- the state -------------------------------------------------------------------------------------

    def finish(self, header: dict[str, Any], blob: bytes, now_ms: int) -> None:
        """Applies the state: drops messages that are not in it, and checks that all others were copied.

        The records that this appends must be synced before the transaction.

        Raises:
            ImportFailedError: as in `take`, or messages are missing.
        """
        try:
            self._same(header)
            if header["notes"] != self._noted:
                raise ImportFailedError(
                    f"expected all rewritten messages of queue {self.name}, {header['notes']} ranges, "
                    f"found {self._noted}: request them again"
                )
            state = decode_state(header, blob, self._links.receiving.next_number, self._queues.looks)
        except (ColumnsError, KeyError, IndexError, TypeError, ValueError) as error:
            raise ImportFailedError(f"the state of queue {self.name} can't be used: {error!r}") from error
        self._state = state
        try:
            removed, changed = self.queue.machine.as_copy().reconcile(state.stretches, state.next_sequence)
        except IncompleteCopyError as error:
            raise ImportFailedError(f"the copy of queue {self.name} is not complete: {error}") from error
        self._removed(removed, now_ms)
        self._write_attempts(changed, now_ms)
        for until_ms, digests in state.ids:
            self._store.append(Ids(self.queue.id, until_ms, digests), now_ms)
        known = state.known
        producers = [(id, number, known.parts.get(id, 0)) for id, number in known.numbers.items()]
        self._store.append(Numbers(self.queue.id, state.next_sequence, producers), now_ms)
        for terminus in self._links.sending.termini.records(self.queue, state.termini):
            self._store.append(terminus, now_ms)
        for holder in filter(self._is_durable, state.holders):
            opening = state.origins[holder.consumer].opened
            self._store.append(self._links.durable.record(self.queue, holder, opening), now_ms)
        if state.seen_to:
            # If the shard were killed before their links return, these messages would be delivered as new.
            self._queues.marks.note(self.queue.id, state.seen_to)
        self._memory.update(self.queue)

    def _is_durable(self, holder: Holder) -> bool:
        """Whether the deliveries of a consumer are recorded."""
        origin = self._state.origins.get(holder.consumer)
        return origin is not None and bool(self._links.durable.durability(origin.opened))

    def _write_attempts(self, runs: list[Run], now_ms: int) -> None:
        ranges: dict[int, list[tuple[int, int]]] = {}
        for run in runs:
            if run.batch.durable:
                ranges.setdefault(run.attempts, []).append((run.sequence, run.end))
        for attempts, mine in ranges.items():
            self._store.append(
                Settle(self.queue.id, mine, record.Outcome.MODIFIED, MOVED_REASON, attempts), now_ms
            )

    # --- the end ---------------------------------------------------------------------------------------

    def open(self, found: Name, epoch: int, now_ms: int) -> None:
        """Makes the copy a queue of this shard, with its policy, consumers and deliveries.

        Consumers have no credit, and their links are AWAY until the caller serves them. The queue is in
        `performer.touched`. A failure of the store is only logged: the copy is complete, and is opened again
        after a restart.
        """
        queue = self.queue
        policy = self._queues.open_copy(queue, found, epoch)
        state = self._state
        queue.redelivered_before = max(queue.redelivered_before, state.redelivered_before)
        queue.may_have_lost, queue.recovered_to = state.may_have_lost, state.recovered_to
        shift = now_ms - state.source_ms
        queue.idle_since_ms = state.idle_since_ms and state.idle_since_ms + shift
        for holder in state.holders:
            holder.renewed = {number: until_ms + shift for number, until_ms in holder.renewed.items()}
        locks = [(until_ms + shift, id, first, last) for until_ms, id, first, last in state.locks]
        seen_to = max(state.seen_to, queue.redelivered_before)
        opened = Open(policy, state.holders, locks, state.past, seen_to, state.ids)
        self._links.sending.learn(state.known)
        recorded = {each.consumer: each.deliveries for each in state.holders if self._is_durable(each)}
        self._links.receiving.add(queue, state.origins, recorded)
        self._links.sending.termini.restore(queue, state.termini)
        effects = queue.machine.apply(opened, now_ms)
        try:
            self._store.append(record.Queue(QueueEvent.POLICY, queue.id, queue.name, queue.declared), now_ms)
        except StoreError as error:
            log.error("the opening of queue %s could not be written: %s", queue.name, error)
        self._performer.perform(queue, effects, now_ms)
        self._memory.update(queue)

    def drop(self, now_ms: int) -> None:
        """Drops the copy and releases its locations.

        After a failure of the store, which is logged, a restart recovers the copy and drops it again.
        """
        queue = self.queue
        if self._queues.copy_of(queue.name) is not queue:
            return
        self._queues.drop_copy(queue)
        self._links.sending.termini.forget(queue)
        self._memory.remove(queue)
        for run in queue.view.runs:
            if run.batch.location is not None:
                self._store.release(run.batch.location.segment, run.size)
        try:
            self._store.append(record.Queue(QueueEvent.DELETED, queue.id, queue.name), now_ms)
        except StoreError as error:
            log.error("the end of the copy of queue %s could not be written: %s", queue.name, error)


def _alone(run: Run, start: int) -> Run:
    """The messages of a run from an index on, as a separate batch."""
    rest = run.cut(start, run.count)
    data = bytes(run.batch.blob(rest.first, rest.last))
    batch = run.batch.alike(data, ends_of(rest), rest.count, rest.size, 0, run.batch.location)
    return Run(batch, 0, rest.count, rest.sequence, rest.attempts)
