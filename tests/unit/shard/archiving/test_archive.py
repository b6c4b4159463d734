"""What readers get of a shard's journal and archive: exactly what is committed and synced."""

import pytest

from lightrail.journal.archive import segment_name
from lightrail.journal.index import SegmentIndex, decode_index
from lightrail.journal.record import CONTINUED, SPILLED, Queue, QueueEvent
from lightrail.shard.archiving.archive import BeyondCommittedError, Journals, NoSegmentError
from lightrail.shard.archiving.contents import ShardArchive
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.segment import name_of
from lightrail.shard.queue.values.runs import batch_of
from lightrail.shard.replicas.marks import Marks
from tests.support.now import now
from tests.support.shard.archive_scene import ArchiveScene, records_of
from tests.support.shard.fake_files import FakeFiles, FakeFolders

CAPTURED = '{"capture": true}'


class Scene(ArchiveScene):
    def __init__(self, files: FakeFiles) -> None:
        journal = Journal(files, "c", 3, segment_bytes=1_000)
        journal.recover(1 << 30, 1_000)
        super().__init__(files, journal)
        self.journals = Journals(journal, self.archiver.contents)
        self.sent = 0

    def declare(self) -> None:
        self.journal.append(Queue(QueueEvent.DECLARED, 1, "q", CAPTURED), 1_000)
        self.journal.flush()

    def send(self, count: int = 1, flags: int = 0) -> None:
        for _ in range(count):
            batch = batch_of([b"x" * 200], durable=True)
            self.journal.append(Append([(1, self.sent)], 0, 0, batch, 0, 1, 0, flags), 1_000 + self.sent)
            self.sent += 1
        self.journal.flush()

    def own(self) -> list[SegmentIndex]:
        incarnation, segments = self.journals.journals()[0]
        assert incarnation == self.journal.incarnation
        return segments

    def read(self, index: SegmentIndex) -> bytes:
        return self.journals.read(self.journal.incarnation.disk, index.segment, 0, index.end)

    def drop_oldest(self) -> int:
        oldest = self.journal.segments()[0].number
        self.journal.drop(oldest)
        self.journal.flush()
        return oldest


class Bytes:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


@pytest.fixture
def scene() -> Scene:
    made = Scene(FakeFiles())
    made.declare()
    return made


def test_every_committed_byte_is_there_as_whole_records(scene: Scene) -> None:
    scene.send(8)
    segments = scene.own()
    assert [each.sealed for each in segments] == [True] * (len(segments) - 1) + [False]
    found: dict[int, bytes] = {}
    for index in segments:
        data = scene.read(index)
        assert len(data) == index.end
        records = records_of(Bytes(data), len(data))
        assert set(records) == set(range(index.first_lsn, index.next_lsn))
        found |= records
    assert set(found) == set(range(1, scene.journal.committed.next_lsn))
    assert sum(each.messages for each in segments) == 8
    assert segments[-1].last_ms == 1_007


def test_what_is_not_committed_or_not_synced_never_leaves(scene: Scene) -> None:
    scene.send(1)
    before = scene.own()[-1]
    batch = batch_of([b"x"], durable=True)
    location = scene.journal.append(Append([(1, 1)], 0, 0, batch, 0, 1), 1_000)
    assert location is not None
    commit = scene.journal.begin_commit()
    commit.perform()
    assert scene.own()[-1] == before, "written and synced, but the loop has not heard of it"
    disk = scene.journal.incarnation.disk
    with pytest.raises(
        BeyondCommittedError, match=f"up to byte {before.end}, expected byte {before.end + 1}"
    ):
        scene.journals.read(disk, before.segment, 0, before.end + 1)
    scene.journal.end_commit(commit)
    assert scene.own()[-1].end == before.end + location.length
    scene.sent = 2
    before = scene.own()[-1]
    scene.send(1, SPILLED)
    assert scene.own()[-1] == before, "without a sync"


def test_a_group_leaves_whole(scene: Scene) -> None:
    before = scene.own()[-1]
    scene.send(5, CONTINUED)
    assert len(scene.journal.segments()) > 1
    assert scene.own() == [before]
    disk = scene.journal.incarnation.disk
    with pytest.raises(BeyondCommittedError):
        scene.journals.read(disk, scene.journal.current.number, 0, 1)
    scene.send(1)
    assert len(scene.own()) == len(scene.journal.segments())


def test_blocks_and_queues_of_the_live_segment_end_with_what_is_committed(scene: Scene) -> None:
    index = scene.own()[-1]
    assert len(index.queues) == 1
    scene.journal.append(Queue(QueueEvent.DECLARED, 2, "r", CAPTURED), 1_000)
    assert scene.own()[-1] == index
    scene.journal.flush()
    assert len(scene.own()[-1].queues) == 2
    assert index.queues == scene.own()[-1].queues[:1], "what was given is not changed"


def test_what_only_the_archive_has_is_read_there(scene: Scene) -> None:
    scene.send(9)
    scene.tick()
    before = {index.segment: (index.encode(), scene.read(index)) for index in scene.own()}
    gone = {scene.drop_oldest() for _ in range(2)}
    after = scene.own()
    assert {index.segment for index in after} == set(before)
    for index in after:
        if index.segment in gone:
            assert decode_index(index.encode()) == decode_index(before[index.segment][0])
            assert scene.read(index) == before[index.segment][1]
    disk = scene.journal.incarnation.disk
    assert [scene.journals.segment(disk, index.segment) for index in after] == after
    for other in ((disk, 1 << 20), ("ab", after[0].segment)):
        with pytest.raises(NoSegmentError):
            scene.journals.segment(*other)
    with pytest.raises(BeyondCommittedError):
        scene.journals.read(disk, min(gone), 0, 1 << 20)
    first = after[0]
    scene.archiver.contents.remove(disk, first.segment)
    with pytest.raises(NoSegmentError, match="no segment 1 of journal"):
        scene.journals.read(disk, first.segment, 0, 10)
    with pytest.raises(NoSegmentError):
        first.encode()


def test_a_file_that_went_behind_its_back_is_said_to_be_gone(scene: Scene) -> None:
    scene.send(9)
    scene.tick()
    gone = scene.drop_oldest()
    FakeFolders(scene.files).open(scene.journal.incarnation.folder).remove(segment_name(gone))
    with pytest.raises(NoSegmentError):
        scene.journals.read(scene.journal.incarnation.disk, gone, 0, 10)


def test_a_file_that_is_shorter_than_it_was_is_no_answer(scene: Scene) -> None:
    scene.send(1)
    index = scene.own()[-1]
    del scene.files.inodes[name_of(index.segment)].live[index.end - 1 :]
    with pytest.raises(OSError, match="shorter"):
        scene.read(index)


def test_journals_and_segments_that_are_not_here_are_said_to_be_so(scene: Scene) -> None:
    disk = scene.journal.incarnation.disk
    for where, segment in (("f" * 32, 1), (disk, 99)):
        with pytest.raises(NoSegmentError):
            scene.journals.read(where, segment, 0, 0)
    with pytest.raises(ValueError, match="range"):
        scene.journals.read(disk, 1, 5, 4)


def test_former_journals_are_listed_with_their_segments(scene: Scene) -> None:
    scene.send(9)
    scene.tick()
    former = scene.own()[:-1]
    image = scene.files.after_crash(0, "none")
    for name in [name for name in image.inodes if "/" not in name]:
        del image.inodes[name], image._durable[name]
    image.random = lambda: bytes(16)  # type: ignore[method-assign]
    new = Scene(image)
    new.declare()
    new.tick()
    [_, (incarnation, segments)] = new.journals.journals()
    assert incarnation == scene.journal.incarnation
    assert [decode_index(each.encode()) for each in segments] == former
    data = new.journals.read(incarnation.disk, segments[0].segment, 0, segments[0].end)
    assert len(records_of(Bytes(data), len(data))) == former[0].next_lsn - former[0].first_lsn


def test_after_a_start_everything_that_was_recovered_is_there(scene: Scene) -> None:
    scene.send(5)
    image = scene.files.after_crash(0, "none")
    again = Scene(image)
    assert sum(each.messages for each in again.own()) == 5
    assert again.own()[-1].next_lsn == again.journal.committed.next_lsn
    assert [each.sealed for each in again.own()][-2:] == [True, False]


def test_what_lies_in_the_archive_is_there_before_the_archiver_has_looked_at_it(scene: Scene) -> None:
    """Of a shard that has just started, or was just taken over."""
    scene.send(8)
    scene.tick()
    index = scene.own()[0]
    data = scene.read(index)
    assert scene.drop_oldest() == index.segment
    disk = scene.journal.incarnation.disk

    def started() -> Journals:
        return Journals(
            scene.journal, ShardArchive(scene.archiver.contents.folders, scene.journal.incarnation)
        )

    assert started().segment(disk, index.segment).segment == index.segment
    assert started().read(disk, index.segment, 0, index.end) == data
    assert [each.segment for each in started().journals()[0][1]] == [each.segment for each in scene.own()]


def test_a_new_owner_knows_what_is_accepted_when_the_other_members_have_it(scene: Scene) -> None:
    scene.send(2)
    assert scene.journals.is_known
    again = Journal(scene.files.after_crash(), "c", 3, segment_bytes=1_000, marks=Marks(frozenset({"b"})))
    again.recover(1 << 30, 1_000)
    journals = Journals(again, ShardArchive(scene.archiver.contents.folders, again.incarnation))
    assert now(journals.is_known) is False
    again.marks.synced("b", again.position.synced_lsn)
    again.accept()
    assert now(journals.is_known) is True
    assert journals.journals()[0][1][-1].next_lsn == again.position.lsn + 1
