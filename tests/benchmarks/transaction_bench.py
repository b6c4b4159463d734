"""One client's transactions, in its own process: `transaction_bench.py URL PID SOURCE BESIDE APART COUNT`.

Each transaction sends a durable message of 100 bytes to SOURCE and one to another queue, and accepts one of
the messages of SOURCE that the client has received. The other queue is in turns BESIDE, on the shard of
SOURCE, and APART, on another shard, in blocks of transactions. PID is the broker's supervisor.

Prints JSON for `one` and `two` shards: p50_ms and p99_ms, from the declaration to the answer of the
discharge; cpu_us, CPU of all processes of the broker for each transaction.
"""

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lightrail.bench.kernel import between, tree
from lightrail.client import Connection, Sender, connect
from lightrail.client.receiver import Receiver

BODY = b"x" * 100
BLOCKS = 10
"""Of each kind."""
WARM_UP = 50
AHEAD = 200
"""Messages in the source, so that a delivery is there when a transaction begins."""


async def transact(
    connection: Connection, source: Receiver, senders: tuple[Sender, Sender], count: int
) -> list[float]:
    """The milliseconds of each of `count` transactions."""
    times = []
    for _ in range(count):
        (delivery,) = await source.receive(1)
        began = time.perf_counter()
        async with connection.transaction() as transaction:
            for sender in senders:
                await transaction.send(sender, BODY)
            await transaction.accept(delivery)
        times.append((time.perf_counter() - began) * 1e3)
    return times


async def measure(url: str, pid: int, names: tuple[str, str, str], count: int) -> dict[str, float]:
    times: dict[str, list[float]] = {"one": [], "two": []}
    cpu_s = dict.fromkeys(times, 0.0)
    async with (
        connect(url) as connection,
        connection.sender(names[0]) as again,
        connection.sender(names[1]) as beside,
        connection.sender(names[2]) as apart,
        connection.receiver(names[0], credit=100) as source,
    ):
        await again.send_all(BODY for _ in range(AHEAD))
        kinds = {"one": (again, beside), "two": (again, apart)}
        for senders in kinds.values():
            await transact(connection, source, senders, WARM_UP)
        for _ in range(BLOCKS):
            for kind, senders in kinds.items():
                before = tree((pid,))
                times[kind] += await transact(connection, source, senders, count // BLOCKS)
                cpu_s[kind] += between(before, tree((pid,))).total_s
    found = {}
    for kind, each in times.items():
        found[f"{kind}_p50_ms"] = statistics.median(each)
        found[f"{kind}_p99_ms"] = sorted(each)[len(each) * 99 // 100]
        found[f"{kind}_cpu_us"] = cpu_s[kind] / len(each) * 1e6
    return found


if __name__ == "__main__":
    url, pid, source, beside, apart, count = sys.argv[1:]
    print(json.dumps(asyncio.run(measure(url, int(pid), (source, beside, apart), int(count)))))
