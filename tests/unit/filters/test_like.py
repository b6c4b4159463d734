"""LIKE: agrees with its definition, and cannot be made slow."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.filters.patterns import LIKE_TEXT_MAX, compile_like
from tests.support import work

patterns = st.text("ab%_\n.", max_size=9)
texts = st.text("ab\n.%", max_size=12)


def by_definition(pattern: str, text: str) -> bool:
    reached = {0}
    for character in pattern:
        if character == "%":
            reached = set(range(min(reached), len(text) + 1)) if reached else set()
        else:
            reached = {at + 1 for at in reached if at < len(text) and character in ("_", text[at])}
    return len(text) in reached


@given(patterns, texts)
def test_like_matches_what_the_definition_says(pattern: str, text: str) -> None:
    assert compile_like(pattern, None)(text) is by_definition(pattern, text)


@given(texts)
def test_an_escaped_text_matches_itself_alone(text: str) -> None:
    escaped = text.replace("!", "!!").replace("%", "!%").replace("_", "!_")
    like = compile_like(escaped, "!")
    assert like(text) is True
    assert like(text + "a") is False


@pytest.mark.parametrize(
    ("pattern", "escape", "text", "expected"),
    [
        ("12%3", None, "123", True),
        ("12%3", None, "12993", True),
        ("12%3", None, "1234", False),
        ("l_se", None, "lose", True),
        ("l_se", None, "loose", False),
        (r"\_%", "\\", "_foo", True),
        (r"\_%", "\\", "bar", False),
        ("a%a", None, "a", False),
        ("", None, "", True),
    ],
)
def test_examples_of_jms_and_others(pattern: str, escape: str | None, text: str, expected: bool) -> None:
    assert compile_like(pattern, escape)(text) is expected


@pytest.mark.parametrize("pattern", ["a!", "!a", "%!b%"])
def test_an_escape_of_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="escape character"):
        compile_like(pattern, "!")


def test_hostile_patterns_take_no_longer_than_text_times_pattern() -> None:
    text = "a" * LIKE_TEXT_MAX
    for pattern in ("%a" * 200 + "%b", "%a_" * 200 + "b", "%" + "_" * 200 + "b%", "%" + "a_" * 100 + "b%c"):
        like = compile_like(pattern, None)
        assert like(text) is False
        # Each line examines the text once at most.
        assert work.lines(partial(like, text)) < 10 * len(pattern)


def test_text_that_is_too_long_is_unknown() -> None:
    assert compile_like("a%", None)("a" * (LIKE_TEXT_MAX + 1)) is None
