"""Importing: a copy of another shard's queue, which nobody is served from until it is complete and opened.

See docs/adr/0010-moving-queues.md. The protocol (when to ask what, the transaction) is not here:

    begin(now_ms)
    take(answer to a piece from `next` on) until that returns None     (copying, and once more after the seal)
    take(answer to a rewritten piece from 0 on) until it returns None   (after the seal)
    finish(state); sync what was appended; the transaction
    open(name, epoch, now_ms), or drop(now_ms)

After a start the copies of the journal are in `queues.copies`: `Importing.recovered` opens or drops one.
"""

import logging
from dataclasses import replace
from typing import Any

from lightrail.filters.errors import FilterError
from lightrail.journal import record
from lightrail.journal.record import MOVED, MOVED_REASON, REWRITTEN, SPILLED, Ids, Numbers, QueueEvent, Settle
from lightrail.model import limits
from lightrail.model.names import is_dead_letter
from lightrail.model.policy import Role
from lightrail.namespace.records import Name
from lightrail.shard.declarations import encode_declared
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.store import Store, StoreError
from lightrail.shard.links import Known, Links, Origin, options_of
from lightrail.shard.memory import Memory
from lightrail.shard.moving.columns import BadColumns, Columns, rows, unpack
from lightrail.shard.moving.exporting import RUN_COLUMNS
from lightrail.shard.performer import Performer
from lightrail.shard.queue import copying
from lightrail.shard.queue.commands import ConsumerOptions, Holder, Open, Past
from lightrail.shard.queue.copying import Incomplete, Stretch
from lightrail.shard.queue.duplicates import DIGEST_BYTES
from lightrail.shard.queue.merging import join_neighbours
from lightrail.shard.queue.runs import Batch, Run, ends_of
from lightrail.shard.queues import Queue, Queues
from lightrail.wire.bodies import ConsumerOpen

log = logging.getLogger("lightrail.shard.moving")


class ImportFailed(Exception):
    """The copy can't be completed: drop it, begin anew or give up. Nothing is lost, the source has all."""


class Importing:
    """One copy, from `begin` to `open` or `drop`.

    `begin`, `take` and `finish` may raise StoreError (no room, or the store failed): drop the copy then.
    """

    __slots__ = (
        "_export",
        "_holders",
        "_ids",
        "_joins",
        "_known",
        "_links",
        "_locks",
        "_memory",
        "_noted",
        "_origins",
        "_past",
        "_performer",
        "_queues",
        "_redelivered_before",
        "_seen_to",
        "_source_ms",
        "_store",
        "bytes",
        "epoch",
        "messages",
        "name",
        "next",
        "queue",
    )

    queue: Queue
    """The copy, in `queues.copies`; once it is open the queue itself, in `queues`."""

    def __init__(
        self,
        queues: Queues,
        performer: Performer,
        store: Store,
        memory: Memory,
        links: Links,
        name: str,
        epoch: int,
    ) -> None:
        """`epoch` is the one that the queue is to have here."""
        self._queues = queues
        self._performer = performer
        self._store = store
        self._memory = memory
        self._links = links
        self.name = name
        self.epoch = epoch
        self.next = 0
        """The sequence to ask the source from."""
        self.messages = 0
        """Copied so far, with those that have left since."""
        self.bytes = 0
        """Of the same."""
        self._joins = False
        self._export: str | None = None
        self._noted = 0
        """How many rewritten ranges there were when all of them had come."""
        self._holders: list[Holder] = []
        self._origins: dict[int, Origin] = {}
        """By the number that the consumer has here."""
        self._locks: list[tuple[int, int, int, int]] = []
        self._past = Past()
        self._ids: list[tuple[int, bytes]] = []
        self._known = Known({}, {}, {})
        self._seen_to = 0
        self._redelivered_before = 0
        self._source_ms = 0
        """The source's time when it said all this."""

    @classmethod
    def recovered(
        cls, queue: Queue, queues: Queues, performer: Performer, store: Store, memory: Memory, links: Links
    ) -> "Importing":
        """A copy that came back from the journal: to be opened if its placement was committed, or dropped."""
        importing = cls(queues, performer, store, memory, links, queue.name, queue.epoch)
        importing.queue = queue
        return importing

    def begin(self, now_ms: int) -> None:
        """Makes the copy and declares it in the journal, with `"copy": true`.

        Raises:
            ImportFailed: there is a queue or a copy of that name here, or there are too many queues.
        """
        queues = self._queues
        if queues.find(self.name) is not None or self.name in queues.copies:
            raise ImportFailed(f"expected no queue {self.name} in this shard, found one")
        if len(queues) + len(queues.copies) >= limits.QUEUES_MAX and not is_dead_letter(self.name):
            raise ImportFailed(f"this shard has as many queues as it may have: {limits.QUEUES_MAX}")
        found = queues.names.get(self.name)
        # Joined messages share their time of arrival: not where the queue looks at each one's own.
        self._joins = found.role is Role.QUEUE and not queues.policy_of(found).reads_messages
        self.queue = queues.begin_copy(found, self.epoch, now_ms)

    # --- pieces ----------------------------------------------------------------------------------------

    def take(self, header: dict[str, Any], blob: bytes, now_ms: int) -> int | None:
        """Takes in a piece; one that came before does no harm.

        Returns:
            Where the source has more, None when it had no more then; `next` is where to ask from either way.

        Raises:
            ImportFailed: the bytes are not those that were sent, the source began anew, or can't read them.
        """
        try:
            self._same(header)
            runs = _runs(unpack(header, blob))
            further, mark, lowest, notes = header["next"], header["mark"], header["lowest"], header["notes"]
        except (BadColumns, KeyError, TypeError, ValueError) as error:
            raise ImportFailed(f"a piece of queue {self.name} can't be used: {error}") from error
        if header.get("rewritten"):
            self._put_over(runs, now_ms)
            self._noted = notes if further is None else self._noted
        else:
            self._append([run for run in map(self._beyond, runs) if run is not None], now_ms)
            self.next = max(self.next, mark if further is None else further)
            self.trim(lowest, now_ms)
        self._memory.update(self.queue)
        if "failed" in header and not runs:
            raise ImportFailed(f"queue {self.name} can't be copied: {header['failed']}")
        return None if further is None else int(further)

    def trim(self, below: int, now_ms: int) -> None:
        """The source has nothing below this sequence any more."""
        self._removed(copying.drop_below(self.queue.machine, below), now_ms)

    def _same(self, header: dict[str, Any]) -> None:
        if self._export is None:
            self._export = header["export"]
        elif self._export != header["export"]:
            raise ImportFailed(f"the source of queue {self.name} began anew: so must the copy")

    def _beyond(self, run: Run) -> Run | None:
        """What of a run is not there yet."""
        if run.end <= self.next:
            return None
        return run if run.sequence >= self.next else _alone(run, self.next - run.sequence)

    def _append(self, runs: list[Run], now_ms: int) -> None:
        queue = self.queue
        for run in join_neighbours(runs) if self._joins else runs:
            batch = run.batch
            if self._is_kept(batch):
                flags = MOVED if batch.durable else MOVED | SPILLED
                batch.place = self._store.append(
                    Append([(queue.id, run.sequence)], 0, 0, batch, run.first, run.last, run.attempts, flags),
                    now_ms,
                )
                self._performer.messages_unsynced += run.count
            copying.add(queue.machine, run)
            self.next = run.end
            self.messages += run.count
            self.bytes += run.size

    def _is_kept(self, batch: Batch) -> bool:
        """Whether messages are in the journal: durable ones, and whatever comes to a captured queue."""
        return batch.durable or self.queue.captured

    def _put_over(self, runs: list[Run], now_ms: int) -> None:
        """Messages with other bytes than they had."""
        for run in runs:
            new, old = copying.put_over(self.queue.machine, run)
            for piece in new:
                # Each may go its own way: one batch has one place.
                piece.batch = replace(piece.batch) if len(new) > 1 else piece.batch
                if self._is_kept(piece.batch):
                    piece.batch.place = self._store.append(
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
            for gone in old:
                if gone.batch.place is not None:
                    self._store.release(gone.batch.place.segment, gone.size)

    def _removed(self, runs: list[Run], now_ms: int) -> None:
        """What the source does not have any more."""
        ranges: list[tuple[int, int]] = []
        for run in runs:
            if run.batch.place is not None:
                self._store.release(run.batch.place.segment, run.size)
            if self._is_kept(run.batch):
                if ranges and ranges[-1][1] == run.sequence:
                    ranges[-1] = ranges[-1][0], run.end
                else:
                    ranges.append((run.sequence, run.end))
        if ranges:
            self._store.append(Settle(self.queue.id, ranges, record.Outcome.PURGED, MOVED_REASON), now_ms)

    # --- the state -------------------------------------------------------------------------------------

    def finish(self, header: dict[str, Any], blob: bytes, now_ms: int) -> None:
        """The final state: what is gone is dropped; each message must be there. All of it is in the journal.

        What was appended has to be on disk before the transaction.

        Raises:
            ImportFailed: as above, or messages are missing.
        """
        try:
            self._same(header)
            columns = unpack(header, blob)
            if header["notes"] != self._noted:
                raise ImportFailed(
                    f"expected all rewritten messages of queue {self.name}, {header['notes']} ranges, "
                    f"found {self._noted}: ask for them once more"
                )
            self._origins = {}
            self._holders = self._holders_of(header["consumers"], columns)
            numbers = [holder.consumer for holder in self._holders]
            pasts = [
                (int(attempts), tuple(numbers[each] for each in barred))
                for attempts, barred in header["pasts"]
            ]
            stretches = [
                Stretch(first, first + count, *pasts[past])
                for first, count, past in rows(columns, "there.first", "there.count", "there.past")
            ]
            self._locks = [
                (until_ms, numbers[index], first, last)
                for until_ms, index, first, last in rows(
                    columns, "locks.until_ms", "locks.consumer", "locks.first", "locks.last"
                )
            ]
            owners = rows(columns, "owners.sequence", "owners.consumer")
            newest = rows(columns, "newest.sequence", "newest.above")
            self._past = Past(
                {sequence: numbers[index] for sequence, index in owners} if header["groups"] else None,
                dict(newest) if header["last_values"] else None,  # type: ignore[arg-type]  # rows of two
            )
            self._known = _known(columns)
            self._ids = _ids(columns)
            self._seen_to, self._source_ms = header["seen_to"], header["now_ms"]
            # Shards of former versions do not have it.
            self._redelivered_before = int(header.get("redelivered_before", 0))
            next_sequence = header["next_sequence"]
        except (BadColumns, KeyError, IndexError, TypeError, ValueError) as error:
            raise ImportFailed(f"the state of queue {self.name} can't be used: {error!r}") from error
        try:
            removed, changed = copying.reconcile(self.queue.machine, stretches, next_sequence)
        except Incomplete as error:
            raise ImportFailed(f"the copy of queue {self.name} is not complete: {error}") from error
        self._removed(removed, now_ms)
        self._write_attempts(changed, now_ms)
        for until_ms, digests in self._ids:
            self._store.append(Ids(self.queue.id, until_ms, digests), now_ms)
        known = self._known
        producers = [(id, number, known.parts.get(id, 0)) for id, number in known.numbers.items()]
        self._store.append(Numbers(self.queue.id, next_sequence, producers), now_ms)
        if self._seen_to:
            # What its consumers hold would come again, should this shard be killed before they are back.
            self._queues.marks.note(self.queue.id, self._seen_to)
        self._memory.update(self.queue)

    def _write_attempts(self, runs: list[Run], now_ms: int) -> None:
        ranges: dict[int, list[tuple[int, int]]] = {}
        for run in runs:
            if run.batch.durable:
                ranges.setdefault(run.attempts, []).append((run.sequence, run.end))
        for attempts, mine in ranges.items():
            self._store.append(
                Settle(self.queue.id, mine, record.Outcome.MODIFIED, MOVED_REASON, attempts), now_ms
            )

    def _holders_of(self, said: list[dict[str, Any]], columns: Columns) -> list[Holder]:
        """The source's consumers under numbers of this shard."""
        deliveries: list[list[tuple[int, int, int]]] = [[] for _ in said]
        for index, number, sequence, count in rows(
            columns, "held.consumer", "held.number", "held.sequence", "held.count"
        ):
            deliveries[index].append((number, sequence, count))
        renewed: list[dict[int, int]] = [{} for _ in said]
        for index, number, until_ms in rows(
            columns, "renewed.consumer", "renewed.number", "renewed.until_ms"
        ):
            renewed[index][number] = until_ms
        holders = []
        for each, held, anew in zip(said, deliveries, renewed, strict=True):
            id = self._links.next_consumer()
            if each.get("departed"):
                options = ConsumerOptions(first=each["next"], lock_key=each["lock_key"])
            else:
                opened = ConsumerOpen(**each["opened"])
                self._origins[id] = Origin(each["boot"], each["link"], opened)
                try:
                    options = replace(options_of(opened, self._queues.looks), first=each["next"])
                except FilterError as error:
                    raise ValueError(f"a consumer's filter can't be used: {error}") from error
            holders.append(
                Holder(
                    id,
                    options,
                    each["next"],
                    held,
                    each["lock_ms"],
                    each["lock_ms_before"],
                    anew,
                    each.get("cursor", 0),
                    each.get("departed", False),
                    each.get("active", False),
                )
            )
        return holders

    # --- the end ---------------------------------------------------------------------------------------

    def open(self, found: Name, epoch: int, now_ms: int) -> dict[tuple[int, int], int]:
        """The queue is this shard's: it has its policy, its consumers with what they hold, is in `queues`.

        Consumers have no credit, and are in `links.adopted`; nobody is in `performer.consumers` for them.
        The queue is in `performer.touched`. A failure of the store is only said: the copy is complete, and
        has to be opened again after a restart.

        Returns:
            Their numbers in the machine by (boot of the frontend, link).
        """
        queue = self.queue
        policy = self._queues.open_copy(queue, found, epoch)
        queue.redelivered_before = max(queue.redelivered_before, self._redelivered_before)
        shift = now_ms - self._source_ms
        for holder in self._holders:
            holder.renewed = {number: until_ms + shift for number, until_ms in holder.renewed.items()}
        locks = [(until_ms + shift, id, first, last) for until_ms, id, first, last in self._locks]
        seen_to = max(self._seen_to, queue.redelivered_before)
        opened = Open(policy, self._holders, locks, self._past, seen_to, self._ids)
        self._links.learn(self._known)
        self._links.adopted.update(self._origins)
        effects = queue.machine.apply(opened, now_ms)
        try:
            self._store.append(
                record.Queue(QueueEvent.POLICY, queue.id, queue.name, encode_declared(found, epoch)), now_ms
            )
        except StoreError as error:
            log.error("the opening of queue %s could not be written down: %s", queue.name, error)
        self._performer.perform(queue, effects, now_ms)
        self._performer.touched[queue] = None
        self._memory.update(queue)
        return {(origin.boot, origin.link): id for id, origin in self._origins.items()}

    def drop(self, now_ms: int) -> None:
        """The copy goes, and its places are released; a failure of the store is said.

        Then it comes back after a restart, to be dropped again.
        """
        queue = self.queue
        if self._queues.copies.get(queue.name) is not queue:
            return
        self._queues.drop_copy(queue)
        self._memory.remove(queue)
        for run in queue.machine.runs():
            if run.batch.place is not None:
                self._store.release(run.batch.place.segment, run.size)
        try:
            self._store.append(record.Queue(QueueEvent.DELETED, queue.id, queue.name), now_ms)
        except StoreError as error:
            log.error("the end of the copy of queue %s could not be written down: %s", queue.name, error)


def _runs(columns: Columns) -> list[Run]:
    """The runs of a piece, each a batch of its own."""
    runs: list[Run] = []
    ends, data = columns["ends"], columns["data"]
    at = position = before = 0
    for (
        sequence,
        count,
        attempts,
        durable,
        priority,
        expires_at_ms,
        enqueued_at_ms,
        message_format,
        size,
    ) in rows(columns, *RUN_COLUMNS):
        column = ends[at : at + count]
        if not count or len(column) != count or column[-1] != size or sequence < before:
            raise BadColumns(f"the run at sequence {sequence} is not as said")
        batch = Batch(
            bytes(data[position : position + size]),
            column,
            count,
            size,
            0,
            bool(durable),
            priority,
            expires_at_ms or None,
            enqueued_at_ms,
            None,
            message_format,
        )
        runs.append(Run(batch, 0, count, sequence, attempts))
        at += count
        position += size
        before = sequence + count
    if position != len(data) or at != len(ends):
        raise BadColumns(f"the runs have {position} bytes, {len(data)} came")
    return runs


def _alone(run: Run, start: int) -> Run:
    """The messages of a run from an index on, as a batch of their own."""
    rest = run.cut(start, run.count)
    batch = replace(
        run.batch,
        data=bytes(run.batch.blob(rest.first, rest.last)),
        ends=ends_of(rest),
        count=rest.count,
        size=rest.size,
        base=0,
    )
    return Run(batch, 0, rest.count, rest.sequence, rest.attempts)


def _known(columns: Columns) -> Known:
    """What the source knew of producers."""
    known = Known({}, {}, {})
    for id, number, part in rows(columns, "producers.id", "producers.number", "producers.part"):
        known.numbers[id] = number
        if part:
            known.parts[id] = part
    for id, number, sequence in rows(columns, "stored.id", "stored.number", "stored.sequence"):
        known.sequences.setdefault(id, {})[number] = sequence
    return known


def _ids(columns: Columns) -> list[tuple[int, bytes]]:
    """Message-ids of the window of duplicates."""
    found: list[tuple[int, bytes]] = []
    digests = columns["digests"]
    position = 0
    for until_ms, size in rows(columns, "ids.until_ms", "ids.size"):
        found.append((until_ms, bytes(digests[position : position + size])))
        position += size
    if position != len(digests) or any(len(each) % DIGEST_BYTES for _, each in found):
        raise BadColumns(f"the digests have {position} bytes, {len(digests)} came")
    return found
