"""Counts of what one kind of sockets has done in a process."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False, repr=False)
class SocketCounts:
    """Of the sockets of one kind; only the loop that has them writes."""

    connections: int = 0
    """Open now; of sockets of ZeroMQ, those that this process has made."""
    received: int = 0
    """Messages, each with the frames of a turn."""
    refused: int = 0
    """Connections that were not admitted, or did not speak ZMTP."""
    sent: int = 0
