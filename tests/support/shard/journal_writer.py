"""Writes to a journal by a script, and knows which states a recovery may show.

After every record the whole state is remembered. Recovery must show exactly one of those from the last
synced one to the last appended one: no less, nothing twice, nothing damaged, groups whole.
"""

import random
from collections.abc import Sequence
from typing import Any

from lightrail.journal.record import (
    CONTINUED,
    REWRITTEN,
    SPILLED,
    Delivered,
    Epoch,
    Outcome,
    Queue,
    QueueEvent,
    Settle,
)
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.store import Recovered, Store, StoreFullError
from lightrail.shard.queue.values.runs import Batch, batch_of
from tests.support.shard.fake_files import FakeFiles

Op = tuple[Any, ...]
State = tuple[Any, ...]
"""(queues: name, policy, next sequence, messages: (sequence, bytes, attempts); producers; epoch)"""


class Message:
    __slots__ = ("attempts", "data", "location", "spilled")

    def __init__(self, data: bytes, spilled: bool) -> None:
        self.data = data
        self.attempts = 0
        self.spilled = spilled
        self.location: Any = None


class Writer:
    """Applies ops to a store and to a plain model of it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.queues: dict[int, list[Any]] = {}
        self.messages: dict[int, dict[int, Message]] = {}
        self.producers: dict[int, int] = {}
        self.epoch = 0
        self.now_ms = 1_000
        self.states: list[State] = [self.state()]
        self.synced = 0
        self._group = 0

    # --- the model -------------------------------------------------------------------------------------

    def state(self) -> State:
        return (
            tuple(
                (
                    queue,
                    *entry,
                    tuple(
                        (sequence, message.data, message.attempts)
                        for sequence, message in sorted(self.messages[queue].items())
                        if not message.spilled
                    ),
                )
                for queue, entry in sorted(self.queues.items())
            ),
            tuple(sorted(self.producers.items())),
            self.epoch,
        )

    def _recorded(self) -> None:
        """A record, or a whole group, was appended."""
        self.states.append(self.state())

    def allowed(self) -> list[State]:
        return self.states[self.synced :]

    def adopt(self, recovered: Recovered, store: Store) -> State:
        """Goes on from what a recovery showed."""
        state = shown(recovered, store)
        self.producers, self.epoch = dict(state[1]), state[2]
        for queue, name, policy, next_sequence, messages in state[0]:
            self.queues[queue] = [name, policy, next_sequence]
            self.messages[queue] = {}
            for sequence, data, attempts in messages:
                message = self.messages[queue][sequence] = Message(data, False)
                message.attempts = attempts
        for found in recovered.queues:
            for run in found.runs:
                for sequence in range(run.sequence, run.end):
                    self.messages[found.queue][sequence].location = run.batch.location
        self.states = [self.state()]
        return state

    # --- ops -------------------------------------------------------------------------------------------

    def run(self, ops: Sequence[Op]) -> None:
        for op in ops:
            self.now_ms += 1
            getattr(self, op[0])(*op[1:])

    def declare(self, queue: int, policy: str = "{}") -> None:
        if queue in self.queues:
            self.store.append(Queue(QueueEvent.POLICY, queue, f"q{queue}", policy), self.now_ms)
            self.queues[queue][1] = policy
        else:
            self.store.append(Queue(QueueEvent.DECLARED, queue, f"q{queue}", policy), self.now_ms)
            self.queues[queue] = [f"q{queue}", policy, 0]
            self.messages[queue] = {}
        self._recorded()

    def delete(self, queue: int) -> None:
        if queue in self.queues:
            self.store.append(Queue(QueueEvent.DELETED, queue, f"q{queue}"), self.now_ms)
            self._release(queue, list(self.messages[queue]))
            del self.queues[queue], self.messages[queue]
            self._recorded()

    def take_epoch(self, epoch: int) -> None:
        self.store.append(Epoch(epoch), self.now_ms)
        self.epoch = epoch
        self._recorded()

    def send(self, queue: int, count: int, size: int, spilled: bool = False, flags: int = 0) -> None:
        """`count` new messages of about `size` bytes, as a slice of a larger batch.

        Spilled ones are those of a captured queue: they name their producer, whose number is not remembered.
        """
        if queue not in self.queues:
            self.declare(queue)
        first = self.queues[queue][2]
        bodies = [self._body(queue, first + index, 0, size) for index in range(count)]
        batch = batch_of([b"before", *bodies, b"after"], durable=not spilled, enqueued_at_ms=self.now_ms)
        producer = queue + 7
        number = self.producers.get(producer, 0) + 1
        record = Append([(queue, first)], producer, number, batch, 1, count + 1, 0, flags)
        if spilled:
            record.flags |= SPILLED
        location = self.store.append(record, self.now_ms)
        if not spilled:
            self.producers[producer] = number
        self.queues[queue][2] = first + count
        for index, body in enumerate(bodies):
            message = self.messages[queue][first + index] = Message(body, spilled)
            message.location = location
        if not flags & CONTINUED:
            self._recorded()

    def settle(self, queue: int, start: int, count: int, outcome: int = 0) -> None:
        """Some of the messages that are there, from the `start`-th on."""
        there = sorted(self.messages.get(queue, {}))
        if not there:
            return
        start %= len(there)
        chosen = there[start : start + count]
        attempts = 1 + max(self.messages[queue][sequence].attempts for sequence in chosen)
        self.store.append(Settle(queue, ranges(chosen), outcome, "why", attempts), self.now_ms)
        if outcome in (Outcome.MODIFIED, Outcome.RELEASED):
            for sequence in chosen:
                self.messages[queue][sequence].attempts = attempts
        else:
            self._release(queue, chosen)
            for sequence in chosen:
                del self.messages[queue][sequence]
        self._recorded()

    def deliver(self, queue: int, start: int, count: int) -> None:
        """Some of the messages that are there are given to a consumer, which recovery passes over."""
        there = sorted(self.messages.get(queue, {}))
        if there:
            start %= len(there)
            self.store.append(
                Delivered(queue, 7 << 32 | 1, ranges(there[start : start + count])), self.now_ms
            )
            self._recorded()

    def move(self, source: int, target: int, count: int) -> None:
        """A group: messages appear in one queue and vanish from another, both or neither."""
        there = sorted(self.messages.get(source, {}))[:count]
        if not there or source == target:
            return
        if target not in self.queues:
            self.declare(target)
        self.send(target, len(there), 20, flags=CONTINUED)
        self.store.append(Settle(source, ranges(there), Outcome.DEAD_LETTERED, "rejected"), self.now_ms)
        self._release(source, there)
        for sequence in there:
            del self.messages[source][sequence]
        self._recorded()

    def change(self, queue: int, at: int) -> None:
        """One message gets new bytes."""
        there = [
            sequence
            for sequence, message in sorted(self.messages.get(queue, {}).items())
            if not message.spilled
        ]
        if not there:
            return
        sequence = there[at % len(there)]
        message = self.messages[queue][sequence]
        data = self._body(queue, sequence, self.now_ms, len(message.data) + 3)
        batch = batch_of([data], durable=True, enqueued_at_ms=self.now_ms)
        location = self.store.append(
            Append([(queue, sequence)], 0, 0, batch, 0, 1, message.attempts, REWRITTEN), self.now_ms
        )
        self.store.release(message.location.segment, len(message.data))
        message.data, message.location = data, location
        self._recorded()

    def clean(self, force: bool = True) -> None:
        """The cleaner's step: what lives in the oldest segment is written again, then it goes."""
        oldest = self.store.oldest_to_clean()
        if oldest is None and force and isinstance(self.store, Journal):
            numbers = list(self.store._segments)
            oldest = numbers[0] if len(numbers) > 1 else None
        if oldest is None:
            return
        for queue, messages in self.messages.items():
            for run in self._runs(queue, oldest):
                first, last = run[0], run[-1] + 1
                some = messages[first]
                flags = REWRITTEN | (SPILLED if some.spilled else 0)
                pieces = self.store.read(some.location, queue, first, last)
                assert [piece.sequence for piece in pieces][:1] == [first]
                assert sum(piece.count for piece in pieces) == len(run)
                for piece in pieces:
                    assert piece.messages() == [
                        messages[sequence].data for sequence in range(piece.sequence, piece.end)
                    ]
                    location = self.store.append(
                        Append(
                            [(queue, piece.sequence)],
                            0,
                            0,
                            piece.batch,
                            piece.first,
                            piece.last,
                            some.attempts,
                            flags,
                        ),
                        self.now_ms,
                    )
                    self.store.release(oldest, piece.size)
                    for sequence in range(piece.sequence, piece.end):
                        messages[sequence].location = location
                    self._recorded()
        self.store.drop(oldest)

    def commit(self) -> None:
        if not self.store.pending:
            return
        upto = len(self.states) - 1
        commit = self.store.begin_commit()
        commit.perform()
        self.store.end_commit(commit)
        if commit.synced:
            self.synced = upto

    # --- helpers ---------------------------------------------------------------------------------------

    def _release(self, queue: int, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            message = self.messages[queue][sequence]
            self.store.release(message.location.segment, len(message.data))

    def _runs(self, queue: int, segment: int) -> list[list[int]]:
        """Sequences with the same location and attempts in that segment, without gaps."""
        runs: list[list[int]] = []
        for sequence, message in sorted(self.messages[queue].items()):
            if message.location.segment != segment:
                continue
            if runs and runs[-1][-1] == sequence - 1:
                before = self.messages[queue][sequence - 1]
                if (before.location, before.attempts) == (message.location, message.attempts):
                    runs[-1].append(sequence)
                    continue
            runs.append([sequence])
        return runs

    @staticmethod
    def _body(queue: int, sequence: int, version: int, size: int) -> bytes:
        text = f"<{queue}/{sequence}/{version}>".encode()
        return text + bytes((sequence + index) & 0xFF for index in range(max(0, size - len(text))))


def ranges(sequences: Sequence[int]) -> list[tuple[int, int]]:
    """Half-open ranges of sorted numbers."""
    found: list[tuple[int, int]] = []
    for sequence in sequences:
        if found and found[-1][1] == sequence:
            found[-1] = (found[-1][0], sequence + 1)
        else:
            found.append((sequence, sequence + 1))
    return found


def shown(recovered: Recovered, store: Store) -> State:
    """What a recovery shows, with evicted messages read back; sequences must rise."""
    queues = []
    for queue in sorted(recovered.queues, key=lambda queue: queue.queue):
        messages = []
        at = -1
        for run in queue.runs:
            assert run.sequence > at
            at = run.end - 1
            pieces = [run]
            if run.batch.evicted:
                assert run.batch.location is not None
                pieces = store.read(run.batch.location, queue.queue, run.sequence, run.end)
                assert pieces[0].sequence == run.sequence
                assert pieces[-1].end == run.end
                assert sum(piece.count for piece in pieces) == run.count
            for piece in pieces:
                for index, data in enumerate(piece.messages()):
                    messages.append((piece.sequence + index, data, run.attempts))
        queues.append((queue.queue, queue.name, queue.policy, queue.next_sequence, tuple(messages)))
    return tuple(queues), tuple(sorted(recovered.producers.items())), recovered.epoch


def script(seed: int, length: int) -> list[Op]:
    """Ops by chance, but always the same ones."""
    chance = random.Random(seed)
    ops: list[Op] = [("declare", 1), ("declare", 2)]
    for _ in range(length):
        queue = chance.randint(1, 3)
        ops.append(
            chance.choice(
                [
                    ("send", queue, chance.randint(1, 5), chance.choice((0, 10, 60))),
                    ("send", queue, chance.randint(1, 5), chance.choice((0, 10, 60))),
                    ("send", queue, chance.randint(1, 3), 20, True),
                    ("deliver", queue, 0, chance.randint(1, 6)),
                    ("settle", queue, 0, chance.randint(1, 6)),
                    ("settle", queue, 0, chance.randint(1, 6)),
                    ("settle", queue, chance.randint(0, 9), chance.randint(1, 3)),
                    ("settle", queue, chance.randint(0, 9), chance.randint(1, 3), Outcome.MODIFIED),
                    ("move", queue, 3, chance.randint(1, 3)),
                    ("change", queue, chance.randint(0, 9)),
                    ("clean",),
                    ("commit",),
                    ("commit",),
                    ("commit",),
                    ("take_epoch", chance.randint(1, 99)),
                    ("declare", queue, f'{{"n":{chance.randint(0, 9)}}}'),
                    ("delete", 3),
                ]
            )
        )
    return ops


def open_journal(
    files: FakeFiles, memory_bytes: int = 1 << 30, segment_bytes: int = 700
) -> tuple[Journal, Recovered]:
    """A journal on a fake disk, recovered."""
    journal = Journal(files, "test", 0, segment_bytes=segment_bytes)
    return journal, journal.recover(memory_bytes, 1)


__all__ = ["Batch", "StoreFullError", "Writer", "open_journal", "ranges", "script", "shown"]
