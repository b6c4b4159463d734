"""Tables of transitions as tests write them: states below each other, events beside each other."""

from collections.abc import Callable
from typing import TypeVar

State = TypeVar("State")
Event = TypeVar("Event")


def rows(
    table: str, state: Callable[[str], State], event: Callable[[str], Event]
) -> list[tuple[State, Event, State | None]]:
    """Each state with each event, and the state that follows; None for a dash, where the event is refused.

    Args:
        table: a line of the events' names, then for each state a line of its name and what follows.
        state: the state of a name; `event`: likewise.
    """
    head, *lines = (line.split() for line in table.strip().splitlines())
    return [
        (state(before), event(name), None if after == "-" else state(after))
        for before, *cells in lines
        for name, after in zip(head, cells, strict=True)
    ]
