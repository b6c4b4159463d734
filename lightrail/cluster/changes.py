"""Change follower: brings a view of entries up to date, and reports the changes to its listeners."""

import gc
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lightrail.cluster.coordinator import CoordinatorError, KeySpace
from lightrail.cluster.entries import Entry

log = logging.getLogger("lightrail.cluster.changes")

Changes = TypeVar("Changes")


@dataclass(eq=False, repr=False)
class ChangeFollower(Generic[Changes]):
    """Follows a key space for one view, such as the map or the directory of names.

    Args:
        keys: returns the keys of all entries of the view.
        prefixes: of the keys that the view follows.
        apply: applies one entry to the view (without a value: it was deleted), and records the change.
        first: key of the entry that is applied before all others.
    """

    _space: KeySpace
    _keys: Callable[[], Iterable[str]]
    _apply: Callable[[Entry, Changes], None]
    _prefixes: tuple[str, ...]
    _first: str = ""
    revision: int = 0
    """The newest revision of the view."""
    _listeners: list[Callable[[Changes], None]] = field(default_factory=list)

    def listen(self, listener: Callable[[Changes], None]) -> None:
        self._listeners.append(listener)

    def read(self, changes: Changes) -> None:
        """Applies the changes since the last call. Raises CoordinatorError."""
        if self.revision:
            self._read(changes)
            return
        # What is read makes no cycles and stays: a pass of the collector would walk all of it, many times.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self._read(changes)
        finally:
            if was_enabled:
                gc.enable()

    def _read(self, changes: Changes) -> None:
        news = self._space.news(self.revision)
        if news is None:
            return
        entries = [entry for entry in news.entries if entry.key.startswith(self._prefixes)]
        if news.whole and (known := [*self._keys()]):
            there = {entry.key for entry in entries}
            entries = [Entry(key, None, 0, 0) for key in known if key not in there] + entries
        if self._first and (first := [entry for entry in entries if entry.key == self._first]):
            entries = first + [entry for entry in entries if entry.key != self._first]
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
