"""Every example of docs/filters.md is one that works, and its limits are the limits."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lightrail.filters.action import ACTION_ENTRIES_MAX
from lightrail.filters.filter import compile_filter
from lightrail.filters.lexer import JMS_NAMES
from lightrail.filters.parameters import FILTER_PARAMETERS_BYTES
from lightrail.filters.path import FIELD_NAMES, FILTER_PATH_BYTES
from lightrail.filters.patterns import LIKE_TEXT_MAX, SUBJECT_WORDS_MAX, compile_pattern, split_words
from lightrail.filters.rules.parser import RULE_STATEMENTS_MAX
from lightrail.filters.rules.values import RULE_TEXT_MAX
from lightrail.filters.source import SOURCE_FILTERS_MAX
from lightrail.model import limits
from lightrail.namespace.rules import compile_any_action

PAGE = (Path(__file__).parents[3] / "docs" / "filters.md").read_text()


def lines_of(language: str) -> list[str]:
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("line", lines_of("json"))
def test_every_filter_and_action_of_the_page_compiles(line: str) -> None:
    spec: dict[str, Any] = json.loads(line)
    is_action = {"set", "remove"} & set(spec) or "SET" in str(spec.get("rule"))
    made = compile_any_action(spec) if is_action else compile_filter(spec)
    assert made.spec == spec


@pytest.mark.parametrize("line", lines_of("sql"))
def test_every_expression_of_the_page_compiles(line: str) -> None:
    assert compile_filter({"sql": line}).paths


def test_the_patterns_of_the_page_match_what_it_says() -> None:
    rows = re.findall(r"^\| `([^`]*[*#][^`]*)` \|([^|]*)\|([^|]*)\|$", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for pattern, matching, others in rows:
        test = compile_pattern(pattern)
        assert all(test(split_words(subject)) for subject in re.findall("`([^`]+)`", matching))
        assert not any(test(split_words(subject)) for subject in re.findall("`([^`]+)`", others))


@pytest.mark.parametrize("name", [*FIELD_NAMES, *JMS_NAMES])
def test_the_page_names_every_field(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize(
    "limit",
    [
        limits.FILTER_EXPRESSION_BYTES,
        FILTER_PARAMETERS_BYTES,
        limits.FILTER_NODES_MAX,
        limits.FILTER_DEPTH_MAX,
        FILTER_PATH_BYTES,
        LIKE_TEXT_MAX,
        SUBJECT_WORDS_MAX,
        SOURCE_FILTERS_MAX,
        ACTION_ENTRIES_MAX,
        RULE_STATEMENTS_MAX,
        RULE_TEXT_MAX,
    ],
)
def test_the_page_gives_the_limits(limit: int) -> None:
    assert f"| {limit:,} |" in PAGE
