"""Transactions under kill -9: what a client received and what it sent for it happen both, or neither.

A worker takes messages from one queue and sends an answer for each to another one, in transactions. After
each kill every message is in the first queue or has one answer in the second; a committed one has its answer.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from lightrail.amqp.performatives import (
    Accepted,
    Declare,
    Declared,
    Discharge,
    Rejected,
    Released,
    Source,
    Transfer,
)
from lightrail.amqp.values import Symbol
from tests.chaos.service import Service
from tests.support import wait
from tests.support.amqp.frame_peer import Peer, value
from tests.support.amqp.transaction_peer import Client, settle
from tests.support.broker import Broker

MESSAGES = 400
DURABLE = b"\x00\x53\x70\xc0\x02\x01\x41"
"""A header that says durable."""
AT_ONCE = 5
"""Messages of one transaction."""
KILL_AFTER = (1, 3, 10, 20)
"""Commits, of rounds on the same data."""
IN, OUT = 1, 2
"""Handles of the links: OUT is the first of some."""
OUTS = ("out/a", "out/b", "out/c", "out/d")
"""Queues that are spread over the shards."""


def number_of(message: bytes) -> int:
    """The number that a message ends with."""
    return int.from_bytes(message[-2:], "big")


def numbers(address: str, queue: str) -> list[int]:
    """What a queue has; it is released again with the connection."""
    with Peer(address) as peer:
        peer.open()
        peer.begin()
        peer.attach_receiver(queue, source=Source(address=queue, default_outcome=Released()))
        peer.flow(MESSAGES + 1, drain=True)
        found: list[int] = []
        while type((arrived := peer.read()).body) is Transfer:
            found.append(number_of(arrived.payload))
    return sorted(found)


def fill(address: str) -> None:
    with Peer(address) as peer:
        peer.open()
        peer.put("in", *(DURABLE + value(number.to_bytes(2, "big")) for number in range(MESSAGES)))


def check(address: str, committed: set[int], outs: Sequence[str] = ("out",)) -> None:
    """Every message is in the first queue or has its answer in each other one, committed ones always."""
    there = numbers(address, "in")
    for out in outs:
        answered = numbers(address, out)
        assert sorted(there + answered) == list(range(MESSAGES))
        assert committed <= set(answered)


class Worker:
    """Moves messages, a few in each transaction; perhaps it acquires them in the transaction, too."""

    def __init__(self, address: str, outs: Sequence[str] = ("out",), *, acquires: bool = False) -> None:
        self.acquires = acquires
        self.peer = peer = Peer(address)
        peer.open()
        peer.begin()
        self.client = Client(peer)
        self.handles = range(OUT, OUT + len(outs))
        for handle, out in zip(self.handles, outs, strict=True):
            peer.attach_sender(out, handle)
        peer.attach_receiver("in", IN)
        self.received = 0

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.peer.socket.close()

    def begin(self) -> tuple[bytes, set[int]]:
        """A transaction with all of its work, and the numbers that it moves."""
        peer, client = self.peer, self.client
        client.request(Declare())
        declared = client.outcome()
        assert type(declared) is Declared
        first = self.received
        properties = {Symbol("txn-id"): declared.txn_id} if self.acquires else None
        peer.flow(AT_ONCE, first, handle=IN, next_incoming_id=first, properties=properties)
        moved: set[int] = set()
        while len(moved) < AT_ONCE:
            found = peer.read()
            if type(found.body) is Transfer:
                moved.add(number_of(found.payload))
        self.received += AT_ONCE
        settle(peer, declared.txn_id, first, first + AT_ONCE - 1)
        for each in moved:
            for handle in self.handles:
                client.send(declared.txn_id, each.to_bytes(2, "big"), handle=handle, head=DURABLE)
        return declared.txn_id, moved


@pytest.mark.parametrize("acquires", [False, True], ids=["settling", "acquiring"])
def test_all_or_nothing_after_kill_9_of_everything(tmp_path: Path, acquires: bool) -> None:
    committed: set[int] = set()
    for turn, commits in enumerate(KILL_AFTER):
        with Broker(tmp_path / "data") as broker:
            if turn == 0:
                fill(broker.amqp)
            check(broker.amqp, committed)
            with Worker(broker.amqp, acquires=acquires) as worker:
                for _ in range(commits):
                    txn, moved = worker.begin()
                    worker.client.commit(txn)
                    committed |= moved
                txn, _ = worker.begin()
                worker.client.request(Discharge(txn_id=txn))
                broker.kill_everything()
    with Broker(tmp_path / "data") as broker:
        check(broker.amqp, committed)


@pytest.mark.parametrize("store", ["journal", "sqlite"])
@pytest.mark.parametrize("is_asked", [True, False], ids=["while-it-is-asked", "before"])
def test_the_client_gets_the_outcome_although_the_shard_was_killed(
    tmp_path: Path, store: str, is_asked: bool
) -> None:
    """The frontend asks the shard again after its restart: the transaction happened, or it did not."""
    committed: set[int] = set()
    with Service(tmp_path / "data", "--store", store) as service:
        fill(service.address)
        for _ in range(2):
            with Worker(service.address) as worker:
                txn, moved = worker.begin()
                if not is_asked:
                    service.kill("shard")
                worker.client.request(Discharge(txn_id=txn))
                if is_asked:
                    service.kill("shard")
                state = worker.client.outcome()
                if isinstance(state, Accepted):
                    committed |= moved
                else:
                    assert isinstance(state, Rejected)
                    assert state.error is not None
                    assert str(state.error.condition) == "amqp:transaction:rollback"
            check(service.address, committed)


def is_decided(address: str, committed: set[int]) -> bool:
    """Whether `check` holds by now: who was killed is back, and shards ask each other for decisions."""
    try:
        check(address, committed, OUTS)
    except (AssertionError, OSError):
        return False
    return True


def test_all_or_nothing_at_two_shards_after_kill_9_of_everything(tmp_path: Path) -> None:
    committed: set[int] = set()
    flags = ("--shards", "2")
    for turn, commits in enumerate(KILL_AFTER[:3]):
        with Broker(tmp_path / "data", *flags) as broker:
            if turn == 0:
                fill(broker.amqp)
            wait.until(partial(is_decided, broker.amqp, committed), "transactions are decided", 60.0)
            with Worker(broker.amqp, OUTS) as worker:
                for _ in range(commits):
                    txn, moved = worker.begin()
                    worker.client.commit(txn)
                    committed |= moved
                txn, _ = worker.begin()
                worker.client.request(Discharge(txn_id=txn))
                broker.kill_everything()
    with Broker(tmp_path / "data", *flags) as broker:
        wait.until(partial(is_decided, broker.amqp, committed), "transactions are decided", 60.0)
        check(broker.amqp, committed, OUTS)


@pytest.mark.parametrize("store", ["journal", "sqlite"])
@pytest.mark.parametrize("role", ["shard 0", "shard 1", "frontend 0"])
def test_all_or_nothing_at_two_shards_when_one_process_is_killed(
    tmp_path: Path, store: str, role: str
) -> None:
    committed: set[int] = set()
    with Service(tmp_path / "data", "--shards", "2", "--store", store) as service:
        fill(service.address)
        for _ in range(2):
            with Worker(service.address, OUTS) as worker:
                txn, moved = worker.begin()
                worker.client.commit(txn)
                committed |= moved
                txn, moved = worker.begin()
                worker.client.request(Discharge(txn_id=txn))
                name, _, number = role.partition(" ")
                service.kill(name, int(number))
                if name == "shard":
                    state = worker.client.outcome()
                    if isinstance(state, Accepted):
                        committed |= moved
            wait.until(partial(is_decided, service.address, committed), "transactions are decided", 60.0)
