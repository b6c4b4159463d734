"""The intake: what clients have sent and shards have not answered, and whose sockets are not read for it.

Credit bounds a sender that keeps to it, by messages. This bounds the bytes, whatever clients do: credit that
was given for small messages and is used for large ones, many links, a sender that sends past a lower credit.
A socket that is not read lets TCP slow its client down; nothing else of the connection changes.
"""

from typing import TYPE_CHECKING

from lightrail.model import limits

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.telemetry.families import FrontendCounts


class Intake:
    """One per frontend; `counts.unanswered_bytes` is its sum."""

    __slots__ = ("_counts", "_held", "_unfinished", "_unfinished_bytes")

    def __init__(self, counts: "FrontendCounts") -> None:
        self._counts = counts
        self._held: dict[ClientConnection, None] = {}
        self._unfinished: dict[ClientConnection, int] = {}
        self._unfinished_bytes = 0

    def took(self, connection: "ClientConnection", size: int) -> None:
        """So many bytes of messages came and are on their way to a shard."""
        self._counts.unanswered_bytes += size
        connection.unanswered_bytes += size
        if (
            connection.unanswered_bytes > limits.CONNECTION_UNANSWERED_BYTES
            or self._counts.unanswered_bytes > limits.FRONTEND_UNANSWERED_BYTES
        ) and connection not in self._held:
            self._held[connection] = None
            connection.hold_reading()

    def holds(self, connection: "ClientConnection") -> bool:
        """Whether its socket is not being read."""
        return connection in self._held

    def answered(self, connection: "ClientConnection", size: int) -> None:
        """So many bytes have their answer, or will get none."""
        self._counts.unanswered_bytes -= size
        connection.unanswered_bytes -= size
        if self._held and self._counts.unanswered_bytes <= limits.FRONTEND_UNANSWERED_BYTES >> 1:
            for held in list(self._held):
                if held.unanswered_bytes <= limits.CONNECTION_UNANSWERED_BYTES >> 1:
                    del self._held[held]
                    held.go_on_reading()

    def unfinished(self, connection: "ClientConnection", size: int) -> bool:
        """A connection has so many bytes of messages whose last frame has not come.

        Returns:
            False when all together have too many, and this one more than its share: it has to go. Not to read
            it would not help, since only its own last frames make room.
        """
        self._unfinished_bytes += size - self._unfinished.pop(connection, 0)
        if not size:
            return True
        self._unfinished[connection] = size
        return (
            self._unfinished_bytes <= limits.FRONTEND_UNFINISHED_BYTES
            or size * len(self._unfinished) < self._unfinished_bytes
        )

    def forget(self, connection: "ClientConnection") -> None:
        """The socket is gone; what it sent still counts until it is answered."""
        self._held.pop(connection, None)
        self.unfinished(connection, 0)
