"""What goes of an archive, and what readers hold back."""

from hypothesis import given
from hypothesis import strategies as st

from lightrail.cluster.readers import Reader
from lightrail.shard.archiving.retention import HOUR_MS, Kept, Rule, judge

NOW = 1_000 * HOUR_MS


def segments(*ages: float, size: int = 100, first: int = 1) -> list[Kept]:
    """By their ages in hours; each has ten records."""
    return [
        Kept(first + index, 1 + 10 * index, 11 + 10 * index, size, 10, NOW - int(age * HOUR_MS))
        for index, age in enumerate(ages)
    ]


def reader(hours: float, size: int = 1 << 60, **positions: int) -> Reader:
    return Reader(positions, hours, size, 0)


def test_what_is_older_than_the_hours_goes() -> None:
    verdict = judge({"a": segments(200, 169, 168, 1)}, {}, Rule(168), NOW)
    assert verdict.go == [("a", 1), ("a", 2)]
    assert [kept.segment for _, kept in verdict.spare] == [3, 4]


def test_the_oldest_of_all_journals_go_while_there_are_too_many_bytes() -> None:
    verdict = judge({"b": segments(9, 7, 5), "a": segments(8, 6)}, {}, Rule(168, 250), NOW)
    assert verdict.go == [("b", 1), ("a", 1), ("b", 2)]


def test_without_hours_only_what_readers_hold_is_kept() -> None:
    kept = {"a": segments(3, 2, 1)}
    assert len(judge(kept, {}, Rule(0), NOW).go) == 3
    assert judge(kept, {"r": reader(100, a=11)}, Rule(0), NOW).go == [("a", 1)]


def test_a_reader_holds_back_what_it_has_not_read() -> None:
    kept = {"a": segments(300, 250, 200), "b": segments(400)}
    verdict = judge(kept, {"r": reader(1_000, a=21, b=11)}, Rule(168), NOW)
    assert verdict.go == [("b", 1), ("a", 1), ("a", 2)]
    standing = verdict.standings["r"]
    assert (standing.held_bytes, standing.unread_bytes, standing.passed) == (100, 100, [])
    assert standing.behind_ms == 200 * HOUR_MS


def test_a_journal_in_which_it_has_no_position_is_held_from_its_beginning() -> None:
    assert judge({"a": segments(300, 200)}, {"r": reader(1_000, b=99)}, Rule(168), NOW).go == []


def test_half_a_segment_that_was_read_is_held() -> None:
    assert judge({"a": segments(300)}, {"r": reader(1_000, a=10)}, Rule(168), NOW).go == []
    assert judge({"a": segments(300)}, {"r": reader(1_000, a=11)}, Rule(168), NOW).go == [("a", 1)]


def test_beyond_its_hours_or_bytes_it_is_passed_over() -> None:
    kept = {"a": segments(300, 250, 200, 190)}
    by_hours = judge(kept, {"r": reader(240)}, Rule(168), NOW)
    assert by_hours.go == [("a", 1), ("a", 2)]
    assert by_hours.standings["r"].passed == by_hours.go
    by_bytes = judge(kept, {"r": reader(1_000, 150)}, Rule(168), NOW)
    assert by_bytes.go == [("a", 1), ("a", 2), ("a", 3)]
    assert by_bytes.standings["r"].passed == by_bytes.go


def test_what_is_within_the_archives_own_hours_is_kept_although_a_reader_is_beyond_its_bounds() -> None:
    verdict = judge({"a": segments(100, 50)}, {"r": reader(1, 1)}, Rule(168), NOW)
    assert verdict.go == []
    assert verdict.standings["r"].passed == []
    assert [kept.segment for _, kept in verdict.spare] == [1, 2]


def test_one_reader_is_passed_over_while_another_one_holds() -> None:
    kept = {"a": segments(300, 200)}
    verdict = judge(kept, {"short": reader(1), "long": reader(1_000)}, Rule(168), NOW)
    assert verdict.go == []
    assert verdict.standings["short"].passed == []


def test_a_clock_that_went_back_changes_no_order() -> None:
    assert judge({"a": segments(100, 300, 99)}, {}, Rule(168), NOW).go == []


@given(
    st.lists(st.integers(0, 400), max_size=8),
    st.lists(st.integers(0, 400), max_size=8),
    st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 900), st.integers(0, 90), st.integers(0, 90)),
        max_size=3,
    ),
    st.integers(0, 400),
    st.integers(0, 900),
)
def test_the_laws_of_retention(
    ages_a: list[int],
    ages_b: list[int],
    asked: list[tuple[int, int, int, int]],
    hours: int,
    bound: int,
) -> None:
    kept = {"a": segments(*sorted(ages_a, reverse=True)), "b": segments(*sorted(ages_b, reverse=True))}
    readers = {
        str(index): Reader({"a": a, "b": b}, float(hold), size, 0)
        for index, (hold, size, a, b) in enumerate(asked)
    }
    rule = Rule(hours, bound)
    verdict = judge(kept, readers, rule, NOW)
    for disk, each in kept.items():
        went = [number for where, number in verdict.go if where == disk]
        assert went == [one.segment for one in each][: len(went)], "the oldest first, without gaps"
    spare = {(disk, one.segment) for disk, one in verdict.spare}
    assert not spare & set(verdict.go)
    for name, reader_ in readers.items():
        held = [
            one
            for disk, each in kept.items()
            for one in each
            if (disk, one.segment) not in verdict.go and one.next_lsn > reader_.positions[disk]
        ]
        missed = verdict.standings[name].passed
        assert all(segment in verdict.go for segment in missed)
        assert sum(one.end for one in held) + 100 * len(missed) == sum(
            one.end for disk, each in kept.items() for one in each if one.next_lsn > reader_.positions[disk]
        )
        assert verdict.standings[name].held_bytes <= reader_.hold_bytes
    if not readers:
        left = [one for disk, each in kept.items() for one in each if (disk, one.segment) not in verdict.go]
        assert not bound or sum(one.end for one in left) <= bound
        assert all(NOW - one.last_ms <= hours * HOUR_MS for one in left)
