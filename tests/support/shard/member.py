"""Another member of a shard: its disk has the bytes of the owner's commits, synced when the test says so."""

from lightrail.shard.journal.commit import JournalCommit
from lightrail.shard.journal.identity import IDENTITY_FILE
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.segment import name_of, numbers
from lightrail.shard.journal.store import Recovered
from lightrail.shard.replicas.marks import Marks
from tests.support.shard.fake_files import FakeFile, FakeFiles

MEMBER = "b"


class Member:
    """Writes what it receives at once, and syncs it when it acknowledges it."""

    def __init__(self) -> None:
        self.files = FakeFiles()
        self.received = 0
        """Number of the last received record."""
        self.mark = 0
        """Number of the last record that is durable."""
        self.ends: dict[int, int] = {}
        """By segment: the offset up to which its bytes are durable."""
        self._segments: dict[int, FakeFile] = {}
        self._ends: dict[int, int] = {}

    def join(self, journal: Journal) -> None:
        """Copies what the owner has on its disk; from then on it receives every commit."""
        identity = journal.files.load(IDENTITY_FILE)
        assert identity is not None
        self.files.replace(IDENTITY_FILE, identity)
        for segment in journal.segments():
            file = self._file(segment.number)
            file.write(0, [segment.file.read(0, segment.written)])
            self._ends[segment.number] = segment.written
        self.received = journal.position.synced_lsn
        self.acknowledge(journal)

    def receive(self, commit: JournalCommit) -> None:
        commit.encode()
        for part in commit.parts:
            number = part.segment.number
            file = self._file(number)
            file.write(part.start, [bytes(piece) for piece in part.pieces or ()])
            self._ends[number] = part.end
            if part.sealed:
                file.sync()
        self.received = commit.last_lsn

    def acknowledge(self, journal: Journal) -> None:
        """Makes everything that was received durable, and the owner knows it."""
        for file in self._segments.values():
            file.sync()
        self.ends = dict(self._ends)
        self.mark = self.received
        journal.marks.synced(MEMBER, self.mark)
        journal.accept()

    def _file(self, number: int) -> FakeFile:
        if number not in self._segments:
            self._segments[number] = self.files.create(name_of(number))
            self.files.sync()
        return self._segments[number]

    def cut(self, owner: FakeFiles) -> None:
        """Cuts the owner's disk to the end that is durable here."""
        last = max(self.ends)
        for number in numbers(owner):
            if number > last:
                owner.remove(name_of(number))
            elif number == last:
                owner.open(name_of(number)).truncate(self.ends[last])


def shared_journal(files: FakeFiles, segment_bytes: int = 700) -> tuple[Journal, Recovered, Member]:
    """A journal whose records are accepted when another member has them, too."""
    journal = Journal(files, "test", 0, segment_bytes=segment_bytes, marks=Marks(frozenset({MEMBER})))
    recovered = journal.recover(1 << 30, 1)
    member = Member()
    member.join(journal)
    return journal, recovered, member
