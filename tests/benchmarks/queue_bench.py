"""Benchmark of the queue machine: CPU per message on the common path, and memory of large backlogs.

    python tests/benchmarks/queue_bench.py [--backlog 1000000] [--evicted 10000000]

CPU is process time, the median of several rounds; memory is the growth of the resident set.
"""

import argparse
import gc
import statistics
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import Attach, ConsumerOptions, Credit, Enqueue, Settle
from lightrail.shard.queue.values.effects import Deliver, Stored
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Batch, Location, batch_of

MESSAGE_BYTES = 108
SEGMENT_BYTES = 64 * 1024 * 1024
ROUNDS = 7


def resident_bytes() -> int:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def batch(count: int, *, durable: bool = False) -> Batch:
    """A batch as it comes from a frontend: one frame of its own, with the ends as a column of it."""
    ends = array("I", range(MESSAGE_BYTES, MESSAGE_BYTES * (count + 1), MESSAGE_BYTES)).tobytes()
    frame = memoryview(b"h" * 40 + ends + b"m" * (MESSAGE_BYTES * count)).toreadonly()
    column = frame[40 : 40 + 4 * count].cast("I")
    return Batch(frame, column, count, MESSAGE_BYTES * count, 40 + 4 * count, durable)


def cycle_us(count: int, consumers: int, messages: int) -> float:
    """CPU microseconds per message of enqueue, dispatch and settle in batches of `count`."""
    machine = Machine("bench")
    for identity in range(consumers):
        machine.apply(Attach(identity), 0)
    limits = [0] * consumers
    batches = [batch(count) for _ in range(messages // count)]
    start = time.process_time()
    for identity in range(consumers):
        limits[identity] = 500
        machine.apply(Credit(identity, 500), 0)
    for each in batches:
        machine.apply(Enqueue(each), 0)
        for effect in machine.dispatch(0):
            if type(effect) is Deliver:
                identity, first, run = effect
                last = first + run.last - run.first
                machine.apply(Settle(identity, first, last), 0)
                if limits[identity] - last < 250:
                    limits[identity] = last + 500
                    machine.apply(Credit(identity, last + 500), 0)
    used = time.process_time() - start
    assert machine.contents.counters.accepted == len(batches) * count
    return used / (len(batches) * count) * 1e6


def order_us(policy: Policy, options: ConsumerOptions, messages: int, backlog: int = 0) -> float:
    """CPU microseconds per message of a queue with a policy: enqueue, deliver and accept batches of 100.

    Every message has a key, a group and no delay, found by looking at two bytes of it: what the real look
    costs (1 to 2 us) comes on top. The backlog is there before, of keys that come last.
    """
    count = 100
    machine = Machine("bench", policy, look=look)
    for _ in range(backlog // count):
        machine.apply(Enqueue(keyed(count, 255, 0)), 0)
    machine.apply(Attach(1, options), 0)
    batches = [keyed(count, index % 251, index % 10) for index in range(messages // count)]
    accepted = 0
    machine.apply(Credit(1, 1), 0)
    while options.selects is not None and machine.contents.ready.count:
        # The selector has seen the backlog before.
        machine.dispatch(0)
        if machine.next_deadline_ms is None:
            break
    start = time.process_time()
    for each in batches:
        machine.apply(Credit(1, accepted + count), 0)
        machine.apply(Enqueue(each), 0)
        for effect in machine.dispatch(0):
            if type(effect) is Deliver:
                _, first, run = effect
                accepted = first + run.last - run.first
                machine.apply(Settle(1, first, accepted), 0)
    used = time.process_time() - start
    counters = machine.contents.counters
    assert counters.accepted + counters.replaced >= messages, counters
    return used / messages * 1e6


def keyed(count: int, key: int, priority: int) -> Batch:
    """A batch whose messages begin with a key that rises from `key`."""
    batch = batch_of(
        [bytes(((key + index) % 251 if key < 255 else 255, index)) + b"m" * 106 for index in range(count)]
    )
    batch.priority = priority
    return batch


def look(path: str) -> Callable[[bytes], Any]:
    """A message's key, group or delay: its first byte, or none."""
    if path.startswith("message-annotations"):
        return lambda message: None
    return lambda message: message[0]


def orders() -> None:
    """One row per order."""
    rows = {
        "plain": (Policy(), ConsumerOptions(), 0),
        "priorities": (Policy(priorities=10), ConsumerOptions(), 0),
        "priorities, 100,000 waiting": (Policy(priorities=10), ConsumerOptions(), 100_000),
        "last_value": (Policy(order="last_value", order_key="key"), ConsumerOptions(), 0),
        "sorted": (Policy(order="sorted", order_key="key"), ConsumerOptions(), 0),
        "sorted, 100,000 waiting": (Policy(order="sorted", order_key="key"), ConsumerOptions(), 100_000),
        "groups": (Policy(groups=True), ConsumerOptions(), 0),
        "delay": (Policy(delay=True), ConsumerOptions(), 0),
        "selector that matches all": (Policy(), ConsumerOptions(selects=lambda message: True), 0),
        "selector that matches, 100,000 that don't": (
            Policy(),
            ConsumerOptions(selects=lambda message: message[0] != 255),
            100_000,
        ),
    }
    print("orders, batches of 100 enqueued, delivered and accepted:")
    for name, (policy, options, waiting) in rows.items():
        rounds = [order_us(policy, options, 20_000, waiting) for _ in range(ROUNDS)]
        print(f"  {name:42} {statistics.median(rounds):7.3f} us per message")


def backlog(messages: int) -> float:
    """Bytes of memory per byte of payload of a backlog that came ten messages at a time."""
    gc.collect()
    before = resident_bytes()
    machine = Machine("backlog")
    for _ in range(messages // 10):
        machine.apply(Enqueue(batch(10)), 0)
        machine.dispatch(0)
    gc.collect()
    after = resident_bytes()
    runs = len(machine.contents.ready)
    print(f"  {messages:,} messages in {runs:,} runs, {(after - before) / messages:.1f} bytes per message")
    return (after - before) / (messages * MESSAGE_BYTES)


def evicted(messages: int, mark: int) -> None:
    """Objects and memory that an evicted backlog costs."""
    gc.collect()
    before = resident_bytes()
    machine = Machine("evicted")
    start = time.process_time()
    offset = 0
    peak = 0
    for index in range(messages // 10):
        each = batch(10, durable=True)
        (effect,) = machine.apply(Enqueue(each), 0)
        assert isinstance(effect, Stored)
        length = each.size + 96
        if offset % SEGMENT_BYTES + length > SEGMENT_BYTES:
            offset += SEGMENT_BYTES - offset % SEGMENT_BYTES
        each.location = Location(offset // SEGMENT_BYTES, offset % SEGMENT_BYTES, length)
        offset += length
        machine.dispatch(0)
        if machine.footprint.sizes()[0] > mark:
            machine.footprint.evict(mark // 8)
        if not index % 10_000:
            peak = max(peak, resident_bytes() - before)
    used = time.process_time() - start
    machine.footprint.evict(1 << 62)
    gc.collect()
    print(
        f"  {messages:,} messages in {len(machine.contents.ready):,} runs,"
        f" {machine.contents.ready.evicted_runs:,} of them evicted,"
        f" resident payload {machine.footprint.sizes()[0] / 1e6:.1f} MB,"
        f" process grew by {(resident_bytes() - before) / 1e6:.1f} MB (peak {peak / 1e6:.0f} MB at a mark of"
        f" {mark / 1e6:.0f} MB), {used / messages * 1e6:.2f} us per message"
    )


def main() -> None:
    """Prints all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backlog", type=int, default=1_000_000)
    parser.add_argument("--evicted", type=int, default=10_000_000)
    parser.add_argument("--messages", type=int, default=100_000)
    arguments = parser.parse_args()
    for consumers in (1, 50):
        for count in (1, 10, 100):
            messages = arguments.messages // (1 if count > 1 else 5)
            rounds = [cycle_us(count, consumers, messages) for _ in range(ROUNDS)]
            print(
                f"{consumers:3} consumers, batches of {count:3}: {statistics.median(rounds):7.3f} us"
                " per message"
                f" ({min(rounds):.3f} to {max(rounds):.3f})"
            )
    orders()
    print("a backlog in batches of 10:")
    print(f"  {backlog(arguments.backlog):.3f} x its payload")
    print("an evicted backlog in batches of 10:")
    evicted(arguments.evicted, 64_000_000)


if __name__ == "__main__":
    main()
