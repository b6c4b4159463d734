"""Registry: the methods of all owners (owners.py) that an owner (owner.py) calls, as a port."""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from lightrail.wire.resolver import Resolver
from lightrail.wire.shards import ShardPeer

OwnerT_contra = TypeVar("OwnerT_contra", contravariant=True)


class Registry(Protocol[OwnerT_contra]):
    """All owners of a process."""

    resolver: Resolver
    now_ms: Callable[[], int]

    def bind(self, owner: OwnerT_contra, link: int) -> None:
        """A link belongs to an owner from now on."""
        ...

    def unbind(self, link: int) -> None:
        """A link has ended."""
        ...

    def drop(self, owner: OwnerT_contra) -> None:
        """Forgets an owner that has no links and no waiting frames."""
        ...

    def departed(self, owner: OwnerT_contra, peer: ShardPeer) -> None:
        """Links of an owner have left a shard."""
        ...

    def wake(self, owner: OwnerT_contra) -> None:
        """An owner has set a timer: it is to be ticked."""
        ...

    def sent_last(self, peer: ShardPeer, part: bytes) -> None:
        """The shard that owns a queue without links was sent this frame: if it bounces, it is dropped."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine in the background."""
        ...
