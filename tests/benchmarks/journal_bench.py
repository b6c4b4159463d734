"""What the journal costs: CPU per message to append and commit, to recover a million messages, and termini.

    python tests/benchmarks/journal_bench.py [--directory DIR] [--messages N] [--termini]

CPU time of the process, so that other load on the machine matters little; each figure is the median of five.
"""

import argparse
import contextlib
import gc
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from lightrail.journal.record import (
    Outcome,
    Queue,
    QueueEvent,
    ReceiverChange,
    ReceiverEvent,
    Settle,
    Terminus,
    TerminusEvent,
)
from lightrail.shard.engine.engine import Engine
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.queue.values.runs import Batch
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import ConsumerOpen

RUNS = 5
GROUPS = {1: (1, 20), 10: (20,), 100: (20,), 500: (10,)}
"""Records per commit, by messages per record."""


def wire_batch(count: int, size: int) -> Batch:
    """A batch as it comes from a frontend: one part, of which the ends and the messages are views."""
    ends = b"".join((size * number).to_bytes(4, "little") for number in range(1, count + 1))
    data = bytes(40) + ends + b"x" * (count * size)
    base = 40 + len(ends)
    return Batch(data, memoryview(data)[40:base].cast("I"), count, count * size, base, True, 4, None, 1)


@contextlib.contextmanager
def journal_in(directory: Path) -> Iterator[Journal]:
    """A fresh journal with one queue."""
    shutil.rmtree(directory, ignore_errors=True)
    journal = Journal(RealFiles(directory), "bench", 0)
    journal.recover(0, 1)
    journal.append(Queue(QueueEvent.DECLARED, 1, "queue"), 1)
    journal.flush()
    yield journal
    journal.close(1)


def append_and_commit(
    directory: Path, messages: int, count: int, group: int, settle: bool
) -> tuple[float, float]:
    """CPU microseconds per message: (append alone, all)."""
    with journal_in(directory) as journal:
        batch = wire_batch(count, 100)
        appending = 0.0
        started = time.process_time()
        for first in range(0, messages, count * group):
            before = time.process_time()
            for index in range(group):
                sequence = first + index * count
                journal.append(Append([(1, sequence)], 5, sequence // count + 1, batch, 0, count), 1)
                if settle:
                    journal.append(Settle(1, [(sequence, sequence + count)], Outcome.ACCEPTED), 1)
            appending += time.process_time() - before
            journal.flush()
        return appending / messages * 1e6, (time.process_time() - started) / messages * 1e6


def recovery(directory: Path, messages: int, count: int, memory_bytes: int) -> float:
    """CPU seconds to recover what append_and_commit left."""
    started = time.process_time()
    journal = Journal(RealFiles(directory), "bench", 0)
    recovered = journal.recover(memory_bytes, 1)
    spent = time.process_time() - started
    assert sum(run.count for run in recovered.queues[0].runs) == messages
    journal.close(1)
    return spent


def with_termini(directory: Path, links: int, tags: int) -> tuple[float, float]:
    """Leaves termini with one record of tags each.

    Returns:
        (wall seconds of the longest turn of the cleaner, bytes of the records).
    """
    with journal_in(directory) as journal:
        before = journal.current.end
        for link in range(links):
            digits = link.to_bytes(16, "little")
            stored = [b"%08d" % number for number in range(tags)]
            journal.append(Terminus(1, digits, TerminusEvent.BEGUN, 2, 60_000), 1)
            journal.append(Terminus(1, digits, TerminusEvent.STORED, 2, 60_000, stored), 1)
        journal.flush()
        written = journal.current.end - before
        journal.seal(1)
        journal.flush()
        longest = 0.0
        while len(journal.segments()) > 1:
            started = time.perf_counter()
            journal.drop(journal.segments()[0].number, 1)
            longest = max(longest, time.perf_counter() - started)
            journal.flush()
        return longest, written


def with_receivers(directory: Path, links: int, deliveries: int) -> float:
    """Leaves receivers with so many unsettled deliveries each; returns the bytes of their records."""
    with journal_in(directory) as journal:
        if links * deliveries:
            batch = wire_batch(100, 100)
            for first in range(0, links * deliveries, 100):
                journal.append(Append([(1, first)], 0, 0, batch, 0, 100), 1)
            journal.flush()
        before = journal.current.end
        for link in range(links):
            digits = link.to_bytes(16, "little")
            opening = ConsumerOpen(
                "queue", client_link=digits.hex(), suspended_ms=60_000, terminus=link + 1, durability=2
            )
            journal.append(ReceiverChange(1, digits, ReceiverEvent.BEGUN, 0, opening.encode()), 1)
            runs = [(0, link * deliveries, deliveries)]
            journal.append(ReceiverChange(1, digits, ReceiverEvent.DELIVERED, deliveries, b"", runs), 1)
        journal.flush()
        return journal.current.end - before


def restart(directory: Path) -> float:
    """CPU seconds from opening the journal to a shard that serves."""
    started = time.process_time()
    journal = Journal(RealFiles(directory), "bench", 0)
    recovered = journal.recover(1 << 30, 1)
    engine = Engine(
        shard=0,
        boot=1,
        store=journal,
        recovered=recovered,
        counts=ShardCounts(1 << 30),
        memory_mark=1 << 30,
        max_delivery_count=10,
        now_ms=1,
    )
    engine.step(1)
    spent = time.process_time() - started
    journal.close(1)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", default=None, help="on the disk to measure (default: a temporary one)")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--termini", action="store_true", help="measure termini alone")
    options = parser.parse_args()
    directory = Path(options.directory or tempfile.mkdtemp()) / "journal"
    if not options.termini:
        measure_messages(directory, options.messages)
    measure_termini(directory)
    print(f"largest resident size {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")
    shutil.rmtree(directory.parent if options.directory is None else directory)


def measure_messages(directory: Path, most: int) -> None:
    """Prints the figures of messages."""
    gc.disable()
    print("100-byte messages; us of CPU per message    append   append and commit")
    for count, groups in GROUPS.items():
        for group in groups:
            for settle in (False, True):
                messages = min(most, 5_000 * count) // (count * group) * count * group
                runs = [append_and_commit(directory, messages, count, group, settle) for _ in range(RUNS)]
                append, both = (statistics.median(column) for column in zip(*runs, strict=True))
                what = f"{count} per record, {group} records per commit" + (", settled" if settle else "")
                print(f"{what:44s} {append:7.3f} {both:7.3f}")
    print("recovery, s of CPU per million messages")
    for count in (100, 10, 1):
        messages = most // count * count
        append_and_commit(directory, messages, count, max(1, 2_000 // count), False)
        for memory_bytes in (1 << 40, 16 << 20):
            recoveries = [
                recovery(directory, messages, count, memory_bytes) for _ in range(3 if count == 1 else RUNS)
            ]
            what = f"{count} per record, " + (
                "all in memory" if memory_bytes > 1 << 30 else "16 MiB in memory"
            )
            print(f"{what:44s} {statistics.median(recoveries) / messages * 1e6:7.3f}")
    gc.enable()


def measure_termini(directory: Path) -> None:
    """Prints the figures of termini."""
    print("receivers: s of CPU of a restart; MB")
    for links, deliveries in ((0, 0), (1, 100_000), (10_000, 10)):
        written = with_receivers(directory, links, deliveries)
        median = statistics.median(restart(directory) for _ in range(RUNS))
        what = f"{links} links with {deliveries} deliveries each"
        print(f"{what:44s} {median:7.3f} {written / 1e6:7.1f}")
    print("termini: s of CPU of a restart; ms of the longest turn of the cleaner; MB")
    for links, tags in ((0, 0), (10_000, 0), (10_000, 10), (10_000, 100), (100, 10_000)):
        longest, written = with_termini(directory, links, tags)
        restarts = [restart(directory) for _ in range(RUNS)]
        what = f"{links} links with {tags} tags each"
        median = statistics.median(restarts)
        print(f"{what:44s} {median:7.3f} {longest * 1e3:7.1f} {written / 1e6:7.1f}")


if __name__ == "__main__":
    main()
