"""Looking into messages: what queue machines may ask of an encoded message, by path."""

from collections.abc import Callable
from typing import Any

from lightrail.filters.message import extract
from lightrail.filters.path import parse_path


def look(path: str) -> Callable[[bytes], Any]:
    """What reads the field at a path (lightrail/filters/path.py) of an encoded message; None for nothing."""
    parsed = parse_path(path)
    return lambda message: extract(message, parsed)
