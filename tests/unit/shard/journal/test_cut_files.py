"""What a member cuts is set aside, and only whole records are cut; what it drops is at its owner's word."""

import errno

import pytest

from lightrail.journal.layout import finished
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, encode_segment_header
from lightrail.shard.journal import cut_files
from lightrail.shard.journal.cut_files import CUT_BYTES_MAX, CUT_FILES_MAX
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.segment import name_of, numbers
from lightrail.shard.journal.store import (
    MirrorError,
    StoreFullError,
)
from lightrail.shard.replicas.lineage import LineageError, RecordEnd
from tests.support.shard.fake_files import FakeFiles, FakeFolder
from tests.support.shard.mirrored import (
    SALT,
    Scene,
    image,
    mirror_of,
    opened,
    put,
    segments,
)


def long(times: int = 12) -> Scene:
    scene = Scene()
    scene.send(60, times)
    assert len(scene.mirror.lineage) > 3
    return scene


def test_a_cut_is_only_at_an_end_of_a_record() -> None:
    scene = long()
    second = scene.mirror.lineage[-2]
    before = image(scene.files)
    for end in (
        RecordEnd(2, 41, second.first_lsn),
        RecordEnd(2, 40, second.first_lsn + 1),
        RecordEnd(2, second.end, second.next_lsn + 1),
        RecordEnd(3, second.end, second.next_lsn),
        RecordEnd(9, 40, 99),
    ):
        with pytest.raises(MirrorError, match="nothing was cut"):
            scene.mirror.cut(end)
    assert image(scene.files) == before
    scene.mirror.cut(RecordEnd(2, second.end, second.next_lsn))
    assert scene.mirror.lineage[0] == second


def test_what_was_cut_is_counted_and_set_aside() -> None:
    scene = long()
    lineage, data = scene.mirror.lineage, segments(scene.files, scene.mirror.lineage)
    second = lineage[-2]
    last = scene.mirror.next_lsn
    scene.mirror.cut(RecordEnd(2, 40, second.first_lsn))
    assert scene.mirror.cut_records == last - second.first_lsn
    cut = b"".join(data[each.segment] for each in reversed(lineage[:-1]))[SEGMENT_HEADER_SIZE:]
    assert scene.files.load(f"cut-1-{second.first_lsn}.bin") == cut
    assert scene.mirror.cut_bytes == len(cut)
    assert numbers(scene.files) == [1, 2]
    assert bytes(scene.files.inodes[name_of(2)].durable) == data[2][:40]


def test_a_cut_to_nothing_begins_anew_and_sets_aside_what_was_not_accepted() -> None:
    scene = long()
    lineage, data = scene.mirror.lineage, segments(scene.files, scene.mirror.lineage)
    scene.mirror.accept(lineage[-2].next_lsn - 1)
    scene.mirror.write_extent()
    with pytest.raises(LineageError, match=f"behind record {lineage[-2].next_lsn - 1}"):
        scene.mirror.cut(RecordEnd(50, 0, lineage[-2].next_lsn - 1))
    scene.mirror.cut(RecordEnd(50, 0, 900))
    assert (scene.mirror.lineage, scene.mirror.accepted_lsn) == ([], 0)
    rest = b"".join(data[each.segment] for each in reversed(lineage[:-2]))[SEGMENT_HEADER_SIZE:]
    assert scene.files.load(f"cut-1-{lineage[-2].next_lsn}.bin") == rest
    opened(scene.files.after_crash(0, "none")).close()
    again = opened(scene.files.after_crash(0, "all"))
    again.begin(encode_segment_header(50, 900, SALT, 2))
    assert again.lineage == [(50, 900, 2, 40, 900)]
    again.cut(RecordEnd(60, 0, 1_000))
    again.begin(encode_segment_header(60, 1_000, SALT, 2))


def test_a_segment_of_the_archive_is_copied_before_it_is_cut() -> None:
    scene = long()
    second = scene.mirror.lineage[-2]
    scene.files.link(name_of(2), FakeFolder(scene.files, "archive"))
    archived = bytes(scene.files.inodes["archive/" + name_of(2)].live)
    scene.mirror.cut(RecordEnd(2, 40, second.first_lsn))
    assert bytes(scene.files.inodes["archive/" + name_of(2)].live) == archived
    assert len(scene.files.inodes[name_of(2)].live) == 40


def test_without_room_for_the_bytes_nothing_is_cut() -> None:
    scene = long()
    second = scene.mirror.lineage[-2]
    lineage = scene.mirror.lineage
    scene.files.fail_creates = errno.ENOSPC
    with pytest.raises(StoreFullError, match="free space"):
        scene.mirror.cut(RecordEnd(2, 40, second.first_lsn))
    assert scene.mirror.lineage == lineage
    scene.files.fail_creates = 0
    scene.mirror.cut(RecordEnd(2, 40, second.first_lsn))


def test_cuts_that_are_set_aside_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CUT_BYTES_MAX >= 1 << 20
    monkeypatch.setattr(cut_files, "CUT_BYTES_MAX", 300)
    scene = long(40)
    for each in scene.mirror.lineage[: CUT_FILES_MAX + 2]:
        scene.mirror.cut(RecordEnd(each.segment, 40, each.first_lsn))
    aside = [name for name in scene.files.names() if name.startswith("cut-")]
    assert len(aside) == CUT_FILES_MAX
    assert {len(scene.files.inodes[name].live) for name in aside} == {300}
    assert scene.mirror.cut_bytes > 300 * CUT_FILES_MAX


def test_segments_are_dropped_at_the_owners_word_after_a_sync_and_never_the_newest() -> None:
    scene = long()
    newest = scene.mirror.lineage[0].segment
    with pytest.raises(
        MirrorError, match=f"before {newest}, the newest one here, found those before {newest + 1}"
    ):
        scene.mirror.drop(newest + 1)
    with pytest.raises(MirrorError, match="expected to drop segments before 0"):
        opened(FakeFiles()).drop(1)
    put(scene.mirror, *scene.next())
    scene.mirror.drop(3)
    assert scene.mirror.synced_lsn == scene.mirror.next_lsn - 1
    scene.mirror.drop(3)
    assert numbers(scene.files) == list(range(3, newest + 1))
    assert scene.mirror.lineage[-1].segment == 3
    journal = Journal(scene.files.after_crash(0, "none"), "test", 0, segment_bytes=700)
    journal.recover(1 << 30, 1, 2)


def test_a_mirror_reads_over_a_gap() -> None:
    scene = Scene()
    end = scene.mirror.lineage[0].end
    gap = finished(
        b"\x08\0LR" + bytes(4) + (4).to_bytes(8, "little") + bytes(8) + (1 << 40).to_bytes(8, "little"), SALT
    )
    put(scene.mirror, 1, end, gap, 1 << 40)
    scene.mirror.close()
    again = mirror_of(scene.files.after_crash(0, "none"))
    again.open()
    assert again.lineage[0] == (1, 1, 1, end + len(gap), 1 << 40)
    again.cut(RecordEnd(1, end, 4))
