"""View: all entries of a cluster in the memory of one process, and recent changes. Pure.

Entries arrive as a whole list at a revision, or as changes after it. In a list that continues the known
history, a missing entry was deleted meanwhile, and followers see that deletion like any other. A list that
does not continue it (history.py) is refused, unless an operator has accepted it: then it begins a new
history, and the revisions in `News` keep rising.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lightrail.cluster.entries import Entry, News

ETCD_CHANGES_KEPT: Final[int] = 20_000
"""Changes that a process remembers for followers in the process that have not read them yet."""

Change = tuple[str, str | None, int, int]
"""Key, value (None: deleted), revision that made the key, revision that changed it."""


@dataclass(eq=False, repr=False)
class View:
    """All entries, and a bounded log of changes in order of their revisions."""

    _changes_max: int = ETCD_CHANGES_KEPT
    _log: deque[Entry] = field(default_factory=deque)
    entries: dict[str, Entry] = field(default_factory=dict)
    revision: int = 0
    """The newest revision that etcd has reported."""
    known_at: int = 0
    """The newest revision at which `entries` were exactly those of etcd."""
    _offset: int = 0
    """Number that is added to etcd's revisions in the news for followers."""
    forgotten: int = 0
    """Changes up to this revision are no longer in the log."""

    def take_list(self, entries: Sequence[Entry], revision: int, *, new_history: bool = False) -> list[Entry]:
        """Applies all entries of a revision; the caller has checked that they continue the known history.

        Args:
            new_history: the entries don't continue the known history, and replace it.

        Returns:
            Changes since the known revision, deletions included. None of them if the list is older than the
            known revision, because entries that an older list lacks were not deleted.
        """
        if revision < self.revision and not new_history:
            return []
        there = {entry.key: entry for entry in entries}
        changed = [entry for entry in entries if self.entries.get(entry.key) != entry]
        changed += [
            Entry(key, None, old.created, revision) for key, old in self.entries.items() if key not in there
        ]
        changed.sort(key=lambda entry: entry.revision)
        first = not self.revision
        self.entries = there
        if first or new_history or any(entry.revision <= self.revision for entry in changed):
            # All followers read everything.
            self._log.clear()
            self.forgotten = revision
        else:
            self._remember(changed)
        if new_history:
            self._offset = max(0, self._offset + self.revision + 1 - revision)
        self.revision = self.known_at = revision
        return changed

    def take_changes(self, changes: Iterable[Change], revision: int) -> list[Entry]:
        """Applies changes after the known revision, up to `revision`.

        Returns:
            The changed entries.
        """
        changed = []
        for key, value, created, at in changes:
            if value is None:
                old = self.entries.pop(key, None)
                if old is not None:
                    changed.append(Entry(key, None, old.created, at))
            else:
                self.entries[key] = Entry(key, value, created, at)
                changed.append(self.entries[key])
            self.known_at = max(self.known_at, at)
        self._remember(changed)
        self.revision = max(self.revision, revision)
        return changed

    def news(self, since: int) -> News | None:
        """See the port."""
        newest = self.revision + self._offset
        if since == newest:
            return None
        since -= self._offset
        if since <= 0 or since < self.forgotten or since > self.revision:
            entries = sorted(self.entries.values(), key=lambda entry: entry.revision)
            return News(newest, entries, True)
        latest: dict[str, Entry] = {}
        for entry in reversed(self._log):
            if entry.revision <= since:
                break
            latest.setdefault(entry.key, entry)
        return News(newest, list(reversed(latest.values())), False)

    def _remember(self, changed: Iterable[Entry]) -> None:
        self._log.extend(changed)
        while len(self._log) > self._changes_max:
            self.forgotten = self._log.popleft().revision
