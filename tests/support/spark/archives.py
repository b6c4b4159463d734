"""Writes journals with the shard's own code, and puts their segments into an archive as a shard does."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from lightrail.journal.archive import IDENTITY, Incarnation, index_name, segment_name
from lightrail.journal.index import SegmentIndex, read_index
from lightrail.journal.record import Outcome, Queue, QueueEvent, Settle
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, decode_segment_header
from lightrail.shard.journal import identity
from lightrail.shard.journal.files import RealFile, RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append, Record
from lightrail.shard.queue.values.runs import batch_of

MORNING_MS = 1_790_000_000_000
"""2026-09-21 14:13:20 UTC"""


class JournalOf:
    """The journal of one shard, with queues that are captured, on a real disk."""

    def __init__(self, folder: Path, shard: int = 1, segment_bytes: int = 1 << 20) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._files = RealFiles(folder)
        self.journal = Journal(self._files, "test", shard, segment_bytes=segment_bytes)
        self.now_ms = MORNING_MS
        self.journal.recover(1 << 30, self.now_ms)
        found = identity.load_identity(self._files)
        assert found is not None
        self.incarnation = Incarnation(found.cluster, found.shard, found.disk)
        self._numbers: dict[str, int] = {}
        self.sequences: dict[str, int] = {}

    @property
    def disk(self) -> str:
        return self.incarnation.disk

    def append(self, record: Record) -> None:
        """Any record, now."""
        self.journal.append(record, self.now_ms)

    def declare(self, name: str, capture: bool = True, epoch: int = 1) -> int:
        """A queue, or its new policy; gives its number."""
        new = name not in self._numbers
        number = self._numbers.setdefault(name, len(self._numbers) + 1)
        policy = json.dumps(
            {"created": 1, "policy": {}, "epoch": epoch, **({"capture": True} if capture else {})}
        )
        self.append(Queue(QueueEvent.DECLARED if new else QueueEvent.POLICY, number, name, policy))
        self.sequences.setdefault(name, 0)
        return number

    def send(
        self, name: str, messages: Sequence[bytes], producer: int = 0, number: int = 0, **how: object
    ) -> int:
        """A batch of encoded messages; gives the sequence of the first."""
        first = self.sequences[name]
        batch = batch_of(messages, durable=True, enqueued_at_ms=self.now_ms, **how)  # type: ignore[arg-type]
        self.append(Append([(self._numbers[name], first)], producer, number, batch, 0, len(messages)))
        self.sequences[name] = first + len(messages)
        return first

    def settle(
        self,
        name: str,
        first: int,
        last: int,
        outcome: int = Outcome.ACCEPTED,
        reason: str = "",
        attempts: int = 0,
    ) -> None:
        """Sequences from `first` to before `last` had their end, or came back."""
        self.append(Settle(self._numbers[name], [(first, last)], outcome, reason, attempts))

    def commit(self) -> None:
        """What was appended is on disk."""
        self.journal.flush()

    def roll(self) -> None:
        """The segment is sealed, and the next is begun."""
        self.journal.seal(self.now_ms)
        self.journal.flush()

    def archive(self, archive: Path, keep_from: int = 0, index: bool = True) -> Path:
        """Links all sealed segments, and gives the folder of this journal."""
        self.roll()
        numbers = sorted(self.journal._segments)[:-1]
        return link(
            self._folder, archive, self.incarnation, [each for each in numbers if each >= keep_from], index
        )

    def close(self) -> None:
        self.journal.close(self.now_ms)


def index_of_file(path: Path) -> SegmentIndex:
    """The index of a segment's file."""
    file = RealFile(os.open(path, os.O_RDONLY))
    try:
        header = decode_segment_header(file.read(0, SEGMENT_HEADER_SIZE))
        assert header is not None
        index, _ = read_index(header, file, file.size())
    finally:
        file.close()
    index.sealed = True
    return index


def link(
    folder: Path, archive: Path, incarnation: Incarnation, numbers: Sequence[int], index: bool = True
) -> Path:
    """Puts segments of a journal into an archive."""
    target = archive / incarnation.folder
    target.mkdir(parents=True, exist_ok=True)
    (target / IDENTITY).write_text(incarnation.encode())
    for number in numbers:
        source = folder / segment_name(number)
        if index:
            (target / index_name(number)).write_text(index_of_file(source).encode())
        if not (target / segment_name(number)).exists():
            os.link(source, target / segment_name(number))
    return target


def damage(folder: Path, text: bytes) -> None:
    """One bit of a segment in an archive is another, where the text is; the journal's own file stays."""
    (segment,) = [path for path in folder.glob("*.segment") if text in path.read_bytes()]
    data = bytearray(segment.read_bytes())
    at = data.index(text)
    assert at > SEGMENT_HEADER_SIZE
    data[at] ^= 1
    segment.unlink()
    segment.write_bytes(data)
