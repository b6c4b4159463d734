"""Applying: applies the outcomes and messages of a transaction to queues, in one group of records.

The group is open while queues apply the outcomes, so that it has all of their records: settlements, delivery
counts, annotated messages, dead letters. Then follow the messages that the transaction sends, and the record
that ends it. Room for all records is reserved before anything is changed.

Recovery applies the group whole or not at all.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from lightrail.journal.record import SPILLED, Ids, Numbers, TransactionStep
from lightrail.model import conditions
from lightrail.model.names import dead_letter_name
from lightrail.shard.effects.answers import RequestError
from lightrail.shard.journal.record import RECORD_BYTES, Append, size_of
from lightrail.shard.journal.store import Store, StoreBrokenError, StoreBusyError, StoreError
from lightrail.shard.links.ingress.routed_records import ids_until_ms
from lightrail.shard.links.ingress.selection import Share
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.commands import Command, Outcome, OutcomeKind
from lightrail.shard.queue.values.effects import Effect, Fetch
from lightrail.shard.queue.values.runs import Batch, Run
from lightrail.shard.queue.values.schedules import EnqueueUnder
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue

if TYPE_CHECKING:
    from lightrail.shard.effects.performer import Performer
    from lightrail.shard.transactions.work import Loaded

Record = Append | Ids | Numbers | TransactionStep
Shares = list[tuple[Batch, list[Share], int | None]]
"""Each batch with the messages that each queue stores of it, and the sequence of its first message if that
was taken before."""


@dataclass(slots=True, eq=False, repr=False)
class Records:
    """Writes groups of records."""

    _store: Store
    _performer: "Performer"

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
        self._performer.append_group(records, now_ms)


def records_of_posts(shares: Shares, next_sequences: dict[Queue, int], now_ms: int) -> list[Record]:
    """The records of all batches; sets `next_sequences` to the sequences after them."""
    records: list[Record] = []
    for batch, found, sequence in shares:
        records += _records_of(batch, found, sequence, next_sequences, now_ms)
    return records


def _records_of(
    batch: Batch, found: list[Share], sequence: int | None, next_sequences: dict[Queue, int], now_ms: int
) -> list[Record]:
    """The records of one batch: queues that store it unchanged share one."""
    records: list[Record] = []
    together: list[tuple[int, int]] = []
    for queue, mine, digests, _, _ in found:
        if not mine.count:
            continue
        if sequence is not None:
            first = sequence
        else:
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


TRANSACTION_REWRITTEN_BYTES_MAX: Final[int] = 64 * 1024 * 1024
"""Bytes that one transaction writes at a shard for what it settles as rejected or modified: dead letters, and
messages with annotations."""

Ending = Callable[[dict[Queue, int]], list[Record]]
"""Returns the last records of a group, from the next sequences of the queues that it sends to."""
NOTE_BYTES: Final = 512
"""Upper bound of the size of a dead letter's annotations without their texts."""


class SettledPart(NamedTuple):
    """Deliveries of one queue that get an outcome."""

    queue: Queue
    runs: Sequence[Run]
    command: commands.Settle | commands.SettleDetached | commands.Conclude | commands.Cancel
    """The command that applies the outcome; without runs, one that cancels a delayed message."""

    @property
    def outcome(self) -> Outcome:
        return commands.ACCEPTED if isinstance(self.command, commands.Cancel) else self.command.outcome


def cancelling(message: tuple[Queue, int]) -> SettledPart:
    """The part of the work that removes a delayed message of a queue, by its sequence."""
    queue, sequence = message
    return SettledPart(queue, (), commands.Cancel(sequence))


class Applying:
    """Applies transactions."""

    __slots__ = ("_performer", "_queues", "records")

    def __init__(self, queues: Queues, performer: "Performer", store: Store) -> None:
        self._queues = queues
        self._performer = performer
        self.records = Records(store, performer)

    # --- before anything has changed ---------------------------------------------------------------------

    def check(self, parts: Sequence[SettledPart]) -> None:
        """Checks that the records of outcomes do not exceed the limit of one group. Raises RequestError."""
        size = sum(_rewritten_bytes(part, run) for part in parts for run in part.runs)
        if size > TRANSACTION_REWRITTEN_BYTES_MAX:
            raise RequestError(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"expected at most {TRANSACTION_REWRITTEN_BYTES_MAX} bytes of messages that one "
                f"transaction rejects or annotates, found {size} with their annotations: "
                "settle fewer of them in one transaction",
            )

    def unread(self, parts: Sequence[SettledPart]) -> list[tuple[Queue, Run]]:
        """Runs that are only on disk, and whose outcome needs their bytes."""
        return [
            (part.queue, run)
            for part in parts
            for run in part.runs
            if run.batch.data is None and part.queue.view.needs_bytes(run, part.outcome)
        ]

    def _make_dead_letter_queues(self, parts: Sequence[SettledPart], now_ms: int) -> None:
        for part in parts:
            buries = part.queue.view.buries
            if any(buries(run, part.outcome) for run in part.runs):
                name = dead_letter_name(part.queue.name)
                if self._queues.get(name, now_ms) is None:
                    raise RequestError(
                        conditions.RESOURCE_LIMIT_EXCEEDED, f"the dead-letter queue {name} could not be made"
                    )

    # --- all of it ---------------------------------------------------------------------------------------

    def apply(
        self,
        parts: Sequence[SettledPart],
        shares: Shares,
        ending: Ending,
        loaded: "Loaded | None",
        now_ms: int,
        *,
        always: bool,
        repeated: bool,
    ) -> None:
        """Writes and applies a transaction. Raises RequestError, StoreBusyError: nothing has changed.

        Args:
            always: whether to write the ending even if neither outcomes nor messages need a record.
            repeated: whether a shard that was lost may have applied it, and delivered its messages.
        """
        self._make_dead_letter_queues(parts, now_ms)
        next_sequences: dict[Queue, int] = {}
        records = records_of_posts(shares, next_sequences, now_ms)
        size = size_of(records) + size_of(ending({}))
        self.records.reserve(size + sum(_most_bytes(part, loaded) for part in parts), now_ms)
        before = self.records.lsn
        with self.records.group():
            self._settle(parts, loaded, now_ms)
        if parts:
            # Dead letters of the outcomes may have got sequences before the messages.
            next_sequences = {}
            records = records_of_posts(shares, next_sequences, now_ms)
        if records or self.records.lsn != before or always:
            records += ending(next_sequences)
        self.records.append(records, now_ms)
        self._enqueue(shares, now_ms, repeated=repeated)

    def _settle(self, parts: Sequence[SettledPart], loaded: "Loaded | None", now_ms: int) -> None:
        """Applies the outcomes, and appends their records."""
        # Messages that queues removed earlier in this turn are not part of this transaction.
        earlier = {part.queue: part.queue.removed for part in parts}
        for queue in earlier:
            queue.removed = {}
        for part in parts:
            self._apply_loaded(part.queue, part.command, loaded, now_ms)
        for queue, removed in earlier.items():
            self._performer.journal_removed(queue, now_ms)
            queue.removed = removed

    def _apply_loaded(self, queue: Queue, command: Command, loaded: "Loaded | None", now_ms: int) -> None:
        """Applies a command; the messages that it fetches are loaded already, except for unreadable ones."""
        left = [command]
        while left:
            others: list[Effect] = []
            for effect in queue.machine.apply(left.pop(), now_ms):
                found = loaded.of(queue, effect.run) if loaded and isinstance(effect, Fetch) else None
                if isinstance(effect, Fetch) and found is not None:
                    left.append(commands.Fetched(effect.run.sequence, found))
                else:
                    others.append(effect)
            self._performer.perform(queue, others, now_ms)

    def _enqueue(self, shares: Shares, now_ms: int, *, repeated: bool) -> None:
        for _, found, sequence in shares:
            for mine in found:
                queue = mine.queue
                queue.machine.not_stored(duplicates=mine.duplicates, dropped=mine.dropped)
                queue.machine.remember(mine.digests, ids_until_ms(queue, now_ms))
                if not mine.batch.count:
                    continue
                if sequence is not None:
                    if (note := self._performer.exports.get(queue)) is not None:
                        # The copy of a queue that moves may have the messages behind these already.
                        note(Run(mine.batch, 0, mine.batch.count, sequence))
                    self._performer.apply(queue, EnqueueUnder(mine.batch, sequence), now_ms)
                else:
                    if repeated:
                        queue.repeated(mine.batch.count)
                    self._performer.apply(queue, commands.Enqueue(mine.batch), now_ms)


def _rewritten_bytes(part: SettledPart, run: Run) -> int:
    """Upper bound of the bytes that an outcome writes again, with its texts; 0 for none."""
    if not part.queue.view.needs_bytes(run, part.outcome):
        return 0
    outcome = part.outcome
    texts = 4 * (len(part.queue.name) + len(outcome.condition) + len(outcome.description))
    return run.size + run.count * (NOTE_BYTES + texts + len(outcome.annotations or b""))


def _most_bytes(part: SettledPart, loaded: "Loaded | None") -> int:
    """Upper bound of the bytes of the records that an outcome needs."""
    if part.outcome.kind is OutcomeKind.ACCEPTED:
        return RECORD_BYTES + 16 * len(part.runs)
    size = 0
    for run in part.runs:
        pieces = loaded.of(part.queue, run) if loaded is not None and run.batch.data is None else None
        # An annotated message, its attempts, its dead letter, and the settlement of the dead letter.
        size += sum(4 * RECORD_BYTES + _rewritten_bytes(part, piece) for piece in pieces or [run])
    # Returned messages may displace as many others from a queue with bounds.
    return 2 * size if part.queue.view.policy.guarded else size
