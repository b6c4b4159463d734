"""Finding: one problem that the doctor has found, and its remedy."""

from typing import NamedTuple


class Finding(NamedTuple):
    """A present or imminent problem."""

    severity: str
    """`error` (a function does not work) or `warning`."""
    what: str
    do: str
