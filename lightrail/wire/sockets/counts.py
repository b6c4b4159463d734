"""Counts: what the sockets of a process have done, by what they work."""

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False, repr=False)
class SocketCounts:
    """Of the sockets of one kind; only the loop that has them writes."""

    connections: int = 0
    """Open now. ZeroMQ does not tell those that others have made to this process."""
    received: int = 0
    """Messages, each with the frames of a turn."""
    refused: int = 0
    """Connections that were not admitted, or did not speak ZMTP."""
    sent: int = 0


@dataclass(slots=True, eq=False, repr=False)
class WireCounts:
    """Of all sockets of a process."""

    loop: SocketCounts = field(default_factory=SocketCounts)
    zeromq: SocketCounts = field(default_factory=SocketCounts)

    def by_kind(self, name: str) -> dict[str, float]:
        """One of the counts of each kind."""
        return {"loop": getattr(self.loop, name), "zeromq": getattr(self.zeromq, name)}
