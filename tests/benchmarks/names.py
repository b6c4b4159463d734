"""A row about ten thousand queues: making them, having them back, listing them, and what they cost idle."""

import asyncio
import json
import subprocess
import sys
import time
from typing import Final

import uvloop

from lightrail.bench.kernel import between, resident_bytes, tree
from tests.benchmarks.http_bench import Requester, connect
from tests.benchmarks.load import LoadError
from tests.benchmarks.machine import ROOT
from tests.benchmarks.rates import SERVE
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.support import wait
from tests.support.broker import Broker
from tests.support.http_client import Http

QUEUES: Final = 10_000
CONNECTIONS: Final = 4
SETTLE_S: Final = 3.0
"""After which what was put off for the moment is done."""
IDLE_S: Final = 10.0


async def post(broker: Broker, value: bytes, kind: bytes) -> float:
    """Seconds until the value was posted to all of them: a policy, or a message."""
    requesters = await connect(broker.http, CONNECTIONS)
    numbers = iter(range(QUEUES))

    async def work(requester: Requester) -> None:
        for number in numbers:
            status, _ = await requester.ask(b"POST", b"/many/%d" % number, value, kind)
            if status != 201:
                raise LoadError(f"expected 201 for queue {number}, found {status}")

    began = time.monotonic()
    await asyncio.gather(*map(work, requesters))
    return time.monotonic() - began


def listed(broker: Broker, *flags: str) -> tuple[float, str]:
    """How long the command takes from its start to its end, and what it prints."""
    command = [sys.executable, "-m", "lightrail.cli.admin", "--url", f"http://{broker.http}"]
    began = time.monotonic()
    done = subprocess.run([*command, "queues", *flags], capture_output=True, text=True, cwd=ROOT)
    took = time.monotonic() - began
    if done.returncode:
        raise LoadError(f"lightrail-admin queues ended with {done.returncode}: {done.stderr[-300:]}")
    return took, done.stdout


def all_there(broker: Broker) -> bool:
    """Whether the shards have all queues, and the message of each."""
    with Http(broker.http) as http:
        totals = http("GET", "/!status").json()["totals"]
    return bool(totals["queues"] >= QUEUES and totals["messages"] >= QUEUES)


def idle_percent(broker: Broker) -> tuple[float, dict[str, float]]:
    """CPU of all processes in percent of one core while nobody asks for anything, and that of each."""
    time.sleep(SETTLE_S)
    pids = (broker.process.pid,)
    before, began = tree(pids), time.monotonic()
    time.sleep(IDLE_S)
    spent = between(before, tree(pids))
    seconds = time.monotonic() - began
    each = {name.split(".")[-2]: round(100 * used / seconds, 2) for _, name, used in spent.processes}
    return 100 * spent.total_s / seconds, each


def measure(workplace: Workplace) -> Figures:
    """All of it, on one broker that is killed in between."""
    broker = workplace.broker()
    try:
        broker.until_ready()
        made_s = uvloop.run(post(broker, b'{"role": "queue"}', b"application/json"))
        workplace.say(f"made in {made_s:.1f} s")
        # A queue that never had a message is a name alone, and no shard has heard of it.
        sent_s = uvloop.run(post(broker, b"a message", b"text/plain"))
        workplace.say(f"a durable message to each in {sent_s:.1f} s")
        wait.until(lambda: all_there(broker), "the shard has the queues", 30.0)
        broker.kill_everything()
    finally:
        broker.stop()
    began = time.monotonic()
    again = workplace.broker()
    try:
        again.until_ready(60.0)
        restarted_s = time.monotonic() - began
        if not all_there(again):
            raise LoadError(f"expected {QUEUES} queues after the restart, found fewer")
        percent, each = idle_percent(again)
        table_s, table = listed(again)
        json_s, text = listed(again, "--json")
        memory = resident_bytes((again.process.pid,))
    finally:
        again.stop()
    if table.count("many/") < QUEUES or len(json.loads(text)) < QUEUES:
        raise LoadError(f"expected all {QUEUES} queues in the list, found fewer")
    return {
        "made_s": made_s,
        "sent_s": sent_s,
        "restarted_s": restarted_s,
        "listed_s": table_s,
        "listed_json_s": json_s,
        "idle_percent": percent,
        "memory_mb": memory / 1e6,
        "idle_by_process": each,
    }


ROWS = (
    Row(
        "many-queues",
        f"{QUEUES:,} queues: made over HTTP, back after kill -9, listed as a table and as JSON, idle CPU",
        (
            SERVE,
            f'curl -d \'{{"role": "queue"}}\' …/many/…    ({QUEUES:,} times, {CONNECTIONS} kept connections)',
            "curl -H 'Content-Type: text/plain' -d 'a message' …/many/…    (to each)",
            "kill -9 …",
            SERVE,
            "lightrail-admin queues",
            "lightrail-admin queues --json",
        ),
        (
            Limit("made_s", 60.0, "s"),
            Limit("restarted_s", 10.0, "s"),
            Limit("listed_s", 1.0, "s"),
            Limit("listed_json_s", 1.0, "s"),
            Limit("idle_percent", 2.0, "%"),
        ),
        measure,
    ),
)
