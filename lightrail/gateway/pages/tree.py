"""Tree: the names below a name, by their next segment, with the number of names below each."""

from collections.abc import AsyncIterator
from typing import NamedTuple

from lightrail.namespace.directory import Directory
from lightrail.namespace.listing import children
from lightrail.namespace.rights import Caller


class Branch(NamedTuple):
    """One segment below a name."""

    segment: str
    name: str
    role: str
    given: bool
    """Whether the name has a policy."""
    below: int
    """Number of names with a role below it."""


async def branches(
    directory: Directory, caller: Caller, prefix: str, after: str = ""
) -> AsyncIterator[Branch]:
    """The next segments below `prefix`, in order; those behind the segment `after`."""
    above = f"{prefix}/" if prefix else ""
    async for record, below in children(directory, caller, prefix, above + after if after else ""):
        given = directory.find(record.name) is record
        yield Branch(record.name[len(above) :], record.name, str(record.role), given, below)
