"""Rows about transactions: one over two shards beside one on a single shard, in the same run."""

import subprocess
import sys
from typing import Final

from tests.benchmarks.clients import figures
from tests.benchmarks.machine import ROOT
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.support.broker import Broker
from tests.support.http_client import Http
from tests.support.moves import move

SCRIPT: Final = "tests/benchmarks/transaction_bench.py"
TRANSACTIONS: Final = 1_000
PLACED: Final = {"tx-source": 0, "tx-beside": 0, "tx-apart": 1}
"""Shards of the queues."""


def over_two_shards(workplace: Workplace) -> Figures:
    """Waits of one client for its transactions on one shard and over two, in turns of a hundred."""
    with Broker(f"{workplace.scratch}/data", "--frontends", "1", "--shards", "2") as broker:
        with Http(broker.http) as http:
            for queue, shard in PLACED.items():
                assert http("POST", f"/{queue}", {"role": "queue"}).status == 201
                rows = http("GET", f"/!queues?prefix={queue}&limit=1").json()["queues"]
                if int(rows[0]["shard"]) != shard:
                    move(broker.data, queue)
        command = [sys.executable, SCRIPT, f"amqp://{broker.amqp}", str(broker.process.pid), *PLACED]
        command.append(str(TRANSACTIONS))
        value: Figures = {**figures(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT))}
    value["times"] = value["two_p50_ms"] / value["one_p50_ms"]
    workplace.say(f"p50 {value['one_p50_ms']:.2f} ms on one shard, {value['two_p50_ms']:.2f} ms over two")
    return value


ROWS = (
    Row(
        "transaction-shards",
        "transactions of one client, two durable messages and a settlement, over two shards: p50 to that on "
        "one shard",
        (
            "lightrail serve --frontends 1 --shards 2",
            f"python {SCRIPT} URL PID {' '.join(PLACED)} {TRANSACTIONS}",
        ),
        (Limit("times", 3.0, "times"),),
        over_two_shards,
    ),
)
