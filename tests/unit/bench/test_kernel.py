"""lightrail.bench.kernel: context switches and system calls of processes, as the kernel counts them."""

import os
import subprocess
import sys
import threading
import time

import pytest

from lightrail.bench import kernel


def test_this_process_has_spent_something_and_is_found_with_its_children() -> None:
    before = kernel.tree((os.getpid(),))
    child = subprocess.Popen(
        [sys.executable, "-c", "import time\nwhile time.process_time() < 0.2: pass\nprint('done')\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"done\n"
    alive = kernel.tree((os.getpid(),))
    assert child.pid in alive
    assert kernel.between(before, alive).total_s >= 0.15
    child.communicate(b"\n")
    ended = kernel.tree((os.getpid(),))
    assert child.pid not in ended
    assert kernel.between(before, ended).total_s >= 0.15
    assert kernel.resident_bytes((os.getpid(),)) > 1_000_000


def test_a_process_that_is_not_there_counts_nothing() -> None:
    assert kernel.tree((999_999_999,)) == {}
    assert kernel.read(999_999_999) is None


def test_a_thread_that_waits_is_a_voluntary_switch() -> None:
    me = (os.getpid(),)
    before = kernel.switches(me)
    for _ in range(20):
        # Not for a state: nothing else surely gives the processor away each time.
        time.sleep(0.001)
    assert kernel.more(before, kernel.switches(me)) >= 20


def test_a_process_that_is_not_there_waits_for_nothing() -> None:
    assert kernel.switches((999_999_999,)) == {}


def test_each_system_call_counts_those_of_later_threads_included() -> None:
    try:
        counting = kernel.SystemCalls((os.getpid(),))
    except kernel.NotCountedError as refused:
        pytest.skip(str(refused))
    with counting:
        before = counting.count()
        for _ in range(1_000):
            os.getppid()
        middle = counting.count()
        assert 1_000 <= middle - before < 2_000
        later = threading.Thread(target=lambda: [os.getppid() for _ in range(1_000)])
        later.start()
        later.join()
        assert counting.count() - middle >= 1_000
