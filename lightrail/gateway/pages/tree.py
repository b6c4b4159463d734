"""Tree: the names below a name, by their next segment, with the number of names below each."""

from collections.abc import Iterable
from typing import NamedTuple

from lightrail.namespace.records import Name


class Branch(NamedTuple):
    """One segment below a name."""

    segment: str
    name: str
    role: str
    given: bool
    """Whether the name has a policy."""
    below: int
    """Number of names with a role below it."""


def branches(records: Iterable[Name], prefix: str) -> list[Branch]:
    """The next segments below `prefix`, sorted; `records` are all names at and below it."""
    start = len(prefix) + 1 if prefix else 0
    found: dict[str, tuple[Name | None, int]] = {}
    for record in records:
        if record.name == prefix:
            continue
        segment, slash, _ = record.name[start:].partition("/")
        here, below = found.get(segment, (None, 0))
        found[segment] = (here, below + 1) if slash else (record, below)
    above = f"{prefix}/" if prefix else ""
    return [
        Branch(segment, above + segment, str(here.role) if here else "none", here is not None, below)
        for segment, (here, below) in sorted(found.items())
    ]
