"""What one client may send holds up no other: real processes, hostile filters, and how late their loops
were."""

import re
import threading
from pathlib import Path

from proton import Message
from proton.reactor import Selector

from tests.support import wait
from tests.support.amqp.proton_blocking import connected
from tests.support.broker import Broker
from tests.support.http_client import Http

LATE_S = 1.0
"""A bucket of the metric. One turn takes a tenth of it; the rest is what a machine does besides."""
TEXT = "a" * 60_000
PATTERN = "%" + "a" * 3_900 + "_" + "a" * 3_900 + "b%"
HOSTILE = f"p LIKE '{PATTERN}'"


def late(metrics: str, role: str) -> int:
    """How often the loop of a role's processes came later than LATE_S to a timer."""
    found = 0
    for line in metrics.splitlines():
        if line.startswith("lightrail_event_loop_lag_seconds") and f'role="{role}"' in line:
            value = int(float(line.rsplit(" ", 1)[1]))
            if "_count{" in line:
                found += value
            elif (bound := re.search(r'le="([^"]+)"', line)) and bound[1] == f"{LATE_S}":
                found -= value
    return found


def pings(broker: Broker, stop: threading.Event, counted: list[int]) -> None:
    """Another client sends and receives, one message at a time."""
    with connected(broker.amqp) as connection:
        sender, receiver = connection.create_sender("other"), connection.create_receiver("other")
        while not stop.is_set():
            sender.send(Message("ping", durable=False))
            receiver.receive(timeout=30)
            receiver.accept()
            counted.append(1)


def test_hostile_filters_of_receivers_and_routers_hold_up_no_other_client(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--shards", "1") as broker, Http(broker.http) as http:
        assert http("POST", "/r", {"role": "router", "unroutable": "drop"}).status == 201
        assert http("POST", "/q", {"role": "queue"}).status == 201
        wait.until(lambda: http("GET", "/readyz").status == 200, "the gateway knows all processes")
        for number in range(20):
            subscription = {"target": "q", "filter": {"sql": f"{HOSTILE} AND number <> {number}"}}
            assert http("POST", "/r/!subscriptions", subscription).status == 201
        stop = threading.Event()
        counted: list[int] = []
        other = threading.Thread(target=pings, args=(broker, stop, counted))
        other.start()
        try:
            wait.until(lambda: counted, "another client is served")
            message = Message("x", properties={"p": TEXT, "number": -1}, durable=False)
            with connected(broker.amqp) as connection:
                to_queue = connection.create_sender("hostile")
                for _ in range(20):
                    to_queue.send(message)
                before = len(counted)
                receiver = connection.create_receiver("hostile", options=Selector(HOSTILE), credit=10)
                to_router = connection.create_sender("r")
                for _ in range(20):
                    to_router.send(message)
                wait.until(lambda: len(counted) > before + 10, "another client is served meanwhile")
                receiver.close()
        finally:
            stop.set()
            other.join(30)
        assert not other.is_alive()
        metrics = http("GET", "/metrics").body.decode()
        for role in ("shard", "frontend", "gateway"):
            assert late(metrics, role) == 0, role
