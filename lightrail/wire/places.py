"""Places: where queues and shards are, and what an owner (owner.py) needs of all owners, as ports."""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from lightrail.wire.bodies import Answer, Refusal
from lightrail.wire.shards import ShardPeer

OwnerT_contra = TypeVar("OwnerT_contra", contravariant=True)

Place = tuple[int, int]
"""A shard and an epoch."""


class Places(Protocol):
    """Placements and shards, as owners need them; nothing but `place` and `lost` waits."""

    def where(self, queue: str) -> Place | None:
        """Where a queue is, as far as this process knows."""
        ...

    async def place(self, queue: str) -> Place:
        """The same; a queue without a placement is placed. Raises CoordinatorError."""
        ...

    def peer(self, shard: int) -> ShardPeer | None:
        """The connection to a shard, or None as long as its address is not known."""
        ...

    def refresh(self) -> None:
        """Reads what has changed; calls `Owners.changed` meanwhile."""
        ...

    async def lost(self, queue: str) -> Refusal | None:
        """Why a queue does not exist, by the coordinator; None where it exists, or this is not known."""
        ...


class Registry(Protocol[OwnerT_contra]):
    """What an owner needs of all owners (owners.py)."""

    places: Places
    now_ms: Callable[[], int]

    def bind(self, owner: OwnerT_contra, link: int) -> None:
        """A link belongs to an owner from now on."""
        ...

    def unbind(self, link: int) -> None:
        """A link has ended."""
        ...

    def drop(self, owner: OwnerT_contra) -> None:
        """Forgets an owner that has no links and holds nothing."""
        ...

    def departed(self, owner: OwnerT_contra, peer: ShardPeer) -> None:
        """Links of an owner have left a shard."""
        ...

    def wake(self, owner: OwnerT_contra) -> None:
        """An owner waits for something: it is to be ticked."""
        ...

    def sent_last(self, peer: ShardPeer, part: bytes) -> None:
        """The owner of a queue without links got this frame: should the frame bounce, nobody needs it."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs what has to wait."""
        ...

    async def request(
        self, queue: str, op: str, fields: dict[str, Any], blob: bytes = b"", *, wait_ms: int = 0
    ) -> Answer:
        """See Owners."""
        ...
