"""Offsets: how far each journal has been read, `{"JOURNAL": next lsn}`, and how options name them."""

import json
from collections.abc import Mapping
from typing import Final

EARLIEST: Final = -2
LATEST: Final = -1
"""What Kafka's source calls so as well, where an offset is a number."""

Offsets = dict[str, int]
"""Journal (its disk) → the first record that has not been read. EARLIEST or LATEST where options say so."""
Wish = str | Offsets
"""`earliest`, `latest`, or offsets."""


class BadOffsetsError(ValueError):
    """A text that names no offsets: what was expected and what came."""


def parse(text: str) -> Wish:
    """What startingOffsets or endingOffsets says.

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
    """The same, sorted: Spark compares offsets by their text."""
    return dict(sorted(offsets.items()))
