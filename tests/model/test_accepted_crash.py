"""Two members of a shard: whatever is accepted is on each of both disks, wherever the owner stops.

The other member acknowledges late, so the owner's disk has commits that are not accepted. After a crash
everything accepted is on the owner's disk, on the member's, and on the owner's after a cut to that one's end.
"""

import random

import pytest

from tests.model.test_journal_crash import KEEP, check
from tests.support.shard.fake_files import Crash, FakeFiles
from tests.support.shard.journal_writer import Op, Writer, script
from tests.support.shard.member import shared_journal

STRIDE = 67
"""Steps of the owner's disk between two crashes."""


class SharedWriter(Writer):
    """A Writer whose states count as synced when they are accepted."""

    def __init__(self, files: FakeFiles) -> None:
        journal, recovered, self.member = shared_journal(files)
        super().__init__(journal)
        self.journal = journal
        self.adopt(recovered, journal)
        self._ends: list[tuple[int, int]] = []
        """By commit: the number of its last record, and that of the state."""

    def commit(self) -> None:
        if not self.store.pending:
            return
        commit = self.journal.begin_commit()
        self._ends.append((commit.last_lsn, len(self.states) - 1))
        self.member.receive(commit)
        commit.perform()
        self.journal.end_commit(commit)
        self._accepted()

    def acknowledge(self) -> None:
        self.member.acknowledge(self.journal)
        self._accepted()

    def _accepted(self) -> None:
        accepted_lsn = self.journal.committed.next_lsn - 1
        assert accepted_lsn <= min(self.member.mark, self.journal.position.synced_lsn), "shown early"
        self.synced = max([self.synced, *(state for lsn, state in self._ends if lsn <= accepted_lsn)])


def late(seed: int) -> list[Op]:
    """A script whose commits are acknowledged in less than half of the cases, and in groups."""
    chance = random.Random(seed)
    ops: list[Op] = []
    for op in script(seed, 70):
        ops.append(op)
        if op[0] == "commit" and chance.random() < 0.4:
            ops.append(("acknowledge",))
    return ops


def run(seed: int, steps: int | None) -> tuple[FakeFiles, SharedWriter | None]:
    files = FakeFiles()
    files.steps_left = steps
    writer = None
    try:
        writer = SharedWriter(files)
        writer.run(late(seed))
    except Crash:
        pass
    return files, writer


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_everything_accepted_is_on_each_disk(seed: int) -> None:
    whole, writer = run(seed, None)
    assert writer is not None
    assert min(writer.journal._segments) > 1, "segments were dropped"
    behind = 0
    for steps in range(seed, whole.written, STRIDE):
        files, writer = run(seed, steps)
        if writer is None:
            continue
        keep = KEEP[steps % 4]
        behind += writer.journal.position.synced_lsn > writer.member.mark
        check(files.after_crash(steps, keep), writer, 1 << 30, ("owner", seed, steps))
        check(writer.member.files.after_crash(steps, keep), writer, 1 << 30, ("member", seed, steps))
        cut = files.after_crash(steps, keep)
        writer.member.cut(cut)
        check(cut, writer, 1 << 30, ("cut", seed, steps))
    assert behind > 5, "the owner was ahead of the member in many crashes"
