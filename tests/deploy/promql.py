"""Expressions of PromQL, as far as tests look into them: which metrics and labels they name."""

import re
from typing import NamedTuple

GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
RANGE = re.compile(r"\[[^\]]*\]")
TEXT_ARGUMENT = re.compile(r',\s*"[^"]*"')
"""An argument of label_replace."""
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?(\s*\()?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"')
WORDS = frozenset({"and", "or", "unless", "bool", "offset", "inf", "nan"})


class Named(NamedTuple):
    """What an expression names."""

    selectors: tuple[tuple[str, tuple[str, ...]], ...]
    """(metric, labels that are matched)"""
    grouping: frozenset[str]
    """Labels that it groups or joins by."""


def named(expression: str) -> Named:
    """Metrics and labels of an expression; regular expressions in it must not have braces or parentheses."""
    grouping = {
        label.strip()
        for labels in GROUPING.findall(expression)
        for label in labels.split(",")
        if label.strip()
    }
    rest = RANGE.sub("", GROUPING.sub("", TEXT_ARGUMENT.sub("", expression)))
    selectors = []
    for name, matchers, call in SELECTOR.findall(rest):
        if not call and name.lower() not in WORDS:
            selectors.append((name, tuple(MATCHER.findall(matchers))))
    return Named(tuple(selectors), frozenset(grouping))
