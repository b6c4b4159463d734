"""Rows about the gateway: peek-lock and completion over kept connections, and receivers that wait."""

from typing import Final

import uvloop

from tests.benchmarks import http_bench
from tests.benchmarks.holdings import allow_files
from tests.benchmarks.rates import SERVE
from tests.benchmarks.row import Figures, Limit, Row, Workplace

CONNECTIONS: Final = 64
LOCKED: Final = 20_000
RECEIVERS: Final = 10_000


def locks(workplace: Workplace) -> Figures:
    """Messages per second through lock and completion, and the CPU that each process spends on one."""
    with workplace.broker() as broker:
        return uvloop.run(http_bench.locks(broker, CONNECTIONS, LOCKED))


def waiting(workplace: Workplace) -> Figures:
    """Growth of the gateway's memory for each receiver that waits, and the time until all have a message."""
    allow_files()
    with workplace.broker() as broker:
        return uvloop.run(http_bench.waiting(broker, RECEIVERS))


ROWS = (
    Row(
        "http-locks",
        f"peek-lock and complete over HTTP, {CONNECTIONS} kept connections: messages per second",
        (SERVE, f"python tests/benchmarks/http_bench.py locks {CONNECTIONS} {LOCKED}"),
        (Limit("messages_per_s", 2_000, "messages/s", at_least=True),),
        locks,
    ),
    Row(
        "http-waiting",
        f"{RECEIVERS:,} HTTP receivers that wait: memory of the gateway for each",
        (SERVE, f"python tests/benchmarks/http_bench.py waiting {RECEIVERS}"),
        (Limit("kb_each", 20.0, "kB"),),
        waiting,
    ),
)
