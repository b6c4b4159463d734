"""Counters and gauges of one queue; counters never decrease, and their sums match the messages."""

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True)
class Counters:
    """Numbers of messages since the machine was made."""

    enqueued: int = 0
    duplicates: int = 0
    """Dropped because of a message-id that had arrived within the window; they never were in the queue."""
    dropped: int = 0
    """Accepted and dropped because the queue was full; they never were in the queue."""
    refused: int = 0
    """Refused: too many, or too large; they never were in the queue."""
    restored: int = 0
    """Recovered from the store."""
    delivered: int = 0
    browsed: int = 0
    """Copies sent to browsers; not part of `delivered`."""
    redelivered: int = 0
    """Delivered messages that had been delivered before."""
    accepted: int = 0
    released: int = 0
    modified: int = 0
    rejected: int = 0
    expired: int = 0
    purged: int = 0
    replaced: int = 0
    """Replaced by a newer message with the same key."""
    cancelled: int = 0
    """Cancelled while they were delayed."""
    locks_expired: int = 0
    """Returned because a timed lock expired; counted as failed deliveries, not as `modified`."""
    unannotated: int = 0
    """Returned without the annotations of their outcome, which would have made them too large."""
    lost: int = 0
    dead_lettered: dict[str, int] = field(default_factory=dict)
    """By reason; rejected and expired messages are counted here too, if they were dead-lettered."""
    discarded: dict[str, int] = field(default_factory=dict)
    """By reason: messages that would be dead letters if the queue had a dead-letter queue, and messages that
    were dropped for newer ones."""

    @property
    def arrived(self) -> int:
        """Number of messages that were ever in the queue."""
        return self.enqueued + self.restored

    @property
    def left(self) -> int:
        """Number of messages that have left the queue."""
        gone = sum(self.dead_lettered.values()) + sum(self.discarded.values())
        return self.accepted + self.purged + self.replaced + self.cancelled + self.lost + gone


class Gauges(NamedTuple):
    """The current numbers of messages of a queue."""

    ready: int
    in_flight: int
    bytes: int
    """Bytes of all messages, in memory or on disk."""
    resident_bytes: int
    consumers: int
    delayed: int = 0
    """Messages that wait for their time; not part of `ready`, but of `bytes`."""
    deferred: int = 0
    """Messages that are deferred and not locked; not part of `in_flight`, but of `bytes`."""
