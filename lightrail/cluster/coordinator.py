"""Coordinator: the port behind which placement, users and the identity of an installation are kept.

``sqlite.py`` keeps them in one file for the processes of one machine, ``memory.py`` in one process. Every
method is one transaction; what it has answered survives the death of any process.
"""

from typing import Protocol

from lightrail.cluster.placement import Placement
from lightrail.cluster.users import UserRecord


class CoordinatorError(Exception):
    """The coordinator can't answer now, or must not; the message says why and what to do."""


class UserExists(CoordinatorError):
    """A user of this name is there already."""


class UserUnknown(CoordinatorError):
    """No user has this name."""


class ShardsInUse(CoordinatorError):
    """Fewer shards were asked for than hold queues."""


class Coordinator(Protocol):
    """Safe to be called by many tasks at once; names of queues are decoded and checked (model/names.py)."""

    async def cluster_id(self) -> str:
        """32 hexadecimal digits, drawn when the installation was made; journals carry them."""

    async def secret(self) -> bytes:
        """32 random bytes, the same for all processes: answers about unknown users are made from them."""

    async def shards(self) -> int:
        """Number of shards, 0 when it was never set."""

    async def set_shards(self, count: int) -> None:
        """Set it. Raises ShardsInUse when a shard that would go holds queues."""

    async def place(self, queue: str) -> Placement:
        """Where a queue is; one that is nowhere is placed on the least loaded shard, in epoch 1.

        ``NAME/$dlq`` is always where NAME is, which is placed with it. Raises CoordinatorError when the
        number of shards was never set.
        """

    async def placement(self, queue: str) -> Placement | None:
        """Where a queue is, or None."""

    async def placements(self) -> dict[str, Placement]:
        """All queues that are placed."""

    async def user(self, name: str) -> UserRecord | None:
        """The user of this name, or None."""

    async def users(self) -> list[str]:
        """Names of all users, sorted."""

    async def has_users(self) -> bool:
        """Whether anybody is defined."""

    async def add_user(self, record: UserRecord) -> None:
        """Raises UserExists."""

    async def replace_user(self, record: UserRecord) -> None:
        """A new password. Raises UserUnknown."""

    async def remove_user(self, name: str) -> None:
        """Raises UserUnknown."""

    async def close(self) -> None:
        """Let go of what it holds; nothing may be called afterwards."""
