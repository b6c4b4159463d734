"""The tables of a snapshot: queues by number, producers' last batches, message-ids, the epoch."""

import json
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lightrail.journal.layout import DIGEST_BYTES
from lightrail.journal.record import (
    Ids,
    Numbers,
    Queue,
    QueueEntry,
    QueueEvent,
    Snapshot,
    Taken,
    TransactionState,
    TransactionStep,
)
from lightrail.model import limits
from lightrail.shard.journal.kept_links import KeptReceivers, KeptTermini

_CAPTURE: Final = re.compile(r'"capture":\s*true')
"""Also matches the field inside the policy."""


def is_captured(declared: str) -> bool:
    """Whether the queue of a Queue record with this text is captured."""
    if _CAPTURE.search(declared) is None:
        return False
    try:
        fields = json.loads(declared)
    except ValueError:
        return False
    return isinstance(fields, dict) and fields.get("capture") is True


@dataclass(slots=True, eq=False, repr=False)
class IdGroup:
    """Message-ids of one batch, and the last segment that has them."""

    until_ms: int
    digests: bytes
    segment: int

    @property
    def size(self) -> int:
        return len(self.digests)


@dataclass(slots=True, eq=False, repr=False)
class Groups:
    """The message-ids of one queue, the oldest first."""

    groups: deque[IdGroup] = field(default_factory=deque)
    size: int = 0
    """Bytes of digests."""

    def add(self, group: IdGroup) -> None:
        self.groups.append(group)
        self.size += group.size

    def forget(self, now_ms: int) -> list[IdGroup]:
        """Drops and returns groups whose window has ended, and the oldest if there are too many."""
        gone = []
        groups = self.groups
        while groups and (
            groups[0].until_ms <= now_ms or self.size > limits.DUPLICATE_IDS_MAX * DIGEST_BYTES
        ):
            self.size -= groups[0].size
            gone.append(groups.popleft())
        return gone

    def forget_before(self, segment: int) -> None:
        """Drops groups that are in lower segments."""
        self.groups = deque(group for group in self.groups if group.segment >= segment)
        self.size = sum(group.size for group in self.groups)


@dataclass(slots=True, eq=False, repr=False)
class Tables:
    """Tables that appending and replaying the same records must change in the same way."""

    producers_max: int
    queues: dict[int, QueueEntry] = field(default_factory=dict)
    captured: set[int] = field(default_factory=set)
    """Captured queues."""
    producers: dict[int, int] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict)
    """Number of messages stored from each partially accepted last batch, by producer id."""
    ids: dict[int, Groups] = field(default_factory=dict)
    """By queue: the message-ids inside its window of duplicates."""
    transactions: dict[bytes, tuple[TransactionStep, int]] = field(default_factory=dict)
    """Open transactions over several shards, by id, and the segment of the record."""
    termini: KeptTermini = field(default_factory=KeptTermini)
    receivers: KeptReceivers = field(default_factory=KeptReceivers)
    epoch: int = 0
    sealed: bool = False

    def check_declared(self, queue: int) -> None:
        """Raises ValueError if a queue is not in the tables."""
        if queue not in self.queues:
            raise ValueError(f"queue {queue} was not declared: append its Queue record first")

    def queue(self, record: Queue) -> None:
        """Applies a Queue record: a queue was declared or deleted, or has a new policy.

        Raises:
            KeyError: the record changes or deletes a queue that does not exist.
        """
        if record.event == QueueEvent.DELETED:
            del self.queues[record.queue]
            self.captured.discard(record.queue)
            self.ids.pop(record.queue, None)
            self.termini.forget(record.queue)
            self.receivers.forget(record.queue)
            return
        if record.event == QueueEvent.POLICY:
            entry = self.queues[record.queue]
            entry.name, entry.policy = record.name, record.policy
        else:
            self.queues[record.queue] = QueueEntry(record.queue, record.name, record.policy)
        if is_captured(record.policy):
            self.captured.add(record.queue)
        else:
            self.captured.discard(record.queue)

    def have_more_than(self, sequences: Mapping[int, int]) -> bool:
        """Whether one of these queues has received messages since it had the given next sequence."""
        queues = self.queues
        return any(
            queue in queues and queues[queue].next_sequence != sequence
            for queue, sequence in sequences.items()
        )

    def produced(self, producer: int, number: int) -> None:
        """Sets a producer's last batch; drops the least recently active producer if there are too many."""
        producers = self.producers
        producers.pop(producer, None)
        producers[producer] = number
        if self.parts:
            self.parts.pop(producer, None)
        if len(producers) > self.producers_max:
            silent = next(iter(producers))
            del producers[silent]
            self.parts.pop(silent, None)

    def take(self, record: Taken) -> None:
        """Notes that a producer's last batch was partially accepted."""
        if self.producers.get(record.producer) == record.number:
            self.parts[record.producer] = record.taken

    def learn(self, record: Numbers) -> list[tuple[int, int, int]]:
        """Adds the numbers of a queue that moved here; returns those that are newer than the known ones.

        Raises:
            KeyError: the queue does not exist.
        """
        entry = self.queues[record.queue]
        entry.next_sequence = max(entry.next_sequence, record.next_sequence)
        newer = [each for each in record.producers if each[1] >= self.producers.get(each[0], 0)]
        for producer, number, part in newer:
            self.produced(producer, number)
            if part and producer in self.producers:
                self.parts[producer] = part
        return newer

    @property
    def open_transactions(self) -> list[TransactionStep]:
        """The newest step of each open transaction."""
        return [record for record, _ in self.transactions.values()]

    def transact(self, record: TransactionStep, segment: int) -> tuple[int, int]:
        """Notes a step of a transaction; returns (segment, bytes) of its previous step, (-1, 0) for none."""
        before = self.transactions.pop(record.id, None)
        if record.state != TransactionState.ENDED:
            self.transactions[record.id] = (record, segment)
        return (-1, 0) if before is None else (before[1], before[0].size)

    def remember(self, record: Ids, segment: int, now_ms: int) -> list[IdGroup]:
        """Adds message-ids of a queue; returns older ones that are dropped now."""
        known = self.ids.get(record.queue)
        if known is None:
            known = self.ids[record.queue] = Groups()
        known.add(IdGroup(record.until_ms, record.digests, segment))
        return known.forget(now_ms)

    def ids_of(self, queue: int) -> list[tuple[int, bytes]]:
        """(end of the window, digests) of a queue's message-ids, the oldest first."""
        known = self.ids.get(queue)
        return [(group.until_ms, group.digests) for group in known.groups] if known is not None else []

    def forget_before(self, segment: int) -> None:
        """Forgets what only records in lower segments have: what is needed of them was written again.

        What a Snapshot has stays: each segment begins with one.
        """
        for known in self.ids.values():
            known.forget_before(segment)
        self.transactions = {id: each for id, each in self.transactions.items() if each[1] >= segment}
        self.termini.forget_before(segment)
        self.receivers.forget_before(segment)

    def snapshot(self) -> Snapshot:
        """The tables as a record; it refers to them, so encode it before they change.

        Message-ids, termini and receivers are not in it: like messages they stay in their segment until the
        cleaner moves them.
        """
        return Snapshot(self.epoch, list(self.queues.values()), self.producers, self.parts)

    def restore(self, snapshot: Snapshot) -> None:
        """Sets the tables to the contents of a snapshot."""
        self.epoch = snapshot.epoch
        self.queues = {entry.queue: entry for entry in snapshot.queues}
        self.captured = {entry.queue for entry in snapshot.queues if is_captured(entry.policy)}
        self.producers = snapshot.producers
        self.parts = snapshot.parts
        self.ids = {queue: known for queue, known in self.ids.items() if queue in self.queues}
        self.termini.keep_only(self.queues)
        self.receivers.keep_only(self.queues)
