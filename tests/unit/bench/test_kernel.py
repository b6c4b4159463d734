"""lightrail.bench.kernel: context switches and system calls of processes, as the kernel counts them."""

import os
import threading

import pytest

from lightrail.bench import kernel


def test_a_thread_that_waits_is_a_voluntary_switch() -> None:
    me = (os.getpid(),)
    asked, answered = os.pipe(), os.pipe()

    def answer() -> None:
        for _ in range(20):
            os.write(answered[1], os.read(asked[0], 1))

    other = threading.Thread(target=answer)
    other.start()
    # The first answer: from here on the other thread is there to be counted.
    os.write(asked[1], b"x")
    os.read(answered[0], 1)
    before = kernel.switches(me)
    for _ in range(18):
        os.write(asked[1], b"x")
        os.read(answered[0], 1)
    # Either this thread or the other one waits for each octet.
    assert kernel.more(before, kernel.switches(me)) >= 18
    os.write(asked[1], b"x")
    other.join()
    for end in (*asked, *answered):
        os.close(end)


def test_a_process_that_is_not_there_waits_for_nothing() -> None:
    assert kernel.switches((999_999_999,)) == {}


def test_each_system_call_counts_those_of_later_threads_included() -> None:
    try:
        counting = kernel.SystemCalls((os.getpid(),))
    except kernel.NotCounted as refused:
        pytest.skip(str(refused))
    with counting:
        before = counting.count()
        for _ in range(1_000):
            os.getppid()
        middle = counting.count()
        assert 1_000 <= middle - before < 1_100
        later = threading.Thread(target=lambda: [os.getppid() for _ in range(1_000)])
        later.start()
        later.join()
        assert counting.count() - middle >= 1_000
