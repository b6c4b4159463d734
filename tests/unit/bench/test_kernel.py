"""lightrail.bench.kernel: context switches and system calls of processes, as the kernel counts them."""

import os
import threading
import time

import pytest

from lightrail.bench import kernel


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
