"""Exporting: what is in a queue for another shard, in pieces by sequence, and its whole state at the end.

See docs/adr/0010-moving-queues.md. The protocol (who asks, who may) is not here.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import chain
from typing import Any, NamedTuple

from lightrail.model import limits
from lightrail.shard.links import Links
from lightrail.shard.moving.columns import pack, table
from lightrail.shard.performer import Performer
from lightrail.shard.queue.commands import Past
from lightrail.shard.queue.consumers import Consumer
from lightrail.shard.queue.ready import Ready, fitting, rejoined
from lightrail.shard.queue.runs import Run, ends_of
from lightrail.shard.reading import Read
from lightrail.shard.shard_queue import Queue
from lightrail.shard.waiting import Waiter

Done = Callable[[dict[str, Any], bytes], None]
"""Gets the answer: what goes into the JSON, and the blob."""
WhenSynced = Callable[[Waiter, int], None]
"""`Engine.when_synced`: the waiter's `accept` is called when everything so far is on disk."""

RUN_COLUMNS = {
    "sequence": "Q",
    "count": "I",
    "attempts": "I",
    "durable": "B",
    "priority": "B",
    "expires_at_ms": "q",
    "enqueued_at_ms": "q",
    "message_format": "I",
    "size": "I",
}
"""Of each run of a piece: name and type; `expires_at_ms` is 0 for never. After them come `ends` (u32, of all
messages, each run's counted from its own first byte) and `data`."""


class Exporting:
    """The export of one queue, from its first piece to the end of its move; `Exports` has all of them.

    Args:
        identity: says whether two answers belong together: another one after every start of the shard, and
            for every Exporting (the shard's boot number and a count will do). A destination that sees it
            change throws its copy away and begins anew: notes of what was rewritten are in memory only.
        when_synced: see `WhenSynced`.
    """

    __slots__ = ("_given_to", "_links", "_notes", "_performer", "_when_synced", "ended", "identity", "queue")

    def __init__(
        self, queue: Queue, performer: Performer, links: Links, when_synced: WhenSynced, identity: str
    ) -> None:
        self.queue = queue
        self.identity = identity
        self.ended = False
        self._performer = performer
        self._links = links
        self._when_synced = when_synced
        self._given_to = 0
        """Pieces may have had the sequences below."""
        self._notes: dict[int, int] = {}
        """First and last sequence of what was rewritten below that."""

    def end(self) -> None:
        """The move is over, or begins anew: pieces under way go unanswered."""
        self.ended = True

    def note(self, run: Run) -> None:
        """Messages were rewritten in place."""
        if run.sequence < self._given_to:
            self._notes[run.sequence] = max(run.end, self._notes.get(run.sequence, 0))

    # --- pieces ----------------------------------------------------------------------------------------

    def piece(
        self, first: int, bytes_max: int, messages_max: int, done: Done, *, rewritten: bool = False
    ) -> None:
        """Answers with messages of the queue with sequences from `first` on; at least one if there are any.

        Ready, delayed and in flight, durable and transient; only those that had come when this was asked, and
        not before everything that had come then is on disk: after a crash their sequences would be given to
        others. So `done` is called later, with the next commit and when what is only on disk was read.

        Args:
            rewritten: only messages whose bytes were changed (annotations) after a piece had them: asked for
                from 0 on after the seal, when everything else is there.

        The answer's JSON: "export" (identity), "lowest" (sequence that is in the queue, or the next one to be
        given), "next" (sequence to go on from, None when there was nothing more), "mark" (what had come
        below it was there to be given), "messages" and "bytes" (all that the queue holds now), "rewritten"
        (as asked), "notes" (how many rewritten ranges there are), and the columns of its blob; with
        "failed", a sentence, where something could not be read now.
        """
        mark = self.queue.machine.next_sequence
        self._when_synced(_Piece(self, first, mark, bytes_max, messages_max, done, rewritten), 0)

    def chosen(self, first: int, mark: int, bytes_max: int, messages_max: int, rewritten: bool) -> "Chosen":
        """The runs of a piece, parted where it begins and ends."""
        found, stop = (
            (self._noted(first), None) if rewritten else self._live(first, mark, bytes_max, messages_max)
        )
        runs: list[Run] = []
        for run in rejoined(found):
            run = run.cut(max(first - run.sequence, 0), min(run.end, mark) - run.sequence)
            if messages_max <= 0 or bytes_max <= 0 or len(runs) >= limits.MOVE_CHUNK_RUNS:
                return Chosen(runs, run.sequence)
            count = min(run.count, messages_max)
            if run.size > bytes_max:
                if run.batch.data is None:
                    count = min(count, max(1, run.count * bytes_max // run.size))
                else:
                    count = fitting(run, count, bytes_max)
                if runs and run.cut(0, count).size > bytes_max:
                    return Chosen(runs, run.sequence)
            runs.append(run.cut(0, count))
            if not rewritten:
                self._given_to = max(self._given_to, runs[-1].end)
            if count < run.count:
                return Chosen(runs, runs[-1].end)
            messages_max -= count
            bytes_max -= run.size
        return Chosen(runs, stop)

    def _live(self, first: int, mark: int, bytes_max: int, messages_max: int) -> tuple[list[Run], int | None]:
        """What is there from a sequence on, in order, and where more of it begins if this is not all."""
        found: list[Run] = []
        stop: int | None = None
        for line in self._lines():
            left, room, batches = messages_max, bytes_max, limits.MOVE_CHUNK_RUNS
            for run in _from(line, first):
                if run.sequence >= mark:
                    break
                if not found or run.batch is not found[-1].batch:
                    batches -= 1
                if left <= 0 or room <= 0 or batches < 0:
                    stop = run.sequence if stop is None else min(stop, run.sequence)
                    break
                found.append(run)
                left -= run.end - max(run.sequence, first)
                room -= run.size
        before = mark if stop is None else stop
        found = [run for run in chain(found, self._held()) if run.end > first and run.sequence < before]
        found.sort(key=_sequence)
        return found, stop

    def _noted(self, first: int) -> list[Run]:
        """What was rewritten, from a sequence on, in order."""
        ranges = sorted((start, end) for start, end in self._notes.items() if end > first)
        if not ranges:
            return []
        start = max(first, ranges[0][0])
        runs = list(chain(*(_from(line, start) for line in self._lines())))
        runs += [run for run in self._held() if run.end > start]
        runs.sort(key=_sequence)
        found: list[Run] = []
        at = 0
        for run in runs:
            while at < len(ranges) and ranges[at][1] <= run.sequence:
                at += 1
            position = run.sequence
            for low, high in ranges[at:]:
                if low >= run.end:
                    break
                low = max(low, position)
                position = min(high, run.end)
                if low < position:
                    found.append(run.cut(low - run.sequence, position - run.sequence))
        return found

    def _lines(self) -> list[Ready]:
        machine = self.queue.machine
        special = machine.special
        if special is None or special.delays is None:
            return [machine.ready]
        return [machine.ready, special.delays.line]

    def _held(self) -> Iterator[Run]:
        """What is in flight, and dead letters that the store had no room for: they are in no queue yet."""
        for consumer in self.queue.machine.consumers:
            yield from consumer.in_flight.runs[consumer.in_flight.head :]
        for queue, effect in self._performer.unwritten:
            if queue is self.queue:
                yield effect.run

    def said(self, mark: int, next_: int | None, rewritten: bool) -> dict[str, Any]:
        """What the JSON of a piece says of the queue as it is now."""
        machine = self.queue.machine
        lowest = [next(_from(line, 0), None) for line in self._lines()]
        sequences = [run.sequence for run in chain(lowest, self._held()) if run is not None]
        return {
            "export": self.identity,
            "lowest": min(sequences, default=machine.next_sequence),
            "next": next_,
            "mark": mark,
            "messages": machine.held,
            "bytes": machine.held_bytes,
            "rewritten": rewritten,
            "notes": len(self._notes),
        }

    def read(self, run: Run, then: Callable[[Read], None]) -> None:
        """Has messages read that are only on disk."""
        self._performer.read(self.queue, run, then)

    # --- the state -------------------------------------------------------------------------------------

    def state(self, now_ms: int) -> tuple[dict[str, Any], bytes]:
        """The final state, once the queue is sealed and that is on disk; may be asked for again.

        Everything `Importing.finish` needs: which sequences are there with which past, who holds what, locks,
        owners of groups, message-ids, the producers' numbers.
        """
        machine = self.queue.machine
        consumers = self._consumers()
        index_of = {consumer.id: index for index, (consumer, _) in enumerate(consumers)}
        pasts, stretches = self._stretches(index_of)
        past = machine.special.known() if machine.special is not None else Past()
        known = self._links.numbers_of(self.queue)
        groups = list(machine.duplicates.groups()) if machine.duplicates is not None else []
        columns: dict[str, Any] = {}
        _put(columns, "there", {"first": "Q", "count": "Q", "past": "I"}, stretches)
        _put(
            columns,
            "held",
            {"consumer": "I", "number": "Q", "sequence": "Q", "count": "I"},
            (
                (index, number, run.sequence, run.count)
                for index, (consumer, _) in enumerate(consumers)
                for number, run in _in_flight(consumer)
            ),
        )
        _put(
            columns,
            "locks",
            {"until_ms": "q", "consumer": "I", "first": "Q", "last": "Q"},
            (
                (until_ms, index_of[identity], first, last)
                for until_ms, identity, first, last in machine.locks.heap
                if identity in index_of
            ),
        )
        _put(
            columns,
            "renewed",
            {"consumer": "I", "number": "Q", "until_ms": "q"},
            (
                (index, number, until_ms)
                for index, (consumer, _) in enumerate(consumers)
                for number, until_ms in consumer.renewed.items()
            ),
        )
        _put(
            columns,
            "owners",
            {"sequence": "Q", "consumer": "I"},
            (
                (sequence, index_of[owner])
                for sequence, owner in (past.owners or {}).items()
                if owner in index_of
            ),
        )
        _put(columns, "newest", {"sequence": "Q", "above": "Q"}, (past.newest or {}).items())
        _put(
            columns,
            "producers",
            {"id": "Q", "number": "Q", "part": "I"},
            ((id, number, known.parts.get(id, 0)) for id, number in known.numbers.items()),
        )
        _put(
            columns,
            "stored",
            {"id": "Q", "number": "Q", "sequence": "Q"},
            (
                (id, number, sequence)
                for id, stored in known.sequences.items()
                for number, sequence in stored.items()
            ),
        )
        _put(
            columns,
            "ids",
            {"until_ms": "q", "size": "I"},
            ((until_ms, len(digests)) for until_ms, digests in groups),
        )
        columns["digests"] = [digests for _, digests in groups]
        said, blob = pack(columns)
        header = {
            "export": self.identity,
            "now_ms": now_ms,
            "next_sequence": machine.next_sequence,
            "seen_to": machine.deliveries.seen_to,
            "redelivered_before": self.queue.redelivered_before,
            "messages": machine.held,
            "bytes": machine.held_bytes,
            "notes": len(self._notes),
            "pasts": pasts,
            "consumers": [each for _, each in consumers],
            "groups": past.owners is not None,
            "last_values": past.newest is not None,
            **said,
        }
        return header, blob

    def _consumers(self) -> list[tuple[Consumer, dict[str, Any]]]:
        """In the order they came; those whose locks outlived them last."""
        machine = self.queue.machine
        found = []
        for consumer in machine.consumers:
            said: dict[str, Any] = {
                "next": consumer.next,
                "lock_ms": consumer.lock_ms,
                "lock_ms_before": consumer.lock_ms_before,
            }
            peer = self._performer.consumers.get(consumer.id)
            if consumer.departed:
                said |= {"departed": True, "lock_key": consumer.options.lock_key}
            elif peer is not None and peer.opened is not None:
                said |= {"boot": peer.peer.boot, "link": peer.link, "opened": asdict(peer.opened)}
            elif (origin := self._links.adopted.get(consumer.id)) is not None:
                said |= {"boot": origin.boot, "link": origin.link, "opened": asdict(origin.opened)}
            else:
                # Nobody would come for what it holds.
                continue
            if consumer.ring is None:
                said["cursor"] = consumer.cursor
            elif machine.consumers.single_active and not consumer.standby and not consumer.departed:
                said["active"] = True
            found.append((consumer, said))
        return found

    def _stretches(self, index_of: dict[int, int]) -> tuple[list[Any], list[tuple[int, int, int]]]:
        """The pasts that messages have, and (first sequence, count, past) of all that is there, in order."""
        pasts: dict[tuple[int, tuple[int, ...]], int] = {}
        rows: list[tuple[int, int, int]] = []
        runs = list(chain(*(_from(line, 0) for line in self._lines()), self._held()))
        runs.sort(key=_sequence)
        first = end = 0
        last: Run | None = None
        for run in runs:
            if last is not None:
                if run.sequence == end and run.attempts == last.attempts and run.barred == last.barred:
                    end = run.end
                    continue
                rows.append((first, end - first, _past_of(last, pasts, index_of)))
            first, end, last = run.sequence, run.end, run
        if last is not None:
            rows.append((first, end - first, _past_of(last, pasts, index_of)))
        return [[attempts, list(barred)] for attempts, barred in pasts], rows


class Chosen(NamedTuple):
    """The messages of one piece."""

    runs: list[Run]
    next: int | None
    """Where the next piece begins, None when this is all."""


class _Piece:
    """One answer, from when it was asked for to when it is on disk and in memory."""

    __slots__ = (
        "_bytes_max",
        "_done",
        "_export",
        "_first",
        "_mark",
        "_messages_max",
        "_missing",
        "_next",
        "_pieces",
        "_rewritten",
    )

    def __init__(
        self,
        export: Exporting,
        first: int,
        mark: int,
        bytes_max: int,
        messages_max: int,
        done: Done,
        rewritten: bool,
    ) -> None:
        self._export = export
        self._first = first
        self._mark = mark
        self._bytes_max = bytes_max
        self._messages_max = messages_max
        self._done = done
        self._rewritten = rewritten
        self._pieces: list[tuple[Run, list[Run]]] = []
        """Run as it is in the queue, and its messages in memory."""
        self._next: int | None = None
        self._missing = 0

    def accept(self, number: int) -> None:
        """See `Waiter`: what had come is on disk."""
        if self._export.ended:
            return
        chosen = self._export.chosen(
            self._first, self._mark, self._bytes_max, self._messages_max, self._rewritten
        )
        self._next = chosen.next
        self._pieces = [(run, [] if run.batch.data is None else [run]) for run in chosen.runs]
        evicted = [(run, pieces) for run, pieces in self._pieces if not pieces]
        self._missing = len(evicted)
        for run, pieces in evicted:
            self._export.read(run, self._came(pieces))
        if not evicted:
            self._answer()

    def _came(self, pieces: list[Run]) -> Callable[[Read], None]:
        def came(read: Read) -> None:
            pieces.extend(read.runs)
            self._missing -= 1
            if not self._missing:
                self._answer()

        return came

    def _answer(self) -> None:
        if self._export.ended:
            return
        runs: list[tuple[Run, int]] = []
        failed = None
        for run, pieces in self._pieces:
            position = run.sequence
            for piece in pieces:
                if piece.sequence != position:
                    break
                runs.append((piece, run.attempts))
                position = piece.end
            if position != run.end:
                self._next = position
                failed = f"messages {position} to {run.end - 1} can't be read back now"
                break
        columns: dict[str, Any] = {}
        _put(columns, "", RUN_COLUMNS, (_row(run, attempts) for run, attempts in runs))
        ends: array[int] = array("I")
        for run, _ in runs:
            ends.frombytes(bytes(ends_of(run)))
        columns["ends"] = ends
        columns["data"] = [run.batch.blob(run.first, run.last) for run, _ in runs]
        said, blob = pack(columns)
        header = self._export.said(self._mark, self._next, self._rewritten) | said
        if failed is not None:
            header["failed"] = failed
        self._done(header, blob)


def _row(run: Run, attempts: int) -> tuple[int, ...]:
    batch = run.batch
    return (
        run.sequence,
        run.count,
        attempts,
        batch.durable,
        batch.priority,
        batch.expires_at_ms or 0,
        batch.enqueued_at_ms,
        batch.message_format,
        run.size,
    )


def _put(
    columns: dict[str, Any], prefix: str, types: dict[str, str], rows: Iterable[tuple[int, ...]]
) -> None:
    """One column for each place of the rows, named `PREFIX.NAME`, or `NAME`."""
    made = table("".join(types.values()), rows)
    for name, column in zip(types, made, strict=True):
        columns[f"{prefix}.{name}" if prefix else name] = column


def _past_of(run: Run, pasts: dict[tuple[int, tuple[int, ...]], int], index_of: dict[int, int]) -> int:
    barred = tuple(index_of[each] for each in run.barred if each in index_of)
    return pasts.setdefault((run.attempts, barred), len(pasts))


def _from(line: Ready, first: int) -> Iterator[Run]:
    """The runs of a line from the one on that reaches beyond a sequence; holes are passed over."""
    runs = line.runs
    for index in range(line.index(first), len(runs)):
        run = runs[index]
        if run.last > run.first:
            yield run


def _in_flight(consumer: Consumer) -> Iterable[tuple[int, Run]]:
    line = consumer.in_flight
    return zip(line.keys[line.head :], line.runs[line.head :], strict=True)


def _sequence(run: Run) -> int:
    return run.sequence
