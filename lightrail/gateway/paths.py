"""Place: what the path of a request means, a name and the part of it that is asked for.

`/myapp/q1` is the name (a queue's tail), `/myapp/` the list of what is below it, and behind the first segment
that begins with `!` comes the part: `/myapp/q1/!messages/7/LOCK`. Percent-encoding is decoded once.
"""

from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from lightrail.model.names import queue_name

NAME: Final = ""
"""The part of a place that is the name itself."""
BELOW: Final = "/"
"""The part of a place that is the list of the names below."""

_queue_name = lru_cache(maxsize=4_096)(queue_name)


class Place(NamedTuple):
    """A path, taken apart."""

    name: str
    """Checked; empty for the root of all names."""
    part: str
    """NAME, BELOW, or a segment such as `!policy`."""
    rest: tuple[str, ...]
    """The segments behind that one."""


def place(raw_path: str) -> Place:
    """Take a path apart that is still percent-encoded. Raises InvalidName."""
    path = raw_path[1:]
    at = 0 if path.startswith("!") else path.find("/!") + 1
    if at or path.startswith("!"):
        part, *rest = path[at:].split("/")
        name = path[: at - 1] if at else ""
        return Place(_queue_name(f"/{name}") if name else "", part, tuple(map(unquote, rest)))
    if not path or path.endswith("/"):
        name = path[:-1]
        return Place(_queue_name(f"/{name}") if name else "", BELOW, ())
    return Place(_queue_name(raw_path), NAME, ())


def path_of(name: str, *rest: str) -> str:
    """The path of a name, or of a part of it, percent-encoded."""
    path = f"/{quote(name, safe='/')}" if name else ""
    return "/".join((path, *(quote(each, safe="!") for each in rest)))
