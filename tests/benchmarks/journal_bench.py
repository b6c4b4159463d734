"""What the journal costs: CPU per message to append and commit, and to recover a million messages.

    python tests/benchmarks/journal_bench.py [--directory DIR] [--messages N]

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

from lightrail.journal.record import Outcome, Queue, QueueEvent, Settle
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.queue.runs import Batch

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", default=None, help="on the disk to measure (default: a temporary one)")
    parser.add_argument("--messages", type=int, default=1_000_000)
    options = parser.parse_args()
    directory = Path(options.directory or tempfile.mkdtemp()) / "journal"
    gc.disable()
    print("100-byte messages; us of CPU per message    append   append and commit")
    for count, groups in GROUPS.items():
        for group in groups:
            for settle in (False, True):
                messages = min(options.messages, 5_000 * count) // (count * group) * count * group
                runs = [append_and_commit(directory, messages, count, group, settle) for _ in range(RUNS)]
                append, both = (statistics.median(column) for column in zip(*runs, strict=True))
                what = f"{count} per record, {group} records per commit" + (", settled" if settle else "")
                print(f"{what:44s} {append:7.3f} {both:7.3f}")
    print("recovery, s of CPU per million messages")
    for count in (100, 10, 1):
        messages = options.messages // count * count
        append_and_commit(directory, messages, count, max(1, 2_000 // count), False)
        for memory_bytes in (1 << 40, 16 << 20):
            recoveries = [
                recovery(directory, messages, count, memory_bytes) for _ in range(3 if count == 1 else RUNS)
            ]
            what = f"{count} per record, " + (
                "all in memory" if memory_bytes > 1 << 30 else "16 MiB in memory"
            )
            print(f"{what:44s} {statistics.median(recoveries) / messages * 1e6:7.3f}")
    print(f"largest resident size {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")
    shutil.rmtree(directory.parent if options.directory is None else directory)


if __name__ == "__main__":
    main()
