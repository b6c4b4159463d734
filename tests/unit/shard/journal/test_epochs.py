"""Segments have the epoch of the owner that wrote them; each owner has its own epoch, or none has one."""

import pytest

from lightrail.journal.record import Queue, QueueEvent
from lightrail.journal.segment_header import (
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
)
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.repair import repair_files
from lightrail.shard.journal.segment import name_of, numbers
from lightrail.shard.journal.store import StoreRefusedError
from tests.support.shard.fake_files import FakeFiles


def life(files: FakeFiles, epoch: int) -> FakeFiles:
    """An owner starts, declares a queue and is killed; the disk afterwards."""
    journal = Journal(files, "c", 0, segment_bytes=1_000)
    journal.recover(0, 0, epoch)
    journal.append(Queue(QueueEvent.DECLARED, epoch + 1, f"q{epoch}"))
    journal.flush()
    return files.after_crash(0, "all")


def epochs(files: FakeFiles) -> list[int]:
    """Epochs of the segments, without that of the spare."""
    headers = [decode_segment_header(bytes(files.inodes[name_of(each)].live)) for each in numbers(files)]
    return [header.epoch for header in headers if header is not None]


def test_the_epoch_is_in_the_reserved_bytes_of_former_versions() -> None:
    without, with_one = encode_segment_header(3, 9, 77), encode_segment_header(3, 9, 77, 0x01020304)
    assert len(with_one) == SEGMENT_HEADER_SIZE == 40
    assert (without[36:], with_one[36:]) == (bytes(4), bytes([4, 3, 2, 1]))
    assert decode_segment_header(with_one) == SegmentHeader(9, 3, 9, 77, 0x01020304)
    assert decode_segment_header(without) == SegmentHeader(9, 3, 9, 77, 0)


def test_a_header_with_a_flipped_epoch_is_no_header() -> None:
    data = bytearray(encode_segment_header(3, 9, 77, 5))
    data[36] ^= 1
    assert decode_segment_header(bytes(data)) is None


def test_each_segment_has_the_epoch_of_its_owner() -> None:
    files = life(life(life(FakeFiles(), 0), 3), 4)
    assert epochs(files) == [0, 3, 4]
    journal = Journal(files, "c", 0, segment_bytes=1_000)
    journal.recover(0, 0, 7)
    assert journal.seal(1)
    assert [segment.epoch for segment in journal.segments()] == [0, 3, 4, 7, 7]


def test_without_replicas_all_owners_have_the_epoch_zero() -> None:
    assert epochs(life(life(FakeFiles(), 0), 0)) == [0, 0]


@pytest.mark.parametrize("epoch", [0, 4, 5])
def test_an_epoch_that_is_not_later_than_those_of_the_segments_is_refused(epoch: int) -> None:
    files = life(life(FakeFiles(), 0), 5)
    before = {name: bytes(inode.live) for name, inode in files.inodes.items()}
    with pytest.raises(StoreRefusedError, match=f"after 5, which 000000000002.segment has, found {epoch}"):
        Journal(files, "c", 0, segment_bytes=1_000).recover(0, 0, epoch)
    assert {name: bytes(inode.live) for name, inode in files.inodes.items()} == before
    assert all(file.closed for file in files.opened)
    assert epochs(life(files, 6)) == [0, 5, 6]


def test_a_repaired_header_has_the_epoch_of_the_segment_before_it() -> None:
    files = life(life(life(FakeFiles(), 0), 3), 4)
    del files.inodes[name_of(2)]
    assert repair_files(files).damages
    assert epochs(files) == [0, 0, 4]
