"""Paths of requests: a name, and the part of it that a request is about.

`/myapp/q1` is the name (a queue's tail) and `/myapp/` the list of the names below it. The part follows the
name and starts with `!`, as in `/myapp/q1/!messages/7/LOCK`. Percent-encoding is decoded once.
"""

from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from lightrail.model.names import queue_name

NAME: Final = ""
"""The part of a path that is the name itself."""
BELOW: Final = "/"
"""The part of a path that is the list of the names below."""

_queue_name = lru_cache(maxsize=4_096)(queue_name)


class ResourcePath(NamedTuple):
    """A parsed path."""

    name: str
    """The checked name; empty for the root of all names."""
    part: str
    """NAME, BELOW, or a segment such as `!policy`."""
    rest: tuple[str, ...]
    """The segments after the part."""


def parse_path(raw_path: str) -> ResourcePath:
    """Parses a path that is still percent-encoded. Raises InvalidNameError."""
    path = raw_path[1:]
    at = 0 if path.startswith("!") else path.find("/!") + 1
    if at or path.startswith("!"):
        part, *rest = path[at:].split("/")
        name = path[: at - 1] if at else ""
        return ResourcePath(_queue_name(f"/{name}") if name else "", part, tuple(map(unquote, rest)))
    if not path or path.endswith("/"):
        name = path[:-1]
        return ResourcePath(_queue_name(f"/{name}") if name else "", BELOW, ())
    return ResourcePath(_queue_name(raw_path), NAME, ())


def path_of(name: str, *rest: str) -> str:
    """The path of a name, or of a part of it, percent-encoded."""
    path = f"/{quote(name, safe='/')}" if name else ""
    return "/".join((path, *(quote(each, safe="!") for each in rest)))
