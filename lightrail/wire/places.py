"""Places: what homes of queues (home.py) ask of the rest of their process: where queues and shards are."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from lightrail.wire.messages import Answer, Refusal
from lightrail.wire.shards import ShardPeer

if TYPE_CHECKING:
    from lightrail.wire.home import Home

Place = tuple[int, int]
"""A shard and an epoch."""


class Places(Protocol):
    """What homes ask about placements and shards; none of it waits, but for `lost`."""

    def where(self, queue: str) -> Place | None:
        """Where a queue is, as far as this process knows."""
        ...

    async def place(self, queue: str) -> Place:
        """The same; a queue that is nowhere is placed. Raises CoordinatorError."""
        ...

    def peer(self, shard: int) -> ShardPeer | None:
        """The link to a shard, or None as long as nobody knows where that is."""
        ...

    def refresh(self) -> None:
        """Takes in what is new; changes are told to `Homes.changed` meanwhile."""
        ...

    async def lost(self, queue: str) -> Refusal | None:
        """Why a queue is nowhere, by the coordinator's own word; None where it is not, or can't be asked."""
        ...


class Registry(Protocol):
    """What a home needs of all homes."""

    places: Places
    now_ms: Callable[[], int]

    def bind(self, home: "Home", link: int) -> None:
        """A link is at a home from now on."""
        ...

    def unbind(self, link: int) -> None:
        """It is no longer."""
        ...

    def drop(self, home: "Home") -> None:
        """Nobody needs a home."""
        ...

    def departed(self, home: "Home", peer: ShardPeer) -> None:
        """Links of a home have left a shard."""
        ...

    def wake(self, home: "Home") -> None:
        """A home waits for something: it is to be ticked."""
        ...

    def said_last(self, peer: ShardPeer, part: bytes) -> None:
        """The owner of a queue was told this: if it sends it back, it is of no use to anybody."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs what has to wait."""
        ...

    async def request(
        self, queue: str, op: str, fields: dict[str, Any], blob: bytes = b"", *, wait_ms: int = 0
    ) -> Answer:
        """See Homes."""
        ...
