"""What capture costs: broker CPU per message of a captured queue, to that of a plain one."""

import statistics
from typing import Any, Final

from tests.benchmarks.load import LoadError, bench
from tests.benchmarks.rates import SERVE
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.support.http_client import Http

LOAD: Final = "--duration 4s --backlog 20000"
ROUNDS: Final = 4
"""Each queue is measured so often, in turns and each as often first: the machine is never twice the same."""


def measure(workplace: Workplace) -> Figures:
    """The medians of both, durable and transient, on one broker."""
    figures: Figures = {}
    with workplace.broker() as broker:
        pids = (broker.process.pid,)
        with Http(broker.http) as http:
            if http("POST", "/captured", {"role": "queue", "capture": True}).status != 201:
                raise LoadError("expected 201 to the policy with capture")
        for kind, flags in (("", f"--durable {LOAD}"), ("transient_", LOAD)):
            rounds: dict[str, list[dict[str, Any]]] = {"plain": [], "captured": []}
            bench(f"amqp://{broker.amqp}/plain", flags, pids)  # The processes have to warm up.
            for number in range(ROUNDS):
                for queue in sorted(rounds, reverse=number % 2 == 0):
                    rounds[queue].append(bench(f"amqp://{broker.amqp}/{queue}", flags, pids))
            cpu = {
                queue: statistics.median(value["server_cpu_us"] for value in values)
                for queue, values in rounds.items()
            }
            figures[f"{kind}ratio"] = cpu["captured"] / cpu["plain"]
            for queue, values in rounds.items():
                figures[f"{kind}{queue}_cpu_us"] = cpu[queue]
                figures[f"{kind}{queue}_per_s"] = statistics.median(
                    value["received_per_s"] for value in values
                )
            workplace.say(f"{kind or 'durable_'}ratio {figures[f'{kind}ratio']:.3f}")
    return figures


ROWS = (
    Row(
        "capture",
        "durable, 100 bytes, to a captured queue: CPU per message to that of a plain queue",
        (
            SERVE,
            f"lightrail bench --durable {LOAD} --pids …    (a plain queue)",
            f"lightrail bench --durable {LOAD} --pids …    (one whose policy says capture)",
        ),
        (Limit("ratio", 1.10, "times"),),
        measure,
    ),
)
