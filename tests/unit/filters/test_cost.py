"""What one look into one message costs, whatever a stranger writes into the filter and into the message."""

from typing import Any

import pytest

from lightrail.amqp.encoder import encode
from lightrail.amqp.values import Described, Symbol
from lightrail.filters.errors import FilterError
from lightrail.filters.filter import compile_filter
from lightrail.filters.message import FILTER_MAP_ITEMS, FILTER_SECTION_BYTES, MessageView, extract
from lightrail.filters.path import parse_path
from lightrail.filters.patterns import LIKE_TEXT_MAX, LIKE_WORK_MAX, SUBJECT_WORDS_MAX, compile_like, share
from lightrail.filters.source import from_amqp
from lightrail.model import limits
from tests.support import work

LINES_PER_CHARACTER = 10
"""Lines that a look may execute for each character of its pattern; each examines the text once at most."""
LINES_PER_TERM = 60
"""The same for each comparison of a filter of many."""


def with_properties(values: dict[str, Any], *before: bytes) -> bytes:
    return b"".join(before) + b"\x00\x53\x74" + encode(values) + b"\x00\x53\x75\xa0\x01x"


def look(spec: dict[str, Any], message: bytes) -> int:
    """The lines that one look executes."""
    matches = compile_filter(spec).matches
    return work.lines(lambda: matches(MessageView(message)))


HOSTILE_PATTERNS = {
    "one letter and then another": ("%" + "a" * 3_900 + "_" + "a" * 3_900 + "b%", "a" * 65_000),
    "one piece full of _": ("%" + "a_" * 3_900 + "b%", "ab" * 32_000),
    "many pieces with _": ("%" + "a_b%" * 1_900, ("ab" * 17 + "aab") * 1_700),
    "many different letters": (
        "%" + "".join(f"{chr(300 + n)}_" for n in range(1_300)) + "z%",
        "".join(chr(300 + n) for n in range(1_300)) * 40,
    ),
    "pieces without _": ("%" + "a%" * 3_900 + "b", "a" * 65_000),
}


@pytest.mark.parametrize("case", HOSTILE_PATTERNS)
def test_no_pattern_makes_one_look_long(case: str) -> None:
    pattern, part = HOSTILE_PATTERNS[case]
    like = compile_like(pattern, None)
    share([like])
    text = (part * (1 + like.characters_max // len(part)))[: like.characters_max]
    assert like(text) is False
    message = with_properties({"p": text})
    assert look({"sql": f"p LIKE '{pattern}'"}, message) < LINES_PER_CHARACTER * len(pattern)


@pytest.mark.parametrize("pattern", ["%a_b%", "%ab%", "a%b", "%aa_aa%b"])
def test_many_patterns_of_one_filter_share_what_one_look_may_take(pattern: str) -> None:
    expression = " OR ".join(f"p LIKE '{pattern}'" for _ in range(limits.FILTER_EXPRESSION_BYTES // 24))
    spec = {"any": [{"sql": expression}] * 5}
    terms = 5 * (limits.FILTER_EXPRESSION_BYTES // 24)
    longest = LIKE_WORK_MAX // (terms // 5 * compile_like(pattern, None).weight)
    for length in (longest, 64_000):
        assert look(spec, with_properties({"p": ("ab" * length)[:length]})) < LINES_PER_TERM * terms


def test_a_filter_of_few_patterns_looks_at_texts_of_every_length_allowed() -> None:
    text = "a" * (LIKE_TEXT_MAX - 1) + "b"
    spec = {"sql": " AND ".join(f"p LIKE '{pattern}'" for pattern in ("%a_b", "a%b", "%aa%", "%a_a%") * 4)}
    assert compile_filter(spec).matches(MessageView(with_properties({"p": text})))


def test_a_text_beyond_the_share_of_a_pattern_is_unknown() -> None:
    spec = {"sql": " OR ".join(["p LIKE '%a_a%'"] * 300)}
    most = LIKE_WORK_MAX // (300 * compile_like("%a_a%", None).weight)
    for length, expected in ((most, True), (most + 1, False)):
        assert compile_filter(spec).matches(MessageView(with_properties({"p": "a" * length}))) is expected


def test_fields_of_a_huge_map_are_found_by_few_walks() -> None:
    most = FILTER_MAP_ITEMS // 2 - 1
    values: dict[str, Any] = {f"{n:x}": None for n in range(most)}
    values["last"] = 1
    spec = {"any": [{"properties": {f"application-properties.{n:x}x": 1}} for n in range(490)]}
    message = with_properties(values)
    assert look(spec, message) < 50 * most
    asked: list[dict[str, Any]] = [{"properties": {"application-properties.last": 1}}]
    for n in range(6):
        assert compile_filter({"all": asked}).matches(MessageView(message)), n
        asked.append({"not": {"properties": {f"application-properties.{n:x}": 1}}})


@pytest.mark.parametrize(
    "values",
    [
        {f"{n:x}": None for n in range(FILTER_MAP_ITEMS)} | {"last": 1},
        {"first": "x" * FILTER_SECTION_BYTES, "last": 1},
    ],
    ids=["too many entries", "too many bytes"],
)
def test_a_field_of_a_section_beyond_its_bounds_is_not_there(values: dict[str, Any]) -> None:
    path = parse_path("application-properties.last")
    message = with_properties(values)
    assert extract(message, path) is None
    assert MessageView(message).term(path) is None


def test_sections_that_come_again_and_again_are_not_followed() -> None:
    message = with_properties({"p": 1}, b"\x00\x53\x70\x45" * 500_000)
    path = parse_path("application-properties.p")
    assert extract(message, path) is None
    assert MessageView(message).term(path) is None
    assert work.lines(lambda: extract(message, path)) < 1_000
    assert work.lines(lambda: MessageView(message).term(path)) < 1_000


def test_a_large_list_in_a_property_is_not_made() -> None:
    message = with_properties({"p": [None] * 500_000, "q": 1})
    assert look({"sql": "p = 1 OR q = 1"}, message) < 1_000
    assert compile_filter({"sql": "p IS NOT NULL AND q = 1"}).matches(MessageView(message))


def test_a_subject_of_millions_of_words_is_cut_once() -> None:
    message = b"\x00\x53\x73" + encode([None, None, None, "." * 900_000]) + b"\x00\x53\x75\xa0\x01x"
    view = MessageView(message)
    assert len(view.subject_words()) == SUBJECT_WORDS_MAX + 1
    assert compile_filter({"subject": "#"}).matches(view)
    assert not compile_filter({"subject": "*.#"}).matches(view)


def test_many_long_subject_patterns_are_refused() -> None:
    pattern = ".".join("*#"[n % 2] for n in range(SUBJECT_WORDS_MAX))
    with pytest.raises(FilterError, match="in all of a filter"):
        compile_filter({"any": [{"subject": pattern}] * 100})
    subject = encode([None, None, None, ".".join("a" * SUBJECT_WORDS_MAX)])
    spent = look({"any": [{"subject": pattern}] * 35}, b"\x00\x53\x73" + subject)
    assert spent < 35 * 5 * SUBJECT_WORDS_MAX


def test_an_operand_that_between_evaluates_twice_is_counted_twice() -> None:
    nested = "a"
    for _ in range(14):
        nested = f"({nested} BETWEEN TRUE AND TRUE)"
    with pytest.raises(FilterError, match="evaluations"):
        compile_filter({"sql": nested})


def test_the_expressions_of_a_filter_are_counted_together() -> None:
    expression = " OR ".join(f"a = {n}" for n in range(300))
    with pytest.raises(FilterError, match="in all of a filter"):
        compile_filter({"any": [{"sql": expression}] * 20})


def test_the_filters_of_a_source_are_counted_together() -> None:
    expression = " OR ".join(f"a={n}" for n in range(330))
    filters = {
        Symbol(f"f{n}"): Described(Symbol("apache.org:selector-filter:string"), expression) for n in range(16)
    }
    with pytest.raises(FilterError, match="in all of a filter"):
        from_amqp(filters)


def test_a_view_counts_what_it_costs() -> None:
    light = MessageView(with_properties({"p": "a"}))
    heavy = MessageView(with_properties({"p": "a" * 60_000}))
    matches = compile_filter({"sql": "p LIKE '%a_b%'"}).matches
    for view in (light, heavy):
        matches(view)
    assert light.spent < 20
    assert heavy.spent > 10_000
