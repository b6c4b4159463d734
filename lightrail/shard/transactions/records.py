"""The records of a transaction: one group in the journal, which recovery applies whole or not at all."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from lightrail.journal.record import CONTINUED, SPILLED, Ids, Numbers, Transaction
from lightrail.model import conditions
from lightrail.shard.effects.answers import RequestError
from lightrail.shard.effects.performer import Performer
from lightrail.shard.journal.record import Append, size_of
from lightrail.shard.journal.store import Store, StoreBrokenError, StoreBusyError, StoreError
from lightrail.shard.links.ingress.routed_records import ids_until_ms
from lightrail.shard.links.ingress.selection import Share
from lightrail.shard.queue.values.runs import Batch
from lightrail.shard.queues.shard_queue import Queue

Record = Append | Ids | Numbers | Transaction


class Records:
    """Writes groups of records."""

    __slots__ = ("_performer", "_store")

    def __init__(self, store: Store, performer: Performer) -> None:
        self._store = store
        self._performer = performer

    def write(self, records: Sequence[Record], now_ms: int) -> None:
        """Writes one group. Raises RequestError, StoreBusyError: nothing is written."""
        self.reserve(size_of(records), now_ms)
        self.append(records, now_ms)

    def reserve(self, size: int, now_ms: int) -> None:
        """Makes room for a group of `size` bytes. Raises RequestError, StoreBusyError if there is none."""
        try:
            self._store.reserve(size, now_ms)
        except StoreBusyError:
            raise
        except StoreBrokenError as error:
            raise RequestError(conditions.INTERNAL_ERROR, str(error)) from error
        except StoreError as error:
            raise RequestError(conditions.RESOURCE_LIMIT_EXCEEDED, str(error)) from error

    @property
    def lsn(self) -> int:
        """Number of the last record."""
        return self._store.position.lsn

    @contextmanager
    def group(self) -> Iterator[None]:
        """Context manager: records that the block appends form one group with the record after the block."""
        self._store.is_group_open = True
        try:
            yield
        finally:
            self._store.is_group_open = False

    def append(self, records: Sequence[Record], now_ms: int) -> None:
        """Appends the last records of a group; their room must be reserved."""
        for record in records[:-1]:
            record.flags |= CONTINUED
        for record in records:
            location = self._store.append(record, now_ms)
            if isinstance(record, Append):
                record.batch.location = location
                if record.flags & SPILLED:
                    self._performer.captured_bytes += record.batch.size
                else:
                    self._performer.messages_unsynced += record.batch.count


def records_of_posts(
    shares: Iterable[tuple[Batch, list[Share]]], next_sequences: dict[Queue, int], now_ms: int
) -> list[Record]:
    """The records of all batches; sets `next_sequences` to the sequences after them."""
    records: list[Record] = []
    for batch, found in shares:
        records += _records_of(batch, found, next_sequences, now_ms)
    return records


def _records_of(
    batch: Batch, found: list[Share], next_sequences: dict[Queue, int], now_ms: int
) -> list[Record]:
    """The records of one batch: queues that store it unchanged share one."""
    records: list[Record] = []
    together: list[tuple[int, int]] = []
    for queue, mine, digests, _, _ in found:
        if not mine.count:
            continue
        first = next_sequences.setdefault(queue, queue.view.next_sequence)
        next_sequences[queue] = first + mine.count
        if mine is batch:
            together.append((queue.id, first))
        elif mine.durable or queue.captured:
            flags = 0 if mine.durable else SPILLED
            records.append(Append([(queue.id, first)], 0, 0, mine, 0, mine.count, 0, flags))
        if digests and mine.durable:
            records.append(Ids(queue.id, ids_until_ms(queue, now_ms), b"".join(digests)))
    if together:
        records.insert(0, Append(together, 0, 0, batch, 0, batch.count))
    return records
