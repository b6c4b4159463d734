"""Wherever the machine stops, what was committed is in the archive or the journal, and that is right."""

import errno

import pytest

from tests.support.shard.archive_scene import ArchiveScene, archived, journalled, reader
from tests.support.shard.fake_files import Crash, FakeFiles
from tests.support.shard.journal_writer import Op, Writer, open_journal, script

KEEP = ("some", "none", "all", "some")


def ops_of(seed: int, length: int) -> list[Op]:
    """A script whose cleaner asks as the shard does, so that it never forces a segment out."""
    ops: list[Op] = []
    for op in script(seed, length):
        ops.append(("clean", False) if op[0] == "clean" else op)
        if op[0] == "commit":
            ops += [("clean", False), ("clean", False)]
    return ops


def run(
    ops: list[Op], files: FakeFiles, steps: int | None, rounds: list[tuple[int, int]] | None = None
) -> ArchiveScene | None:
    """The script, with the archive's work in between; None when it stopped while opening."""
    files.steps_left = steps
    scene = None
    try:
        journal, _ = open_journal(files)
        scene = ArchiveScene(files, journal, readers={"all": reader()})
        writer = Writer(journal)
        for op in ops:
            writer.run([op])
            before = files.written
            scene.work()
            if rounds is not None and files.written > before:
                rounds.append((before, files.written))
    except Crash:
        pass
    return scene


def everything(files: FakeFiles, scene: ArchiveScene) -> dict[int, bytes]:
    folder = scene.journal.incarnation.folder
    return archived(files, folder) | journalled(files, scene.journal)


@pytest.mark.parametrize("way", ["linked", "copied"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_crash_at_every_step_of_the_archive(seed: int, way: str) -> None:
    fails = errno.EXDEV if way == "copied" else 0
    ops = ops_of(seed, 90)
    files = FakeFiles()
    files.fail_links = fails
    rounds: list[tuple[int, int]] = []
    scene = run(ops, files, None, rounds)
    assert scene is not None
    scene.journal.flush()
    truth = everything(files, scene)
    assert set(truth) == set(range(1, max(truth) + 1))
    gone = set(scene.numbers) - {segment.number for segment in scene.journal.segments()}
    assert len(gone) > 3, "the cleaner has to have removed what is in the archive only"
    assert (scene.counts.copied if fails else scene.counts.linked) > 5

    total = files.written
    inside = {step for first, last in rounds for step in range(first, last + 1)}
    if fails:
        # Of the bytes of a copy some will do.
        inside = {
            step
            for first, last in rounds
            for step in {*range(first, last + 1, 41), *range(last - 8, last + 1)}
        }
    for steps in sorted(inside | set(range(0, total, 97))):
        crashed = FakeFiles()
        crashed.fail_links = fails
        run(ops, crashed, steps)
        image = crashed.after_crash(steps, KEEP[steps % 4])
        image.fail_links = fails
        journal, recovered = open_journal(image)
        after = ArchiveScene(image, journal, readers={"all": reader()})
        assert after.work(timed=True)
        there = archived(image, journal.incarnation.folder)
        kept = journalled(image, journal)
        new = {lsn for lsn in kept if lsn > recovered.lsn}
        assert all(lsn <= recovered.lsn for lsn in there), "recovery has cut nothing that is in the archive"
        found = there | {lsn: data for lsn, data in kept.items() if lsn not in new}
        assert set(found) == set(range(1, recovered.lsn + 1)), (seed, steps)
        wrong = [lsn for lsn, data in found.items() if truth.get(lsn) != data]
        assert not wrong, (seed, steps, wrong)
        # It goes on: what is sealed comes into the archive, and nothing that is there changes.
        Writer(journal).run([("declare", 9), ("commit",)])
        while after.work():
            continue
        again = archived(image, journal.incarnation.folder)
        assert {lsn: again[lsn] for lsn in there} == there
        assert not after.archiver._waiting()


def test_crash_while_what_is_old_is_removed() -> None:
    """Segments go oldest first; a crash leaves no file without its pair."""
    ops = ops_of(5, 90)

    def lived(steps: int | None) -> tuple[FakeFiles, int]:
        files = FakeFiles()
        scene = run(ops, files, None)
        assert scene is not None
        before = files.written
        files.steps_left = steps
        scene.now_ms += 400 * 3_600_000
        scene.readers.clear()
        try:
            scene.work(timed=True)
            assert scene.numbers == []
        except Crash:
            pass
        return files, files.written - before

    _, total = lived(None)
    assert total > 10
    for steps in range(total + 1):
        files, _ = lived(steps)
        image = files.after_crash(steps, KEEP[steps % 4])
        journal, recovered = open_journal(image)
        after = ArchiveScene(image, journal, readers={"all": reader()})
        assert after.work(timed=True)
        archived(image, journal.incarnation.folder)
        assert recovered.lsn > 20
