"""One read of messages that had been spilled to disk: performed in the reader thread, ended on the loop."""

from collections.abc import Callable

from lightrail.shard.journal.store import Store
from lightrail.shard.queue.values.runs import Location, Run


class Read:
    """A run to read from disk; `runs` has its messages after `perform`."""

    __slots__ = ("location", "queue", "queue_id", "run", "runs", "then")

    def __init__(
        self,
        queue: str,
        queue_id: int,
        run: Run,
        location: Location,
        then: "Callable[[Read], None] | None" = None,
    ) -> None:
        self.queue = queue
        self.queue_id = queue_id
        self.run = run
        self.location = location
        self.runs: list[Run] = []
        self.then = then
        """Receives the messages; None for the queue itself, which requested them with Fetch."""

    @property
    def segment(self) -> int:
        return self.location.segment

    def perform(self, store: Store) -> None:
        """Reads from the store; called in a thread."""
        self.runs = store.read(self.location, self.queue_id, self.run.sequence, self.run.end)
