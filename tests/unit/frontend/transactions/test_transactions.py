"""The transactions of a connection: the bytes of all of them, and the time of each, have an end."""

from typing import Any

import pytest

from lightrail.amqp.events import Transfers
from lightrail.amqp.performatives import Accepted, Rejected, TransactionalState
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.frontend.transactions.transactions import Transactions
from lightrail.model import conditions, limits
from tests.support.amqp.frontend_fakes import FakeConnection, FakeFrontend, FakeLink, FakeShard


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


def test_all_open_transactions_have_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTIONS_BYTES_MAX", 100)
    rig = Rig()
    other = Rig(rig.frontend)
    one, two = rig.transactions.declare(), other.transactions.declare()
    assert isinstance(rig.send(one.id, b"x" * 60), Accepted)
    outcome = other.send(two.id, b"x" * 60)
    assert isinstance(outcome, Rejected)
    assert outcome.error is not None
    assert str(outcome.error.condition) == conditions.RESOURCE_LIMIT_EXCEEDED
    rig.transactions.check(one)
    with pytest.raises(ConditionError):
        other.transactions.check(two)
    other.transactions.roll_back(two)
    three = other.transactions.declare()
    assert isinstance(other.send(three.id, b"x" * 30), Accepted)
    other.transactions.roll_back(three)
    rig.transactions.committed(one)
    assert rig.frontend.counts.transaction_bytes == 0


def test_the_time_of_a_transaction_begins_with_its_first_work() -> None:
    rig = Rig()
    transaction = rig.transactions.declare()
    assert rig.frontend.calls == []
    rig.send(transaction.id, b"x")
    rig.send(transaction.id, b"x")
    ((wait_ms, time_out),) = rig.frontend.calls
    assert wait_ms == limits.TRANSACTION_TIME_MS
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
