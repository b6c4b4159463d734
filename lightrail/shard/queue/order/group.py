"""A group: the messages of a queue with one group-id."""

from collections.abc import Hashable
from typing import Final

NOTHING: Final = -1
"""The value for no sequence."""


class Group:
    """The messages of one group-id, and their owner."""

    __slots__ = ("foreign", "in_flight", "is_session", "key", "offered", "owner", "ready", "refused")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.ready: list[int] = []
        """Sequences of ready messages; a heap."""
        self.owner: int | None = None
        self.in_flight = 0
        """Number of messages in flight at the owner."""
        self.foreign = 0
        """Number of messages in flight at other consumers, from before the queue had groups or this owner."""
        self.offered = NOTHING
        """The first ready sequence, once it is in the heap of the consumers that may get it."""
        self.refused = False
        """Whether the owner can't get the first message; it loses the group when none of it is in flight."""
        self.is_session = False
        """Whether the owner has accepted the group as a session: it owns the group until it detaches."""
