"""Held turns: frames that wait, as their turn, or one before it, delivered a message that is not accepted.

Another member of the shard that takes over may not have this message, so its client would have received a
message that was never stored. All frames of such a turn wait, and those of later turns behind them, so that
their order stays.

A turn that delivers needs leases when it leaves, too: the disk may have hung since, and another member have
taken over, delivered the same messages and got them settled.
"""

from collections import deque
from collections.abc import Callable
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
    may_deliver: Callable[[], bool] = lambda: True
    """Whether the leases of an owner with other members allow deliveries now."""
    is_needed: bool = False
    """Whether the frames of the next turn have to pass `release`."""
    _delivers: bool = False
    """Whether something was delivered since the last turn."""
    _ahead: "Location | None" = None
    """The last place in the journal of a message that was delivered since the last turn, and not accepted."""
    _turns: deque[tuple["Location | None", bool, Output]] = field(default_factory=deque)
    """Frames of each turn with this place, and whether it delivers."""

    def delivered(self, batch: "Batch") -> None:
        """Notes a delivery."""
        self.is_needed = self._delivers = True
        self.shown(batch)

    def shown(self, batch: "Batch") -> None:
        """Notes that the turn has these messages. Transient ones do not wait, wherever they are."""
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
        turns.append((self._ahead, self._delivers, output))
        self._ahead, self._delivers = None, False
        leaving: Output = []
        while turns and self._is_accepted(turns[0][0]) and (not turns[0][1] or self.may_deliver()):
            leaving += turns.popleft()[2]
        self.is_needed = bool(turns)
        return leaving
