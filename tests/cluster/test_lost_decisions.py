"""The shard that decides transactions is lost with its disk: they end, and no shard applies half of one.

The client settles a message of shard 0 and sends one to each shard; shard 1 decides. It is stopped before it
reads the request, so shard 0 has prepared its part, and is killed then; its disk is removed.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightrail.amqp.performatives import Discharge, Released, Source, Transfer
from tests.cluster.letters import make
from tests.support import wait
from tests.support.amqp.frame_peer import Peer, value
from tests.support.amqp.transaction_peer import Client, settle
from tests.support.deploy.cluster import Cluster, Node
from tests.support.http_client import Http

DURABLE = b"\x00\x53\x70\xc0\x02\x01\x41"
"""A header that says durable."""
WORK, DONE = b"work", b"done"
IN, LEFT, RIGHT = 1, 2, 3
"""Handles: the message is received from `in`, and sent to `left` of the same shard and to `right`."""


class Lost:
    """A cluster whose deciding shard is lost with its disk, and where shard 0 waits for its decision."""

    def __init__(self, cluster: Cluster, gateway: Node, frontend: Node, right: str) -> None:
        self.cluster = cluster
        self.gateway = gateway
        self.frontend = frontend
        self.right = right

    def admin(self, *words: str) -> str:
        done = self.cluster.admin("--url", self.gateway.http, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def is_concluded(self) -> bool:
        return waiting(self.gateway) == 0

    def messages(self, queue: str) -> list[bytes]:
        """The bodies that a queue has; they return to it with the connection."""
        with Peer(self.frontend.served) as peer:
            peer.open()
            peer.begin()
            peer.attach_receiver(queue, source=Source(address=queue, default_outcome=Released()))
            peer.flow(10, drain=True)
            found: list[bytes] = []
            while type((arrived := peer.read()).body) is Transfer:
                found.append(arrived.payload[-len(WORK) :])
        return found


def waiting(gateway: Node) -> int:
    """The transactions that wait for a decision, as far as their shards answer."""
    with Http(gateway.served) as http:
        return int(http("GET", "/!transactions").json()["count"])


def queue_at(cluster: Cluster, frontend: Node, shard: int) -> str:
    """A new queue that is placed on a shard."""
    for number in range(64):
        name = f"at-{shard}-{number}"
        make(frontend.amqp, name)
        if cluster.placed(name).shard == shard:
            return name
    raise AssertionError(f"none of 64 queues was placed on shard {shard}")


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[Lost]:
    with Cluster(tmp_path) as cluster:
        first = cluster.shard("--id", "0")
        gateway, frontend = cluster.gateway(), cluster.frontend()
        cluster.start()
        make(frontend.amqp, "in", "left")
        decides = cluster.shard("--id", "1")
        cluster.start(decides)
        right = queue_at(cluster, frontend, 1)
        with prepared(frontend, decides, right):
            wait.until(lambda: waiting(gateway) == 1, "shard 0 has prepared its part")
            decides.kill()
        # The frontend that knows the request is lost as well: nobody sends it to the shard again.
        frontend.kill()
        shutil.rmtree(decides.data)
        frontend.start().until_ready()
        wait.until(lambda: "shards/1" not in cluster.keys("shards/"), "the lease of the lost shard has ended")
        assert first.running
        yield Lost(cluster, gateway, frontend, right)


@contextmanager
def prepared(frontend: Node, decides: Node, right: str) -> Iterator[None]:
    """A client whose transaction is discharged while the shard that decides is stopped."""
    with Peer(frontend.served) as peer:
        peer.open()
        peer.put("in", DURABLE + value(WORK))
    with Peer(frontend.served) as peer:
        peer.open()
        peer.begin()
        client = Client(peer)
        peer.attach_sender("left", LEFT)
        peer.attach_sender(right, RIGHT)
        peer.attach_receiver("in", IN)
        peer.flow(1, 0, handle=IN, next_incoming_id=0)
        while type(peer.read().body) is not Transfer:
            pass
        txn = client.declare()
        settle(peer, txn, 0, 0)
        client.send(txn, DONE, handle=LEFT, head=DURABLE)
        client.send(txn, DONE, handle=RIGHT, head=DURABLE)
        decides.stop()
        client.request(Discharge(txn_id=txn))
        yield


def test_a_new_shard_on_an_empty_disk_rolls_back_what_the_lost_one_would_have_decided(lost: Lost) -> None:
    lost.admin("shard", "forget-disk", "1")
    lost.cluster.start(lost.cluster.shard("--id", "1"))
    wait.until(lost.is_concluded, "shard 0 has the decision of the new shard")
    assert lost.messages("in") == [WORK]
    assert lost.messages("left") == []
    assert lost.messages(lost.right) == []


def test_an_operator_decides_in_place_of_a_lost_shard(lost: Lost) -> None:
    listed = json.loads(lost.admin("transactions", "list", "--json"))
    assert [(each["shard"], each["decides"]) for each in listed["transactions"]] == [(0, 1)]
    lost.admin("transactions", "decide", "commit", "shard-1", "--yes")
    assert lost.is_concluded()
    assert lost.messages("left") == [DONE]
    assert lost.messages("in") == []
