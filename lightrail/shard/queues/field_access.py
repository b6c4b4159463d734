"""Reading fields of messages, for queue machines and for filters of consumers."""

from collections.abc import Callable, Mapping
from typing import Any

from lightrail.filters.filter import compile_filter
from lightrail.filters.looks import BASE, Looks
from lightrail.filters.message import MessageView, extract
from lightrail.filters.path import parse_path


def look(path: str) -> Callable[[bytes], Any]:
    """A function that reads the field `path` of an encoded message; None if it is missing, or can't be read.

    Raises:
        FilterError: there is no such field.
    """
    found = parse_path(path)
    return lambda message: extract(message, found)


def selector(spec: Mapping[str, Any], looks: Looks) -> Callable[[bytes], bool | None]:
    """A function that returns whether a message matches a filter; it never raises for a message.

    It returns None if the looks of this step are used up.

    Raises:
        FilterError: the filter is invalid; the text says what was expected, what was found, and where.
    """
    filter = compile_filter(spec)
    matches = filter.matches
    weight = BASE + 2 * filter.weight

    def selects(message: bytes) -> bool | None:
        if looks.left <= 0:
            return None
        view = MessageView(message)
        chosen = matches(view)
        looks.left -= weight + view.spent + (len(message) >> 9)
        return chosen

    return selects
