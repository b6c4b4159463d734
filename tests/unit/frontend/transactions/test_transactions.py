"""The transactions of a connection: the bytes of all of them, and the time of each, have an end."""

from typing import Any

import pytest

from lightrail.amqp.events import Detached, Transfers
from lightrail.amqp.performatives import Accepted, Coordinator, Rejected, Source, TransactionalState
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.frontend.transactions import transaction as transaction_module
from lightrail.frontend.transactions import transactions
from lightrail.frontend.transactions.transactions import Transactions
from lightrail.model import conditions
from tests.support.amqp.frontend_fakes import FakeConnection, FakeFrontend, FakeLink, FakeShard
from tests.support.amqp.frontend_scene import Scene, play


class Rig:
    """A connection with a link to queue q."""

    def __init__(self, frontend: FakeFrontend | None = None) -> None:
        self.connection = FakeConnection(frontend)
        self.frontend = self.connection.frontend
        self.link = FakeLink()
        self.link.context = ProducerLink(
            self.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            FakeShard(),  # type: ignore[arg-type]
            number=5,
            queue="q",
        )
        self.transactions = Transactions(self.connection)  # type: ignore[arg-type]
        self.next_id = 0

    def send(self, txn_id: bytes, *payloads: bytes, **fields: Any) -> Any:
        """Messages of the client; the provisional outcome."""
        event = Transfers(self.link, self.next_id, list(payloads), False, txn_id=txn_id, **fields)  # type: ignore[arg-type]
        self.next_id += len(payloads)
        self.transactions.transfers(event, self.frontend.now_ms())
        state = self.link.settled[-1][2]
        assert isinstance(state, TransactionalState)
        assert state.txn_id == txn_id
        return state.outcome


def test_one_connection_has_no_more_memory_for_transactions_than_is_left_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_module, "TRANSACTIONS_BYTES_MAX", 100_000)
    rig = Rig()
    other = Rig(rig.frontend)
    one = rig.transactions.declare()
    assert isinstance(rig.send(one.id, b"x" * 40_000), Accepted)
    outcome = rig.send(one.id, b"x" * 10_000)
    assert isinstance(outcome, Rejected)
    assert outcome.error is not None
    assert str(outcome.error.condition) == conditions.RESOURCE_LIMIT_EXCEEDED
    with pytest.raises(ConditionError):
        rig.transactions.check(one)
    # Its messages are dropped at once, and are left to others.
    assert rig.frontend.counts.transaction_bytes == transaction_module.TRANSACTION_OVERHEAD
    two, three = rig.transactions.declare(), other.transactions.declare()
    assert isinstance(rig.send(two.id, b"x" * 30_000), Accepted)
    assert isinstance(other.send(three.id, b"x" * 20_000), Accepted)
    rig.transactions.check(two)
    for transaction in one, two:
        rig.transactions.roll_back(transaction)
    other.transactions.committed(three)
    assert rig.frontend.counts.transaction_bytes == 0


def test_small_messages_count_with_the_objects_that_they_are() -> None:
    rig = Rig()
    transaction = rig.transactions.declare()
    for _ in range(10):
        rig.send(transaction.id, b"x")
    each = 1 + transaction_module.TRANSACTION_MESSAGE_OVERHEAD + transaction_module.TRANSACTION_PART_OVERHEAD
    assert rig.frontend.counts.transaction_bytes == transaction_module.TRANSACTION_OVERHEAD + 10 * each


def test_a_declared_transaction_without_work_ends_when_its_client_declares_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactions, "TRANSACTIONS_PER_CONNECTION_MAX", 3)
    rig = Rig()
    worked, idle, _ = (rig.transactions.declare() for _ in range(3))
    rig.send(worked.id, b"x")
    with pytest.raises(ConditionError):
        rig.transactions.declare()
    rig.frontend.time_ms += transactions.TRANSACTION_TIME_MS
    rig.transactions.declare()
    assert rig.frontend.counts.transactions_rolled_back == 1
    rig.transactions.transfers(Transfers(rig.link, 9, [b"x"], False, txn_id=idle.id), 1)  # type: ignore[arg-type]
    ((condition, _),) = rig.connection.lost
    assert condition == conditions.TRANSACTION_UNKNOWN_ID
    rig.transactions.check(worked)


def test_the_timer_of_a_transaction_ends_with_it() -> None:
    rig = Rig()
    transaction = rig.transactions.declare()
    rig.send(transaction.id, b"x")
    rig.transactions.committed(transaction)
    assert rig.frontend.cancelled == [0]


def test_the_time_of_a_transaction_begins_with_its_first_work() -> None:
    rig = Rig()
    transaction = rig.transactions.declare()
    assert rig.frontend.calls == []
    rig.send(transaction.id, b"x")
    rig.send(transaction.id, b"x")
    ((wait_ms, time_out),) = rig.frontend.calls
    assert wait_ms == transactions.TRANSACTION_TIME_MS
    time_out()
    assert rig.frontend.counts.transaction_bytes == 0
    with pytest.raises(ConditionError) as raised:
        rig.transactions.check(transaction)
    assert raised.value.condition == conditions.TRANSACTION_TIMEOUT
    assert isinstance(rig.send(transaction.id, b"x"), Rejected)
    rig.transactions.roll_back(transaction)
    assert rig.frontend.counts.transaction_bytes == 0


def test_one_that_is_discharged_in_time_is_left_alone() -> None:
    rig = Rig()
    transaction = rig.transactions.declare()
    rig.send(transaction.id, b"x")
    ((_, time_out),) = rig.frontend.calls
    transaction.is_ending = True
    time_out()
    rig.transactions.check(transaction)
    rig.transactions.committed(transaction)
    time_out()


def test_credit_of_the_link_is_granted_again() -> None:
    rig = Rig()
    producer: ProducerLink = rig.link.context
    producer.reopen()
    producer.ready()
    transaction = rig.transactions.declare()
    before = rig.link.credit
    grants = len(rig.link.granted)
    for _ in range(before // 2 + 1):
        rig.link.credit -= 1
        rig.send(transaction.id, b"x")
    # One grant for half of the window.
    assert rig.link.granted[grants:] == [before]


def test_a_client_that_receives_has_no_coordinator_as_its_target() -> None:
    async def check(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        session.attach("c", False, source=Source(address="q"), target=Coordinator())
        await client.turn()
        (detached,) = client.take(Detached)
        assert detached.error is not None
        assert detached.error.condition == conditions.INVALID_FIELD
        assert not client.transport.closing

    play(check)
