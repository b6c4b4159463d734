"""Rows about the client library, beside proton's in the same run: rates, CPU, imports, memory of links."""

import json
import statistics
import subprocess
import sys
import time
from typing import Final

from tests.benchmarks.load import LoadError
from tests.benchmarks.machine import ROOT
from tests.benchmarks.rates import SERVE
from tests.benchmarks.row import Figures, Limit, Row, Workplace

SCRIPT: Final = "tests/benchmarks/client_bench.py"
MESSAGES: Final = 100_000
PROTON_MESSAGES: Final = 30_000
AWAITED: Final = 20_000
LINKS: Final = 10_000
IMPORTS: Final = 9
TIME_MAX_S: Final = 300.0


def started(work: str, client: str, url: str, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, SCRIPT, work, client, f"amqp://{url}", str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def figures(process: "subprocess.Popen[str]") -> dict[str, float]:
    """What it measured, once it has ended."""
    try:
        out, _ = process.communicate(timeout=TIME_MAX_S)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise LoadError(f"{process.args!r} ended with status {process.returncode}")
    found: dict[str, float] = json.loads(out)
    return found


def pipelined(workplace: Workplace) -> Figures:
    """A sender and a receiver, a process each: the rate of the slower of them, and what each costs."""
    value: Figures = {}
    with workplace.broker() as broker:
        for client, count in (("proton", PROTON_MESSAGES), ("ours", MESSAGES)):
            receiver = started("receive", client, broker.amqp, count)
            sent = figures(started("send", client, broker.amqp, count))
            received = figures(receiver)
            value[f"{client}_per_s"] = min(sent["rate"], received["rate"])
            value[f"{client}_send_us"] = sent["cpu_us"]
            value[f"{client}_receive_us"] = received["cpu_us"]
            workplace.say(f"{client}: {value[f'{client}_per_s']:,.0f} messages/s")
    value["times"] = value["ours_per_s"] / value["proton_per_s"]
    return value


def awaited(workplace: Workplace) -> Figures:
    """Messages whose senders wait for each outcome, fifty at once."""
    value: Figures = {}
    for client in ("proton", "ours"):
        with workplace.broker() as broker:
            value[f"{client}_per_s"] = figures(started("awaited", client, broker.amqp, AWAITED))["rate"]
            workplace.say(f"{client}: {value[f'{client}_per_s']:,.0f} messages/s")
    value["times"] = value["ours_per_s"] / value["proton_per_s"]
    return value


def links(workplace: Workplace) -> Figures:
    """Growth of the client's memory for each open link."""
    with workplace.broker() as broker:
        return {**figures(started("links", "ours", broker.amqp, LINKS))}


def imports(workplace: Workplace) -> Figures:
    """What `import lightrail.client` adds to the start of an interpreter, as the median of several."""
    taken: dict[str, list[float]] = {}
    for statement in ("pass", "import lightrail.client") * IMPORTS:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True, cwd=ROOT)
        taken.setdefault(statement, []).append(time.perf_counter() - began)
    plain, ours = (statistics.median(each) for each in taken.values())
    return {"ms": (ours - plain) * 1000}


ROWS = (
    Row(
        "client-pipelined",
        "the client, pipelined, 100 bytes, durable, sender and receiver a process each: rate to that of "
        "proton's Python handlers; CPU of the receiver per message",
        (
            SERVE,
            f"python {SCRIPT} receive ours URL {MESSAGES} & python {SCRIPT} send ours URL {MESSAGES}",
            f"python {SCRIPT} receive proton URL {PROTON_MESSAGES} & "
            f"python {SCRIPT} send proton URL {PROTON_MESSAGES}",
        ),
        (Limit("times", 4.0, "times", at_least=True), Limit("ours_receive_us", 12.0, "µs")),
        pipelined,
    ),
    Row(
        "client-awaited",
        "the client, 50 tasks on one connection that await each outcome: rate to that of proton's blocking "
        "client in 50 threads",
        (SERVE, *(f"python {SCRIPT} awaited {client} URL {AWAITED}" for client in ("ours", "proton"))),
        (Limit("times", 2.0, "times", at_least=True),),
        awaited,
    ),
    Row(
        "client-links",
        f"the client, {LINKS:,} open links on ten connections: memory of each",
        (SERVE, f"python {SCRIPT} links ours URL {LINKS}"),
        (Limit("kb_each", 10.0, "kB"),),
        links,
    ),
    Row(
        "client-import",
        "the client: what its import adds to the start of an interpreter",
        ('python -c "import lightrail.client"',),
        (Limit("ms", 150.0, "ms"),),
        imports,
    ),
)
