"""Events of a connection, for applications that watch it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a connection.

    Attributes:
        kind: connected, lost, failed (an attempt), closed, link-lost, link-attached, or lock-lost (locks
            that a receiver with renew_for could not renew in time).
        where: the broker's address, or that of the link.
        reason: why, in words.
    """

    kind: str
    where: str
    reason: str = ""
