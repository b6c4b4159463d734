"""Held turns: frames that wait, as their turn, or one before it, delivered a message that is not accepted.

Another member of the shard that takes over may not have this message, so its client would have received a
message that was never stored. All frames of such a turn wait, and those of later turns behind them, so that
their order stays.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightrail.shard.journal.store import Position
    from lightrail.shard.queue.values.runs import Batch, Location

Output = list[tuple[bytes, list[bytes]]]
"""(identity of a frontend, frames)."""


@dataclass(slots=True, eq=False, repr=False)
class HeldTurns:
    """The held turns of a shard; none while its owner is the only required member.

    The credit of consumers bounds the deliveries in them, and the time is that of an acceptance.
    """

    position: "Position"
    is_needed: bool = False
    """Whether the frames of the next turn have to pass `release`."""
    _ahead: "Location | None" = None
    """The last place in the journal of a message that was delivered since the last turn, and not accepted."""
    _turns: deque[tuple["Location | None", Output]] = field(default_factory=deque)
    """Frames of each turn with this place."""

    def delivered(self, batch: "Batch") -> None:
        """Notes a delivery. Transient messages do not wait, wherever they are."""
        location = batch.location
        if batch.durable and location is not None and not self._is_accepted(location):
            self.is_needed = True
            self._ahead = location if self._ahead is None else max(self._ahead, location)

    def _is_accepted(self, location: "Location | None") -> bool:
        accepted = self.position.accepted
        return (
            location is None or location[:2] < (accepted.segment, accepted.end) or not self.position.is_shared
        )

    def release(self, output: Output) -> Output:
        """Takes the frames of a turn; returns all that may leave now, in their order."""
        turns = self._turns
        turns.append((self._ahead, output))
        self._ahead = None
        leaving: Output = []
        while turns and self._is_accepted(turns[0][0]):
            leaving += turns.popleft()[1]
        self.is_needed = bool(turns)
        return leaving
