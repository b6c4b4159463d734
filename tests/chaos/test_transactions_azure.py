"""Transactions of Azure Service Bus's clients under kill -9: sessions, and deferred messages.

A worker receives the messages of a session in order. In one transaction it settles the next one, settles the
deferred message with the same number by its lock token, and sends an answer to queues at both shards. After
each kill every number has its answers, or its message in the session and its deferred one; a committed one
has its answers.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightrail.amqp.messages import read_message
from lightrail.amqp.performatives import Accepted, Attach, Discharge, Disposition, Modified, Transfer
from lightrail.amqp.values import Int, Long
from tests.chaos.service import Service
from tests.chaos.test_transactions import numbers
from tests.support import wait
from tests.support.amqp.bus_peer import DURABLE, VENDOR, Bus, accept_session, of_session
from tests.support.amqp.frame_peer import Peer, value
from tests.support.amqp.transaction_peer import Client, settle
from tests.support.broker import Broker
from tests.support.namespace import give

MESSAGES = 40
SESSION, IN, OUT = "s", 1, 10
"""The session, the handle of its receiver, and the first handle of the senders."""
OUTS = ("out/a", "out/b", "out/c", "out/d")
"""Queues that are spread over the shards."""
FLAGS = ("--shards", "2", "--service-bus-auto-create", "true")
COMMITS = (1, 3, 2)
LOCK_S = 5.0


def fill(data: Path, address: str) -> None:
    """Queue `in` has the messages of a session, and the messages of `late` are deferred."""
    give(data, "in", role="queue", groups=True, max_delivery_count=0)
    give(data, "late", role="queue", lock_duration=LOCK_S)
    with Peer(address) as peer:
        peer.open()
        peer.begin()
        peer.put("in", *(of_session(SESSION, str(number)) for number in range(MESSAGES)))
        peer.put("late", *(DURABLE + value(str(number)) for number in range(MESSAGES)))
        peer.attach_receiver("late", 0, properties=VENDOR)
        peer.flow(MESSAGES)
        for _ in range(MESSAGES):
            peer.delivery()
        state = Modified(undeliverable_here=True)
        peer.write(Disposition(role=True, first=0, last=MESSAGES - 1, settled=False, state=state))
        while not isinstance(peer.read().body, Disposition):
            pass


def left(address: str) -> list[int]:
    """The messages of the session, in the order in which the next receiver gets them."""
    with Peer(address) as peer:
        peer.open()
        peer.begin()
        assert accept_session(peer, "in", SESSION).source is not None, "another one has the session"
        peer.flow(MESSAGES + 1, handle=IN, drain=True)
        found: list[int] = []
        while isinstance((arrived := peer.read()).body, Transfer):
            found.append(int(read_message(arrived.payload).body))
    return found


def deferred(address: str) -> list[int]:
    """The deferred messages, locked ones as well."""
    with Peer(address) as peer:
        peer.open()
        peer.begin()
        bus = Bus(Client(peer), "late")
        body = {"from-sequence-number": Long(1), "message-count": Int(MESSAGES + 1)}
        status, _, found = bus.ask("peek-message", body)
        assert status in (200, 204), (status, found)
        return [int(read_message(each["message"]).body) for each in found["messages"]] if found else []


def check(address: str, committed: set[int]) -> None:
    everything = set(range(MESSAGES))
    waiting = left(address)
    assert waiting == sorted(set(waiting)), f"out of order: {waiting}"
    assert deferred(address) == waiting
    done = everything - set(waiting)
    assert committed <= done
    for out in OUTS:
        assert numbers(address, out) == sorted(done)


def is_decided(address: str, committed: set[int]) -> bool:
    """Whether `check` holds by now: who was killed is back, and shards ask each other for decisions."""
    try:
        check(address, committed)
    except (AssertionError, OSError):
        return False
    return True


class Worker:
    """Has the session, and does one transaction after the other."""

    def __init__(self, address: str) -> None:
        self.peer = peer = Peer(address)
        peer.open()
        peer.begin()
        self.client = Client(peer)
        for handle, out in enumerate(OUTS, OUT):
            peer.attach_sender(out, handle)
        self.bus = Bus(self.client, "late")
        assert isinstance(accept_session(peer, "in", SESSION), Attach)
        self.received = 0

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.peer.socket.close()

    def begin(self) -> tuple[bytes, int]:
        """A transaction with all of its work, and the number that it is about."""
        peer, client = self.peer, self.client
        peer.flow(1, self.received, handle=IN)
        self.received += 1
        transfer, message = peer.delivery()
        number, delivery = int(read_message(message).body), transfer.delivery_id
        assert delivery is not None
        # A client whose transaction was not committed has the message until the end of its lock.
        tokens = wait.until(partial(self.bus.lock_deferred, number + 1), "the lock of a lost client ends")
        assert tokens is not None
        (token,) = tokens
        txn = client.declare()
        settle(peer, txn, delivery, delivery)
        assert self.bus.settle(token, txn_id=txn) == (200, "")
        for handle in range(OUT, OUT + len(OUTS)):
            client.send(txn, number.to_bytes(2, "big"), handle=handle, head=DURABLE)
        return txn, number

    def commit(self) -> int:
        txn, number = self.begin()
        self.client.commit(txn)
        return number


def test_all_or_nothing_at_two_shards_after_kill_9_of_everything(tmp_path: Path) -> None:
    committed: set[int] = set()
    data = tmp_path / "data"
    for turn, commits in enumerate(COMMITS):
        with Broker(data, *FLAGS) as broker:
            if turn == 0:
                fill(data, broker.amqp)
            wait.until(partial(is_decided, broker.amqp, committed), "transactions are decided", 60.0)
            with Worker(broker.amqp) as worker:
                committed |= {worker.commit() for _ in range(commits)}
                txn, _ = worker.begin()
                worker.client.request(Discharge(txn_id=txn))
                broker.kill_everything()
    with Broker(data, *FLAGS) as broker:
        wait.until(partial(is_decided, broker.amqp, committed), "transactions are decided", 60.0)
        check(broker.amqp, committed)


@pytest.mark.parametrize("store", ["journal", "sqlite"])
@pytest.mark.parametrize("role", ["shard 0", "shard 1", "frontend 0"])
def test_all_or_nothing_at_two_shards_when_one_process_is_killed(
    tmp_path: Path, store: str, role: str
) -> None:
    committed: set[int] = set()
    data = tmp_path / "data"
    with Service(data, *FLAGS, "--store", store) as service:
        fill(data, service.address)
        name, _, killed = role.partition(" ")
        # The lock of a deferred message outlives the frontend that a client has received it from.
        for _ in range(1 if name == "frontend" else 2):
            with Worker(service.address) as worker:
                committed.add(worker.commit())
                txn, number = worker.begin()
                worker.client.request(Discharge(txn_id=txn))
                service.kill(name, int(killed))
                if name == "shard" and isinstance(outcome(worker.client), Accepted):
                    committed.add(number)
            wait.until(partial(is_decided, service.address, committed), "transactions are decided", 60.0)


def outcome(client: Client) -> Any:
    """The answer to the discharge; detaches of links that lost their shard are passed over."""
    while True:
        found = client.peer.read().body
        if isinstance(found, Disposition) and found.role is True:
            return found.state
