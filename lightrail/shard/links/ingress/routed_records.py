"""The records of a routed batch whose queues store different shares of it: one group in the journal."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightrail.journal.record import SPILLED, Ids, Taken
from lightrail.shard.effects.peers import RouteProducer
from lightrail.shard.journal.record import Append, Record, size_of
from lightrail.shard.journal.store import Store
from lightrail.shard.queue.values.runs import Batch
from lightrail.shard.queues.shard_queue import Queue

if TYPE_CHECKING:
    from lightrail.shard.effects.performer import Performer
    from lightrail.shard.links.ingress.selection import Share


def ids_until_ms(queue: Queue, now_ms: int) -> int:
    """End of the window of duplicates for a batch that arrives now."""
    return now_ms + (queue.view.policy.duplicate_window_ms or 0)


@dataclass(slots=True, eq=False, repr=False)
class RoutedRecords:
    """Writes the group of records of a batch for several queues; a crash keeps all of it or nothing."""

    _store: Store
    _performer: "Performer"

    def write(
        self,
        producer: RouteProducer,
        number: int,
        batch: Batch,
        found: list["Share"],
        now_ms: int,
        *,
        cut: bool,
    ) -> bool:
        """Writes the records; returns whether the answer waits for a commit. Raises StoreError: none is.

        Args:
            cut: whether the batch has only the first messages of the batch with this number.
        """
        records: list[Append | Ids | Taken] = []
        captured: list[Append] = []
        """Records of transient messages. Recovery does not need their number, so they come first."""
        together = [each.queue for each in found if each.batch is batch]
        if together:
            targets = [(queue.id, queue.view.next_sequence) for queue in together]
            records.append(Append(targets, producer.id, number, batch, 0, batch.count))
        for queue, mine, digests, _, _ in found:
            target = (queue.id, queue.view.next_sequence)
            if mine.durable and mine.count and mine is not batch:
                records.append(Append([target], producer.id, number, mine, 0, mine.count))
            elif queue.captured and mine.count and mine is not batch:
                captured.append(Append([target], producer.id, number, mine, 0, mine.count, 0, SPILLED))
            if digests and mine.durable:
                records.append(Ids(queue.id, ids_until_ms(queue, now_ms), b"".join(digests)))
        for each_ in [record for record in records if isinstance(record, Append)][:-1]:
            # Only the last record names the batch: it proves that all of them were written.
            each_.producer = each_.number = 0
        if cut and records:
            records.append(Taken(producer.id, number, batch.count))
        group: list[Record] = [*captured, *records]
        self._store.reserve(size_of(group), now_ms)
        self._performer.append_group(group, now_ms)
        durable = batch.durable or any(each.batch.durable for each in found)
        return durable or bool(captured and self._performer.capture_lags)
