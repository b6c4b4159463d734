"""Registry: what an owner (owner.py) needs of all owners (owners.py), as a port."""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from lightrail.wire.resolver import Resolver
from lightrail.wire.shards import ShardPeer

OwnerT_contra = TypeVar("OwnerT_contra", contravariant=True)


class Registry(Protocol[OwnerT_contra]):
    """All owners, as one of them sees them."""

    resolver: Resolver
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
