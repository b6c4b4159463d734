"""A line against a dictionary: taking ranges, in any order, from anywhere."""

from hypothesis import given
from hypothesis import strategies as st

from lightrail.shard.queue.lines.line import Line
from lightrail.shard.queue.values.runs import Run, batch_of


def line_of(counts: list[int]) -> tuple[Line, dict[int, bytes]]:
    line = Line()
    expected: dict[int, bytes] = {}
    key = 0
    for count in counts:
        messages = [f"{key + index}".encode() for index in range(count)]
        line.append(key, Run(batch_of(messages), 0, count, 1000 + key))
        expected.update({key + index: message for index, message in enumerate(messages)})
        key += count
    return line, expected


@given(
    st.lists(st.integers(1, 5), max_size=12),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=20),
)
def test_taking_ranges(counts: list[int], ranges: list[tuple[int, int]]) -> None:
    line, expected = line_of(counts)
    for first, length in ranges:
        taken = [message for run in line.take(first, first + length) for message in run.messages()]
        wanted = [key for key in sorted(expected) if first <= key < first + length]
        assert taken == [expected.pop(key) for key in wanted]
        left = {
            key + index: message
            for key, run in zip(line.keys[line.head :], line.runs[line.head :], strict=True)
            for index, message in enumerate(run.messages())
        }
        assert left == expected


def test_a_long_line_forgets_what_was_taken() -> None:
    line, _ = line_of([1] * 2_000)
    for key in range(1_990):
        assert line.take(key, key + 1)
    assert len(line) == 10
    assert len(line.runs) < 1_000


def test_the_index_of_a_hole_is_that_of_the_next_run() -> None:
    line, _ = line_of([2, 2, 2])
    line.take(2, 4)
    assert line.runs[line.index(3)].sequence == 1004
    assert line.index(6) == len(line.runs)
