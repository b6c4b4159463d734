"""Change follower: brings a view of entries up to date, and reports the changes to its listeners."""

import logging
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from lightrail.cluster.coordinator import CoordinatorError, KeySpace
from lightrail.cluster.entries import Entry

log = logging.getLogger("lightrail.cluster.changes")

Changes = TypeVar("Changes")


class ChangeFollower(Generic[Changes]):
    """Follows a key space for one view, such as the map or the directory of names.

    Args:
        keys: returns the keys of all entries of the view.
        apply: applies one entry to the view (without a value: it was deleted), and records the change.
        first: key of the entry that is applied before all others.
    """

    def __init__(
        self,
        space: KeySpace,
        keys: Callable[[], Iterable[str]],
        apply: Callable[[Entry, Changes], None],
        *,
        first: str = "",
    ) -> None:
        self.revision = 0
        """The newest revision of the view."""
        self._space = space
        self._keys = keys
        self._apply = apply
        self._first = first
        self._listeners: list[Callable[[Changes], None]] = []

    def listen(self, listener: Callable[[Changes], None]) -> None:
        self._listeners.append(listener)

    def read(self, changes: Changes) -> None:
        """Applies the changes since the last call. Raises CoordinatorError."""
        news = self._space.news(self.revision)
        if news is None:
            return
        entries = news.entries
        if news.whole:
            there = {entry.key for entry in entries}
            entries = [Entry(key, None, 0, 0) for key in self._keys() if key not in there] + entries
        if self._first:
            entries = sorted(entries, key=lambda entry: entry.key != self._first)
        for entry in entries:
            try:
                self._apply(entry, changes)
            except CoordinatorError as error:
                log.error("%s; it stays as it was", error)
            except (ValueError, TypeError, KeyError) as error:
                log.error("the entry %s can't be read (%s); it stays as it was", entry.key, error)
        self.revision = news.revision

    def tell(self, changes: Changes) -> None:
        """Calls the listeners."""
        for listener in self._listeners:
            listener(changes)
