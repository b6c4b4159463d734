"""The intake: what clients have sent and shards have not answered, and whose sockets are not read for it.

Credit bounds a sender that keeps to it, by messages. This bounds the bytes, whatever clients do: credit that
was given for small messages and is used for large ones, many links, a sender that sends past a lower credit.
A socket that is not read lets TCP slow its client down; nothing else of the connection changes.

What is not read may be what all wait for: a queue that is full and holds its senders back gets room when
its consumer settles, and that may be the same connection. So one that receives, and has had no answer for
limits.INTAKE_STALL_MS, is read again; others are after `shard_wait`. Until half of what it sent is answered,
what it sends is refused.
"""

from typing import TYPE_CHECKING

from lightrail.amqp.events import Transfers
from lightrail.amqp.performatives import AmqpError, Rejected
from lightrail.amqp.types import Symbol
from lightrail.model import conditions, limits

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.telemetry.frontend import FrontendCounts


class Intake:
    """One per frontend; `counts.unanswered_bytes` is its sum."""

    __slots__ = ("_counts", "_held", "_refusing", "_unfinished", "_unfinished_bytes")

    def __init__(self, counts: "FrontendCounts") -> None:
        self._counts = counts
        self._held: dict[ClientConnection, int] = {}
        """Connections whose sockets are not read, with how many answers they have had since."""
        self._refusing: dict[ClientConnection, None] = {}
        """Those that are read again, though nothing was answered."""
        self._unfinished: dict[ClientConnection, int] = {}
        self._unfinished_bytes = 0

    def took(self, connection: "ClientConnection", size: int) -> None:
        """A batch of so many bytes of messages came and is on its way to a shard."""
        size += limits.UNANSWERED_BATCH_BYTES
        self._counts.unanswered_bytes += size
        connection.unanswered_bytes += size
        if (
            connection.unanswered_bytes > limits.CONNECTION_UNANSWERED_BYTES
            or self._counts.unanswered_bytes > limits.FRONTEND_UNANSWERED_BYTES
        ) and not (connection in self._held or connection.refusing):
            self._held[connection] = 0
            connection.hold_reading()
            self._watch(connection, 0, connection.frontend.now_ms())

    def holds(self, connection: "ClientConnection") -> bool:
        """Whether its socket is not being read."""
        return connection in self._held

    def answered(self, connection: "ClientConnection", size: int, batches: int = 1) -> None:
        """Batches of so many bytes have their answer, or will get none."""
        size += batches * limits.UNANSWERED_BATCH_BYTES
        self._counts.unanswered_bytes -= size
        connection.unanswered_bytes -= size
        if not (self._held or self._refusing):
            return
        if connection in self._held:
            self._held[connection] += 1
        if self._counts.unanswered_bytes <= limits.FRONTEND_UNANSWERED_BYTES >> 1:
            for held in list(self._held):
                if held.unanswered_bytes <= limits.CONNECTION_UNANSWERED_BYTES >> 1:
                    del self._held[held]
                    held.go_on_reading()
            for refusing in list(self._refusing):
                if refusing.unanswered_bytes <= limits.CONNECTION_UNANSWERED_BYTES >> 1:
                    del self._refusing[refusing]
                    refusing.go_on_taking()

    def _watch(self, connection: "ClientConnection", answers: int, since_ms: int) -> None:
        """Looks in a while whether anything has been answered."""
        connection.frontend.later(limits.INTAKE_STALL_MS, lambda: self._look(connection, answers, since_ms))

    def _look(self, connection: "ClientConnection", answers: int, since_ms: int) -> None:
        found = self._held.get(connection)
        if found is None:
            return
        now_ms = connection.frontend.now_ms()
        if found != answers:
            self._watch(connection, found, now_ms)
            return
        wait_ms = limits.INTAKE_STALL_MS if connection.consumers else connection.frontend.settings.shard_wait
        if not wait_ms or now_ms - since_ms < wait_ms:
            self._watch(connection, answers, since_ms)
            return
        del self._held[connection]
        self._refusing[connection] = None
        connection.refusing = True
        connection.go_on_reading()

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
        self._refusing.pop(connection, None)
        self.unfinished(connection, 0)


def refuse(connection: "ClientConnection", event: Transfers) -> None:
    """What a connection sends that is read only for its other frames."""
    link, count = event.link, event.count
    connection.frontend.counts.messages_refused += count
    description = (
        f"{connection.unanswered_bytes} bytes that this connection sent wait for room in full queues, or for "
        "shards; send again when there is room"
    )
    if event.settled:
        connection.lose(link, conditions.RESOURCE_LIMIT_EXCEEDED, description)
        return
    error = AmqpError(condition=Symbol(conditions.RESOURCE_LIMIT_EXCEEDED), description=description)
    first = event.first_delivery_id
    link.settle(first, first + count - 1, Rejected(error=error))
