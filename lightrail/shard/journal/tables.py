"""The tables that a snapshot holds: queues by number, producers' last batch numbers, the epoch."""

from lightrail.shard.journal.record import Queue, QueueEntry, QueueEvent, Snapshot


class Tables:
    """Kept by the journal as it appends, and by recovery as it replays: both must come to the same."""

    __slots__ = ("epoch", "producers", "producers_max", "queues", "sealed")

    def __init__(self, producers_max: int) -> None:
        self.queues: dict[int, QueueEntry] = {}
        self.producers: dict[int, int] = {}
        self.producers_max = producers_max
        self.epoch = 0
        self.sealed = False

    def queue(self, record: Queue) -> None:
        """A queue was declared or deleted, or has a new policy.

        Raises:
            KeyError: a policy or an end for a queue that is not there.
        """
        if record.event == QueueEvent.DELETED:
            del self.queues[record.queue]
        elif record.event == QueueEvent.POLICY:
            entry = self.queues[record.queue]
            entry.name, entry.policy = record.name, record.policy
        else:
            self.queues[record.queue] = QueueEntry(record.queue, record.name, record.policy)

    def produced(self, producer: int, number: int) -> None:
        """A producer's last batch; the longest silent producer goes when there are too many."""
        producers = self.producers
        producers.pop(producer, None)
        producers[producer] = number
        if len(producers) > self.producers_max:
            del producers[next(iter(producers))]

    def snapshot(self) -> Snapshot:
        """The tables as a record; it refers to them, so encode it before they change."""
        return Snapshot(self.epoch, list(self.queues.values()), self.producers)

    def restore(self, snapshot: Snapshot) -> None:
        """The tables as a snapshot has them."""
        self.epoch = snapshot.epoch
        self.queues = {entry.queue: entry for entry in snapshot.queues}
        self.producers = snapshot.producers
