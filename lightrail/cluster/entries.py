"""Entries: the values under a coordinator's keys, and the news about their changes. Pure."""

from typing import Final, NamedTuple

HISTORY: Final = "history"
"""Key of the entry that names the present history (history.py)."""


class Entry(NamedTuple):
    """The entry of a key."""

    key: str
    value: str | None
    """A text, JSON for most; None if the entry was deleted."""
    created: int
    """Revision that created the key; a higher one if it was deleted and created again."""
    revision: int
    """Revision that last changed it."""


class News(NamedTuple):
    """Entries that changed, in order of their revisions."""

    revision: int
    """The newest revision; the next call requests the changes after it."""
    entries: list[Entry]
    whole: bool
    """Whether these are all entries: then a key that is not among them was deleted."""
