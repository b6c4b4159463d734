"""A standby has after each record what a recovery restores, and a take-over with it is one without it."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from lightrail.journal.record import (
    CONTINUED,
    Ids,
    Numbers,
    ReceiverChange,
    ReceiverEvent,
    Seal,
    Taken,
    Terminus,
    TerminusEvent,
    TransactionState,
    TransactionStep,
)
from lightrail.shard.journal import recovery
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.live import LiveSpans
from lightrail.shard.journal.record import SmallRecord
from lightrail.shard.journal.replay import Replay
from lightrail.shard.journal.segment import numbers
from lightrail.shard.journal.standby import Standby
from lightrail.shard.replicas.lineage import OwnedSegment
from tests.support.shard.fake_files import FakeFiles, Inode
from tests.support.shard.journal_writer import Op, Writer, script, shown
from tests.support.shard.mirrored import SALT, SEGMENT_BYTES, fetch, image, opened, segments

PRODUCERS_MAX = 3


def small_records(chance: random.Random) -> Iterator[SmallRecord]:
    """Records of all kinds that no queue's messages are in."""
    queue, link = chance.randint(1, 2), bytes([chance.randint(0, 2)] * 16)
    tags = [b"%d" % chance.randint(0, 9) for _ in range(chance.randint(0, 3))]
    runs = [(chance.randint(0, 9), chance.randint(0, 9), chance.randint(1, 3))]
    yield Ids(queue, 5_000, bytes(chance.randint(0, 3) * 16))
    yield Taken(queue + 7, chance.randint(1, 9), chance.randint(1, 9))
    yield Numbers(queue, chance.randint(0, 9), [(chance.randint(0, 9), chance.randint(0, 9), 0)])
    yield Terminus(queue, link, chance.choice([*TerminusEvent]), 2, 60_000, tags, 0, "user")
    yield Terminus(queue, link, TerminusEvent.STORED, 2, 60_000, tags, 0, "user")
    yield ReceiverChange(queue, link, ReceiverEvent.BEGUN, 0, b"opening")
    yield ReceiverChange(queue, link, chance.choice([*ReceiverEvent]), 20, b"opening", runs)
    yield TransactionStep(
        link, chance.choice([*TransactionState]), chance.randint(0, 3), "detail", bytes(chance.randint(0, 9))
    )
    yield Seal(chance.randint(1, 9))


class Members:
    """An owner, whose journal grows, and a member that gets its records one by one."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.owner_files, self.files = FakeFiles(), FakeFiles()
        self.owner = Journal(
            self.owner_files, "test", 0, segment_bytes=SEGMENT_BYTES, producers_max=PRODUCERS_MAX
        )
        self.owner.recover(1 << 30, 1, 1)
        self.writer = Writer(self.owner)
        self.mirror = opened(self.files)

    def run(self, op: Op) -> None:
        """An op of the owner, at times with records of other kinds in one group with what follows."""
        for record in small_records(self.chance):
            if self.chance.random() < 0.1 and getattr(record, "queue", 1) in self.writer.queues:
                record.flags |= CONTINUED * (self.chance.random() < 0.3)
                self.owner.append(record, self.writer.now_ms)
        if self.chance.random() < 0.05:
            captured = self.chance.choice(('{"capture":true}', "{}"))
            self.writer.run([("declare", self.chance.randint(1, 2), captured)])
        self.writer.run([op])
        self.owner.append(Taken(1, 1, 1), self.writer.now_ms)  # Ends a group.
        self.owner.flush()

    def records(self) -> Iterator[int]:
        """Writes what the owner has and the member has not; the number of each record, when it is there."""
        last = self.owner.position.lsn
        found = self.owner.segments()
        lineage = [
            OwnedSegment(each.number, each.index.first_lsn, each.epoch, each.end, following)
            for each, following in zip(
                found, [*(each.index.first_lsn for each in found[1:]), last + 1], strict=True
            )
        ][::-1]
        data = segments(self.owner_files, lineage)
        while self.mirror.next_lsn <= last:
            fetch(self.mirror, data, lineage, 1)
            yield self.mirror.synced_lsn
        if (oldest := min(number for number in numbers(self.owner_files))) > numbers(self.files)[0]:
            self.mirror.drop(oldest)
            yield self.mirror.synced_lsn


def copy_of(files: FakeFiles) -> FakeFiles:
    fresh = FakeFiles()
    for name, inode in files.inodes.items():
        fresh.inodes[name] = fresh._durable[name] = Inode(bytes(inode.live))
    return fresh


def messages(live: LiveSpans) -> dict[int, Any]:
    return {
        sequence: (span.segment, span.attempts, span.attributes)
        for span in live.spans()
        for sequence in range(span.first, span.last)
    }


def restored(replay: Replay) -> dict[str, Any]:
    """Everything that was restored."""
    tables = replay.tables
    queues = sorted(tables.queues)
    # A recovery cuts the records of an open group.
    last = replay.group_start.segment.number if replay.group_start else replay.segments[-1].number
    whole = [each for each in replay.segments if each.number <= last]
    return {
        "queues": [
            (each.queue, each.name, each.policy, each.next_sequence) for each in tables.queues.values()
        ],
        "captured": tables.captured,
        "producers": [*tables.producers.items()],
        "parts": tables.parts,
        "ids": [
            [vars_of(group) for group in tables.ids[queue].groups] for queue in queues if queue in tables.ids
        ],
        "transactions": [*tables.transactions.items()],
        "termini": [sorted(tables.termini.of(queue)) for queue in queues],
        "receivers": [sorted(tables.receivers.of(queue)) for queue in queues],
        "kept": sorted([*tables.termini.live, *tables.receivers.live]),
        "epoch": (tables.epoch, tables.sealed),
        "messages": {queue: messages(live) for queue, live in replay.live.items()},
        "lost": replay.lost,
        "segments": [
            (each.number, each.epoch, each.append_bytes, each.appended, each.captured, each.index.first_lsn)
            for each in whole
        ],
        "indexes": [each.index for each in whole[:-1]],
    }


def vars_of(each: Any) -> tuple[Any, ...]:
    return tuple(getattr(each, name) for name in type(each).__slots__)


@pytest.mark.parametrize("seed", range(6))
def test_after_each_record_a_standby_has_what_a_recovery_restores(seed: int) -> None:
    members = Members(seed)
    each = Standby(members.files, SALT, PRODUCERS_MAX)
    others = [Standby(members.files, SALT, PRODUCERS_MAX) for _ in range(2)]
    dropped = 0
    for op in script(seed, 60):
        members.run(op)
        for lsn in members.records():
            recovered = recovery.replay(copy_of(members.files), SALT, PRODUCERS_MAX, epoch=2)
            for standby in [each, *(other for other in others if members.chance.random() < 0.1)]:
                while standby.replay(lsn, members.chance.randint(1, 9)):
                    pass
                assert standby.lsn == lsn
                state = standby._replay
                # As a take-over does.
                state.forget_before(numbers(members.files)[0])
                assert (state.group_start.lsn - 1 if state.group_start else lsn) == recovered.lsn
                assert restored(state) == restored(recovered)
        dropped = numbers(members.files)[0]
    assert dropped > 2


def opened_after(
    files: FakeFiles, standby: Standby | None, memory_bytes: int = 1 << 30
) -> tuple[object, ...]:
    """Everything that a take-over restores, and the directory that it leaves."""
    journal = Journal(files, "test", 0, segment_bytes=SEGMENT_BYTES, producers_max=PRODUCERS_MAX)
    recovered = journal.recover(memory_bytes, 2_000, 2, standby)
    state = shown(recovered, journal)
    kept = [(each.queue, each.ids, sorted(each.termini), sorted(each.receivers)) for each in recovered.queues]
    found = [
        (each.number, each.index, each.epoch, each.capacity, each.live, each.appended, each.append_bytes)
        for each in journal.segments()
    ]
    tables = (recovered.producers, recovered.parts, recovered.transactions, recovered.sealed, recovered.lsn)
    journal.close(2_000)
    return state, kept, tables, recovered.cut_bytes, found, image(files)


@pytest.mark.parametrize("seed", range(6))
def test_a_take_over_with_a_standby_is_one_without(seed: int) -> None:
    members = Members(seed + 100)
    ends: list[int] = []
    reached: list[int] = []
    slow = Standby(members.files, SALT, PRODUCERS_MAX)
    made = Standby(members.files, SALT, PRODUCERS_MAX)
    for op in script(seed + 100, 60):
        members.run(op)
        for lsn in members.records():
            ends.append(lsn)
            if members.chance.random() < 0.2:
                files = copy_of(members.files)
                # Where the standby is: anywhere before, up to the end.
                standby = Standby(files, SALT, PRODUCERS_MAX)
                to = members.chance.choice(ends)
                while standby.replay(to):
                    pass
                reached.append(standby.lsn)
                slow.replay(to, members.chance.randint(1, 20))
                made.replay(to, members.chance.randint(1, 90))
                made.make(members.chance.randint(1, 3))
                assert opened_after(files, standby) == opened_after(copy_of(members.files), None)
                assert standby.lsn == 0
    assert slow.lsn < ends[-1]
    assert opened_after(copy_of(members.files), slow) == opened_after(copy_of(members.files), None)
    assert opened_after(copy_of(members.files), made, 0) == opened_after(copy_of(members.files), None, 0)
    assert len(reached) > 20
    assert max(reached) > 100
