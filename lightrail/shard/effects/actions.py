"""Actions: requests of one step of a shard's engine to its server.

One of them is a `Read` of messages that had been spilled to disk: it is performed in the reader thread and
ended on the loop.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from lightrail.namespace.records import Name
from lightrail.shard.journal.store import Store
from lightrail.shard.queue.values.runs import Location, Run
from lightrail.shard.queues.declarations import ExpiredName


@dataclass(slots=True, eq=False, repr=False)
class Read:
    """A run to read from disk; `runs` has its messages after `perform`."""

    queue: str
    queue_id: int
    run: Run
    location: Location
    then: "Callable[[Read], None] | None" = None
    """Receives the messages; None for the queue itself, which requested them with Fetch."""
    runs: list[Run] = field(default_factory=list)

    @property
    def segment(self) -> int:
        return self.location.segment

    def perform(self, store: Store) -> None:
        """Reads from the store; called in a thread."""
        self.runs = store.read(self.location, self.queue_id, self.run.sequence, self.run.end)


class Actions(NamedTuple):
    """The server carries them out in the order of the fields.

    No later step returns the same actions again.
    """

    failure: str | None
    """Why the state in memory can't be trusted, so that the process must end; None if it can."""
    output: list[tuple[bytes, list[bytes]]]
    """Frames to send at once, by identity of the frontend; without answers that wait for the disk."""
    must_sync: bool
    """Whether to begin a commit as soon as none runs: a sender waits for it, or memory is above its mark.
    Otherwise records may gather for a moment."""
    reads: list[Read]
    """Messages to read back from the store, in a thread; the result is passed to `Engine.read_ended`."""
    expired: list[ExpiredName]
    """Names to delete, as their last consumer has detached, or nobody has used them for their time."""
    kept: list[Name]
    """Names to keep, as the frontend that was about to delete them is lost; see closings.py."""
    wanted: list[str]
    """Frozen queues whose move did not complete, so that this shard takes them back."""
    deadline_ms: int | None
    """Latest time to call `Engine.tick`; None if the next heartbeat is early enough."""
