"""The intake: bounds the bytes that clients have sent and shards have not answered, by not reading sockets.

Credit bounds the messages of a sender that respects it. The intake bounds bytes in all cases: credit that was
granted for small messages and is used for large ones, many links, a sender that ignores a lower credit. While
a socket is not read, TCP slows its client down; the connection is not changed otherwise.
The unread bytes may contain the frames for which the others wait: a full queue that blocks its senders has
room again when its consumer settles, perhaps on the same connection. So a connection that also receives is
read again after INTAKE_STALL_MS without an answer, any other connection after `shard_wait`. Until half
of its bytes are answered, the messages that it sends are refused.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.amqp.events import Transfers
from lightrail.frontend.links.outcomes import rejected
from lightrail.model import conditions, limits

if TYPE_CHECKING:
    from lightrail.frontend.client_socket import ClientSocket
    from lightrail.telemetry.frontend import FrontendCounts

CONNECTION_UNANSWERED_BYTES: Final[int] = 32 * 1024 * 1024
"""Unanswered bytes of a connection from which its socket is not read, until half of them are answered."""
UNANSWERED_BATCH_BYTES: Final[int] = 1_024
"""Bytes that a batch counts for besides its messages until it is answered: its objects take 300 to 550 bytes
in a frontend and 800 in a shard. Tiny messages over many links are a batch each."""
INTAKE_STALL_MS: Final[int] = 1_000
"""How long the socket of a connection that also receives stays unread without an answer. Then it is read,
because its settlements may make room, and its messages are refused until there is room."""
FRONTEND_UNFINISHED_BYTES: Final[int] = 1024 * 1024 * 1024
"""Bytes of unfinished messages of all connections; beyond, the connections with most of them are closed."""


@dataclass(slots=True, eq=False, repr=False)
class Intake:
    """One per frontend; `counts.unanswered_bytes` is its sum.

    Args:
        shard_wait_ms: how long senders wait for a shard that does not serve; 0: no limit.
    """

    _counts: "FrontendCounts"
    _now_ms: Callable[[], int]
    _later: Callable[[int, Callable[[], None]], None]
    _shard_wait_ms: int
    _held: "dict[ClientSocket, int]" = field(default_factory=dict)
    """Connections whose sockets are not read, with the number of answers since then."""
    _refusing: "dict[ClientSocket, None]" = field(default_factory=dict)
    """Connections that are read again although no batch was answered."""
    _unfinished: "dict[ClientSocket, int]" = field(default_factory=dict)
    _unfinished_bytes: int = 0

    def received(self, sender: "ClientSocket", size: int) -> None:
        """Counts the bytes of a received batch that is sent to a shard."""
        size += UNANSWERED_BATCH_BYTES
        self._counts.unanswered_bytes += size
        sender.unanswered_bytes += size
        if (
            sender.unanswered_bytes > CONNECTION_UNANSWERED_BYTES
            or self._counts.unanswered_bytes > limits.FRONTEND_UNANSWERED_BYTES
        ) and not (sender in self._held or sender.refusing):
            self._held[sender] = 0
            sender.hold_reading()
            self._watch(sender, 0, self._now_ms())

    def holds(self, sender: "ClientSocket") -> bool:
        """Whether the intake keeps a socket from being read."""
        return sender in self._held

    def answered(self, sender: "ClientSocket", size: int, batches: int = 1) -> None:
        """Subtracts the bytes of batches that are answered, or will not be answered."""
        size += batches * UNANSWERED_BATCH_BYTES
        self._counts.unanswered_bytes -= size
        sender.unanswered_bytes -= size
        if not (self._held or self._refusing):
            return
        if sender in self._held:
            self._held[sender] += 1
        if self._counts.unanswered_bytes <= limits.FRONTEND_UNANSWERED_BYTES >> 1:
            for held in list(self._held):
                if held.unanswered_bytes <= CONNECTION_UNANSWERED_BYTES >> 1:
                    del self._held[held]
                    held.go_on_reading()
            for refusing in list(self._refusing):
                if refusing.unanswered_bytes <= CONNECTION_UNANSWERED_BYTES >> 1:
                    del self._refusing[refusing]
                    refusing.go_on_accepting()

    def _watch(self, sender: "ClientSocket", answers: int, since_ms: int) -> None:
        """Checks after a time whether any batch was answered."""
        self._later(INTAKE_STALL_MS, lambda: self._end_if_stalled(sender, answers, since_ms))

    def _end_if_stalled(self, sender: "ClientSocket", answers: int, since_ms: int) -> None:
        found = self._held.get(sender)
        if found is None:
            return
        now_ms = self._now_ms()
        if found != answers:
            self._watch(sender, found, now_ms)
            return
        wait_ms = INTAKE_STALL_MS if sender.consumers else self._shard_wait_ms
        if not wait_ms or now_ms - since_ms < wait_ms:
            self._watch(sender, answers, since_ms)
            return
        del self._held[sender]
        self._refusing[sender] = None
        sender.refusing = True
        sender.go_on_reading()

    def unfinished(self, sender: "ClientSocket", size: int) -> bool:
        """Sets the bytes of a connection's messages whose last frame has not arrived.

        Returns:
            False if all connections together have too many, and this one more than its share: it has to be
            closed. Not reading it would not help, since only its last frames free the bytes.
        """
        self._unfinished_bytes += size - self._unfinished.pop(sender, 0)
        if not size:
            return True
        self._unfinished[sender] = size
        return (
            self._unfinished_bytes <= FRONTEND_UNFINISHED_BYTES
            or size * len(self._unfinished) < self._unfinished_bytes
        )

    def forget(self, sender: "ClientSocket") -> None:
        """The socket is closed; the bytes that it sent still count until they are answered."""
        self._held.pop(sender, None)
        self._refusing.pop(sender, None)
        self.unfinished(sender, 0)

    def refuse(self, sender: "ClientSocket", event: Transfers) -> None:
        """Refuses messages of a connection that is read only for its other frames.

        A link whose messages were sent settled ends, since no outcome can refuse them.
        """
        link, count = event.link, event.count
        self._counts.messages_refused += count
        description = (
            f"{sender.unanswered_bytes} bytes that this connection sent wait for room in full queues, or for "
            "shards; send again when there is room"
        )
        if event.settled:
            sender.links.detach(link, conditions.RESOURCE_LIMIT_EXCEEDED, description)
            return
        first, state = event.first_delivery_id, rejected(conditions.RESOURCE_LIMIT_EXCEEDED, description)
        link.answer(first, first + count - 1, state)
