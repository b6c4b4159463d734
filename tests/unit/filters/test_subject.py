"""Subject patterns: the semantics of AMQP 0-9-1's topics, in linear time."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.filters.errors import FilterError
from lightrail.filters.patterns import SUBJECT_WORDS_MAX, compile_pattern, split_words
from tests.support import work

words = st.lists(st.sampled_from(["a", "b", "c"]), max_size=7)
patterns = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=7)


def matches(pattern: str, subject: str) -> bool:
    return compile_pattern(pattern)(split_words(subject))


def by_definition(pattern: Sequence[str], subject: Sequence[str]) -> bool:
    if not pattern:
        return not subject
    if pattern[0] == "#":
        return any(by_definition(pattern[1:], subject[taken:]) for taken in range(len(subject) + 1))
    return bool(subject) and pattern[0] in ("*", subject[0]) and by_definition(pattern[1:], subject[1:])


@given(patterns, words)
def test_a_pattern_matches_what_the_definition_says(pattern: list[str], subject: list[str]) -> None:
    assert compile_pattern(".".join(pattern))(subject) == by_definition(pattern, subject)


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("orders.*.created", "orders.eu.created", True),
        ("orders.*.created", "orders/eu/created", True),
        ("orders/*/created", "orders.eu.created", True),
        ("orders.*.created", "orders.created", False),
        ("orders.#", "orders", True),
        ("orders.#", "orders.a.b.c", True),
        ("#.created", "orders.eu.created", True),
        ("#", "", True),
        ("*", "", False),
        ("a..b", "a..b", True),
        ("a.*.b", "a..b", True),
        ("Orders", "orders", False),
    ],
)
def test_examples(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected


def test_a_pattern_of_many_wildcards_takes_linear_time() -> None:
    def spent(words: int) -> int:
        test = compile_pattern(".".join(["#", "a"] * words))
        subject = ["a"] * (words - 1)
        assert test(subject) is False
        assert test([*subject, "a", "a"]) is True
        return work.lines(lambda: test(subject))

    assert spent(500) < 2.2 * spent(250)


def test_a_subject_of_too_many_words_matches_no_pattern_with_wildcards() -> None:
    subject = ["a"] * (SUBJECT_WORDS_MAX + 1)
    assert compile_pattern("a.#")(subject) is False


@pytest.mark.parametrize("pattern", ["", "orders.*x", "a#.b", "a." * 2_000, "a" * 9_000])
def test_bad_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(FilterError):
        compile_pattern(pattern)
