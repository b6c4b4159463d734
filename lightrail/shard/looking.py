"""Looking into messages: how queue machines read a field, and how consumers select."""

from collections.abc import Callable, Mapping
from typing import Any

from lightrail.filters.filter import compile_filter
from lightrail.filters.message import MessageView, extract
from lightrail.filters.path import parse_path


def look(path: str) -> Callable[[bytes], Any]:
    """What reads the field `path` of an encoded message; None where it is not there, or can't be read.

    Raises:
        FilterError: there is no such field.
    """
    found = parse_path(path)
    return lambda message: extract(message, found)


def selector(spec: Mapping[str, Any]) -> Callable[[bytes], bool]:
    """Whether a message is for a consumer that asked for this filter; messages never make it raise.

    Raises:
        FilterError: the filter can't be used; it says what was expected, what was found, and where.
    """
    matches = compile_filter(spec).matches
    return lambda message: matches(MessageView(message))
