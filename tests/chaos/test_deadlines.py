"""A shard that stands still for longer than clients wait executes none of their requests when it goes on."""

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lightrail.amqp.values import Array, Int, Long, Timestamp, UInt
from tests.conformance.test_transactions_azure import deferred, numbers, peeked, scheduled
from tests.support import wait
from tests.support.amqp.bus_peer import DURABLE, Bus
from tests.support.amqp.frame_peer import Peer, value
from tests.support.amqp.transaction_peer import Client
from tests.support.broker import Broker
from tests.support.namespace import give

WAIT_MS = 1_000
"""How long the clients wait."""


def bus(peer: Peer, queue: str) -> Bus:
    peer.open()
    peer.begin()
    return Bus(Client(peer), queue)


def test_what_a_client_was_told_that_it_failed_is_not_done_later(tmp_path: Path) -> None:
    later = round(time.time() * 1000) + 3_600_000
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "deleting": (
            "batch-delete-messages",
            {"message-count": Int(10), "enqueued-time-utc": Timestamp(later)},
        ),
        "scheduling": ("schedule-message", scheduled("new", "newer")),
        "cancelling": ("cancel-scheduled-message", numbers(1)),
        "receiving": (
            "receive-by-sequence-number",
            {"sequence-numbers": Array([Long(1)], 0x81), "receiver-settle-mode": UInt(1)},
        ),
        "removing": (
            "receive-by-sequence-number",
            {"sequence-numbers": Array([Long(1)], 0x81), "receiver-settle-mode": UInt(0)},
        ),
    }
    with Broker(tmp_path / "data", "--allow-anonymous", "true") as broker, ExitStack() as peers:
        buses: dict[str, Bus] = {}
        for queue in requests:
            give(broker.data, queue, role="queue", delay=True)
            buses[queue] = bus(peers.enter_context(Peer(broker.amqp)), queue)
        buses["deleting"].peer.put("deleting", DURABLE + value("one"))
        assert buses["cancelling"].ask("schedule-message", scheduled("old"))[0] == 200
        for queue in ("receiving", "removing"):
            deferred(buses[queue].peer, queue, "one")
        before = {queue: peeked(each) for queue, each in buses.items()}
        shard = broker.pid("shard")
        wait.freeze(shard)
        began = time.monotonic()
        try:
            for queue, each in buses.items():
                each.application = {"com.microsoft:server-timeout": UInt(WAIT_MS)}
                each.send(*requests[queue])
            for queue, each in buses.items():
                status, found, _ = each.answer()
                assert status in (408, 503), (queue, found)
                assert found["errorCondition"] == "com.microsoft:timeout", (queue, found)
            assert time.monotonic() - began > WAIT_MS / 1000 * 0.9
        finally:
            os.kill(shard, signal.SIGCONT)
        for queue, each in buses.items():
            each.application = {}
            assert peeked(each) == before[queue], queue
        for queue in ("receiving", "removing"):
            assert buses[queue].receive_deferred(1), queue
        # The same requests are executed now.
        for queue in ("deleting", "scheduling", "cancelling"):
            assert buses[queue].ask(*requests[queue])[0] == 200, queue
        assert list(peeked(buses["scheduling"]).values()) == ["new", "newer"]
