"""Effects once over kill -9 at every step of transactions, outbox, inbox and sagas: a checker counts them."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from lightrail.transport import Envelope, QueueRules, Topology
from lightrail.transport.amqp import AmqpBroker
from tests.bus.conftest import numbers, play
from tests.support.broker import ROOT, Broker

DRIVER = [sys.executable, "-m", "tests.bus.driver"]
STEPS = ("write", "written", "commit", "committed", "send", "sent", "remove", "removed", "accept", "accepted")
PASSINGS = (1, 4, 9)
ORDERS = 8


@pytest.mark.parametrize("step", STEPS)
def test_every_effect_is_there_once_over_kills_at_a_step(
    shared_broker: Broker, tmp_path: Path, step: str
) -> None:
    url, prefix = f"amqp://{shared_broker.amqp}", f"crash-{step}-{next(numbers)}/"

    async def place() -> None:
        broker = AmqpBroker(url)
        await broker.open()
        queue = f"{prefix}commands/crash.place"
        await broker.declare(Topology(queues={queue: QueueRules()}))
        transport = broker.transport(queue)
        await asyncio.gather(
            *(
                transport.send(Envelope(body=b'{"order":%d}' % order, id=f"order-{order}"))
                for order in range(ORDERS)
            )
        )
        await broker.close()

    play(place())
    driver = [*DRIVER, url, prefix, str(tmp_path), str(ORDERS)]
    for passing in PASSINGS:
        done = subprocess.run([*driver, step, str(passing)], cwd=ROOT, timeout=60)
        # A later passing may not come: what was left to be done was less.
        assert done.returncode in ((-signal.SIGKILL,) if passing == 1 else (-signal.SIGKILL, 0)), step
    subprocess.run([*driver, "none", "0"], cwd=ROOT, timeout=60, check=True)
    database = sqlite3.connect(tmp_path / "crash.db")
    for table in ("orders", "bills"):
        rows = database.execute(f"select number, count(*) from {table} group by number order by number")
        assert rows.fetchall() == [(order, 1) for order in range(ORDERS)], table
    assert database.execute("select count(*) from lightrail_sagas").fetchone() == (0,)
    database.close()
