"""An owner's journal and the mirrors that get its bytes, without a network."""

import json
from collections.abc import Iterator, Sequence

from lightrail.journal.archive import Incarnation
from lightrail.journal.index import over_gaps
from lightrail.journal.scan import Bytes, Scan
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, decode_segment_header
from lightrail.shard.journal.commit import JournalCommit, pieces_of
from lightrail.shard.journal.files import Files
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.mirror import Mirror
from lightrail.shard.journal.segment import name_of
from lightrail.shard.journal.standby import Standby
from lightrail.shard.replicas.lineage import Comparison, OwnedSegment, compare
from lightrail.wire.replication import checksum_of
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.journal_writer import Writer

SEGMENT_BYTES = 700
SALT = int.from_bytes(bytes(range(4)), "little")
"""That of journals on fake disks."""
DISK = bytes(range(16)).hex()


def mirror_of(files: Files, *, segment_bytes: int = SEGMENT_BYTES) -> Mirror:
    """The mirror in this directory, or a new one of the journals on fake disks."""
    known = json.loads(files.load("identity.json") or json.dumps({"disk": DISK, "salt": SALT}))
    return Mirror(files, Incarnation("test", 0, known["disk"]), known["salt"], segment_bytes=segment_bytes)


def opened(files: Files) -> Mirror:
    mirror = mirror_of(files)
    mirror.open()
    return mirror


def segments(files: Files, lineage: Sequence[OwnedSegment]) -> dict[int, bytes]:
    """The bytes of the segments up to their ends."""
    return {each.segment: (files.load(name_of(each.segment)) or b"")[: each.end] for each in lineage}


def put(mirror: Mirror, segment: int, offset: int, data: bytes, next_lsn: int, salt: int = SALT) -> None:
    """Writes these records, with their checksum."""
    mirror.write(segment, offset, data, next_lsn, checksum_of(salt, segment, offset, next_lsn, [data]))


def records(data: bytes, salt: int, offset: int) -> Iterator[tuple[int, bytes, int]]:
    """Each record of a segment from this offset on: (offset, bytes, number of the next record)."""
    scan = Scan(Bytes(data), salt, offset, len(data), None)
    for found in over_gaps(scan):
        yield found.offset, data[found.offset : found.offset + found.length], scan.lsn or 0


def fetch(
    mirror: Mirror, data: dict[int, bytes], lineage: Sequence[OwnedSegment], most: int = 1 << 30
) -> None:
    """Writes what the owner has and the mirror has not, up to so many records one by one, and syncs it."""
    for theirs in reversed(lineage):
        own = mirror.lineage[:1]
        if own and theirs.segment < own[0].segment:
            continue
        whole = data[theirs.segment]
        if not own or own[0].segment != theirs.segment:
            mirror.begin(whole[:SEGMENT_HEADER_SIZE])
        header = decode_segment_header(whole)
        assert header is not None
        for offset, record, next_lsn in records(whole, header.salt, mirror.lineage[0].end):
            if not most:
                break
            put(mirror, theirs.segment, offset, record, next_lsn, header.salt)
            most -= 1
        if not most:
            break
    mirror.sync()


def equalise(
    mirror: Mirror, data: dict[int, bytes], lineage: Sequence[OwnedSegment], most: int = 1 << 30
) -> Comparison:
    """What a member does when it attaches to an owner with these segments."""
    found = compare(mirror.lineage, lineage, mirror.accepted_lsn)
    if found.cut:
        mirror.cut(found.common)
    if found.fetch:
        fetch(mirror, data, lineage, most)
    return found


def stream(journal: Journal, mirrors: Sequence[Mirror]) -> None:
    """One commit of the owner, which the mirrors write and sync as well."""
    commit = journal.begin_commit()
    assert isinstance(commit, JournalCommit)
    parts = [(part, b"".join(pieces_of(part.entries, SALT))) for part in commit.parts]
    for mirror in mirrors:
        for index, (part, data) in enumerate(parts):
            following = parts[index + 1][0].segment.index.first_lsn if parts[index + 1 :] else None
            start = part.start
            if start == 0:
                mirror.begin(data[:SEGMENT_HEADER_SIZE])
                start = SEGMENT_HEADER_SIZE
            if rest := data[start - part.start :]:
                put(mirror, part.segment.number, start, rest, following or commit.reached.next_lsn)
        mirror.sync()
    commit.perform()
    journal.end_commit(commit)


class Scene:
    """An owner in epoch 1 that has declared a queue, and a mirror with the same bytes."""

    def __init__(self, segment_bytes: int = 700) -> None:
        self.owner_files, self.files = FakeFiles(), FakeFiles()
        self.owner = Journal(self.owner_files, "test", 0, segment_bytes=segment_bytes)
        self.owner.recover(1 << 30, 1, 1)
        self.writer = Writer(self.owner)
        self.mirror = opened(self.files)
        first = self.owner_files.inodes[name_of(1)].live[: self.owner.current.end]
        self.mirror.begin(bytes(first[:SEGMENT_HEADER_SIZE]))
        for offset, record, next_lsn in records(bytes(first), SALT, SEGMENT_HEADER_SIZE):
            put(self.mirror, 1, offset, record, next_lsn)
        self.send(0)

    def send(self, size: int = 60, times: int = 1) -> None:
        """Commits of one message each, at both."""
        for _ in range(times):
            self.writer.run([("send", 1, 1, size)])
            stream(self.owner, [self.mirror])

    def next(self) -> tuple[int, int, bytes, int]:
        """The next commit of the owner: (segment, offset, bytes, number of the record behind them)."""
        at = self.owner.current.end
        self.writer.run([("send", 1, 1, 20), ("commit",)])
        number = self.owner.current.number
        data = bytes(self.owner_files.inodes[name_of(number)].live[at : self.owner.current.end])
        return number, at, data, self.owner.position.lsn + 1

    def check_equal(self) -> None:
        lineage = self.mirror.lineage
        owner = segments(self.owner_files, lineage)
        assert segments(self.files, lineage) == owner
        assert lineage[0].end == self.owner.current.end


def replayed_by(standby: Standby, to: int) -> Standby:
    """The standby, when it has read up to this record."""
    while standby.replay(to):
        pass
    return standby


def replayed(scene: Scene, to: int | None = None) -> Standby:
    """A standby that has read what the mirror of the scene has, or up to a record."""
    return replayed_by(Standby(scene.files, SALT), scene.mirror.synced_lsn if to is None else to)


def image(files: FakeFiles) -> dict[str, bytes]:
    return {name: bytes(inode.live) for name, inode in files.inodes.items()}
