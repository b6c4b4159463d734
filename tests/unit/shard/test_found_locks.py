"""FoundLocks: the locks that entries of a file give, by ranges."""

import random

from lightrail.model.links import LockEnding
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.timed.lock_changes import Freed, KeyedLock
from lightrail.shard.queue.values.commands import ConsumerOptions
from lightrail.shard.queues.kept_locks import FoundLocks, LockEntries


def keyed(id: int) -> Consumer:
    options = ConsumerOptions(lock_key=f"k{id}", lock_ends=LockEnding.BY_TIME)
    return Consumer(id, options, None, lock_ms=60_000)


def test_the_last_entry_of_each_message_counts_whatever_the_ranges() -> None:
    dice = random.Random(7)
    consumers = [keyed(id) for id in range(3)]
    for _ in range(200):
        entries, expected = LockEntries(), dict[int, tuple[str, int, int]]()
        number = 0
        for until_ms in range(1, 20):
            first, count = dice.randrange(30), dice.randrange(1, 12)
            if dice.random() < 0.3:
                entries.add(1, Freed(first, count))
                for each in range(first, first + count):
                    expected.pop(each, None)
                continue
            consumer = dice.choice(consumers)
            entries.add(1, KeyedLock(consumer, number, first, count, 0, until_ms, False))
            for each in range(count):
                expected[first + each] = (consumer.options.lock_key, number + each, until_ms)
            number += count
        found = FoundLocks()
        found.apply(entries.take())
        locks = found.after(0).get(1, [])
        assert [each.sequence for each in locks] == sorted(each.sequence for each in locks)
        assert {
            each.sequence + at: (each.key.key, each.number + at, each.until_ms)
            for each in locks
            for at in range(each.length)
        } == expected


def test_very_many_locks_of_one_entry_are_one_object() -> None:
    entries = LockEntries()
    entries.add(1, KeyedLock(keyed(1), 0, 0, 1 << 31, 0, 9_000, False))
    entries.add(1, Freed(1 << 30, 1))
    found = FoundLocks()
    found.apply(entries.take())
    assert [(each.sequence, each.number, each.length) for each in found.after(8_000)[1]] == [
        (0, 0, 1 << 30),
        ((1 << 30) + 1, (1 << 30) + 1, (1 << 30) - 1),
    ]
    assert [each.left_ms for each in found.after(8_000)[1]] == [1_000, 1_000]
    assert [each.left_ms for each in found.after(9_000)[1]] == [0, 0]
