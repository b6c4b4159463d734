"""The matcher finds what asking every filter finds, and gives equal sets as the same tuple."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lightrail.amqp.sections import Header, Properties
from lightrail.amqp.values import Symbol, UInt
from lightrail.filters.filter import compile_filter
from lightrail.filters.matcher import Matcher
from lightrail.filters.message import MessageView
from lightrail.model import limits
from tests.unit.filters.messages import message, mutated, view

constants = st.sampled_from([None, "red", "blue", 1, 1.0, 2, True, False, 0, 0.0])
specs: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.builds(
        lambda path, constant: {"properties": {path: constant}},
        st.sampled_from(["application-properties.a", "application-properties.b", "subject", "priority"]),
        constants,
    ),
    st.sampled_from(
        [
            {"sql": "a = 'red'"},
            {"sql": "a = 1"},
            {"sql": "a = TRUE"},
            {"sql": "a > 1"},
            {"subject": "red"},
            {"subject": "*"},
            {"not": {"sql": "b = 1"}},
            {"sql": "a = 'red' AND b = 1"},
            {"sql": "NOT b = 1 AND a = 'red'"},
            {"sql": "(a = 1 OR b = 2) AND (b = 2 AND a = 1)"},
            {"properties": {"application-properties.a": "red", "application-properties.b": None}},
            {"properties": {"application-properties.a": None, "application-properties.b": None}},
            {"all": [{"subject": "*"}, {"sql": "a = TRUE"}]},
            {"any": [{"sql": "a = 1"}, {"sql": "b = 1"}]},
            {"any": [{"sql": "a = 1 AND b = 1"}]},
            {"subject": "#", "sql": "a = 1"},
        ]
    ),
)
values = st.sampled_from(
    ["red", "blue", 1, 1.0, UInt(2), True, False, 0, Symbol("red"), b"red", float("nan")]
)


@st.composite
def drawn_messages(draw: st.DrawFn) -> bytes:
    return message(
        draw(st.dictionaries(st.sampled_from("ab"), values)),
        header=draw(st.none() | st.builds(Header, priority=st.integers(0, 2))),
        properties=draw(
            st.none() | st.builds(Properties, subject=st.sampled_from(["red", "blue", "", "a.b"]))
        ),
    )


@given(st.lists(specs, max_size=12), drawn_messages() | mutated())
def test_targets_are_the_keys_of_the_filters_that_match(filters: list[Any], data: bytes) -> None:
    entries = [(index, compile_filter(spec)) for index, spec in enumerate(filters)]
    expected = tuple(key for key, each in entries if each.matches(MessageView(data)))
    assert Matcher(entries).targets(MessageView(data)) == expected


def test_equal_sets_are_the_same_tuple() -> None:
    filters = [compile_filter({"properties": {"application-properties.a": n % 3}}) for n in range(30)]
    matcher = Matcher([*enumerate(filters), ("all", None)])
    first, again = matcher.targets(view({"a": 1})), matcher.targets(view({"a": 1, "b": "more"}))
    assert first is again
    assert first == (*range(1, 30, 3), "all")
    assert matcher.targets(view({"a": 2})) is not first


def test_a_key_that_repeats_is_named_once_in_the_order_of_the_entries() -> None:
    red = compile_filter({"sql": "a = 'red'"})
    matcher = Matcher([("q2", red), ("q1", None), ("q2", None)])
    assert matcher.targets(view({"a": "red"})) == ("q2", "q1")
    assert matcher.targets(view()) == ("q1", "q2")


def test_without_filters_no_message_has_to_be_looked_at() -> None:
    assert not Matcher([("a", None), ("b", compile_filter(None))]).looks_at_messages
    assert Matcher([("a", compile_filter({"subject": "a"}))]).looks_at_messages
    assert Matcher([("a", None)]).targets(MessageView(b"")) == ("a",)
    assert Matcher([]).targets(MessageView(b"")) == ()


def test_the_sets_that_are_remembered_are_bounded() -> None:
    entries = [(n, compile_filter({"sql": f"a % {1 << n + 1} >= {1 << n}"})) for n in range(13)]
    matcher = Matcher(entries)
    for number in range(limits.TARGET_SETS_MAX + 10):
        expected = tuple(n for n in range(13) if number >> n & 1)
        assert matcher.targets(view({"a": number})) == expected
    assert len(matcher._targets) <= limits.TARGET_SETS_MAX


def test_large_sets_are_bounded_by_their_members() -> None:
    """4,096 sets of half of 2,000 subscriptions were 280 MB."""
    count = 13 * 200
    entries = [(n, compile_filter({"sql": f"a % {1 << n % 13 + 1} >= {1 << n % 13}"})) for n in range(count)]
    matcher = Matcher(entries)
    for number in range(200):
        expected = tuple(n for n in range(count) if number >> n % 13 & 1)
        assert matcher.targets(view({"a": number})) == expected
        assert sum(map(len, matcher._targets.values())) <= limits.TARGETS_KEPT_MAX
    assert len(matcher._targets) > 10
