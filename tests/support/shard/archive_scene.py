"""A journal with an archive on a fake disk, the thread's work done at once."""

from collections.abc import Mapping

from lightrail.cluster.readers import Reader
from lightrail.journal.archive import IDENTITY, index_name, segment_name
from lightrail.journal.index import decode_index, read_index
from lightrail.journal.scan import Readable, Scan
from lightrail.journal.segment_header import decode_segment_header
from lightrail.shard.archiving.archiver import Archiver
from lightrail.shard.archiving.retention import Rule
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.segment import name_of
from tests.support.shard.fake_files import FakeFiles, FakeFolders

SEAL_MS = 300_000
HOLD = 10_000


class ArchiveScene:
    """Time is `now_ms`; readers are `readers`."""

    def __init__(
        self,
        files: FakeFiles,
        journal: Journal,
        *,
        rule: Rule | None = None,
        shares: bool = True,
        readers: Mapping[str, Reader] | None = None,
    ) -> None:
        self.files = files
        self.journal = journal
        self.now_ms = 1_000
        self.readers: dict[str, Reader] = dict(readers or {})
        self.archiver = Archiver(
            journal,
            FakeFolders(files, shares=shares),
            rule=rule or Rule(),
            seal_ms=SEAL_MS,
            readers=lambda: self.readers,
        )
        self.counts = self.archiver.counts

    def work(self, *, timed: bool = False) -> bool:
        """One round, if there is anything to do."""
        round = self.archiver.begin(self.now_ms, timed=timed)
        if round is None:
            return False
        round.perform()
        self.archiver.end(round, self.now_ms)
        return True

    def tick(self) -> None:
        """What the server does every second."""
        self.archiver.tick(self.now_ms)
        self.journal.flush()
        self.work(timed=True)
        while self.work():
            continue

    @property
    def numbers(self) -> list[int]:
        """Segments of the journal itself in the archive."""
        return [each.segment for each in self.archiver.contents.listed()[self.journal.incarnation.disk]]


def reader(hold_hours: float = HOLD, hold_bytes: int = 1 << 60, **positions: int) -> Reader:
    """One that has read so far, by disk."""
    return Reader({disk.lstrip("_"): lsn for disk, lsn in positions.items()}, hold_hours, hold_bytes, 0)


def records_of(file: Readable, size: int) -> dict[int, bytes]:
    """The records of a segment's file by lsn, as they are; all of it has to be records."""
    header = decode_segment_header(file.read(0, 40))
    assert header is not None
    scan = Scan(file, header.salt, 40, size, header.first_lsn)
    found = {each.lsn: bytes(each.view[each.start : each.start + each.length]) for each in scan}
    assert scan.offset == size, scan.found
    return found


def archived(files: FakeFiles, folder: str) -> dict[int, bytes]:
    """Everything in a folder of the archive, which has to be exactly right."""
    found: dict[int, bytes] = {}
    there = FakeFolders(files).open(folder)
    names = there.names()
    segments = [name for name in names if name.endswith(".segment")]
    numbers = [int(name.partition(".")[0]) for name in segments]
    expected = {segment_name(number) for number in numbers} | {index_name(number) for number in numbers}
    assert set(names) - {IDENTITY} == expected
    for number in numbers:
        file = there.open(segment_name(number))
        header = decode_segment_header(file.read(0, 40))
        assert header is not None
        index, _ = read_index(header, file, file.size())
        index.sealed = True
        text = there.load(index_name(number))
        assert text is not None
        assert decode_index(text.decode()) == index
        assert index.end == file.size()
        found |= records_of(file, file.size())
    return found


def journalled(files: FakeFiles, journal: Journal) -> dict[int, bytes]:
    """Everything in the segments of a journal up to where they are written."""
    found: dict[int, bytes] = {}
    for segment in journal.segments():
        file = files.open(name_of(segment.number))
        found |= records_of(file, segment.index.end if segment.index.sealed else segment.end)
    return found
