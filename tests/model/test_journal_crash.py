"""Wherever the machine stops, recovery gives what was synced, in order, nothing twice, nothing damaged."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.journal.record import Outcome
from tests.support.shard.fake_files import Crash, FakeFiles
from tests.support.shard.journal_writer import Op, Writer, open_journal, script, shown

KEEP = ("some", "none", "all", "some")


def run_until_crash(
    ops: list[Op], steps: int | None, files: FakeFiles | None = None
) -> tuple[FakeFiles, Writer | None]:
    """The script on a disk that stops after so many steps; no writer when it stopped while opening."""
    files = files or FakeFiles()
    files.steps_left = steps
    writer = None
    try:
        journal, _ = open_journal(files)
        writer = Writer(journal)
        writer.run(ops)
    except Crash:
        pass
    return files, writer


def check(files: FakeFiles, writer: Writer | None, memory_bytes: int, what: object) -> None:
    """Recovery shows one of the states it may show, twice, and the journal goes on from there."""
    allowed = writer.allowed() if writer else [((), (), 0)]
    journal, recovered = open_journal(files, memory_bytes)
    state = shown(recovered, journal)
    assert state in allowed, what
    # Going on: nothing of what was cut may come back behind new records.
    follower = Writer(journal)
    follower.adopt(recovered, journal)
    assert follower.states == [state]
    follower.run([("send", 1, 2, 30), ("commit",)])
    again, recovered = open_journal(files.after_crash(1, "none"))
    assert shown(recovered, again) == follower.states[-1], what


PARTS = 3


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_crash_at_every_byte(seed: int, part: int) -> None:
    ops = script(seed, 60)
    files, writer = run_until_crash(ops, None)
    assert writer is not None
    total = files.written
    assert files.syncs > 5
    for steps in range(total * part // PARTS, total * (part + 1) // PARTS + 1):
        crashed, writer = run_until_crash(ops, steps)
        image = crashed.after_crash(steps, KEEP[steps % 4])
        check(image, writer, (0, 100, 1 << 30)[steps % 3], (seed, steps))


def test_crash_in_recovery_after_a_crash() -> None:
    ops = script(4, 60)
    files, _ = run_until_crash(ops, None)
    total = files.written
    for steps in range(0, total, 43):
        crashed, writer = run_until_crash(ops, steps)
        again = 0
        while True:
            image = crashed.after_crash(steps, KEEP[steps % 4])
            second, reopened = run_until_crash([], again, image)
            if reopened is not None:
                break
            check(second.after_crash(again, KEEP[again % 4]), writer, 1 << 30, (steps, again))
            again += 3


OPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 3), st.integers(1, 6), st.sampled_from((0, 9, 80, 900))),
    st.tuples(st.just("send"), st.integers(1, 3), st.integers(1, 3), st.just(30), st.just(True)),
    st.tuples(st.just("settle"), st.integers(1, 3), st.integers(0, 9), st.integers(1, 9)),
    st.tuples(st.just("deliver"), st.integers(1, 3), st.integers(0, 9), st.integers(1, 9)),
    st.tuples(
        st.just("settle"), st.integers(1, 3), st.integers(0, 9), st.integers(1, 3), st.just(Outcome.MODIFIED)
    ),
    st.tuples(st.just("move"), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.just("change"), st.integers(1, 3), st.integers(0, 9)),
    st.tuples(st.just("clean")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("declare"), st.integers(1, 3), st.sampled_from(("{}", '{"a":1}'))),
    st.tuples(st.just("delete"), st.integers(1, 3)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(OPS, max_size=60), st.integers(0, 6_000), st.sampled_from(KEEP), st.integers(0, 2_000))
def test_any_script_crashed_anywhere(ops: list[Op], steps: int, keep: str, memory_bytes: int) -> None:
    files, writer = run_until_crash(ops, steps)
    check(files.after_crash(steps, keep), writer, memory_bytes, None)


def test_many_crashes_in_a_row() -> None:
    """One disk, forty lives: each dies somewhere, the next goes on with what it finds."""
    chance = random.Random(5)
    files = FakeFiles()
    state = ((), (), 0)
    for life in range(40):
        journal, recovered = open_journal(files, chance.choice((0, 300, 1 << 30)))
        writer = Writer(journal)
        writer.adopt(recovered, journal)
        assert life == 0 or writer.states[0] == state
        files.steps_left = chance.randint(50, 3_000)
        try:
            writer.run(script(life, 60))
            files.crash()
        except Crash:
            pass
        files = files.after_crash(life, KEEP[life % 4])
        journal, recovered = open_journal(files)
        state = shown(recovered, journal)
        assert state in writer.allowed()
        files = files.after_crash(life, "none")
