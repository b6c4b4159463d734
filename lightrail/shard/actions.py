"""Actions: what the engine of a shard asks its server to do after a step."""

from typing import NamedTuple

from lightrail.namespace.records import Name
from lightrail.shard.reading import Read


class Actions(NamedTuple):
    """The server carries them out in the order of the fields.

    All are due once: what one step returns, no later step returns again.
    """

    failure: str | None
    """Why nothing here can be trusted any more: only a new process, with recovery, helps. None: go on."""
    output: list[tuple[bytes, list[bytes]]]
    """Frames to send at once, by identity of the frontend; answers that wait for the disk are not in it."""
    must_sync: bool
    """Whether to begin a commit as soon as none runs: a sender, or memory above its mark, waits for it.
    Records for which nobody waits may gather a little."""
    reads: list[Read]
    """Messages to read back from the store, in a thread; `Engine.read_ended` wants the result."""
    expired: list[Name]
    """Names to delete, whose last consumer has left."""
    wanted: list[str]
    """Queues that this shard has frozen, that no other shard took, and that it asks the coordinator for."""
    deadline_ms: int | None
    """When to call `Engine.tick` at the latest; None: the next heartbeat is early enough."""
