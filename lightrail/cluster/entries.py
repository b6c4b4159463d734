"""Entries: what a coordinator keeps under its keys, and how changes of it are passed on. Pure."""

from typing import NamedTuple


class Entry(NamedTuple):
    """What is kept under a key."""

    key: str
    value: str | None
    """A text, JSON for most; None when the entry was deleted."""
    created: int
    """Revision that made the key; another one after it was deleted and made again."""
    revision: int
    """Revision that last changed it."""


class News(NamedTuple):
    """Entries that changed, in order of their revisions."""

    revision: int
    """The newest; ask for what comes after it the next time."""
    entries: list[Entry]
    whole: bool
    """These are all that there are: what is not among them is gone."""
