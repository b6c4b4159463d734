"""Journals of a shard in memory: what a test has put there is committed, as far as it says."""

import threading
from dataclasses import replace

from lightrail.journal.archive import Incarnation
from lightrail.journal.index import Block, SegmentIndex
from lightrail.shard.archiving.archive import BeyondCommittedError, NoSegmentError


class FakeJournals:
    """Segments of random bytes; `add` gives the bytes of one."""

    def __init__(self) -> None:
        self.incarnations: dict[str, Incarnation] = {}
        self.indexes: dict[str, list[SegmentIndex]] = {}
        self.bytes: dict[tuple[str, int], bytes] = {}
        self.reads: list[tuple[str, int, int, int]] = []
        self.error: OSError | None = None
        self.gate = threading.Event()
        """Reads wait for it."""
        self.gate.set()
        self.unknown = 0
        """Requests that come before it is known what is accepted."""

    @property
    def is_known(self) -> bool:
        self.unknown -= 1
        return self.unknown < 0

    def journal(self, disk: str, shard: int = 0, cluster: str = "c") -> None:
        self.incarnations[disk] = Incarnation(cluster, shard, disk)
        self.indexes[disk] = []

    def add(
        self, disk: str, number: int, data: bytes, committed: int | None = None, *, records: int = 10
    ) -> None:
        """A segment behind those that are there; sealed where all of it is committed."""
        before = self.indexes[disk][-1].next_lsn if self.indexes[disk] else 1
        end = len(data) if committed is None else committed
        index = SegmentIndex(number, before, before + records, end, 2 * records, 1_000 * number)
        index.sealed = committed is None
        index.blocks = [Block(before, 64, 0, 1)]
        self.indexes[disk].append(index)
        self.bytes[disk, number] = data

    def journals(self) -> list[tuple[Incarnation, list[SegmentIndex]]]:
        return [
            (each, [replace(index) for index in self.indexes[disk]])
            for disk, each in self.incarnations.items()
        ]

    def segment(self, disk: str, number: int) -> SegmentIndex:
        for index in self.indexes.get(disk, ()):
            if index.segment == number:
                return replace(index)
        raise NoSegmentError(f"journal {disk} has no segment {number} here")

    def read(self, disk: str, segment: int, start: int, end: int) -> bytes:
        assert self.gate.wait(20)
        self.reads.append((disk, segment, start, end))
        if self.error is not None:
            raise self.error
        index = self.segment(disk, segment)
        if end > index.end:
            raise BeyondCommittedError(f"bytes up to {index.end} are committed, {end} was asked for")
        return self.bytes[disk, segment][start:end]
