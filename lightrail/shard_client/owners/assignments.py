"""Assignments: the shard at which each link of one queue is open, as a table of states and events. Pure.

A queue is owned by one shard at a time, and the links of a frontend follow it. Frames in both directions take
time, so a link must not be opened at the next shard while an answer of the former shard is in transit: that
answer, READY or MOVED, would be mistaken for the answer to the next opening, and deliveries in transit would
be lost. Each link therefore leaves a shard only after the shard's answer to the link. When the owner changes,
its links leave the former shard one by one, when the MOVED of each arrives; until then they drain there.

    UNASSIGNED   open at no shard: none is known, or the known shard has just denied that it owns the queue
    OPENING      opened at the owner's shard, which has not answered, or has to be greeted first
    OPEN         the owner's shard has opened the link
    UNANSWERED   the owner left the shard before it answered the opening
    DRAINING     the owner left the shard, which had opened the link: deliveries may be in transit

`TRANSITIONS` has every transition. Transitions that it does not list cannot happen, and raise.

A consumer that receives MOVED from a shard that had opened it resumes at the next shard: it keeps its
unsettled deliveries, because they move with the queue. If a shard was lost instead, its unsettled deliveries
are in the queue again, and the consumer begins anew.
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


class AssignmentEvent(Enum):
    """Events of one link. "Its shard" is the shard at which the link is open."""

    ASSIGNED = 1
    """It is opened at the owner's shard."""
    READY = 2
    """Its shard has opened it, and is the owner's shard, or the owner has none."""
    READY_LATE = 3
    """Its shard has opened it, but the owner is at another shard already: MOVED follows."""
    MOVED = 4
    """Its shard does not own the queue; assumed if the shard does not answer in OWNER_LATE_MS."""
    LEFT = 5
    """The owner leaves its shard."""
    LOST = 6
    """Its shard ended or was removed, and is no longer the owner's shard."""
    RESTARTED = 7
    """Its shard, which is the owner's, was lost: the link is opened again after the next greeting."""
    OWNER_LOST = 8
    """The owner's shard, which is not its shard, was lost, and with it the deliveries to resume."""


TRANSITIONS: Final = {
    (LinkState.UNASSIGNED, AssignmentEvent.ASSIGNED): LinkState.OPENING,
    (LinkState.UNASSIGNED, AssignmentEvent.OWNER_LOST): LinkState.UNASSIGNED,
    (LinkState.OPENING, AssignmentEvent.READY): LinkState.OPEN,
    (LinkState.OPENING, AssignmentEvent.MOVED): LinkState.UNASSIGNED,
    (LinkState.OPENING, AssignmentEvent.LEFT): LinkState.UNANSWERED,
    (LinkState.OPENING, AssignmentEvent.LOST): LinkState.UNASSIGNED,
    (LinkState.OPENING, AssignmentEvent.RESTARTED): LinkState.OPENING,
    (LinkState.OPEN, AssignmentEvent.READY): LinkState.OPEN,
    (LinkState.OPEN, AssignmentEvent.MOVED): LinkState.UNASSIGNED,
    (LinkState.OPEN, AssignmentEvent.LEFT): LinkState.DRAINING,
    (LinkState.OPEN, AssignmentEvent.LOST): LinkState.UNASSIGNED,
    (LinkState.OPEN, AssignmentEvent.RESTARTED): LinkState.OPENING,
    (LinkState.UNANSWERED, AssignmentEvent.READY): LinkState.OPEN,
    (LinkState.UNANSWERED, AssignmentEvent.READY_LATE): LinkState.DRAINING,
    (LinkState.UNANSWERED, AssignmentEvent.MOVED): LinkState.UNASSIGNED,
    (LinkState.UNANSWERED, AssignmentEvent.LOST): LinkState.UNASSIGNED,
    (LinkState.UNANSWERED, AssignmentEvent.RESTARTED): LinkState.OPENING,
    (LinkState.UNANSWERED, AssignmentEvent.OWNER_LOST): LinkState.UNANSWERED,
    (LinkState.DRAINING, AssignmentEvent.READY): LinkState.OPEN,
    (LinkState.DRAINING, AssignmentEvent.READY_LATE): LinkState.DRAINING,
    (LinkState.DRAINING, AssignmentEvent.MOVED): LinkState.UNASSIGNED,
    (LinkState.DRAINING, AssignmentEvent.LOST): LinkState.UNASSIGNED,
    (LinkState.DRAINING, AssignmentEvent.RESTARTED): LinkState.OPENING,
    (LinkState.DRAINING, AssignmentEvent.OWNER_LOST): LinkState.UNANSWERED,
}

AT_OWNER: Final = frozenset({LinkState.OPENING, LinkState.OPEN})
BEHIND: Final = frozenset({LinkState.UNANSWERED, LinkState.DRAINING})
"""States in which the owner has left the link's shard, and may have returned since: the answer is due."""
RESUMABLE: Final = frozenset({LinkState.OPEN, LinkState.DRAINING})


class AssignmentError(Exception):
    """An event that is impossible in the state of a link: an internal error."""


class Assignment(Generic[Peer]):
    """One link: its state, and the shard where it is open."""

    __slots__ = ("number", "peer", "resumes", "state")

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = LinkState.UNASSIGNED
        self.peer: Peer | None = None
        """None if the link is unassigned."""
        self.resumes = False
        """Whether the link keeps its unsettled deliveries at the next shard."""

    @property
    def is_at_owner(self) -> bool:
        """Whether the link is open, or opening, at the owner's shard."""
        return self.state in AT_OWNER

    @property
    def is_behind(self) -> bool:
        """Whether the link waits for an answer of a shard that the owner has left."""
        return self.state in BEHIND

    def assign(self, peer: Peer) -> None:
        """Opens the link at the owner's shard."""
        self.apply(AssignmentEvent.ASSIGNED)
        self.peer = peer

    def apply(self, event: AssignmentEvent) -> None:
        """Raises AssignmentError."""
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            raise AssignmentError(f"link {self.number} is {self.state.name} and cannot have {event.name}")
        if event is AssignmentEvent.MOVED and self.state in RESUMABLE:
            self.resumes = True
        elif state is LinkState.OPEN:
            self.resumes = False
        if state is LinkState.UNASSIGNED:
            self.peer = None
        self.state = state
