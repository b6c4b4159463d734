"""View: all entries of a cluster as one process knows them, and what changed of late. Pure: it is fed.

Entries come as a whole list at a revision, or as changes after it. A list that follows another one says by
its gaps what was deleted meanwhile: who follows hears of these deletions as of any others.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from lightrail.cluster.coordinator import Entry, News
from lightrail.model import limits

Change = tuple[str, str | None, int, int]
"""Key, value or None when it was deleted, revision that made the key, revision that changed it."""


class View:
    """What is there, and a bounded log of changes in order of their revisions."""

    def __init__(self, changes_max: int = limits.ETCD_CHANGES_KEPT) -> None:
        self._changes_max = changes_max
        self._log: deque[Entry] = deque()
        self.entries: dict[str, Entry] = {}
        self.revision = 0
        self.forgotten = 0
        """Changes up to this revision are not in the log any more."""

    def take_list(self, entries: Sequence[Entry], revision: int) -> list[Entry]:
        """All entries as they are at a revision.

        Returns:
            What changed since the revision before, deletions among it.
        """
        there = {entry.key: entry for entry in entries}
        changed = [entry for entry in entries if self.entries.get(entry.key) != entry]
        changed += [
            Entry(key, None, old.created, revision) for key, old in self.entries.items() if key not in there
        ]
        changed.sort(key=lambda entry: entry.revision)
        known = 0 < self.revision <= revision and all(entry.revision > self.revision for entry in changed)
        self.entries = there
        if known:
            self._remember(changed)
        else:
            # The first list, or etcd was set back to a copy of former times: everybody reads everything.
            self._log.clear()
            self.forgotten = revision
        self.revision = revision
        return changed

    def take_changes(self, changes: Iterable[Change], revision: int) -> list[Entry]:
        """Changes after the revision that is known, up to another one.

        Returns:
            They as entries.
        """
        changed = []
        for key, value, created, at in changes:
            if value is None:
                old = self.entries.pop(key, None)
                if old is None:
                    continue
                changed.append(Entry(key, None, old.created, at))
            else:
                self.entries[key] = Entry(key, value, created, at)
                changed.append(self.entries[key])
        self._remember(changed)
        self.revision = max(self.revision, revision)
        return changed

    def news(self, since: int) -> News | None:
        """As the port has it."""
        if since == self.revision:
            return None
        if since == 0 or since < self.forgotten or since > self.revision:
            entries = sorted(self.entries.values(), key=lambda entry: entry.revision)
            return News(self.revision, entries, True)
        latest: dict[str, Entry] = {}
        for entry in reversed(self._log):
            if entry.revision <= since:
                break
            latest.setdefault(entry.key, entry)
        return News(self.revision, list(reversed(latest.values())), False)

    def _remember(self, changed: Iterable[Entry]) -> None:
        self._log.extend(changed)
        while len(self._log) > self._changes_max:
            self.forgotten = self._log.popleft().revision
