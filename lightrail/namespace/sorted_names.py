"""Sorted names: all names with a role as a tree lists them, where a/b precedes a!b.

The order is made at its first use and kept from then on, so that a page of a list costs as much as it shows,
however many names there are.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

SINGLY_MAX: Final = 64
"""Changes that are inserted one by one; more of them are merged in at once."""
_BEHIND: Final = "\1"
"""Sorts behind a name and all names below it, since names have no control characters."""


class SortedNames:
    """Names in the order of their segments.

    Args:
        names: returns the names that exist now.
    """

    __slots__ = ("_changed", "_keys", "_names")

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names
        self._keys: list[str] | None = None
        """With NUL for each slash; None before the first use."""
        self._changed: dict[str, bool] = {}
        """By key, whether a name that was created or deleted exists."""

    def note(self, name: str, exists: bool) -> None:
        """Notes that a name was created or deleted."""
        if self._keys is not None:
            self._changed[_key(name)] = exists

    def page(self, prefix: str, after: str, count: int, *, skips_below: bool = False) -> list[str]:
        """The next names at and below a prefix.

        Args:
            prefix: empty for all names.
            after: the names behind this one, which need not exist; empty for the first ones.
            skips_below: whether the names below `after` are left out, too.
        """
        keys = self._current()
        start, end = self._range(keys, prefix)
        if after:
            key = _key(after)
            start = max(start, bisect_left(keys, key + _BEHIND) if skips_below else bisect_right(keys, key))
        return [key.replace("\0", "/") for key in islice(keys, start, min(end, start + count))]

    def count(self, prefix: str) -> int:
        """Number of names at and below a prefix."""
        start, end = self._range(self._current(), prefix)
        return end - start

    def _range(self, keys: list[str], prefix: str) -> tuple[int, int]:
        if not prefix:
            return 0, len(keys)
        key = _key(prefix)
        return bisect_left(keys, key), bisect_left(keys, key + _BEHIND)

    def _current(self) -> list[str]:
        keys = self._keys
        if keys is None:
            keys = self._keys = sorted(map(_key, self._names()))
        elif len(self._changed) <= SINGLY_MAX:
            for key, exists in self._changed.items():
                index = bisect_left(keys, key)
                is_there = index < len(keys) and keys[index] == key
                if is_there and not exists:
                    del keys[index]
                elif exists and not is_there:
                    insort(keys, key)
        else:
            changed = self._changed
            keys = self._keys = [key for key in keys if key not in changed]
            keys += sorted(key for key, exists in changed.items() if exists)
            # Two sorted runs, which are merged.
            keys.sort()
        self._changed.clear()
        return keys


def _key(name: str) -> str:
    return name.replace("/", "\0")
