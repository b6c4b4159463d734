"""How fast `lightrail-spark capture` brings journals into a Delta table: by `make bench`, or by itself:

    python -m tests.benchmarks.lakes [--messages N] [--decode none|properties|all] [--directory DIR]

Messages of 200 bytes, 20 in a record, each enqueued, delivered and accepted: three rows. The time is that of
the stream, without the start of Spark; the table is verified afterwards.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from lightrail.journal.record import Delivered
from lightrail.model.limits import SEGMENT_BYTES
from tests.benchmarks.arrow_bench import message
from tests.benchmarks.load import LoadError
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.support.spark.archives import JournalOf

MESSAGES = 1_000_000
GROUP = 20
CONSUMER = 5 << 32 | 1
CORES = 2
TIME_MAX_S = 900.0
_ID = b"order-000000000000"
_NOISE_BYTES = 16 * 1024 * 1024
"""Further back than a compressor looks."""
_COMMITTED_EVERY = 1_000


def write(root: Path, messages: int) -> Path:
    """An archive with one queue and so many messages; their bodies do not compress."""
    journal = JournalOf(root / "journal", segment_bytes=SEGMENT_BYTES)
    number = journal.declare("orders")
    random = Random(7)
    before, _, after = message(0).partition(_ID)
    head = after[: after.rindex(b"x" * 20)].rstrip(b"x")
    size = len(after) - len(head)
    noise = random.randbytes(_NOISE_BYTES)
    for start in range(0, messages, GROUP):
        batch = [
            b"%sorder-%012d%s%s" % (before, start + n, head, noise[at : at + size])
            for n in range(GROUP)
            for at in ((start + n) * size % (_NOISE_BYTES - size),)
        ]
        first = journal.send("orders", batch, 5 << 32 | 2, start // GROUP + 1)
        journal.append(Delivered(number, CONSUMER, [(first, first + GROUP)]))
        journal.settle("orders", first, first + GROUP)
        journal.now_ms += 1
        if start // GROUP % _COMMITTED_EVERY == 0:
            journal.commit()
    archive = root / "archive"
    journal.archive(archive)
    journal.close()
    return archive


def command(*words: str) -> list[str]:
    """lightrail-spark, by this interpreter."""
    return [sys.executable, "-m", "lightrail.spark.main", *words]


def run(root: Path, messages: int, decode: str) -> Figures:
    """One capture of a new archive into a new table."""
    archive, table = write(root, messages), root / "lake"
    words = ["capture", "--from", str(archive), "--to", str(table), "--available-now", "--json"]
    spark = ["--master", f"local[{CORES}]", "--conf", "spark.ui.enabled=false"]
    began = time.monotonic()
    done = subprocess.run(
        command(*words, "--decode", decode, *spark),
        stdout=subprocess.PIPE,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        timeout=TIME_MAX_S,
    )
    whole_s = time.monotonic() - began
    if done.returncode:
        raise LoadError(f"capture ended with status {done.returncode}")
    said = json.loads(done.stdout)
    if said["rows"] != 3 * messages:
        raise LoadError(f"expected {3 * messages} rows, found {said['rows']}")
    if subprocess.run(
        command("verify", str(table), "--from", str(archive)), stdout=subprocess.DEVNULL
    ).returncode:
        raise LoadError("the table is not complete")
    size = sum(path.stat().st_size for path in table.glob("queue_slug=*/**/*.parquet"))
    return {
        "messages_per_s": messages / said["seconds"],
        "seconds": said["seconds"],
        "seconds_with_start": whole_s,
        "table_bytes_per_message": size / messages,
    }


def measure(workplace: Workplace) -> Figures:
    """With properties decoded, as the command does it by itself."""
    return run(Path(workplace.scratch), MESSAGES, "properties")


def missing() -> str | None:
    """What this machine lacks."""
    return None if shutil.which("java") or os.environ.get("JAVA_HOME") else "Java"


ROWS = (
    Row(
        "capture-to-delta",
        f"Capture to Delta, end to end: {MESSAGES:,} messages of 200 bytes, three events each, {CORES} cores",
        (
            "lightrail-spark capture --from ARCHIVE --to TABLE --available-now --decode properties "
            f"--master local[{CORES}]",
            "lightrail-spark verify TABLE --from ARCHIVE",
        ),
        (Limit("messages_per_s", 60_000.0, "messages/s", at_least=True),),
        measure,
        missing,
    ),
)


def main() -> None:
    """Prints the figures of one run."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--directory", default=None, help="where to work; on a real disk")
    options.add_argument("--messages", type=int, default=MESSAGES)
    options.add_argument("--decode", choices=("none", "properties", "all"), default="properties")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as scratch:
        for name, figure in run(Path(scratch), given.messages, given.decode).items():
            print(f"{name:28} {figure:14,.1f}")


if __name__ == "__main__":
    main()
