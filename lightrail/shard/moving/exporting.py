"""The export of a queue to another shard: its messages in pieces by sequence, and its state at the end.

The destination of a move sends the requests `export` and `freeze` through a connection like that of a
frontend (`MoveRequests`). `Exports` has the queues that are being copied; the `Selection` of an export
chooses the messages of each piece. See docs/adr/0010-moving-queues.md and freezing.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lightrail.model import conditions, limits
from lightrail.shard.effects.answers import (
    NUMBER_MAX,
    Fields,
    Operation,
    answer,
    demand,
    error_fields,
    name_of,
    whole,
)
from lightrail.shard.effects.peers import Peer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.moving.pieces import QueueMessages, encode_runs, runs_from
from lightrail.shard.moving.state import encode_state
from lightrail.shard.queue.lines.ready import fitting, rejoined
from lightrail.shard.queue.values.runs import Run, sequence_of
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import CallWhenSynced, Queue, WhenSynced
from lightrail.shard.queues.tenancy import moved

if TYPE_CHECKING:
    from lightrail.shard.links.links import Links
    from lightrail.shard.moving.freezing import Freezing

MOVE_CHUNK_RUNS: Final[int] = 2_000
"""Runs of messages in the same, each of which is a record at the destination."""


Done = Callable[[Fields, bytes], None]
"""Receives the answer: the fields of its JSON, and the blob."""


class Selected(NamedTuple):
    """The messages of one piece."""

    runs: list[Run]
    next: int | None
    """The sequence of the next piece; None if this is the last one."""


@dataclass(slots=True, eq=False, repr=False)
class Selection:
    """Selects the runs of each piece, and stores which messages were rewritten after a piece had them."""

    _contents: QueueMessages
    _sent_to: int = 0
    """Messages with sequences below may have been in a piece."""
    _notes: dict[int, int] = field(default_factory=dict)
    """First and last sequence of messages below `_sent_to` that were rewritten, or came since."""

    @property
    def notes(self) -> int:
        """Number of ranges that were rewritten after a piece had them."""
        return len(self._notes)

    def note(self, run: Run) -> None:
        """Notes that messages were rewritten in place."""
        if run.sequence < self._sent_to:
            self._notes[run.sequence] = max(run.end, self._notes.get(run.sequence, 0))

    def select(self, first: int, mark: int, bytes_max: int, messages_max: int, rewritten: bool) -> Selected:
        """The runs of a piece; the first and last one may be parts of runs."""
        selected = self._select(first, mark, bytes_max, messages_max, rewritten)
        if not rewritten:
            # Also numbers that no message has yet: those that come under them are in no later piece.
            self._sent_to = max(self._sent_to, mark if selected.next is None else selected.next)
        return selected

    def _select(self, first: int, mark: int, bytes_max: int, messages_max: int, rewritten: bool) -> Selected:
        found, stop = (
            (self._noted(first), None) if rewritten else self._live(first, mark, bytes_max, messages_max)
        )
        runs: list[Run] = []
        for run in rejoined(found):
            run = run.cut(max(first - run.sequence, 0), min(run.end, mark) - run.sequence)
            if messages_max <= 0 or bytes_max <= 0 or len(runs) >= MOVE_CHUNK_RUNS:
                return Selected(runs, run.sequence)
            count = min(run.count, messages_max)
            if run.size > bytes_max:
                if run.batch.data is None:
                    count = min(count, max(1, run.count * bytes_max // run.size))
                else:
                    count = fitting(run, count, bytes_max)
                if runs and run.cut(0, count).size > bytes_max:
                    return Selected(runs, run.sequence)
            runs.append(run.cut(0, count))
            if count < run.count:
                return Selected(runs, runs[-1].end)
            messages_max -= count
            bytes_max -= run.size
        return Selected(runs, stop)

    def _live(self, first: int, mark: int, bytes_max: int, messages_max: int) -> tuple[list[Run], int | None]:
        """Runs from a sequence on, in order, and the sequence of the next ones; None if these are all."""
        found: list[Run] = []
        stop: int | None = None
        for line in self._contents.lines():
            left, room, batches = messages_max, bytes_max, MOVE_CHUNK_RUNS
            for run in runs_from(line, first):
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
        found = [
            run for run in chain(found, self._contents.others()) if run.end > first and run.sequence < before
        ]
        found.sort(key=sequence_of)
        return found, stop

    def _noted(self, first: int) -> list[Run]:
        """The parts of runs, from a sequence on and in order, that were rewritten after a piece had them."""
        ranges = sorted((start, end) for start, end in self._notes.items() if end > first)
        if not ranges:
            return []
        start = max(first, ranges[0][0])
        runs = list(chain(*(runs_from(line, start) for line in self._contents.lines())))
        runs += [run for run in self._contents.others() if run.end > start]
        runs.sort(key=sequence_of)
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


class Exporting:
    """The export of one queue, from its first piece to the end of its move; `Exports` has all of them.

    Args:
        identity: changes with every start of the shard and with every Exporting, such as the shard's boot
            number and a count. If it changes, the destination drops its copy and begins again, because notes
            of rewritten messages are in memory only.
        when_synced: see `CallWhenSynced`.
    """

    __slots__ = ("_links", "_performer", "_when_synced", "contents", "ended", "identity", "selection")

    def __init__(
        self, queue: Queue, performer: Performer, links: "Links", when_synced: CallWhenSynced, identity: str
    ) -> None:
        self.contents = QueueMessages(queue, performer)
        self.selection = Selection(self.contents)
        self.identity = identity
        self.ended = False
        self._performer = performer
        self._links = links
        self._when_synced = when_synced

    def end(self) -> None:
        """Ends the export because the move ended or begins again; requests for pieces stay unanswered."""
        self.ended = True

    def piece(
        self, first: int, bytes_max: int, messages_max: int, done: Done, *, rewritten: bool = False
    ) -> None:
        """Answers with messages of the queue with sequences from `first` on; at least one if there are any.

        Ready, delayed and in flight, durable and transient; only those that were enqueued before the
        request, and not before all of those are on disk: after a crash other messages would get their
        sequences. So `done` is called later, with the next commit and when evicted messages were read.

        Args:
            rewritten: only messages whose bytes were changed (annotations) after a piece had them: requested
                from 0 on after the freeze, when the destination has everything else.

        The answer's JSON: "export" (identity), "lowest" (lowest sequence in the queue, or that of its next
        message), "next" (sequence to go on from, None when there was nothing more), "mark" (messages with
        sequences below it could be in this piece), "messages" and "bytes" (all that the queue holds now),
        "rewritten" (as requested), "notes" (number of rewritten ranges), and the columns of its blob; with
        "failed", a sentence, where something could not be read now.
        """
        queue = self.contents.queue
        mark = queue.view.next_sequence

        def synced() -> None:
            if self.ended:
                return
            runs, stop = self.selection.select(first, mark, bytes_max, messages_max, rewritten)
            fields = {"mark": mark, "rewritten": rewritten}
            self._performer.read_all(queue, runs, partial(self._answer, done, fields, runs, stop))

        self._when_synced(WhenSynced(synced), 0)

    def _answer(
        self, done: Done, fields: Fields, runs: list[Run], stop: int | None, pieces: list[list[Run]]
    ) -> None:
        """Answers with a piece; `pieces` has the messages in memory of each of its runs."""
        if self.ended:
            return
        found: list[tuple[Run, int]] = []
        for run, parts in zip(runs, pieces, strict=True):
            position = run.sequence
            for part in parts:
                if part.sequence != position:
                    break
                found.append((part, run.attempts))
                position = part.end
            if position != run.end:
                stop = position
                fields["failed"] = f"messages {position} to {run.end - 1} can't be read back now"
                break
        described, blob = encode_runs(found)
        view = self.contents.queue.view
        header = {
            "export": self.identity,
            "lowest": self.contents.lowest,
            "next": stop,
            "messages": view.held,
            "bytes": view.held_bytes,
            "notes": self.selection.notes,
        }
        done(header | fields | described, blob)

    def state(self, now_ms: int) -> tuple[dict[str, Any], bytes]:
        """The state (state.py) after the freeze is on disk; may be called again."""
        fields, blob = encode_state(self.contents, self._performer, self._links)
        return {"export": self.identity, "now_ms": now_ms, "notes": self.selection.notes, **fields}, blob


@dataclass(slots=True, eq=False, repr=False)
class Exports:
    """The queues of this shard that are being copied to others.

    Args:
        identity: the identity of this start of the shard; it changes with every start.
        when_synced: see `CallWhenSynced`.
    """

    _performer: Performer
    _links: "Links"
    _when_synced: CallWhenSynced
    _identity: str
    _began: int = 0
    _by_queue: dict[Queue, Exporting] = field(default_factory=dict)

    def of(self, queue: Queue) -> Exporting:
        """The export of a queue; begins one if there is none."""
        found = self._by_queue.get(queue)
        if found is None:
            self._began += 1
            identity = f"{self._identity}-{self._began}"
            found = Exporting(queue, self._performer, self._links, self._when_synced, identity)
            self._by_queue[queue] = found
            self._performer.exports[queue] = found.selection.note
        return found

    def end(self, queue: Queue) -> None:
        """Ends the export of a queue, if there is one."""
        found = self._by_queue.pop(queue, None)
        if found is not None:
            found.end()
            del self._performer.exports[queue]


FREEZE_OP: Final = "freeze"


@dataclass(eq=False, repr=False)
class MoveRequests:
    """The operations `export` and `freeze`."""

    _queues: Queues
    _links: "Links"
    _freezing: "Freezing"
    _exports: Exports
    _when_synced: CallWhenSynced

    def __post_init__(self) -> None:
        self.operations: dict[str, Operation] = {"export": self._export, FREEZE_OP: self._freeze}

    def _export(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> Fields | None:
        """Answers with messages of a queue that moves; `absent` if there is no such dead-letter queue."""
        queue = self._owned(fields, now_ms)
        if queue is None:
            return {"absent": True}
        first = whole(fields, "from", 0, NUMBER_MAX, 0)
        size = whole(fields, "bytes", 1, limits.MOVE_CHUNK_BYTES, limits.MOVE_CHUNK_BYTES)
        messages = whole(fields, "messages", 1, limits.MOVE_CHUNK_MESSAGES, limits.MOVE_CHUNK_MESSAGES)

        done = partial(answer, peer, number)
        rewritten = fields.get("rewritten") is True
        self._exports.of(queue).piece(first, size, messages, done, rewritten=rewritten)
        return None

    def _freeze(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Freezes a queue; answers with its state, and that of its dead-letter queue, when that is on
        disk."""
        name, epoch = name_of(fields), whole(fields, "epoch", 1, NUMBER_MAX, None)
        queues = demand(self._freezing.freeze(name, epoch, now_ms))

        def frozen() -> None:
            states: list[Fields] = []
            blobs: list[bytes] = []
            for queue in queues:
                state, blob = self._exports.of(queue).state(now_ms)
                blobs.append(blob)
                links = [list(key) for key in (found.key for found in self._links.receiving.of(queue))]
                states.append({"queue": queue.name, "state": state, "links": links, "blob": len(blob)})
            answer(peer, number, {"states": states}, b"".join(blobs))

        def synced() -> None:
            if all(queue.is_frozen and self._queues.find(queue.name) is queue for queue in queues):
                frozen()
            else:
                answer(peer, number, error_fields(conditions.MOVED, f"{name} is not here now"))

        self._when_synced(WhenSynced(synced), 0)

    def _owned(self, fields: Fields, now_ms: int) -> Queue | None:
        """The queue of a request, if this shard owns it in that epoch. Raises RequestError."""
        name, epoch = name_of(fields), whole(fields, "epoch", 1, NUMBER_MAX, None)
        queue = self._queues.find(name)
        if queue is not None and queue.is_frozen and queue.epoch == epoch:
            return queue
        if queue is None and self._queues.is_absent_dead_letter(name):
            return None
        found = demand(self._queues.open(name, now_ms, epoch))
        return found if found.is_serving else demand(moved(f"{name} is not served at this shard"))
