"""Looks: the budget of filters in one turn of a loop. It is counted and not timed, so that every run is the
same."""

from typing import Final

from lightrail.model import limits

BASE: Final = 20
"""Fixed units of one look, for the view and the loop, beside those of the filter and the message."""
COMPILING: Final = 50
"""Units of compiling one operator, literal or field of a filter."""


class Looks:
    """A budget in units of about 0.1 microseconds. A look is never interrupted, so a turn may exceed it by
    one look."""

    __slots__ = ("left", "spent")

    def __init__(self, left: int = limits.LOOKS_OF_A_TURN) -> None:
        self.left = left
        self.spent = 0
        """Units spent in all earlier turns."""

    @property
    def is_used(self) -> bool:
        """Whether any unit was spent in this turn."""
        return self.left != limits.LOOKS_OF_A_TURN

    def begin(self) -> None:
        """Begin a turn."""
        self.spent += limits.LOOKS_OF_A_TURN - self.left
        self.left = limits.LOOKS_OF_A_TURN


def unlimited() -> Looks:
    """A budget without a bound, for tests and commands."""
    return Looks(1 << 62)
