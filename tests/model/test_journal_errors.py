"""Whichever system call of the journal fails, and how: what was accepted is there after two restarts.

Each call of a script fails once, by itself. The process ends, or goes on where the disk has no room; it
starts again twice on the same machine, whose memory may show what the disk does not have, and once more
after a power cut, which leaves what is on the disk.
"""

import errno

import pytest

from lightrail.shard.journal.identity import SLOT_BYTES, SLOTS
from lightrail.shard.journal.store import StoreBrokenError, StoreFullError
from tests.support.shard.fake_files import FakeFiles, Fault
from tests.support.shard.journal_writer import Op, Writer, open_journal, script, shown

FAULTS = {
    "EIO": (errno.EIO, False),
    "ENOSPC": (errno.ENOSPC, False),
    "EROFS": (errno.EROFS, False),
    "a short write": (errno.EIO, True),
    "a short write without room": (errno.ENOSPC, True),
}


WITH_ROOM: list[Op] = [
    ("commit",),
    ("settle", 1, 0, 99),
    ("clean",),
    ("commit",),
    ("commit",),  # The file of the dropped segment is used again when the commit before is accepted.
    ("send", 1, 2, 10),
    ("commit",),
]


def run(ops: list[Op], files: FakeFiles) -> Writer | None:
    """The script, until the process ends; no writer when it ended while opening."""
    try:
        journal, _ = open_journal(files)
    except OSError:
        return None
    writer = Writer(journal)
    try:
        try:
            writer.run(ops)
        except StoreFullError:
            # It goes on: what gathered is committed, what is there leaves, and its space comes back.
            assert not journal.usage().broken
            files.space = None
            writer.now_ms += 1_000
            writer.run(WITH_ROOM)
    except (OSError, StoreBrokenError):
        pass
    return writer


def starts(files: FakeFiles, writer: Writer | None, what: object) -> None:
    """What was accepted is there, and stays there with what is accepted next."""
    allowed = writer.allowed() if writer else [((), (), 0)]
    files.fault = None
    for _ in range(2):
        files.unlock()
        journal, recovered = open_journal(files)
        state = shown(recovered, journal)
        assert state in allowed, what
        follower = Writer(journal)
        follower.adopt(recovered, journal)
        follower.run([("send", 1, 2, 30), ("commit",)])
        allowed = follower.states[-1:]
    journal, recovered = open_journal(files.after_crash(1, "none"))
    assert shown(recovered, journal) in allowed, what


def calls_of(ops: list[Op], files: FakeFiles | None = None) -> list[str]:
    files = files or FakeFiles()
    assert run(ops, files) is not None
    return files.calls


SMALL_BYTES = 3_000 + SLOTS * SLOT_BYTES
"""A disk that is full soon: some segments, and the file `extent` beside them."""
FULL: list[Op] = [("declare", 1), *[("send", 1, 1, 300), ("commit",)] * 9]
"""On a disk of SMALL_BYTES."""


def test_the_scripts_make_every_call_that_a_journal_makes() -> None:
    again = FakeFiles()
    run(script(1, 60), again)
    again.unlock()
    made = {*calls_of(script(2, 60), again), *calls_of(FULL, FakeFiles(space=SMALL_BYTES))}
    assert made == {
        *("open", "create", "read", "write", "sync", "allocate", "truncate"),
        *("rename", "remove", "sync of names", "load", "replace"),
    }


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", FAULTS)
def test_any_call_may_fail_once(kind: str, seed: int) -> None:
    ops = script(seed, 60)
    error, is_short = FAULTS[kind]
    for number, call in enumerate(calls_of(ops)):
        if is_short and call != "write":
            continue
        files = FakeFiles()
        files.fault = Fault(number, error, is_short)
        starts(files, run(ops, files), (number, call))


@pytest.mark.parametrize("kind", FAULTS)
def test_any_call_on_a_full_disk_may_fail_once(kind: str) -> None:
    error, is_short = FAULTS[kind]
    for number, call in enumerate(calls_of(FULL, FakeFiles(space=SMALL_BYTES))):
        files = FakeFiles(space=SMALL_BYTES)
        files.fault = Fault(number, error, is_short)
        writer = run(FULL, files)
        files.space = None
        starts(files, writer, (number, call))


@pytest.mark.parametrize("kind", FAULTS)
def test_any_call_of_a_start_after_an_error_may_fail_once(kind: str) -> None:
    ops = script(3, 40)
    error, is_short = FAULTS[kind]
    calls = calls_of(ops)
    for number in range(0, len(calls), 7):
        if calls[number] == "read":
            continue
        again = 0
        while True:
            files = FakeFiles()
            files.fault = Fault(number, errno.EIO)
            writer = run(ops, files)
            files.unlock()
            files.fault = Fault(len(files.calls) + again, error, is_short)
            if run([], files) is not None:
                break
            starts(files, writer, (number, calls[number], again))
            again += 3
