"""A mirror writes exactly the bytes of its owner's journal; what does not fit changes nothing."""

import errno
from collections.abc import Callable

import pytest

from lightrail.journal.layout import finished
from lightrail.journal.segment_header import SEGMENT_HEADER, encode_segment_header
from lightrail.shard.journal.identity import NOTHING, Extent, load_extent, load_identity
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.segment import name_of, numbers
from lightrail.shard.journal.store import (
    MirrorError,
    NewerFormatError,
    StoreBrokenError,
    StoreFullError,
)
from lightrail.shard.replicas.lineage import RecordEnd
from lightrail.wire.replication import checksum_of
from tests.support.shard.fake_files import FakeFiles, Fault
from tests.support.shard.journal_writer import script, shown
from tests.support.shard.mirrored import (
    DISK,
    SALT,
    Scene,
    image,
    opened,
    put,
    stream,
)


def test_a_closed_mirror_is_a_journal_with_the_owners_state() -> None:
    scene = Scene()
    for op in script(3, 60):
        scene.writer.run([op] if op[0] not in ("commit", "clean") else [])
        stream(scene.owner, [scene.mirror])
    scene.check_equal()
    assert len(scene.mirror.lineage) > 3
    scene.mirror.close()
    journal = Journal(scene.files.after_crash(0, "none"), "test", 0, segment_bytes=700)
    assert shown(journal.recover(0, 1, 2), journal) == scene.writer.states[-1]
    identity = load_identity(scene.files)
    assert identity is not None
    assert (identity.disk, identity.salt, identity.member) == (DISK, SALT, scene.mirror.member)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s, o, d, n: (s, o + 1, d, n),
            r"expected bytes for offset \d+ of segment 1, found some for offset",
        ),
        (lambda s, o, d, n: (s, o - 1, d, n), r"expected bytes for offset \d+ of segment 1"),
        (lambda s, o, d, n: (s + 1, o, d, n), "found some for offset .* of segment 2"),
        (lambda s, o, d, n: (s, o, d[40:], n), "expected record 4 at offset"),
        (lambda s, o, d, n: (s, o, b"", n), "expected record 4 at offset"),
    ],
)
def test_bytes_that_do_not_follow_are_refused(
    change: Callable[..., tuple[int, int, bytes, int]], message: str
) -> None:
    scene = Scene()
    good = scene.next()
    before = image(scene.files)
    with pytest.raises(MirrorError, match=message):
        put(scene.mirror, *change(*good))
    assert image(scene.files) == before
    put(scene.mirror, *good)
    scene.check_equal()
    with pytest.raises(MirrorError, match="expected bytes for"):
        put(scene.mirror, *good)


def test_a_flipped_bit_anywhere_in_a_commit_or_its_position_is_refused() -> None:
    scene = Scene()
    segment, offset, data, next_lsn = scene.next()
    checksum = checksum_of(SALT, segment, offset, next_lsn, [data[:7], memoryview(data)[7:]])
    before = image(scene.files)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MirrorError, match="expected the checksum"):
            scene.mirror.write(segment, offset, bytes(flipped), next_lsn, checksum)
    for bad in ((next_lsn + 1, checksum), (next_lsn, checksum ^ 1)):
        with pytest.raises(MirrorError, match="expected the checksum"):
            scene.mirror.write(segment, offset, data, *bad)
    other = checksum_of(SALT + 1, segment, offset, next_lsn, [data])
    with pytest.raises(MirrorError, match="another journal"):
        scene.mirror.write(segment, offset, data, next_lsn, other)
    assert image(scene.files) == before
    scene.mirror.write(segment, offset, data, next_lsn, checksum)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "expected the header of a segment"),
        (encode_segment_header(2, 4, SALT, 1)[:-1], "expected the header of a segment"),
        (encode_segment_header(2, 4, SALT, 1) + b"x", "expected the header of a segment"),
        (encode_segment_header(2, 4, SALT + 1, 1), "found one of another"),
        (encode_segment_header(3, 4, SALT, 1), "expected segment 2 from record 4 on, found segment 3"),
        (encode_segment_header(1, 4, SALT, 1), "expected segment 2 from record 4 on, found segment 1"),
        (
            encode_segment_header(2, 5, SALT, 1),
            "expected segment 2 from record 4 on, found segment 2 from record 5",
        ),
        (encode_segment_header(2, 4, SALT, 0), "of epoch 1 or later, found one of epoch 0"),
    ],
)
def test_a_segment_that_does_not_follow_is_refused(header: bytes, message: str) -> None:
    scene = Scene()
    before = image(scene.files)
    with pytest.raises(MirrorError, match=message):
        scene.mirror.begin(header)
    assert image(scene.files) == before
    scene.mirror.begin(encode_segment_header(2, 4, SALT, 7))
    assert scene.mirror.lineage[0].epoch == 7


def test_a_segment_of_a_newer_format_is_refused() -> None:
    scene = Scene()
    fields = list(SEGMENT_HEADER.unpack(encode_segment_header(2, 4, SALT, 1)))
    fields[1] += 1
    with pytest.raises(NewerFormatError, match="upgrade this member"):
        scene.mirror.begin(SEGMENT_HEADER.pack(*fields))


def test_a_segment_is_cut_to_its_contents_and_synced_before_the_next_is_begun() -> None:
    scene = Scene()
    put(scene.mirror, *scene.next())
    lineage = scene.mirror.lineage[0]
    assert scene.mirror.synced_lsn < scene.mirror.next_lsn - 1
    scene.mirror.begin(encode_segment_header(2, scene.mirror.next_lsn, SALT, 1))
    assert len(scene.files.inodes[name_of(1)].durable) == lineage.end
    assert scene.mirror.synced_lsn == lineage.next_lsn - 1


def test_a_segment_without_records_is_a_promise_as_soon_as_it_is_synced() -> None:
    scene = Scene()
    scene.mirror.begin(encode_segment_header(2, 4, SALT, 7))
    assert opened(scene.files.after_crash(0, "none")).lineage[0].epoch == 1
    scene.mirror.sync()
    again = opened(scene.files.after_crash(0, "none"))
    assert again.lineage[0] == (2, 4, 7, 40, 4)
    with pytest.raises(MirrorError, match="of epoch 7 or later, found one of epoch 6"):
        again.begin(encode_segment_header(3, 4, SALT, 6))


def test_a_large_commit_makes_its_segment_larger() -> None:
    scene = Scene()
    end = scene.mirror.lineage[0].end
    record = finished(b"\1\0LR" + bytes(4) + (4).to_bytes(8, "little") + bytes(2_000), SALT)
    put(scene.mirror, 1, end, record, 5)
    assert len(scene.files.inodes[name_of(1)].live) == end + len(record)


# --- a full and a failing disk -------------------------------------------------------------------------


def test_a_full_disk_refuses_and_the_mirror_goes_on_when_there_is_room() -> None:
    scene = Scene()
    scene.files.space = scene.files.used()
    header = encode_segment_header(2, 4, SALT, 1)
    with pytest.raises(StoreFullError, match="free space"):
        scene.mirror.begin(header)
    assert numbers(scene.files) == [1]
    scene.files.space = None
    good = scene.next()
    put(scene.mirror, *good)
    scene.files.space = scene.files.used()
    large = finished(b"\1\0LR" + bytes(4) + (5).to_bytes(8, "little") + bytes(2_000), SALT)
    with pytest.raises(StoreFullError, match="free space"):
        put(scene.mirror, 1, scene.mirror.lineage[0].end, large, 6)
    scene.files.space = None
    scene.mirror.begin(encode_segment_header(2, 5, SALT, 1))
    assert scene.mirror.failure == ""


def test_after_a_failed_call_of_the_disk_everything_is_refused() -> None:
    scene = Scene()
    good = scene.next()
    scene.files.fail_syncs = True
    put(scene.mirror, *good)
    with pytest.raises(StoreBrokenError, match="the disk is broken"):
        scene.mirror.sync()
    scene.files.fail_syncs = False
    for act in (
        scene.mirror.sync,
        scene.mirror.write_extent,
        lambda: scene.mirror.begin(encode_segment_header(2, 5, SALT, 1)),
        lambda: put(scene.mirror, *good),
        lambda: scene.mirror.accept(3),
        lambda: scene.mirror.drop(1),
        lambda: scene.mirror.cut(RecordEnd(1, 40, 1)),
    ):
        with pytest.raises(StoreBrokenError, match="restart the shard"):
            act()
    assert scene.mirror.synced_lsn == 3
    scene.mirror.close()


def test_each_call_of_the_disk_that_fails_is_an_error_and_a_new_start_goes_on() -> None:
    def act(scene: Scene) -> None:
        scene.send(60, 6)
        scene.mirror.accept(4)
        scene.mirror.drop(2)
        scene.mirror.cut(RecordEnd(2, scene.mirror.lineage[-1].end, scene.mirror.lineage[-1].next_lsn))
        scene.mirror.close()

    whole = Scene()
    before = len(whole.files.calls)
    act(whole)
    failed = 0
    for call in range(before, len(whole.files.calls)):
        scene = Scene()
        scene.files.fault = Fault(call, errno.EIO)
        try:
            act(scene)
        except (StoreBrokenError, OSError):
            failed += 1
        again = opened(scene.files.after_crash(call, "some"))
        assert again.next_lsn > again.accepted_lsn
        again.close()
    assert failed > 10


# --- the extent ----------------------------------------------------------------------------------------


def test_the_extent_has_what_is_accepted_and_not_what_is_synced() -> None:
    scene = Scene()
    assert (scene.mirror.synced_lsn, scene.mirror.accepted_lsn, scene.mirror.extent) == (3, 0, NOTHING)
    scene.mirror.accept(2)
    assert scene.mirror.extent == Extent(1, 1, 3)
    # The first one in a segment is synced.
    assert load_extent(scene.files.after_crash(0, "none"), SALT) == Extent(1, 1, 3)
    scene.mirror.accept(3)
    assert load_extent(scene.files, SALT) == Extent(1, 1, 3)
    scene.mirror.write_extent()
    assert load_extent(scene.files, SALT) == Extent(1, 1, 4)
    assert load_extent(scene.files.after_crash(0, "none"), SALT) == Extent(1, 1, 3)
    scene.send()
    scene.mirror.accept(4)
    scene.mirror.close()
    assert load_extent(scene.files.after_crash(0, "none"), SALT) == Extent(1, 1, 5)
    assert opened(scene.files.after_crash(0, "none")).accepted_lsn == 4


def test_a_mark_beyond_what_is_on_disk_here_is_not_noted() -> None:
    scene = Scene()
    put(scene.mirror, *scene.next())
    scene.mirror.accept(4)
    assert scene.mirror.accepted_lsn == 0
    scene.mirror.sync()
    scene.mirror.accept(4)
    scene.mirror.accept(2)
    assert scene.mirror.accepted_lsn == 4
    empty = opened(FakeFiles())
    empty.accept(1)
    assert empty.accepted_lsn == 0
