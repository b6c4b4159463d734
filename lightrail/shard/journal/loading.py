"""Opens the files of a journal: checks identity and extent, reads all records, loads the heads of all queues.

What is not loaded into memory stays on disk as evicted runs.
"""

from array import array
from collections.abc import Callable
from typing import Final, NamedTuple

from lightrail.journal.archive import Incarnation
from lightrail.journal.layout import APPEND, AppendHead, decode_append_head
from lightrail.journal.record import SPILLED, QueueEntry
from lightrail.journal.scan import Found, Scan
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE
from lightrail.model import limits
from lightrail.shard.journal import identity, recovery
from lightrail.shard.journal.batches import lay_over, load
from lightrail.shard.journal.commit import NOWHERE, Reached
from lightrail.shard.journal.files import Files
from lightrail.shard.journal.identity import Extent
from lightrail.shard.journal.live import Attributes, LiveSpans, Span
from lightrail.shard.journal.replay import Replay
from lightrail.shard.journal.segment import Segment, salt_of
from lightrail.shard.journal.store import Recovered, RecoveredQueue
from lightrail.shard.queue.values.runs import Batch, Location, Run, shifted

SMALL_BYTES: Final = 4 * 1024
"""Records up to this size are joined with their neighbours."""


class OpenedFiles(NamedTuple):
    """The files of a journal, after their records were read."""

    salt: int
    incarnation: Incarnation
    extent: Extent
    """The extent that the extent file has."""
    replay: Replay
    queues: list[RecoveredQueue]

    def reached(self) -> Reached:
        """The end of the journal."""
        if not self.replay.segments:
            return NOWHERE
        index = self.replay.segments[-1].index
        return Reached(index.segment, index.end, index.next_lsn, index.messages, index.last_ms, True)

    def recovered(self) -> Recovered:
        """The contents of the journal."""
        replay = self.replay
        tables = replay.tables
        return Recovered(
            self.queues,
            dict(tables.producers),
            tables.epoch,
            replay.lsn,
            tables.sealed,
            replay.cut_bytes,
            replay.lost,
            dict(tables.parts),
            tables.open_transactions,
        )


def open_files(
    files: Files,
    cluster: str,
    shard: int,
    producers_max: int,
    memory_bytes: int,
    judge: Callable[[Extent], None],
    epoch: int = 0,
    former: Replay | None = None,
) -> OpenedFiles:
    """Checks the identity and extent of the files, reads all segments, and cuts a torn tail.

    Args:
        memory_bytes: bound of the bytes of messages in memory.
        judge: called before a file is changed; raises StoreError if the journal is too short.
        epoch: that of the owner that is about to write, see recovery.py.
        former: what was replayed of these files before.
    """
    salt = None
    if identity.load_identity(files) is None:
        salt = salt_of(files)
    found = identity.settle(files, cluster, shard, salt)
    known = identity.load_extent(files, found.salt)

    def check(extent: Extent, end: int) -> None:
        identity.check(known, extent.segment, end, extent.next_lsn)
        judge(extent)

    replay = recovery.replay(files, found.salt, producers_max, check, epoch, former)
    try:
        queues = load_queues(replay, found.salt, memory_bytes)
    except BaseException:
        for segment in replay.segments:
            segment.close()
        raise
    return OpenedFiles(found.salt, Incarnation(found.cluster, found.shard, found.disk), known, replay, queues)


def load_queues(replay: Replay, salt: int, memory_bytes: int) -> list[RecoveredQueue]:
    """All queues with their runs; each segment is read once for all queues.

    Of queues that were made ahead of a take-over no message is loaded.
    """
    tables = replay.tables
    made = {queue: found for queue, entry in tables.queues.items() if (found := made_of(replay, entry))}
    spans = {queue: live.spans() for queue, live in replay.live.items() if queue not in made}
    until = _shares({queue: list_ for queue, list_ in spans.items() if list_}, memory_bytes)
    loaded: dict[int, list[Run]] = {queue: [] for queue in until}
    areas: dict[int, list[tuple[int, int]]] = {}
    for queue, limit in until.items():
        for span in spans[queue]:
            if span.first < limit:
                areas.setdefault(span.segment, []).append((span.offset, span.end))
    for segment in replay.segments:
        if segment.number in areas:
            _load_segment(segment, salt, sorted(areas[segment.number]), until, replay.live, loaded)
    by_number = {segment.number: segment for segment in replay.segments}
    recovered = []
    for queue, entry in tables.queues.items():
        each = made.get(queue) or _recovered(entry, _with_evicted(loaded.get(queue, []), spans[queue]))
        recovered.append(each)
        for run in each.runs:
            location = run.batch.location
            assert location is not None
            by_number[location.segment].live += run.size
        each.ids = tables.ids_of(queue)
        for group in tables.ids[queue].groups if each.ids else ():
            by_number[group.segment].live += group.size
        each.termini, each.receivers = tables.termini.of(queue), tables.receivers.of(queue)
    for record, number in tables.transactions.values():
        by_number[number].live += record.size
    for number, size in (*tables.termini.live, *tables.receivers.live):
        by_number[number].live += size
    return recovered


def _recovered(entry: QueueEntry, runs: list[Run]) -> RecoveredQueue:
    return RecoveredQueue(entry.queue, entry.name, entry.policy, entry.next_sequence, runs)


def made_of(replay: Replay, entry: QueueEntry) -> RecoveredQueue | None:
    """What was made of a queue ahead of a take-over, if the queue has not changed since."""
    found = replay.live[entry.queue].made
    if found is None or (found.next_sequence, found.name, found.policy) != (
        entry.next_sequence,
        entry.name,
        entry.policy,
    ):
        return None
    return found


def make(replay: Replay, entry: QueueEntry) -> None:
    """Makes a queue ahead of a take-over, with runs that have only their locations."""
    live = replay.live[entry.queue]
    found = live.made = _recovered(entry, _with_evicted([], live.spans()))
    found.decode()


def _shares(spans: dict[int, list[Span]], memory_bytes: int) -> dict[int, int]:
    """The sequence up to which each queue is loaded: equal shares of memory, unused parts redistributed."""
    sizes = sorted((sum(span.size for span in list_), queue) for queue, list_ in spans.items())
    until: dict[int, int] = {}
    left = memory_bytes
    for index, (size, queue) in enumerate(sizes):
        share = left // (len(sizes) - index)
        list_ = spans[queue]
        if size <= share:
            until[queue] = list_[-1].last
            left -= size
            continue
        left -= share
        for span in list_:
            if span.size > share:
                until[queue] = span.first + (span.last - span.first) * share // span.size
                break
            share -= span.size
    return until


class _Joiner:
    """Gathers small neighbouring records of one queue into one batch, as the queue would do later."""

    __slots__ = ("_batch", "_ends", "_pieces", "_runs", "_segment", "attempts", "attributes", "next", "size")

    def __init__(self, runs: list[Run], segment: int) -> None:
        self._runs = runs
        self._segment = segment
        self._pieces: list[bytes] = []
        self._ends = array("I")
        self._batch = (0, 0, 0, 0)
        self.next = -1
        """Sequence that follows the gathered messages."""
        self.size = 0
        self.attempts = 0
        self.attributes: Attributes = (0, 0, 0, 0)

    def add(self, found: Found, fixed: AppendHead, column: int, sequence: int, attempts: int) -> None:
        """Adds a whole record with one target."""
        attributes = (fixed.attributes, fixed.priority, fixed.expires_at_ms, fixed.message_format)
        offset, end = found.offset, found.offset + found.length
        view = found.view
        blob = column + 4 * fixed.messages
        if (
            sequence != self.next
            or self.size + fixed.size > limits.JOINED_BYTES
            or attempts != self.attempts
            or attributes != self.attributes
            or end - self._batch[1] > limits.SPAN_BYTES_MAX
        ):
            self.flush()
            self._batch = (sequence, offset, end, fixed.enqueued_at_ms)
            self.attempts = attempts
            self.attributes = attributes
        else:
            first, start, _, enqueued_at_ms = self._batch
            self._batch = (first, start, end, enqueued_at_ms)
        if fixed.messages == 1:
            self._ends.append(self.size + fixed.size)
        else:
            self._ends.frombytes(shifted(view[column:blob], self.size))
        self._pieces.append(bytes(view[blob : blob + fixed.size]))
        self.size += fixed.size
        self.next = sequence + fixed.messages

    def flush(self) -> None:
        """Makes a run of the gathered messages."""
        if self._pieces:
            attributes, priority, expires_at_ms, message_format = self.attributes
            first, offset, end, enqueued_at_ms = self._batch
            count = len(self._ends)
            batch = Batch(
                b"".join(self._pieces),
                self._ends,
                count,
                self.size,
                0,
                bool(attributes & 1),
                priority,
                expires_at_ms or None,
                enqueued_at_ms,
                Location(self._segment, offset, end - offset),
                message_format,
            )
            lay_over(self._runs, Run(batch, 0, count, first, self.attempts))
            self._pieces = []
            self._ends = array("I")
            self.size = 0
        self.next = -1


def _load_segment(
    segment: Segment,
    salt: int,
    areas: list[tuple[int, int]],
    until: dict[int, int],
    live: dict[int, LiveSpans],
    loaded: dict[int, list[Run]],
) -> None:
    """Reads the areas of a segment in one pass and adds their live messages to the loaded ones."""
    merged: list[list[int]] = []
    for start, end in areas:
        assert start >= SEGMENT_HEADER_SIZE
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    # Only of queues with messages in this segment: there may be many queues, and many segments.
    joiners: dict[int, _Joiner] = {}
    for start, end in merged:
        for found in Scan(segment.file, salt, start, end, None):
            if found.code == APPEND and not found.flags & SPILLED:
                _load_record(segment.number, found, until, live, loaded, joiners)
    for joiner in joiners.values():
        joiner.flush()


def _load_record(
    segment: int,
    found: Found,
    until: dict[int, int],
    live: dict[int, LiveSpans],
    loaded: dict[int, list[Run]],
    joiners: dict[int, _Joiner],
) -> None:
    """Loads the live messages of one Append record: those whose span has this area."""
    head, targets, column = decode_append_head(found.view, found.start, found.length)
    pieces: list[tuple[int, int, int, int]] = []
    low, high = head.messages, 0
    for queue, sequence in targets:
        if sequence >= until.get(queue, 0):
            continue
        stop = sequence + head.messages
        for span in live[queue].overlapping(sequence, stop):
            if span.segment == segment and span.offset <= found.offset < span.end:
                first, last = max(sequence, span.first), min(stop, span.last)
                # A message has the same index in the batch in each of its queues.
                pieces.append((queue, first, last, span.attempts))
                low, high = min(low, first - sequence), max(high, last - sequence)
    if not pieces:
        return
    if len(targets) == len(pieces) == 1 and high - low == head.messages and head.size < SMALL_BYTES:
        queue, first, _, attempts = pieces[0]
        joiner = joiners.get(queue)
        if joiner is None:
            joiner = joiners[queue] = _Joiner(loaded[queue], segment)
        joiner.add(found, head, column, first, attempts)
        return
    batch = load(found, head, column, segment, low, high)
    sequences = dict(targets)
    for queue, first, last, attempts in pieces:
        if queue in joiners:
            joiners[queue].flush()
        index = first - sequences[queue] - low
        lay_over(loaded[queue], Run(batch, index, index + last - first, first, attempts))


def _with_evicted(loaded: list[Run], spans: list[Span]) -> list[Run]:
    """The loaded and evicted runs together, in order."""
    runs: list[Run] = []
    loaded.sort(key=lambda run: run.sequence)
    index = 0
    first = 0
    for span in spans:
        first = max(first, span.first)  # A joined run may reach into the next span.
        while index < len(loaded) and loaded[index].sequence < span.last:
            run = loaded[index]
            index += 1
            if run.sequence > first:
                runs.append(_evicted(span, first, run.sequence))
            runs.append(run)
            first = run.end
        if first < span.last:
            runs.append(_evicted(span, first, span.last))
    return runs


def _evicted(span: Span, first: int, last: int) -> Run:
    """Part of a span as a run whose messages are only on disk."""
    durable, priority, expires_at_ms, message_format = span.attributes
    batch = Batch(
        None,
        None,
        last - first,
        span.size * (last - first) // (span.last - span.first),
        0,
        bool(durable & 1),
        priority,
        expires_at_ms or None,
        span.enqueued_at_ms,
        Location(span.segment, span.offset, span.end - span.offset),
        message_format,
    )
    return Run(batch, 0, last - first, first, span.attempts)
