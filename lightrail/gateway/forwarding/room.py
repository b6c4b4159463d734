"""Room: the bytes of the unsettled messages of all forwarders and pushers of a gateway, and their bound.

A source whose target refuses messages, or does not answer, keeps a window of them. Above the bound the source
with the most gives its messages back to its queue, first of all one that waits for its target, and last of
all one with a single message, which would send that again and again.
"""

from typing import Final, Protocol

FORWARDING_BYTES_MAX: Final[int] = 128 * 1024 * 1024
"""Bytes of unsettled messages of all forwarders and pushers of a gateway; at least one slice of messages."""


class MessageHolder(Protocol):
    """What holds messages: a forwarder or a pusher."""

    @property
    def held(self) -> int:
        """Messages in flight."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether the last attempt has failed, so that no answer is on its way."""
        ...

    def give_back(self) -> None:
        """Returns all messages to the queue, and receives them again later, one at first."""
        ...


class ForwardingRoom:
    """Bytes by holder."""

    __slots__ = ("_by_holder", "_bytes_max", "held")

    def __init__(self, bytes_max: int = FORWARDING_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._by_holder: dict[MessageHolder, int] = {}
        self.held = 0
        """Bytes of all holders."""

    @property
    def left(self) -> int:
        """Bytes that may be held besides; 0 above the bound."""
        return max(0, self._bytes_max - self.held)

    def hold(self, holder: MessageHolder, size: int) -> None:
        """Notes how many bytes a holder has now; makes room where these are too many."""
        self.held += size - self._by_holder.pop(holder, 0)
        if not size:
            return
        self._by_holder[holder] = size
        while self.held > self._bytes_max and len(self._by_holder) > 1:
            most = max(self._by_holder, key=self._rank)
            self.held -= self._by_holder.pop(most)
            most.give_back()

    def _rank(self, holder: MessageHolder) -> tuple[bool, bool, int]:
        """The greatest one gives back first."""
        return holder.is_waiting, holder.held > 1, self._by_holder[holder]
