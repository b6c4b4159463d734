"""lightrail.bench.usage: CPU time of this process and its children."""

import os
import subprocess
import sys

from lightrail.bench import usage


def test_this_process_has_spent_something_and_is_found_with_its_children() -> None:
    before = usage.tree((os.getpid(),))
    child = subprocess.Popen(
        [sys.executable, "-c", "import time\nwhile time.process_time() < 0.2: pass\nprint('done')\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"done\n"
    alive = usage.tree((os.getpid(),))
    assert child.pid in alive
    assert usage.between(before, alive).total_s >= 0.15
    child.communicate(b"\n")
    ended = usage.tree((os.getpid(),))
    assert child.pid not in ended
    assert usage.between(before, ended).total_s >= 0.15
    assert usage.resident_bytes((os.getpid(),)) > 1_000_000


def test_a_process_that_is_not_there_counts_nothing() -> None:
    assert usage.tree((999_999_999,)) == {}
    assert usage.read(999_999_999) is None
