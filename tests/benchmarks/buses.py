"""Rows about the service bus, its transports and its stores."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from tests.benchmarks.load import LoadError
from tests.benchmarks.machine import ROOT
from tests.benchmarks.rates import SERVE
from tests.benchmarks.row import Figures, Limit, Row, Workplace

SCRIPT: Final = "tests/benchmarks/bus_bench.py"
TIME_MAX_S: Final = 300.0


def measured(work: str) -> Callable[[Workplace], Figures]:
    """A run of one work of the script."""

    def measure(workplace: Workplace) -> Figures:
        with workplace.broker() as broker:
            command = [sys.executable, SCRIPT, work, f"amqp://{broker.amqp}", workplace.scratch]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=TIME_MAX_S)
        if done.returncode:
            raise LoadError(f"{work} ended with status {done.returncode}: {done.stderr[-500:]}")
        found: Figures = json.loads(done.stdout)
        return found

    return measure


def _row(work: str, title: str, *limits: Limit) -> Row:
    return Row(f"bus-{work}", title, (SERVE, f"python {SCRIPT} {work} URL FOLDER"), limits, measured(work))


ROWS = (
    _row(
        "dispatch",
        "the bus, typed JSON events from publish to the end of their handler: CPU on top of the client's",
        Limit("on_top_us", 60.0, "µs"),
    ),
    _row(
        "handlers",
        "the bus, 1,000 handlers with their topology: start with nothing at the broker, and again",
        Limit("first_s", 5.0, "s"),
        Limit("again_s", 1.0, "s"),
    ),
    _row(
        "stored",
        "store and forward, 200 bytes, 50 tasks, the broker away: durable sends; the drain of the backlog",
        Limit("per_s", 3_000.0, "messages/s", at_least=True),
    ),
    _row(
        "outbox-sqlite",
        "the bus, an outbox in SQLite with one forwarder, to handlers that keep the order per key",
        Limit("per_s", 3_000.0, "messages/s", at_least=True),
    ),
    _row(
        "outbox-postgresql",
        "the same in PostgreSQL",
        Limit("per_s", 2_000.0, "messages/s", at_least=True),
    ),
    _row(
        "sagas",
        "the bus, steps of sagas in SQLite, 100 at a time",
        Limit("per_s", 1_500.0, "steps/s", at_least=True),
    ),
)
