"""Acquisitions of a connection: their bounds, their time, and what a rollback gives back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.amqp.events import ACCEPTED, RELEASED, Acquire, Credit, Outcome, Retire
from lightrail.amqp.performatives import Modified, Released, TransactionalState
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.transactions.transaction import Transaction
from lightrail.frontend.transactions.transactions import TRANSACTION_TIME_MS, Transactions
from lightrail.model import conditions, limits
from lightrail.wire.bodies import ConsumerOpen, SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.amqp.frontend_fakes import FakeConnection, FakeLink, FakeShard
from tests.unit.frontend.test_deliveries import slice_of

FAILED = Modified(delivery_failed=True)


class Link(FakeLink):
    """Remembers the states of deliveries."""

    name = "link"
    unfinished: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.states: list[Any] = []

    def send(
        self,
        count: int,
        ends: Any,
        blob: bytes,
        base: int,
        settled: bool,
        message_format: int = 0,
        state: Any = None,
    ) -> None:
        super().send(count, ends, blob, base, settled, message_format)
        self.states += [state] * count

    def forget_state(self, state: Any) -> None:
        pass


class Rig:
    """A connection with a link that receives."""

    def __init__(self) -> None:
        self.connection = FakeConnection()
        self.frontend = self.connection.frontend
        self.link = Link()
        self.shard = FakeShard()
        self.consumer = self.link.context = ConsumerLink(
            self.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            self.shard,  # type: ignore[arg-type]
            number=6,
            options=ConsumerOpen("q"),
        )
        self.consumer.reopen()
        self.consumer.ready()
        self.consumer.credit(Credit(self.link, 100, False))  # type: ignore[arg-type]
        self.transactions = Transactions(self.connection)  # type: ignore[arg-type]

    def acquire(self, transaction: Transaction | None) -> None:
        txn_id = None if transaction is None else transaction.id
        self.transactions.acquire(Acquire(self.link, txn_id))  # type: ignore[arg-type]

    def retire(self, first: int, last: int, state: TransactionalState) -> None:
        outcome = Outcome(self.link, first, last, state, False)  # type: ignore[arg-type]
        self.transactions.retire(Retire(self, first, last, state, [outcome], []))

    def deliver(self, count: int) -> None:
        if not count:
            return
        messages = [b"x"] * count
        self.consumer.deliver(slice_of(0, messages), self.consumer.delivered(), count)

    def settled(self) -> list[tuple[int, int, int]]:
        """(outcome, first, count) of each SETTLE since."""
        return [(each.flags, each.number, each.count) for each in self.shard.take(Kind.SETTLE)]


def test_deliveries_have_the_state_of_the_transaction_until_it_is_discharged() -> None:
    rig = Rig()
    rig.deliver(1)
    transaction = rig.transactions.declare()
    rig.acquire(transaction)
    rig.deliver(2)
    rig.transactions.discharge(transaction)
    rig.deliver(1)
    state = TransactionalState(txn_id=transaction.id)
    assert rig.link.states == [None, state, state, None]
    rig.shard.take()
    rig.transactions.committed(transaction)
    assert rig.settled() == []


def test_a_rollback_takes_back_what_was_acquired_and_no_more() -> None:
    rig = Rig()
    rig.deliver(1)
    transaction = rig.transactions.declare()
    rig.acquire(transaction)
    rig.deliver(3)
    rig.acquire(None)
    rig.deliver(1)
    rig.shard.take()
    rig.transactions.roll_back(transaction)
    assert rig.link.settled_sent == [(1, 3, RELEASED)]
    assert rig.settled() == [(OutcomeCode.RELEASED, 1, 3)]
    assert rig.consumer.settlements.count == 2
    assert transaction.acquisitions == {}


def test_an_outcome_that_the_link_refuses_fails_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConditionError(conditions.NOT_ALLOWED, "not here")

    rig = Rig()
    transaction = rig.transactions.declare()
    rig.deliver(2)
    state = TransactionalState(txn_id=transaction.id, outcome=ACCEPTED)
    rig.retire(0, 0, state)
    monkeypatch.setattr(ConsumerLink, "transacted", refuse)
    rig.retire(1, 1, state)
    assert transaction.failure is not None
    assert (transaction.failure.condition, transaction.failure.description) == (
        conditions.TRANSACTION_ROLLBACK,
        "not here",
    )


def test_what_had_an_outcome_failed() -> None:
    rig = Rig()
    transaction = rig.transactions.declare()
    rig.deliver(1)
    rig.acquire(transaction)
    rig.deliver(3)
    state = TransactionalState(txn_id=transaction.id, outcome=ACCEPTED)
    rig.retire(0, 1, state)
    rig.shard.take()
    rig.transactions.roll_back(transaction)
    assert rig.link.settled_sent == [(1, 1, FAILED), (1, 3, RELEASED)]
    first, second = rig.shard.take(Kind.SETTLE)
    assert (first.flags, first.number, first.count) == (OutcomeCode.MODIFIED, 1, 1)
    assert SettleDetail.decode(first.body).delivery_failed
    assert (second.flags, second.number, second.count) == (OutcomeCode.RELEASED, 1, 3)


def test_deliveries_of_a_shard_that_has_ended_are_taken_back_from_the_client_alone() -> None:
    rig = Rig()
    transaction = rig.transactions.declare()
    rig.acquire(transaction)
    rig.deliver(2)
    rig.consumer.reopen()
    rig.deliver(1)
    rig.shard.take()
    rig.transactions.roll_back(transaction)
    assert rig.link.settled_sent == [(0, 1, RELEASED), (2, 2, RELEASED)]
    assert rig.settled() == [(OutcomeCode.RELEASED, 2, 1)]
    assert rig.consumer.settlements.count == 0


def test_a_transaction_acquires_so_many_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_PARTS_MAX", 2)
    rig = Rig()
    one, other = rig.transactions.declare(), rig.transactions.declare()
    for transaction in (one, one, other, one, other):
        rig.acquire(transaction)
        rig.deliver(1)
    assert rig.connection.lost == []
    assert (len(one.acquisitions), len(other.acquisitions)) == (2, 2)
    rig.acquire(one)
    ((condition, why),) = rig.connection.lost
    assert condition == conditions.RESOURCE_LIMIT_EXCEEDED
    assert "at most 2 ranges" in why


def test_the_time_of_a_transaction_begins_with_its_first_credit_and_ends_the_link() -> None:
    rig = Rig()
    transaction = rig.transactions.declare()
    rig.acquire(transaction)
    rig.deliver(1)
    ((wait_ms, time_out),) = [each for each in rig.frontend.calls if each[0]]
    assert wait_ms == TRANSACTION_TIME_MS
    time_out()
    assert [condition for condition, _ in rig.connection.lost] == [conditions.TRANSACTION_TIMEOUT]
    assert transaction.acquisitions == {}
    rig.acquire(transaction)
    assert [condition for condition, _ in rig.connection.lost] == [conditions.TRANSACTION_TIMEOUT] * 2


def test_after_its_time_what_a_link_acquired_earlier_is_taken_back() -> None:
    rig = Rig()
    transaction = rig.transactions.declare()
    rig.acquire(transaction)
    rig.deliver(1)
    rig.acquire(None)
    ((_, time_out),) = [each for each in rig.frontend.calls if each[0]]
    time_out()
    assert rig.connection.lost == []
    assert rig.link.settled_sent == [(0, 0, RELEASED)]


def test_outcomes_in_no_transaction_take_their_usual_way_once_it_is_discharged() -> None:
    rig = Rig()
    transaction = rig.transactions.declare()
    rig.acquire(transaction)
    rig.deliver(2)
    rig.transactions.discharge(transaction)
    rig.shard.take()
    rig.consumer.outcome(Outcome(rig.link, 0, 0, ACCEPTED, True))  # type: ignore[arg-type]
    assert rig.settled() == [(OutcomeCode.ACCEPTED, 0, 1)]
    rig.link.unfinished = None
    rig.transactions.roll_back(transaction)
    assert [state for *_, state in rig.link.settled_sent] == [Released()]


@given(
    lengths=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=6),
    retired=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=8),
)
def test_each_delivery_with_an_outcome_fails_once_and_all_others_are_released(
    lengths: list[tuple[int, int]], retired: list[tuple[int, int]]
) -> None:
    """`lengths` are those of gaps between acquisitions, and of these; `retired` have a first and a length."""
    rig = Rig()
    transaction = rig.transactions.declare()
    acquired: set[int] = set()
    for gap, count in lengths:
        rig.acquire(None)
        rig.deliver(gap)
        rig.acquire(transaction)
        acquired.update(range(rig.consumer.delivered(), rig.consumer.delivered() + count))
        rig.deliver(count)
    state = TransactionalState(txn_id=transaction.id, outcome=ACCEPTED)
    outcomes: set[int] = set()
    for first, count in retired:
        rig.retire(first, first + count, state)
        outcomes.update(range(first, first + count + 1))
    rig.transactions.roll_back(transaction)
    failed = [
        n for first, last, each in rig.link.settled_sent if each == FAILED for n in range(first, last + 1)
    ]
    assert failed == sorted(acquired & outcomes)
    released = [
        n for first, last, each in rig.link.settled_sent if each is RELEASED for n in range(first, last + 1)
    ]
    assert released == sorted(acquired)


def test_an_acquisition_without_a_delivery_leaves_nothing() -> None:
    rig = Rig()
    one, other = rig.transactions.declare(), rig.transactions.declare()
    for _ in range(5):
        rig.acquire(one)
        rig.acquire(other)
    rig.acquire(None)
    assert (one.acquisitions, other.acquisitions) == ({}, {})
