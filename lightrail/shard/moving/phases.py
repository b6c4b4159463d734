"""Phases: the move of one queue at its destination, as a table of phases and events. Pure.

Theory. The destination carries out the move (docs/adr/0010-moving-queues.md) in attempts. Each attempt reads
the entry of the move and the placement anew, since both may have changed, and passes the phases in order: it
fills a copy, freezes the queue at its source and copies the rest, and commits the placement. Each request and
each transaction may be repeated, so a failure before the commit leads to another attempt after a pause. The
phase stays and is shown beside the error until the next attempt begins.

    WAITING, COPY, CATCH_UP, FREEZE --SKIP----> SWITCH     a connection point has nothing to copy
    WAITING, COPY, CATCH_UP, FREEZE --BEGIN---> COPY       an attempt requests pieces
    COPY, CATCH_UP                  --REPEAT--> CATCH_UP   more than one piece has arrived meanwhile
    COPY, CATCH_UP                  --FREEZE--> FREEZE     the rest fits into one piece
    FREEZE                          --SWITCH--> SWITCH     the copy is checked and on disk
    SWITCH                          --COMMIT--> DONE       this shard is the owner
    any of these                    --CANCEL--> CANCELLED  the move was cancelled or replaced: give up
    any of these                    --BREAK---> BROKEN     an internal error: the move begins anew
    all but SWITCH                  --LOSE----> the same   the source does not answer: try again soon
    all but SWITCH                  --REFUSE--> the same   the source or the coordinator refuses: try again
    all but SWITCH                  --SPOIL---> the same   the copy is not one: begin the copy again

An attempt continues an incomplete copy. SKIP, too, is allowed wherever an attempt may begin, because a name
may get another role between two attempts. SWITCH refuses LOSE, REFUSE and SPOIL: its transaction is repeated
until the owner is known (copier.py), because a commit that was sent may succeed later. For the same
reason BREAK drops no complete copy: the placement may name this shard.

`Progress` is the only writer of the phase; mover.py and copier.py apply events, and mover.py carries out
what a failure leads to.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final


class Phase(Enum):
    """What the destination of a move does, as it is shown."""

    WAITING = "waiting"
    COPY = "copy"
    CATCH_UP = "catch up"
    FREEZE = "freeze"
    SWITCH = "switch"
    DONE = "done"
    CANCELLED = "cancelled"
    BROKEN = ""
    """It is no result: the entry of the move stays, and another task carries it out."""


class MoveEvent(Enum):
    """An event that changes the phase of a move."""

    SKIP = "skip"
    BEGIN = "begin"
    REPEAT = "repeat"
    FREEZE = "freeze"
    SWITCH = "switch"
    COMMIT = "commit"
    CANCEL = "cancel"
    BREAK = "break"
    LOSE = "lose"
    REFUSE = "refuse"
    SPOIL = "spoil"


REPEATABLE: Final = (Phase.WAITING, Phase.COPY, Phase.CATCH_UP, Phase.FREEZE)
"""Phases in which an attempt may begin, since a failed one leaves the phase."""
RETRIED: Final = (MoveEvent.LOSE, MoveEvent.REFUSE, MoveEvent.SPOIL)
"""Failures after which another attempt follows."""
ENDS: Final = frozenset({Phase.DONE, Phase.CANCELLED, Phase.BROKEN})

TRANSITIONS: Final[Mapping[tuple[Phase, MoveEvent], Phase]] = MappingProxyType(
    {
        (Phase.COPY, MoveEvent.REPEAT): Phase.CATCH_UP,
        (Phase.CATCH_UP, MoveEvent.REPEAT): Phase.CATCH_UP,
        (Phase.COPY, MoveEvent.FREEZE): Phase.FREEZE,
        (Phase.CATCH_UP, MoveEvent.FREEZE): Phase.FREEZE,
        (Phase.FREEZE, MoveEvent.SWITCH): Phase.SWITCH,
        (Phase.SWITCH, MoveEvent.COMMIT): Phase.DONE,
        **{(phase, MoveEvent.SKIP): Phase.SWITCH for phase in REPEATABLE},
        **{(phase, MoveEvent.BEGIN): Phase.COPY for phase in REPEATABLE},
        **{(phase, MoveEvent.CANCEL): Phase.CANCELLED for phase in (*REPEATABLE, Phase.SWITCH)},
        **{(phase, MoveEvent.BREAK): Phase.BROKEN for phase in (*REPEATABLE, Phase.SWITCH)},
        **{(phase, event): phase for phase in REPEATABLE for event in RETRIED},
    }
)
"""The next phase for each phase and event; missing pairs are refused."""

DROPS_COPY: Final = frozenset({MoveEvent.CANCEL, MoveEvent.SPOIL, MoveEvent.BREAK})
"""Failures after which the copy is dropped; BREAK drops no complete copy."""


class PhaseError(Exception):
    """An event that the phase of a move does not allow."""


@dataclass(slots=True)
class MoveProgress:
    """The progress of one move, for the mover and for the request `moves`."""

    queue: str
    source: int
    to: int
    epoch: int
    began_ms: int
    phase: Phase = Phase.WAITING
    ended_in: Phase | None = None
    """The phase before the end, which is shown beside the result."""
    messages: int = 0
    bytes: int = 0
    frozen_ms: int = 0
    """Time at which the source was requested to freeze."""
    pause_ms: int = 0
    error: str = ""
    """Error of the last attempt; another attempt follows."""
    failures: int = 0
    ended_ms: int = 0
    totals: dict[str, int] = field(default_factory=dict)
    """Messages at the source, by queue: the queue itself and its dead-letter queue."""

    @property
    def result(self) -> str:
        """``done`` or ``cancelled`` when the move has ended."""
        return self.phase.value if self.phase in ENDS else ""

    def apply(self, event: MoveEvent) -> None:
        """Changes the phase. Raises PhaseError: nothing has changed, as the phase refuses the event."""
        after = TRANSITIONS.get((self.phase, event))
        if after is None:
            raise PhaseError(f"expected an event that {self.phase.name} allows, found {event.name}")
        if after in ENDS:
            self.ended_in = self.phase
        self.phase = after

    def fail(self, event: MoveEvent) -> MoveEvent:
        """Changes the phase after a failure; returns the event, BREAK if the phase refuses it."""
        if (self.phase, event) not in TRANSITIONS:
            event = MoveEvent.BREAK
        self.apply(event)
        return event

    def describe(self, now_ms: int) -> dict[str, Any]:
        """The fields for the answer to the request `moves`."""
        return {
            "queue": self.queue,
            "source": self.source,
            "to": self.to,
            "phase": (self.ended_in or self.phase).value,
            "messages": self.messages,
            "messages_total": max(sum(self.totals.values()), self.messages),
            "bytes": self.bytes,
            "seconds": ((self.ended_ms or now_ms) - self.began_ms) / 1000,
            "pause_ms": self.pause_ms,
            "error": self.error,
            "result": self.result,
            "ended_ms": self.ended_ms or None,
        }
