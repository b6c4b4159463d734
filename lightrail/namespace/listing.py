"""Listing: the names that a caller may know of, in the order of a tree, a few at a time.

Between them other work of the process goes on; names that it creates or deletes behind the last one are seen.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from lightrail.model import limits
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name, Right, undefined
from lightrail.namespace.rights import Caller, may, rights_of

CHILDREN_AT_ONCE: Final[int] = 50
"""Segments below a name that a list counts before other requests run."""


class Child(NamedTuple):
    """The next segment below a name; the name with this segment may have no role itself."""

    record: Name
    below: int
    """Number of names with a role below it that the caller may know of."""


def visible(directory: Directory, caller: Caller, record: Name) -> bool:
    """Whether a list shows the name to the caller."""
    if may(directory, caller, Right.MANAGE, record):
        return True
    if record.policy["discoverability"] == "managers":
        return False
    return may(directory, caller, Right.SEND, record) or may(directory, caller, Right.LISTEN, record)


async def every_name(
    directory: Directory, caller_of: Callable[[str], Caller], prefix: str = "", after: str = ""
) -> AsyncIterator[Name]:
    """The names at and below a prefix that the caller may know of.

    Args:
        caller_of: returns the caller as it uses a name.
        after: the names behind this one, which need not exist; empty for the first ones.
    """
    directory.refresh()
    while page := directory.page(prefix, after, limits.NAMES_AT_ONCE):
        for record in page:
            if visible(directory, caller_of(record.name), record):
                yield record
        after = page[-1].name
        await asyncio.sleep(0)


async def children(
    directory: Directory, caller: Caller, prefix: str = "", after: str = ""
) -> AsyncIterator[Child]:
    """The next segments below a prefix at or below which the caller may know of a name.

    Args:
        after: those behind this name, which need not exist; empty for the first ones.
    """
    directory.refresh()
    start = len(prefix) + 1 if prefix else 0
    if after and (not prefix or after.startswith(prefix + "/")):
        after = after[:start] + after[start:].partition("/")[0]
    last, is_first = after or prefix, not after
    looks = 0
    while page := directory.page(prefix, last, 1, skips_below=not is_first):
        name = page[0].name[:start] + page[0].name[start:].partition("/")[0]
        last, is_first = name, False
        looks += 1
        if looks % CHILDREN_AT_ONCE == 0:
            await asyncio.sleep(0)
        if caller.reaches_below and Right.MANAGE in rights_of(directory, caller, name):
            # This right extends to all names below.
            count = directory.count(name)
            record = directory.find(name)
        else:
            count, record = 0, None
            async for each in every_name(directory, lambda _: caller, name):
                count += 1
                record = each if each.name == name else record
        if count:
            is_known = record is not None
            yield Child(record or undefined(name), count - is_known)
