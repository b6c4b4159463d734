"""Offsets: the read position in each journal, `{"JOURNAL": next lsn}`, and their form in options."""

import json
from collections.abc import Mapping
from typing import Final

EARLIEST: Final = -2
LATEST: Final = -1
"""The number for the end of a journal, as in Kafka's source."""

Offsets = dict[str, int]
"""Journal (its disk) → the first record that has not been read. In options also EARLIEST or LATEST."""
Wish = str | Offsets
"""`earliest`, `latest`, or offsets."""


class BadOffsetsError(ValueError):
    """A text without valid offsets; the message says what was expected and what was found."""


def parse(text: str) -> Wish:
    """Parses startingOffsets or endingOffsets.

    Raises:
        BadOffsetsError: it is neither `earliest`, nor `latest`, nor offsets in JSON.
    """
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return word
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or not all(_is_position(value) for value in fields.values()):
        raise BadOffsetsError(
            'expected earliest, latest, or JSON like {"JOURNAL": 1234} (-2: earliest, -1: latest), '
            f"found {text[:200]!r}"
        )
    return ordered(fields)


def _is_position(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= EARLIEST


def ordered(offsets: Mapping[str, int]) -> Offsets:
    """The same offsets, sorted, because Spark compares offsets by their text."""
    return dict(sorted(offsets.items()))
