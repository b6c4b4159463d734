"""The real disk: gathered writes of any size and number, small files whole, one holder; a killed writer."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightrail.shard.journal.files import Buffer, RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.repair import repair
from lightrail.shard.journal.store import StoreRefusedError

WRITER = """
import sys
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.journal.record import Queue
from lightrail.shard.journal.record import Append
from lightrail.shard.queue.values.runs import batch_of

journal = Journal(RealFiles(sys.argv[1]), "c", 0, segment_bytes=64 * 1024)
recovered = journal.recover(1 << 30, 1)
sequence = recovered.queues[0].next_sequence if recovered.queues else 0
if not recovered.queues:
    journal.append(Queue(1, 1, "q"), 1)
while True:
    bodies = [b"%010d" % number + bytes(number % 700) for number in range(sequence, sequence + 7)]
    journal.append(Append([(1, sequence)], 3, sequence + 1, batch_of(bodies, durable=True), 0, 7), 1)
    journal.flush()
    sequence += 7
    print(sequence, flush=True)
"""


def test_space_that_is_passed_over_as_never_written_is_zero(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)
    file = files.create("sparse")
    size, written = 1 << 20, [(300_000, b"some"), (700_000, b"more")]
    file.allocate(size)
    for offset, data in written:
        file.write(offset, [data])
    for synced in (False, True):
        if synced:
            file.sync()
        ranges = file.written(0)
        seen = b"".join(file.read(start, end - start) for start, end in ranges)
        assert seen.replace(b"\0", b"") == b"somemore"
        ends = [0, *(each for range in ranges for each in range), size]
        assert ends == sorted(ends)
        passed_over = zip(ends[::2], ends[1::2], strict=True)
        assert not any(file.read(start, end - start).strip(b"\0") for start, end in passed_over)
    assert file.written(size) == []
    file.close()


def test_a_killed_writer_loses_nothing_that_it_reported(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    reported = 0
    for life in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for line in writer.stdout:
            reported = int(line)
            if reported > 1_500 * (life + 1):
                writer.send_signal(signal.SIGKILL)
                break
        reported = max([reported, *(int(line) for line in writer.stdout.read().split())])
        writer.stdout.close()
        assert writer.wait() == -signal.SIGKILL
    journal = Journal(RealFiles(directory), "c", 0, segment_bytes=64 * 1024)
    recovered = journal.recover(1 << 30, 1)
    [queue] = recovered.queues
    bodies = [body for run in queue.runs for body in run.messages()]
    assert len(bodies) >= reported
    assert bodies == [b"%010d" % number + bytes(number % 700) for number in range(len(bodies))]
    assert queue.next_sequence == len(bodies)
    journal.close()
    assert repair(directory).damages == []


def test_gathered_writes(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)
    file = files.create("a")
    pieces: list[Buffer] = [b"ab", memoryview(b"cdef"), bytearray(b"g"), memoryview(bytes(8)).cast("I")]
    pieces *= 2_500
    pieces += [os.urandom(300_000), b"end"]
    assert file.write(5, pieces) == 2_500 * 15 + 300_003
    assert file.size() == 5 + 2_500 * 15 + 300_003
    assert file.read(5, 1 << 20) == b"".join(pieces)
    assert file.write(0, [b"12345"]) == 5
    assert file.read(3, 4) == b"45ab"
    assert file.read(1 << 30, 4) == b""
    file.allocate(1 << 20)
    assert file.size() == 1 << 20
    file.truncate(7)
    file.sync()
    file.forget()
    assert file.read(0, 99) == b"12345ab"
    file.close()
    assert files.names() == ["a"]
    files.rename("a", "b")
    files.remove("b")
    files.sync()
    assert files.names() == []
    files.unlock()


def test_small_files_are_replaced_whole(tmp_path: Path) -> None:
    files = RealFiles(tmp_path / "made" / "here")
    assert files.load("x") is None
    files.replace("x", b"one")
    files.replace("x", b"two")
    assert files.load("x") == b"two"
    assert files.names() == ["x"]
    assert len({files.random() for _ in range(5)}) == 5
    assert files.lock()
    other = RealFiles(tmp_path / "made" / "here")
    assert not other.lock()
    files.unlock()
    assert other.lock()
    other.unlock()


def test_repair_wants_an_idle_journal(tmp_path: Path) -> None:
    with pytest.raises(StoreRefusedError, match="data/shard-0"):
        repair(tmp_path / "nothing")
    journal = Journal(RealFiles(tmp_path), "c", 0, segment_bytes=64 * 1024)
    journal.recover(0, 1)
    with pytest.raises(StoreRefusedError, match="in use"):
        repair(tmp_path)
    journal.close()
