"""The progress of a move to this shard."""

from dataclasses import dataclass, field
from typing import Any, Final

WAITING: Final = "waiting"
COPY: Final = "copy"
CATCH_UP: Final = "catch up"
FREEZE: Final = "freeze"
SWITCH: Final = "switch"


@dataclass(slots=True)
class Progress:
    """The progress of one move, for the request `moves`."""

    queue: str
    source: int
    to: int
    epoch: int
    began_ms: int
    phase: str = WAITING
    messages: int = 0
    bytes: int = 0
    pause_ms: int = 0
    error: str = ""
    """Error of the last attempt; another attempt follows."""
    failures: int = 0
    result: str = ""
    """``done`` or ``cancelled`` when the move has ended."""
    ended_ms: int = 0
    totals: dict[str, int] = field(default_factory=dict)
    """Messages at the source, by queue: the queue itself and its dead-letter queue."""

    def describe(self, now_ms: int) -> dict[str, Any]:
        """The fields for the answer to the request `moves`."""
        return {
            "queue": self.queue,
            "source": self.source,
            "to": self.to,
            "phase": self.phase,
            "messages": self.messages,
            "messages_total": max(sum(self.totals.values()), self.messages),
            "bytes": self.bytes,
            "seconds": ((self.ended_ms or now_ms) - self.began_ms) / 1000,
            "pause_ms": self.pause_ms,
            "error": self.error,
            "result": self.result,
            "ended_ms": self.ended_ms or None,
        }
