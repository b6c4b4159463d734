"""Ready: runs in the order of their sequences, and sums that agree with them whatever is done."""

from hypothesis import given
from hypothesis import strategies as st

from lightrail.shard.queue.lines.ready import Ready, fitting, one_run, rejoined
from lightrail.shard.queue.values.runs import Run, batch_of

MESSAGE = b"%03d"
STEPS = ("first", "at", "part", "back", "all")


def filled(counts: list[int]) -> Ready:
    """Batches of so many messages, whose bodies are their sequences."""
    ready = Ready()
    sequence = 0
    for count in counts:
        batch = batch_of([MESSAGE % each for each in range(sequence, sequence + count)])
        ready.add_batch(batch, sequence)
        sequence += count
    return ready


def check(ready: Ready, expected: set[int]) -> None:
    runs = ready.waiting()
    assert [each for run in runs for each in range(run.sequence, run.end)] == sorted(expected)
    assert [body for run in runs for body in run.messages()] == [MESSAGE % each for each in sorted(expected)]
    assert (ready.count, ready.bytes) == (len(expected), 3 * len(expected))
    assert (ready.barred_runs, ready.evicted_runs, ready.evicted_bytes) == (0, 0, 0)


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=8),
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 40)), max_size=30),
)
def test_messages_leave_and_come_back_in_any_order(counts: list[int], steps: list[tuple[str, int]]) -> None:
    ready = filled(counts)
    here = set(range(sum(counts)))
    away: list[Run] = []
    for step, number in steps:
        if step == "back" and away:
            run = away.pop(number % len(away))
            ready.give_back(run)
            here |= set(range(run.sequence, run.end))
        elif step == "all" and away:
            ready.give_back_all(sorted(away, key=lambda run: run.sequence))
            here |= {each for run in away for each in range(run.sequence, run.end)}
            away = []
        elif step in ("first", "at", "part") and here:
            index = ready.index(sorted(here)[number % len(here)])
            whole = ready.runs[index]
            if step == "first":
                run, size = ready.take_first(1 + number % 4, 9)
            elif step == "at":
                run, size = ready.take_at(index, 1 + number % 4, 9)
            else:
                last = whole.sequence + 1 + number % whole.count
                run, size = ready.take_part(index, last - 1, last)
            assert size == run.size
            here -= set(range(run.sequence, run.end))
            away.append(run)
        check(ready, here)
    for run in away:
        ready.give_back(run)
    assert len(ready) == len(counts), "parts of one batch are one run again"


def test_at_least_one_message_fits_and_as_many_as_the_bytes_allow() -> None:
    run = Run(batch_of([b"12345", b"1", b"1", b"1234"]), 0, 4, 0)
    assert fitting(run, 4, 0) == 1
    assert fitting(run, 4, 6) == 2
    assert fitting(run, 2, 100) == 2
    assert fitting(run.cut(1, 4), 3, 2) == 2


def test_a_message_is_found_in_its_run_and_none_in_a_hole() -> None:
    ready = filled([3, 3, 3])
    ready.take_part(1, 3, 6)
    assert ready.find(1, 2) == 0
    assert ready.find(3, 6) == -1
    assert ready.find(4, 9) == 1


def test_only_neighbours_of_one_batch_with_one_past_are_one_run() -> None:
    batch = batch_of([b"a", b"b", b"c"])
    first, second = Run(batch, 0, 1, 5), Run(batch, 1, 2, 6)
    assert one_run(first, second)
    assert not one_run(second, first)
    assert not one_run(first, Run(batch, 1, 2, 7)), "another sequence"
    assert not one_run(first, Run(batch, 1, 2, 6, attempts=1))
    assert not one_run(first, Run(batch, 1, 2, 6, barred=(1,)))
    assert not one_run(first, Run(batch_of([b"a", b"b"]), 1, 2, 6))
    (both,) = rejoined([first, second])
    assert (both.sequence, both.count) == (5, 2)


def test_barred_runs_are_counted_wherever_they_go() -> None:
    ready = filled([1])
    ready.give_back(Run(batch_of([b"001", b"002"]), 0, 2, 1, barred=(7,)))
    assert ready.barred_runs == 1
    part, _ = ready.take_part(1, 1, 2)
    assert ready.barred_runs == 1
    ready.give_back(part)
    assert (ready.barred_runs, len(ready)) == (1, 2)
    ready.clear()
    assert (ready.barred_runs, ready.count) == (0, 0)
