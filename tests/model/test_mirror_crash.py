"""Two journals that diverged anywhere become equal byte for byte, and no accepted record is ever cut.

A owns in epoch 1, and B has any part of what A wrote. B takes over in epoch 2 and writes other records, and A
follows B with any part of its own. A may stop at any byte meanwhile.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.journal.record import CONTINUED
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, decode_segment_header
from lightrail.shard.journal.files import Files, RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.segment import name_of
from lightrail.shard.replicas.lineage import Comparison, LineageError, OwnedSegment, RecordEnd, compare
from tests.support.shard.fake_files import Crash, FakeFiles, Inode
from tests.support.shard.journal_writer import Op, Writer, script, shown
from tests.support.shard.mirrored import (
    DISK,
    SALT,
    SEGMENT_BYTES,
    equalise,
    mirror_of,
    opened,
    records,
    segments,
    stream,
)

KEEP = ("some", "none", "all", "some")


class History(NamedTuple):
    """The bytes of a journal by segment, in order, and their lineage, newest first."""

    data: dict[int, bytes]
    lineage: list[OwnedSegment]

    @property
    def size(self) -> int:
        return sum(map(len, self.data.values()))

    def behind(self, end: RecordEnd) -> bytes:
        """All bytes behind this end, from the first record on."""
        kept = {end.segment: end.offset} if end.offset else {}
        cut = b"".join(
            data[kept.get(each, 0) :] for each, data in sorted(self.data.items()) if each >= end.segment
        )
        return cut[SEGMENT_HEADER_SIZE:] if decode_segment_header(cut) else cut

    def ends(self) -> list[int]:
        """Numbers of records that end a group, or precede one."""
        return [
            next_lsn - 1
            for data in self.data.values()
            for _, record, next_lsn in records(data, SALT, SEGMENT_HEADER_SIZE)
            if not record[9] & CONTINUED
        ]


def history(files: Files) -> History:
    mirror = opened(files)
    lineage = mirror.lineage
    mirror.close()
    data = segments(files, lineage)
    return History({number: data[number] for number in sorted(data)}, lineage)


def life(files: Files, ops: list[Op], epoch: int) -> None:
    """An owner serves, and is killed: what it has written is on its disk."""
    journal = Journal(files, "test", 0, segment_bytes=SEGMENT_BYTES)
    writer = Writer(journal)
    writer.adopt(journal.recover(1 << 30, 1, epoch), journal)
    writer.run([*ops, ("commit",)])
    files.unlock()


@cache
def first_owner(seed: int) -> History:
    """What A has written, without dropping anything."""
    files = FakeFiles()
    life(files, [op for op in script(seed, 30) if op[0] != "clean"], 1)
    return history(files.after_crash(0, "all"))


def fill(files: Files, found: History, size: int) -> None:
    """A directory with the first `size` bytes of a journal."""
    for number, data in found.data.items():
        if size > 0:
            with_bytes = files.create(name_of(number))
            with_bytes.write(0, [data[:size]])
            with_bytes.sync()
            with_bytes.close()
        size -= len(data)
    files.sync()


def copy_of(files: FakeFiles) -> FakeFiles:
    fresh = FakeFiles()
    for name, inode in files.inodes.items():
        fresh.inodes[name] = fresh._durable[name] = Inode(bytes(inode.live))
    return fresh


@cache
def taken_over(seed: int, size: int) -> History:
    """What B has written behind the first `size` bytes of A's journal, with which it took over."""
    files = FakeFiles()
    fill(files, first_owner(seed), size)
    opened(files).close()
    life(files, script(seed + 100, 12), 2)
    return history(files.after_crash(0, "all"))


def marks(seed: int, size: int) -> list[int]:
    """Records up to which all may be accepted, if a member has so many bytes of A's journal."""
    files = FakeFiles()
    fill(files, first_owner(seed), size)
    last = opened(files).next_lsn - 1
    return [lsn for lsn in first_owner(seed).ends() if lsn <= last]


def recovered(files: Files, epoch: int) -> object:
    journal = Journal(files, "test", 0, segment_bytes=SEGMENT_BYTES)
    state = shown(journal.recover(1 << 30, 1, epoch), journal)
    journal.close()
    return state


def check_equal(files: FakeFiles, owner: History) -> None:
    """This journal is the owner's, and is opened to the same state."""
    mirror = opened(files)
    oldest = owner.lineage[-1].segment
    if mirror.lineage[-1].segment < oldest:
        mirror.drop(oldest)
    mirror.close()
    assert history(files) == owner
    same = FakeFiles()
    fill(same, owner, owner.size)
    assert recovered(files, 3) == recovered(same, 3)


def follow(files: Files, owner: History, accepted: int) -> tuple[Comparison, History]:
    """A becomes equal to its owner; returns what it did, and what it had before."""
    mirror = opened(files)
    mirror.accept(accepted)
    assert mirror.accepted_lsn == accepted
    before = History(segments(files, mirror.lineage), mirror.lineage)
    found = equalise(mirror, owner.data, owner.lineage)
    assert found.common.next_lsn > accepted
    mirror.close()
    return found, before


def run(files: FakeFiles, owner: History, accepted: int) -> None:
    found, before = follow(files, owner, accepted)
    aside = [inode for name, inode in files.inodes.items() if name.startswith("cut-1-")]
    if found.cut and found.common.offset and (cut := before.behind(found.common)):
        assert [bytes(inode.live) for inode in aside] == [cut]
    check_equal(files.after_crash(0, "none"), owner)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_member_that_has_any_bytes_of_a_former_owner_becomes_equal(seed: int) -> None:
    size = first_owner(seed).size
    assert len(first_owner(seed).data) > 3
    for step, own in enumerate(range(0, size, 7)):
        files = FakeFiles()
        fill(files, first_owner(seed), own)
        # B had from nothing to everything; the accepted records are what both had at least, or fewer.
        theirs = step * 389 % size
        allowed = [0, *marks(seed, min(own, theirs))]
        run(files, taken_over(seed, theirs), allowed[step % len(allowed)])


def test_a_former_owner_with_everything_becomes_equal_to_a_member_with_any_bytes() -> None:
    size = first_owner(2).size
    for theirs in range(0, size + 1, 2):
        files = FakeFiles()
        fill(files, first_owner(2), size)
        allowed = [0, *marks(2, theirs)]
        run(files, taken_over(2, theirs), allowed[theirs // 2 % len(allowed)])


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_real_directories_become_equal(data: st.DataObject) -> None:
    seed = data.draw(st.integers(1, 3))
    size = first_owner(seed).size
    own, theirs = data.draw(st.integers(0, size)), data.draw(st.integers(0, size))
    accepted = data.draw(st.sampled_from([0, *marks(seed, min(own, theirs))]))
    owner = taken_over(seed, theirs)
    with tempfile.TemporaryDirectory() as directory:
        real = RealFiles(Path(directory, "member"))
        real.replace(
            "identity.json",
            b'{"format": 9, "cluster": "test", "shard": 0, "disk": "%s", "salt": %d}' % (DISK.encode(), SALT),
        )
        fill(real, first_owner(seed), own)
        follow(real, owner, accepted)
        again = RealFiles(Path(directory, "member"))
        mirror = mirror_of(again)
        mirror.open()
        if mirror.lineage[-1].segment < owner.lineage[-1].segment:
            mirror.drop(owner.lineage[-1].segment)
        assert mirror.accepted_lsn in (0, accepted)
        assert mirror.lineage == owner.lineage
        assert segments(again, mirror.lineage) == owner.data
        mirror.close()


def test_an_accepted_record_is_never_cut() -> None:
    size = first_owner(1).size
    full = FakeFiles()
    fill(full, first_owner(1), size)
    mirror = opened(full)
    ends = first_owner(1).ends()
    mirror.accept(ends[len(ends) // 2])
    mirror.close()
    refused = 0
    for theirs in range(0, size + 1, 11):
        owner, files = taken_over(1, theirs), copy_of(full)
        mirror = opened(files)
        before = {name: bytes(inode.live) for name, inode in files.inodes.items()}
        common = compare(mirror.lineage, owner.lineage, 0).common
        if common.next_lsn <= mirror.accepted_lsn:
            refused += 1
            with pytest.raises(
                LineageError, match=f"up to record {common.next_lsn - 1} only: nothing was cut"
            ):
                equalise(mirror, owner.data, owner.lineage)
            with pytest.raises(
                LineageError, match=f"behind record {mirror.accepted_lsn}, .* {common.next_lsn}:"
            ):
                mirror.cut(common)
            assert {name: bytes(inode.live) for name, inode in files.inodes.items()} == before
        else:
            equalise(mirror, owner.data, owner.lineage)
            mirror.close()
            check_equal(files, owner)
    assert size // 44 < refused < size // 11


def crashes(
    image: Callable[[], FakeFiles], act: Callable[[FakeFiles], object], every: int
) -> Iterable[FakeFiles]:
    """The disk after stops during an act: at some steps, and at each of the last 30, which change names."""
    whole = image()
    before = whole.written
    act(whole)
    total = whole.written - before
    for steps in sorted({*range(0, total, every), *range(max(0, total - 30), total + 1)}):
        files = image()
        files.steps_left = steps
        with contextlib.suppress(Crash):
            act(files)
        yield files.after_crash(steps, KEEP[steps % 4])


@pytest.mark.parametrize("share", [0.0, 0.4, 0.9])
def test_a_cut_that_a_power_cut_interrupts_is_repeated(share: float) -> None:
    former = first_owner(2)
    theirs = int(former.size * share)
    owner, accepted = taken_over(2, theirs), [0, *marks(2, theirs)][-1]

    def image() -> FakeFiles:
        files = FakeFiles()
        fill(files, former, former.size)
        mirror = opened(files)
        mirror.accept(accepted)
        mirror.close()
        return files

    common = compare(former.lineage, owner.lineage, accepted).common
    cut = former.behind(common)

    def act(files: FakeFiles) -> None:
        mirror = opened(files)
        mirror.cut(common)

    for crashed in crashes(image, act, 7):
        mirror = opened(crashed)
        assert mirror.accepted_lsn == accepted or not common.offset
        kept = History(segments(crashed, mirror.lineage), mirror.lineage)
        aside = crashed.load(f"cut-1-{max(common.next_lsn, 1)}.bin")
        # What remains is a beginning of the journal, and all that it lacks is set aside.
        assert all(former.data[each].startswith(data) for each, data in kept.data.items())
        assert aside in (None, cut)
        assert aside == cut or kept.size == former.size
        equalise(mirror, owner.data, owner.lineage)
        mirror.close()
        assert crashed.load(f"cut-1-{max(common.next_lsn, 1)}.bin") == cut
        check_equal(crashed, owner)


def test_a_member_that_a_power_cut_stops_anywhere_becomes_equal() -> None:
    former = first_owner(2)
    theirs = former.size // 2
    owner, accepted = taken_over(2, theirs), marks(2, theirs)[-1]

    def image() -> FakeFiles:
        files = FakeFiles()
        fill(files, former, former.size)
        return files

    for crashed in crashes(image, lambda files: follow(files, owner, accepted), 9):
        mirror = opened(crashed)
        assert mirror.accepted_lsn in (0, accepted)
        assert mirror.next_lsn > accepted
        equalise(mirror, owner.data, owner.lineage)
        mirror.close()
        check_equal(crashed, owner)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_member_that_stops_anywhere_in_the_stream_has_what_it_synced(seed: int) -> None:
    """Also where the owner had synced what the member had not."""
    ops = [[op] for op in script(seed, 20) if op[0] not in ("clean", "commit")]
    synced = 0

    def play(files: FakeFiles) -> FakeFiles:
        nonlocal synced
        synced = 0
        owner = FakeFiles()
        journal = Journal(owner, "test", 0, segment_bytes=SEGMENT_BYTES)
        journal.recover(1 << 30, 1, 1)
        begun = history(owner.after_crash(0, "all"))
        mirror = opened(files)
        equalise(mirror, begun.data, begun.lineage)
        writer = Writer(journal)
        for op in ops:
            writer.run(op)
            stream(journal, [mirror])
            mirror.accept(synced)
            synced = mirror.synced_lsn
        return owner.after_crash(0, "all")

    owner = history(play(FakeFiles()))
    for crashed in crashes(FakeFiles, play, 7):
        mirror = opened(crashed)
        assert mirror.next_lsn > synced >= mirror.accepted_lsn
        found = segments(crashed, mirror.lineage)
        assert all(owner.data[each].startswith(data) for each, data in found.items())
        equalise(mirror, owner.data, owner.lineage)
        mirror.close()
        check_equal(crashed, owner)
