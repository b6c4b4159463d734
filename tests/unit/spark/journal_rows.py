"""Journals with every kind of record, and their rows read the plain way: one record after another."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from lightrail.journal.archive import Incarnation
from lightrail.journal.index import SegmentIndex, read_index
from lightrail.journal.layout import APPEND, GAP, decode_append_head, decode_small
from lightrail.journal.record import (
    CONTINUED,
    MOVED,
    MOVED_REASON,
    REWRITTEN,
    SPILLED,
    Delivered,
    Epoch,
    Gap,
    Ids,
    Numbers,
    Outcome,
    Queue,
    QueueEvent,
    Settle,
    Snapshot,
    Taken,
)
from lightrail.journal.scan import Found, Scan
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, decode_segment_header
from lightrail.model.attempts import failures
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.queue.values.runs import batch_of
from lightrail.spark.columns import SCHEMA
from lightrail.spark.decoding.rows import record_batches
from lightrail.spark.decoding.wanted import Part, Wanted
from lightrail.spark.decoding.windows import Lost
from tests.support.shard.fake_files import FakeFiles

INCARNATION = Incarnation("test", 3, "5eed")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PLAIN = (
    *("queue", "shard", "journal", "epoch", "sequence", "lsn", "event", "event_time", "enqueued_at"),
    *("durable", "priority", "ttl", "delivery_count", "reason", "producer", "consumer", "message"),
)
"""Columns that take no look into messages."""


class Bytes:
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


@dataclass
class Stored:
    """A segment as readers have it."""

    file: Bytes
    index: SegmentIndex
    salt: int

    def part(self, first: int | None = None, stop: int | None = None) -> Part:
        index = self.index
        return Part(
            INCARNATION,
            index.segment,
            index.first_lsn if first is None else first,
            index.next_lsn if stop is None else stop,
            index,
        )

    def damaged(self, offset: int) -> "Stored":
        """The same with one bit changed."""
        data = bytearray(self.file.data)
        data[offset] ^= 0x10
        return Stored(Bytes(bytes(data)), self.index, self.salt)

    def records(self) -> list[Found]:
        index = self.index
        return list(Scan(self.file, self.salt, SEGMENT_HEADER_SIZE, index.end, index.first_lsn))


def stored(data: bytes, sealed: bool) -> Stored:
    """A segment by its bytes."""
    header = decode_segment_header(data)
    assert header is not None
    file = Bytes(data)
    index, _ = read_index(header, file, len(data))
    index.sealed = sealed
    return Stored(file, index, header.salt)


def segments(files: FakeFiles) -> list[Stored]:
    """All that were begun; the last one is not sealed."""
    names = [name for name in files.names() if name.endswith(".segment")]
    data = [bytes(files.inodes[name].live) for name in names]
    begun = [each for each in data if decode_segment_header(each) is not None]
    return [stored(each, number < len(begun) - 1) for number, each in enumerate(begun)]


def journal_of(
    script: Callable[[Journal], None], segment_bytes: int = 1 << 20, files: FakeFiles | None = None
) -> list[Stored]:
    """What a script writes to a fresh journal."""
    files = FakeFiles() if files is None else files
    journal = Journal(files, "test", 3, segment_bytes=segment_bytes)
    journal.recover(1 << 30, 1)
    script(journal)
    journal.flush()
    return segments(files)


def declared(number: int, capture: bool = True, epoch: int | None = None) -> Queue:
    """A Queue record as the shard writes it."""
    policy: dict[str, Any] = {"created": number, "policy": {}}
    if epoch is not None:
        policy["epoch"] = epoch
    if capture:
        policy["capture"] = True
    return Queue(QueueEvent.DECLARED, number, f"q{number}", json.dumps(policy))


def append(bodies: list[bytes], *targets: tuple[int, int], flags: int = 0, **more: Any) -> Append:
    batch = batch_of(bodies, **{"enqueued_at_ms": 900, **more})
    return Append(list(targets), 3 << 32 | 5, 1, batch, 0, len(bodies), 0, flags)


def written(*records: Any, now_ms: int = 1_000) -> Stored:
    """A segment with these records."""

    def write(journal: Journal) -> None:
        for record in records:
            journal.append(record, now_ms)

    (segment,) = journal_of(write)
    return segment


def some_records(seed: int, count: int) -> Callable[[Journal], None]:
    """Records of every kind by chance, always the same ones for a seed."""

    def write(journal: Journal) -> None:
        chance = random.Random(seed)
        known: dict[int, int] = {}
        now = 1_700_000_000_000
        fresh = 1

        def declare() -> None:
            nonlocal fresh
            journal.append(declared(fresh, chance.random() < 0.7, chance.choice((None, 2, 9))), now)
            known[fresh] = 0
            fresh += 1

        def append(flags: int = 0) -> None:
            number = chance.choice((1, 1, 1, 2, 5, 40))
            bodies = [chance.randbytes(chance.choice((0, 1, 20, 90))) for _ in range(number)]
            batch = batch_of(
                [b"before", *bodies, b"after"],
                durable=chance.random() < 0.5,
                priority=chance.randrange(10),
                expires_at_ms=chance.choice((None, now + 5_000)),
                enqueued_at_ms=now - chance.randrange(3),
                message_format=chance.choice((0, 0, 0, 7)),
            )
            chosen = chance.sample(sorted(known), min(len(known), chance.choice((1, 1, 1, 2, 3))))
            producer = chance.choice((0, chance.getrandbits(64), 1 << 32 | 5))
            journal.append(
                Append(
                    [(queue, known[queue]) for queue in chosen],
                    producer,
                    chance.randrange(9),
                    batch,
                    1,
                    number + 1,
                    chance.choice((0, 0, 3)),
                    flags,
                ),
                now,
            )
            if not flags & REWRITTEN:
                for queue in chosen:
                    known[queue] += number

        def ranges(queue: int) -> list[tuple[int, int]]:
            edges = sorted(chance.sample(range(known[queue] + 9), chance.choice((2, 2, 2, 4, 6))))
            return list(zip(edges[::2], edges[1::2], strict=True))

        def settle(flags: int = 0) -> None:
            queue = chance.choice(sorted(known))
            journal.append(
                Settle(
                    queue,
                    ranges(queue),
                    chance.choice(list(Outcome)),
                    chance.choice(("", "", "expired", "löschen", MOVED_REASON, "other")),
                    chance.randrange(4),
                    flags,
                ),
                now,
            )

        declare()
        for _ in range(count):
            now += chance.choice((0, 0, 1, 7))
            kind = chance.randrange(14)
            queue = chance.choice(sorted(known))
            if kind == 0:
                declare()
            elif kind == 1 and len(known) > 1:
                journal.append(Queue(QueueEvent.DELETED, queue, f"q{queue}"), now)
                del known[queue]
            elif kind == 2:
                text = declared(queue, chance.random() < 0.5, chance.choice((None, 3))).policy
                journal.append(Queue(QueueEvent.POLICY, queue, f"q{queue}", text), now)
            elif kind == 3:
                append(CONTINUED)
                settle(CONTINUED)
                settle()
            elif kind == 4:
                append(CONTINUED)
                journal.append(Ids(queue, now + 5, bytes(16)), now)
            elif kind == 5:
                journal.append(chance.choice((Epoch(4), Numbers(queue, known[queue]), Taken(7, 1, 1))), now)
            elif kind == 6:
                journal.append(Delivered(queue, chance.choice((0, 9 << 32 | 2)), ranges(queue)), now)
            elif kind < 9:
                settle()
            else:
                append(chance.choice((0, 0, 0, MOVED, SPILLED, REWRITTEN, REWRITTEN | SPILLED)))

    return write


# --- the plain way --------------------------------------------------------------------------------------


def plain_rows(segment: Stored, captured_only: bool = True) -> list[dict[str, Any]]:
    """The rows of a whole segment, with the columns PLAIN."""
    names: dict[int, tuple[str, dict[str, Any]]] = {}
    found = list(segment.records())
    if not segment.index.sealed:
        while found and found[-1].flags & CONTINUED:
            found.pop()
    rows: list[dict[str, Any]] = []
    for each in found:
        for queue, row in _events(each, names):
            if queue in names:
                name, policy = names[queue]
            else:
                name, policy = f"lost-and-found/{queue}", {}
                if "message" not in row:
                    continue
            if captured_only and not policy.get("capture"):
                continue
            whole = dict.fromkeys(PLAIN)
            whole |= {
                "queue": name,
                "shard": INCARNATION.shard,
                "journal": INCARNATION.disk,
                "epoch": policy.get("epoch", 1),
                "lsn": each.lsn,
                "event_time": moment(each.timestamp),
            }
            rows.append(whole | row)
    return rows


def moment(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


def _party(number: int) -> str | None:
    return f"{number >> 32:08x}-{number & 0xFFFFFFFF}" if number else None


def _events(
    found: Found, names: dict[int, tuple[str, dict[str, Any]]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    if found.code == APPEND:
        head, targets, column = decode_append_head(found.view, found.start, found.length)
        if found.flags & REWRITTEN:
            return
        data = bytes(found.view[column : found.start + found.length])
        ends = [int.from_bytes(data[4 * at : 4 * at + 4], "little") for at in range(head.messages)]
        blob = data[4 * head.messages :]
        for queue, sequence in targets:
            for at in range(head.messages):
                yield (
                    queue,
                    {
                        "event": "moved" if found.flags & MOVED else "enqueued",
                        "sequence": sequence + at,
                        "enqueued_at": moment(head.enqueued_at_ms),
                        "durable": bool(head.attributes & 1),
                        "priority": head.priority,
                        "ttl": head.expires_at_ms - head.enqueued_at_ms if head.expires_at_ms else None,
                        "delivery_count": failures(head.attempts),
                        "producer": _party(head.producer),
                        "message": blob[ends[at - 1] if at else 0 : ends[at]],
                    },
                )
        return
    if found.code == GAP:
        return
    record = decode_small(found.view, found.start, found.length)
    assert not isinstance(record, Gap)
    if isinstance(record, Snapshot):
        names.clear()
        names.update({each.queue: (each.name, json.loads(each.policy)) for each in record.queues})
    elif isinstance(record, Queue) and record.event == QueueEvent.DELETED:
        names.pop(record.queue, None)
    elif isinstance(record, Queue):
        names[record.queue] = (record.name, json.loads(record.policy))
    elif isinstance(record, Settle) and record.reason != MOVED_REASON:
        returned = record.outcome in (Outcome.RELEASED, Outcome.MODIFIED)
        for first, last in record.ranges:
            for sequence in range(first, last):
                yield (
                    record.queue,
                    {
                        "event": Outcome(record.outcome).name.lower(),
                        "sequence": sequence,
                        "delivery_count": failures(record.attempts) if returned else None,
                        "reason": record.reason or None,
                    },
                )
    elif isinstance(record, Delivered):
        for first, last in record.ranges:
            for sequence in range(first, last):
                yield (
                    record.queue,
                    {"event": "delivered", "sequence": sequence, "consumer": _party(record.consumer)},
                )


# --- the way that is tested -----------------------------------------------------------------------------


def rows_of(
    segment: Stored, wanted: Wanted, part: Part | None = None, lost: Lost | None = None
) -> list[dict[str, Any]]:
    """The rows of a part as the data source gives them; each batch has the schema and is not too large."""
    rows: list[dict[str, Any]] = []
    for batch in record_batches(part or segment.part(), segment.file, wanted, lost):
        assert batch.schema.equals(wanted.schema())
        batch.validate(full=True)
        assert 0 < batch.num_rows <= wanted.batch_rows
        rows += batch.to_pylist()
    return rows


assert set(PLAIN) <= set(SCHEMA.names)
