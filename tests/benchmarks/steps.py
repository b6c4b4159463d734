"""What each process of the broker does for a message that comes alone: wake-ups, system calls, calls, CPU.

The rows of lone messages say what it costs; this row says of what it consists, process by process.
"""

import json
import subprocess
import sys
from typing import Final

from lightrail.bench import kernel
from tests.benchmarks.load import TIME_MAX_S, LoadError, bench
from tests.benchmarks.machine import ROOT
from tests.benchmarks.row import Figures, Limit, Row, Workplace

LOAD: Final = "--rate 500 --durable --duration 5s"
PROCESSES: Final = ("frontend", "shard")
TRACE: Final = "lightrail trace --calls --json"


def _measure(workplace: Workplace) -> Figures:
    figures: Figures = {}
    with workplace.broker() as broker:
        found = {usage.name.split(".")[1]: pid for pid, usage in kernel.tree((broker.process.pid,)).items()}
        for process in PROCESSES:
            value = bench(f"amqp://{broker.amqp}/steps", f"{LOAD} --system-calls", (found[process],))
            figures |= {
                f"{process}_wake_ups": value["server_switches"],
                f"{process}_system_calls": value["server_system_calls"],
                f"{process}_cpu_us": value["server_cpu_us"],
            }
    return figures | _python_calls()


def _python_calls() -> Figures:
    """Calls of Python functions for one message, by process."""
    command = [sys.executable, "-m", "lightrail.cli.main", *TRACE.split()[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=TIME_MAX_S)
    if done.returncode:
        raise LoadError(f"{TRACE}: {done.stderr.strip()[-500:]}")
    calls = [each["process"] for phase in json.loads(done.stdout)["phases"] for each in phase["calls"]]
    return {f"{process}_calls": calls.count(process) for process in PROCESSES}


def _missing() -> str | None:
    try:
        kernel.SystemCalls((1,)).close()
    except kernel.NotCountedError as error:
        return f"system calls can't be counted: {error}"
    return None


ROWS: Final = (
    Row(
        "steps",
        "500 messages/s, durable, each process by itself: wake-ups, system calls, Python calls and CPU per "
        "message",
        (
            "lightrail serve --frontends 1 --shards 1",
            f"lightrail bench {LOAD} --system-calls --pids …",
            TRACE,
        ),
        tuple(
            Limit(f"{process}_{figure}", limit, unit)
            for process, limits in (("frontend", (4.0, 12.0, 200.0)), ("shard", (7.0, 12.0, 350.0)))
            for figure, limit, unit in zip(
                ("wake_ups", "system_calls", "calls"), limits, ("switches", "calls", "calls"), strict=True
            )
        ),
        _measure,
        _missing,
    ),
)
