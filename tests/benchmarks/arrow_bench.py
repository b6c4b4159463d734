"""What reading a journal as Arrow record batches takes: messages per second and CPU microseconds per message.

    python tests/benchmarks/arrow_bench.py [--directory DIR] [--messages N]

Messages of about 200 bytes with header, properties and application properties, in records of 1, 10 and 200.
CPU time of one process, so that other load on the machine matters little; each figure is the median of three.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from lightrail.amqp.composite import write_composite
from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import Header, Properties
from lightrail.journal.archive import Incarnation
from lightrail.journal.index import read_index
from lightrail.journal.record import Queue, QueueEvent
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, decode_segment_header
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.queue.values.runs import batch_of
from lightrail.spark.columns import DECODED, SCHEMA, Decode
from lightrail.spark.decoding.rows import record_batches
from lightrail.spark.decoding.wanted import Part, Wanted

RUNS = 3
GROUPS = (1, 10, 200)
"""Messages per record."""


def message(number: int) -> bytes:
    """As a client of a business application sends it, 200 bytes."""
    properties = Properties()
    properties.message_id = f"order-{number:012d}"
    properties.subject = f"orders.{number % 7}"
    properties.content_type = "application/json"  # type: ignore[assignment]
    properties.creation_time = 1_700_000_000_000 + number
    data = b"".join(
        (
            write_composite(Header(durable=True, priority=4)),
            write_composite(properties),
            b"\x00\x53\x74" + encode({"region": "north", "attempt": number % 5}),
        )
    )
    body = b"x" * max(0, 200 - len(data) - 5)
    return b"".join((data, b"\x00\x53\x75\xa0", bytes((len(body),)), body))


class OpenFile:
    """The port of scan.py over a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")

    def read(self, offset: int, length: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(length)


def write(directory: Path, messages: int, group: int) -> list[tuple[Part, OpenFile]]:
    """A journal with so many messages, `group` in each record."""
    shutil.rmtree(directory, ignore_errors=True)
    journal = Journal(RealFiles(directory), "bench", 0)
    journal.recover(0, 1)
    journal.append(Queue(QueueEvent.DECLARED, 1, "orders", '{"capture": true}'), 1)
    for first in range(0, messages, group):
        batch = batch_of(
            [message(first + index) for index in range(group)], durable=True, enqueued_at_ms=1_700_000_000_000
        )
        journal.append(
            Append([(1, first)], 1 << 32 | 7, first + 1, batch, 0, group, 0, 0), 1_700_000_000_000 + first
        )
        if first // group % 100 == 0:
            journal.flush()
    journal.close(1)
    parts = []
    for path in sorted(directory.glob("*.segment")):
        file = OpenFile(path)
        header = decode_segment_header(file.read(0, SEGMENT_HEADER_SIZE))
        if header is not None:
            index, _ = read_index(header, file, path.stat().st_size)
            incarnation = Incarnation("bench", 0, "00")
            parts.append((Part(incarnation, header.segment, index.first_lsn, index.next_lsn, index), file))
    return parts


def measure(parts: list[tuple[Part, OpenFile]], messages: int, wanted: Wanted) -> float:
    """CPU seconds per message."""
    times = []
    for _ in range(RUNS):
        started = time.process_time()
        rows = sum(batch.num_rows for part, file in parts for batch in record_batches(part, file, wanted))
        times.append(time.process_time() - started)
        assert rows == messages, rows
    return statistics.median(times) / messages


def main() -> None:
    """Prints one line per way."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "arrow-bench")
    options.add_argument("--messages", type=int, default=400_000)
    given = options.parse_args()
    plain = tuple(name for name in SCHEMA.names if name not in DECODED | {"body"})
    ways = {
        "none": Wanted(columns=plain),
        "none, all columns": Wanted(),
        "properties": Wanted(decode=Decode.PROPERTIES),
        "all": Wanted(decode=Decode.ALL),
    }
    try:
        for group in GROUPS:
            parts = write(given.directory, given.messages, group)
            for name, wanted in ways.items():
                cost = measure(parts, given.messages, wanted)
                print(
                    f"{group:4d} messages per record, decode {name:20s} {1 / cost:12,.0f} messages/s "
                    f"{cost * 1e6:8.2f} us"
                )
    finally:
        shutil.rmtree(given.directory, ignore_errors=True)


if __name__ == "__main__":
    main()
