"""Looks: what filters may cost in one turn of a loop, counted and not timed, so that it is the same in every
run."""

from typing import Final

from lightrail.model import limits

BASE: Final = 20
"""Units that a look costs beside the filter and the message: the view, the loop around it."""
COMPILING: Final = 50
"""Units that it costs to compile one operator, literal or field of a filter."""


class Looks:
    """A budget in units of about 0.1 microseconds. A look that has begun is finished, so a turn costs one
    look more."""

    __slots__ = ("left", "spent")

    def __init__(self, left: int = limits.LOOKS_OF_A_TURN) -> None:
        self.left = left
        self.spent = 0
        """In all turns before this one."""

    @property
    def is_used(self) -> bool:
        """Whether anything was spent in this turn."""
        return self.left != limits.LOOKS_OF_A_TURN

    def begin(self) -> None:
        """A turn begins."""
        self.spent += limits.LOOKS_OF_A_TURN - self.left
        self.left = limits.LOOKS_OF_A_TURN


def unlimited() -> Looks:
    """For who has a turn of his own: tests, commands."""
    return Looks(1 << 62)
