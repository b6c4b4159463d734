"""Assignments: where each link of one queue is open, as a table of states and events. Pure.

A queue is owned by one shard at a time, and the links of a frontend follow it. Frames in both directions take
time, so a link must not be opened at the next shard while an answer of the last one is under way: that
answer, READY or MOVED, would be mistaken for the answer to the next opening, and deliveries under way would
be lost. Each link therefore leaves a shard only behind the shard's answer to it. Where the owner changes, its
links leave the former shard one by one, as their MOVED arrives; until then they drain there.

    UNASSIGNED   open at no shard: none is known, or the known one has just denied that it is the owner
    OPENING      opened at the owner's shard, which has not answered, or will be greeted first
    OPEN         the owner's shard has opened the link
    UNANSWERED   the owner left the shard before it answered the opening
    DRAINING     the owner left the shard, which had opened the link: deliveries may be under way

`TRANSITIONS` holds every transition. What it does not list cannot happen, and raises.

A consumer that MOVED sends away from a shard that had opened it resumes at the next one: it keeps its
unsettled deliveries, for they move with the queue. Where a shard was lost instead, everything it had
delivered is back in the queue, and the consumer begins anew.
"""

from enum import Enum
from typing import Final, Generic, TypeVar

Peer = TypeVar("Peer")
"""A connection to a shard."""


class LinkState(Enum):
    """See the head of this module."""

    UNASSIGNED = 1
    OPENING = 2
    OPEN = 3
    UNANSWERED = 4
    DRAINING = 5


class Event(Enum):
    """What may happen to one link. "Its shard" is the one where the link is open."""

    ASSIGNED = 1
    """It is opened at the owner's shard."""
    READY = 2
    """Its shard has opened it, and is the owner's shard, or the owner has none."""
    READY_LATE = 3
    """Its shard has opened it, but the owner is at another one already: MOVED follows."""
    MOVED = 4
    """Its shard does not own the queue; presumed where the shard does not answer in limits.OWNER_LATE_MS."""
    LEFT = 5
    """The owner leaves its shard."""
    LOST = 6
    """Its shard ended or was removed, and is not the owner's any more."""
    RESTARTED = 7
    """Its shard, which is the owner's, was lost: the link is opened again after the next greeting."""
    OWNER_LOST = 8
    """The owner's shard, which is not its shard, was lost, and with it what this link would have resumed."""


TRANSITIONS: Final = {
    (LinkState.UNASSIGNED, Event.ASSIGNED): LinkState.OPENING,
    (LinkState.UNASSIGNED, Event.OWNER_LOST): LinkState.UNASSIGNED,
    (LinkState.OPENING, Event.READY): LinkState.OPEN,
    (LinkState.OPENING, Event.MOVED): LinkState.UNASSIGNED,
    (LinkState.OPENING, Event.LEFT): LinkState.UNANSWERED,
    (LinkState.OPENING, Event.LOST): LinkState.UNASSIGNED,
    (LinkState.OPENING, Event.RESTARTED): LinkState.OPENING,
    (LinkState.OPEN, Event.READY): LinkState.OPEN,
    (LinkState.OPEN, Event.MOVED): LinkState.UNASSIGNED,
    (LinkState.OPEN, Event.LEFT): LinkState.DRAINING,
    (LinkState.OPEN, Event.LOST): LinkState.UNASSIGNED,
    (LinkState.OPEN, Event.RESTARTED): LinkState.OPENING,
    (LinkState.UNANSWERED, Event.READY): LinkState.OPEN,
    (LinkState.UNANSWERED, Event.READY_LATE): LinkState.DRAINING,
    (LinkState.UNANSWERED, Event.MOVED): LinkState.UNASSIGNED,
    (LinkState.UNANSWERED, Event.LOST): LinkState.UNASSIGNED,
    (LinkState.UNANSWERED, Event.RESTARTED): LinkState.OPENING,
    (LinkState.UNANSWERED, Event.OWNER_LOST): LinkState.UNANSWERED,
    (LinkState.DRAINING, Event.READY): LinkState.OPEN,
    (LinkState.DRAINING, Event.READY_LATE): LinkState.DRAINING,
    (LinkState.DRAINING, Event.MOVED): LinkState.UNASSIGNED,
    (LinkState.DRAINING, Event.LOST): LinkState.UNASSIGNED,
    (LinkState.DRAINING, Event.RESTARTED): LinkState.OPENING,
    (LinkState.DRAINING, Event.OWNER_LOST): LinkState.UNANSWERED,
}

AT_OWNER: Final = frozenset({LinkState.OPENING, LinkState.OPEN})
BEHIND: Final = frozenset({LinkState.UNANSWERED, LinkState.DRAINING})
"""The owner has left the link's shard, and may have returned to it since: the answer is still due."""
RESUMABLE: Final = frozenset({LinkState.OPEN, LinkState.DRAINING})


class AssignmentError(Exception):
    """An event that a link in this state cannot have: an internal error."""


class Assignment(Generic[Peer]):
    """One link: its state, and the shard where it is open."""

    __slots__ = ("number", "peer", "resumes", "state")

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = LinkState.UNASSIGNED
        self.peer: Peer | None = None
        """None where it is unassigned."""
        self.resumes = False
        """At the next shard the link keeps its unsettled deliveries."""

    @property
    def is_at_owner(self) -> bool:
        """Whether it is open, or opening, at the shard where the owner is."""
        return self.state in AT_OWNER

    @property
    def is_behind(self) -> bool:
        """Whether it waits for an answer of a shard that the owner has left."""
        return self.state in BEHIND

    def assign(self, peer: Peer) -> None:
        """It is opened at the owner's shard."""
        self.apply(Event.ASSIGNED)
        self.peer = peer

    def apply(self, event: Event) -> None:
        """Raises AssignmentError."""
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            raise AssignmentError(f"link {self.number} is {self.state.name} and cannot have {event.name}")
        if event is Event.MOVED and self.state in RESUMABLE:
            self.resumes = True
        elif state is LinkState.OPEN:
            self.resumes = False
        if state is LinkState.UNASSIGNED:
            self.peer = None
        self.state = state
