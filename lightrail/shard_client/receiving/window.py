"""Receive window: the deliveries of one consumer by number, and the credit that its shard has for them.

Delivery numbers count from 0 over the lifetime of a link, and a CREDIT frame has the first number that the
shard must not send yet. So a repeated CREDIT grants no credit twice.
"""

from typing import NamedTuple

from lightrail.shard_client.links import MissingDeliveriesError
from lightrail.wire.frames import DELIVER_COLUMNS, DELIVER_ENDS, HEADER_SIZE


class ReceiveWindow:
    """Deliveries below `next` have arrived; the shard may send those below `limit`."""

    __slots__ = ("limit", "next")

    def __init__(self) -> None:
        self.next = 0
        self.limit = 0

    @property
    def credit(self) -> int:
        """Deliveries that may still arrive."""
        return self.limit - self.next

    def advance(self, number: int, count: int, queue: str) -> None:
        """A slice of `queue` arrived. Raises MissingDeliveriesError: it does not follow the one before."""
        if number != self.next:
            raise MissingDeliveriesError(f"expected delivery {self.next} of {queue}, found {number}")
        self.next = number + count

    def withdraw(self) -> None:
        """The shard has no credit left, because it answered a drain, or the link was opened again."""
        self.limit = self.next


class Slice(NamedTuple):
    """The messages of a DELIVER frame, and their common fields."""

    sequence: int
    """Sequence of the first message; those of the others follow."""
    expires_at_ms: int
    """0: the messages do not expire."""
    enqueued_at_ms: int
    attempts: int
    """Failed deliveries before this one."""
    message_format: int
    messages: list[bytes]


def decode_slice(part: bytes | memoryview, count: int) -> Slice:
    """The content of a DELIVER frame with `count` messages, whose bytes are copied."""
    sequence, expires, enqueued, attempts, message_format, base, _ = DELIVER_COLUMNS.unpack_from(
        part, HEADER_SIZE
    )
    blob_at = DELIVER_ENDS + 4 * count
    start = blob_at
    messages = []
    for end in memoryview(part)[DELIVER_ENDS:blob_at].cast("I"):
        stop = blob_at + end - base
        messages.append(bytes(part[start:stop]))
        start = stop
    return Slice(sequence, expires, enqueued, attempts, message_format, messages)
