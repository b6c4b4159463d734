"""Rows about what a broker holds: idle connections, messages in memory and on disk, a start with them."""

import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lightrail.bench.kernel import resident_bytes
from tests.benchmarks.load import LoadError, bench
from tests.benchmarks.rates import SERVE
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.support.broker import Broker

CONNECTIONS = 2_000
MILLION = 1_000_000
MARK_BYTES = 64_000_000
SAMPLE_S = 0.1
FILES_NEEDED = 8_192


class Peak:
    """The largest resident memory of a broker since ``start`` was read, looked at ten times a second."""

    def __init__(self, pid: int) -> None:
        self.start = self.bytes = resident_bytes((pid,))
        self._pid = pid
        self._over = threading.Event()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.bytes = max(self.bytes, resident_bytes((self._pid,)))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look on during the block."""
        watcher = threading.Thread(target=self._watch)
        watcher.start()
        try:
            yield
        finally:
            self._over.set()
            watcher.join()


def allow_files() -> None:
    """Let this process and the brokers it starts open enough sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES_NEEDED:
        if hard != resource.RLIM_INFINITY and hard < FILES_NEEDED:
            raise LoadError(f"expected a limit of {FILES_NEEDED} open files, found {hard}: ulimit -n")
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_NEEDED, hard))


def idle_connections(workplace: Workplace) -> Figures:
    """Growth of resident memory of all broker processes per open connection with one session."""
    from lightrail.bench.engine import Connection
    from lightrail.bench.plan import parse_url

    allow_files()
    with workplace.broker() as broker:
        url = parse_url(f"amqp://{broker.amqp}/idle")
        first = [Connection(url, f"first-{i}") for i in range(20)]
        before = resident_bytes((broker.process.pid,))
        connections = [Connection(url, f"idle-{i}") for i in range(CONNECTIONS)]
        after = resident_bytes((broker.process.pid,))
        for connection in first + connections:
            connection.socket.close()
    return {
        "kb_each": (after - before) / CONNECTIONS / 1e3,
        "before_mb": before / 1e6,
        "after_mb": after / 1e6,
    }


def million_held(workplace: Workplace) -> Figures:
    """Growth of resident memory while a million 100-byte messages wait, against their bodies."""
    with workplace.broker() as broker:
        url = f"amqp://{broker.amqp}/bench"
        bench(url, "--count 1000 --warm-up 0s")
        before = resident_bytes((broker.process.pid,))
        bench(url, f"--send-only --count {MILLION}")
        after = resident_bytes((broker.process.pid,))
        bench(url, f"--drain-only --count {MILLION}")
    return {"factor": (after - before) / (100 * MILLION), "before_mb": before / 1e6, "after_mb": after / 1e6}


def ten_million(workplace: Workplace) -> Figures:
    """The highest memory while ten million durable messages go in and come out in order, over its start."""
    with workplace.broker("--memory-mark", "64MB") as broker:
        url = f"amqp://{broker.amqp}/bench"
        peak = Peak(broker.process.pid)
        with peak.watching():
            into = bench(url, f"--send-only --durable --count {10 * MILLION}", (broker.process.pid,))
            workplace.say(f"in at {into['sent_per_s']:,.0f}/s, {peak.bytes / 1e6:,.0f} MB at most")
            out = bench(url, f"--drain-only --count {10 * MILLION}", (broker.process.pid,))
    if out["received"] != 10 * MILLION:
        raise LoadError(f"of {10 * MILLION} messages {out['received']} came back")
    return {
        "marks": (peak.bytes - peak.start) / MARK_BYTES,
        "start_mb": peak.start / 1e6,
        "peak_mb": peak.bytes / 1e6,
        "in_per_s": into["sent_per_s"],
        "out_per_s": out["received_per_s"],
        "in_cpu_us": into["server_cpu_us"],
        "out_cpu_us": out["server_cpu_us"],
    }


def start_up(workplace: Workplace) -> Figures:
    """From the start of the command until it serves again, all processes having been killed."""
    broker = workplace.broker()
    try:
        broker.until_ready()
        bench(f"amqp://{broker.amqp}/bench", f"--send-only --durable --count {MILLION}")
        broker.kill_everything()
    finally:
        broker.stop()
    began = time.monotonic()
    again: Broker = workplace.broker()
    try:
        again.until_ready()
        took = time.monotonic() - began
        out = bench(f"amqp://{again.amqp}/bench", f"--drain-only --count {MILLION}")
    finally:
        again.stop()
    return {"seconds": took, "drained_per_s": out["received_per_s"]}


ROWS = (
    Row(
        "idle",
        f"{CONNECTIONS:,} idle connections: memory of each",
        (SERVE, f"(opens {CONNECTIONS:,} connections with a session each)"),
        (Limit("kb_each", 25.0, "kB"),),
        idle_connections,
    ),
    Row(
        "million",
        "one million 100-byte messages in a queue: memory to payload",
        (SERVE, f"lightrail bench --send-only --count {MILLION}"),
        (Limit("factor", 1.3, "times"),),
        million_held,
    ),
    Row(
        "ten-million",
        "ten million durable messages with a memory mark of 64 MB, then drained in order: growth to the mark",
        (
            f"{SERVE} --memory-mark 64MB",
            f"lightrail bench --send-only --durable --count {10 * MILLION}",
            f"lightrail bench --drain-only --count {10 * MILLION}",
        ),
        (Limit("marks", 2.0, "times"),),
        ten_million,
    ),
    Row(
        "start-up",
        "start-up after kill -9 with a million durable messages",
        (SERVE, f"lightrail bench --send-only --durable --count {MILLION}", "kill -9 …", SERVE),
        (Limit("seconds", 3.0, "s"),),
        start_up,
    ),
)
