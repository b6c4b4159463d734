"""A mirror finds the end of its journal, and is damaged only if it lacks accepted records."""

import pytest

from lightrail.journal.archive import Incarnation
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.mirror import Mirror
from lightrail.shard.journal.segment import name_of, numbers
from lightrail.shard.journal.store import (
    JournalDamagedError,
    StoreRefusedError,
)
from tests.support.shard.mirrored import (
    DISK,
    SALT,
    Scene,
    equalise,
    image,
    opened,
    put,
    segments,
)


def test_a_directory_of_another_journal_and_a_locked_one_are_refused() -> None:
    scene = Scene()
    with pytest.raises(StoreRefusedError, match="locked"):
        opened(scene.files)
    scene.mirror.close()
    for other in (
        Mirror(scene.files, Incarnation("test", 0, "ab"), SALT),
        Mirror(scene.files, Incarnation("test", 0, DISK), 1),
    ):
        with pytest.raises(StoreRefusedError, match="give this member an empty directory"):
            other.open()
    opened(scene.files).close()


def test_a_member_that_lacks_accepted_records_is_damaged() -> None:
    scene = Scene()
    scene.send(60, 8)
    scene.mirror.accept(scene.mirror.synced_lsn)
    scene.mirror.close()
    last = scene.mirror.lineage[0]
    files = scene.files.after_crash(0, "none")
    inode = files.inodes[name_of(last.segment)]
    inode.live[last.end - 1] ^= 1
    inode.durable[last.end - 1] ^= 1
    before = image(files)
    with pytest.raises(JournalDamagedError, match="are missing"):
        opened(files)
    assert image(files) == before
    assert all(file.closed for file in files.opened)
    files = scene.files.after_crash(0, "none")
    files.remove(name_of(2))
    with pytest.raises(JournalDamagedError, match=r"000000000002\.segment .* missing"):
        opened(files)


def test_a_record_that_the_owner_had_synced_and_the_member_had_not_is_no_damage() -> None:
    """The field `unsynced` of the record behind it says that it was on disk, but at the owner."""
    scene = Scene()
    end = scene.mirror.lineage[0].end
    for _ in range(2):
        put(scene.mirror, *scene.next())
    scene.mirror.accept(3)
    files = scene.files.after_crash(0, "all")
    files.inodes[name_of(1)].live[end + 50] ^= 1
    files.inodes[name_of(1)].durable[end + 50] ^= 1
    second = bytes(files.inodes[name_of(1)].live[end : scene.mirror.lineage[0].end])
    with pytest.raises(JournalDamagedError, match="says that it had been synced"):
        Journal(files.after_crash(0, "all"), "test", 0).recover(0, 0, 2)
    mirror = opened(files)
    assert (mirror.next_lsn, mirror.lineage[0].end, mirror.cut_bytes) == (4, end, len(second))
    # A whole record was behind the torn one: it must not follow other records after the next stop.
    assert files.load("cut-1-4.bin") == second
    assert len(files.after_crash(0, "none").load(name_of(1)) or b"") == end


def test_a_torn_end_alone_is_not_set_aside() -> None:
    scene = Scene()
    put(scene.mirror, *scene.next())
    files = scene.files.after_crash(0, "all")
    files.inodes[name_of(1)].live[scene.mirror.lineage[0].end - 1] ^= 1
    files.inodes[name_of(1)].durable[scene.mirror.lineage[0].end - 1] ^= 1
    mirror = opened(files)
    assert (mirror.next_lsn, mirror.cut_records) == (4, 0)
    assert mirror.cut_bytes > 40
    assert [name for name in files.names() if name.startswith("cut-")] == []


def test_the_directory_of_a_former_owner_is_a_mirror_with_what_it_has_written() -> None:
    scene = Scene()
    scene.send(60, 8)
    scene.owner.write_extent()
    scene.owner.flush()
    files = scene.owner_files.after_crash(0, "all")
    newest = scene.mirror.lineage[0]
    assert numbers(files)[-1] == newest.segment + 1  # the spare
    mirror = opened(files)
    assert mirror.lineage == scene.mirror.lineage
    assert numbers(files)[-1] == newest.segment
    assert mirror.accepted_lsn == newest.next_lsn - 1
    scene.send(60, 3)
    equalise(mirror, segments(scene.files, scene.mirror.lineage), scene.mirror.lineage)
    assert mirror.lineage == scene.mirror.lineage
    assert segments(files, mirror.lineage) == segments(scene.files, mirror.lineage)
