"""Actions: what the server of a shard has to do after a step of its engine."""

from typing import NamedTuple

from lightrail.namespace.records import Name
from lightrail.shard.reading import Read


class Actions(NamedTuple):
    """The server carries them out in the order of the fields.

    No later step returns the same actions again.
    """

    failure: str | None
    """Why nothing here can be trusted any more: only a new process, with recovery, helps. None: go on."""
    output: list[tuple[bytes, list[bytes]]]
    """Frames to send at once, by identity of the frontend; answers that wait for the disk are not in it."""
    must_sync: bool
    """Whether to begin a commit as soon as none runs: a sender, or memory above its mark, waits for it.
    Records for which no answer waits may gather a little."""
    reads: list[Read]
    """Messages to read back from the store, in a thread; `Engine.read_ended` wants the result."""
    expired: list[Name]
    """Names to delete, as their last consumer has detached."""
    wanted: list[str]
    """Frozen queues that no other shard took, and that this shard takes back."""
    deadline_ms: int | None
    """When to call `Engine.tick` at the latest; None: the next heartbeat is early enough."""
