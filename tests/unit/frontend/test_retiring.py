"""A link that its client closes in an open transaction: its consumer keeps what the transaction settles."""

import pytest

from lightrail.amqp.events import ACCEPTED, RELEASED, Credit, Outcome, Retire
from lightrail.amqp.performatives import TransactionalState
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.transactions.transaction import Transaction
from lightrail.frontend.transactions.transactions import Transactions
from lightrail.model import conditions
from lightrail.model.links import Ending
from lightrail.wire.bodies import ConsumerOpen, Refusal, SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.amqp.frontend_fakes import FakeConnection, FakeLink, FakeShard
from tests.unit.frontend.test_deliveries import slice_of

NUMBER = 6


class Rig:
    """A link with ten deliveries, of which a transaction settles numbers 3 and 4."""

    def __init__(self, *, suspended_ms: int = 0, default_outcome: int = OutcomeCode.MODIFIED) -> None:
        self.connection = FakeConnection()
        self.frontend = self.connection.frontend
        self.link, self.shard = FakeLink(), FakeShard()
        options = ConsumerOpen("q", suspended_ms=suspended_ms, default_outcome=default_outcome)
        self.consumer = self.link.context = ConsumerLink(
            self.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            self.shard,  # type: ignore[arg-type]
            number=NUMBER,
            options=options,
        )
        self.consumer.reopen()
        self.consumer.ready()
        self.consumer.credit(Credit(self.link, 100, False))  # type: ignore[arg-type]
        self.deliver(10)
        self.transactions = Transactions(self.connection)  # type: ignore[arg-type]
        self.transaction = self.settle(3, 4)
        self.released: list[bool] = []

    def settle(self, first: int, last: int) -> Transaction:
        transaction = self.transactions.declare()
        state = TransactionalState(txn_id=transaction.id, outcome=ACCEPTED)
        outcome = Outcome(self.link, first, last, state, True)  # type: ignore[arg-type]
        self.transactions.retire(Retire(self, first, last, state, [outcome], []))
        return transaction

    def deliver(self, count: int) -> None:
        consumer = self.shard.replaced or self.consumer
        first = getattr(self, "delivered", 0)
        self.delivered = first + count
        consumer.deliver(slice_of(0, [b"x"] * count), first, count)

    def close(self, *, in_order: bool = True) -> None:
        self.shard.take()
        if in_order:
            self.consumer.ends(Ending.BY_CLIENT)
        self.consumer.close()
        self.consumer.when_released(lambda: self.released.append(True))

    def settled(self) -> list[tuple[int, int, int]]:
        """(outcome, first, count) of each SETTLE since."""
        return [(each.flags, each.number, each.count) for each in self.shard.take(Kind.SETTLE)]

    @property
    def is_closed(self) -> bool:
        """Whether the consumer is closed at the shard."""
        assert self.shard.closed in ([], [("consumer", NUMBER)])
        return bool(self.shard.closed)


def test_all_others_are_released_at_once_also_those_that_were_in_transit() -> None:
    rig = Rig()
    rig.close()
    credit, *_ = rig.shard.said
    assert (credit.kind, credit.number) == (Kind.CREDIT, 10)
    assert rig.settled() == [(OutcomeCode.RELEASED, 0, 3), (OutcomeCode.RELEASED, 5, 5)]
    rig.deliver(2)
    assert rig.settled() == [(OutcomeCode.RELEASED, 10, 2)]
    assert not rig.is_closed
    assert rig.released == []
    rig.transactions.check(rig.transaction)
    rig.transactions.committed(rig.transaction)
    assert (rig.is_closed, rig.released, rig.settled()) == (True, [True], [])


def test_the_default_outcome_of_a_source_that_accepts_is_kept() -> None:
    rig = Rig(default_outcome=OutcomeCode.ACCEPTED)
    rig.close()
    assert {outcome for outcome, _, _ in rig.settled()} == {OutcomeCode.ACCEPTED}


def test_a_rollback_returns_what_was_settled_as_failed() -> None:
    rig = Rig()
    rig.close()
    rig.shard.take()
    rig.transactions.roll_back(rig.transaction)
    (back,) = rig.shard.take(Kind.SETTLE)
    assert (back.flags, back.number, back.count) == (OutcomeCode.MODIFIED, 3, 2)
    assert SettleDetail.decode(back.body).delivery_failed
    assert rig.is_closed


@pytest.mark.parametrize(
    ("suspended_ms", "is_lost", "expected"),
    [(0, True, Ending.FAILED), (1_000, True, Ending.BY_BROKER), (0, False, Ending.BY_CLIENT)],
)
def test_what_a_lost_transaction_settled_is_marked_and_not_counted(
    suspended_ms: int, is_lost: bool, expected: Ending
) -> None:
    """The link ended in order, and the discharge may have been lost with the connection (ADR 5)."""
    rig = Rig(suspended_ms=suspended_ms)
    rig.close()
    rig.shard.take()
    if is_lost:
        rig.transactions.roll_back(rig.transaction, RELEASED)
    else:
        rig.transactions.roll_back(rig.transaction)
    (back,) = rig.shard.take(Kind.SETTLE)
    assert back.flags == (OutcomeCode.RELEASED if is_lost else OutcomeCode.MODIFIED)
    assert rig.shard.endings == [expected]


def test_the_consumer_is_open_until_the_last_transaction_has_ended() -> None:
    rig = Rig()
    other = rig.settle(7, 7)
    rig.close()
    assert rig.settled() == [
        (OutcomeCode.RELEASED, 0, 3),
        (OutcomeCode.RELEASED, 5, 2),
        (OutcomeCode.RELEASED, 8, 2),
    ]
    rig.transactions.committed(rig.transaction)
    assert not rig.is_closed
    rig.transactions.roll_back(other)
    assert rig.is_closed


def test_the_deliveries_of_a_link_that_the_client_may_resume_are_kept() -> None:
    rig = Rig(suspended_ms=1_000)
    rig.close()
    rig.deliver(1)
    assert rig.settled() == []


def test_an_end_by_the_broker_or_an_error_returns_all() -> None:
    rig = Rig()
    rig.close(in_order=False)
    assert rig.is_closed
    assert rig.shard.replaced is None
    with pytest.raises(ConditionError) as raised:
        rig.transactions.check(rig.transaction)
    assert raised.value.condition == conditions.TRANSACTION_ROLLBACK


def test_deliveries_move_with_their_queue() -> None:
    rig = Rig()
    rig.close()
    rig.shard.take()
    rig.shard.resuming = True
    rig.shard.replaced.reopen()
    (opened,) = rig.shard.take()
    body = ConsumerOpen.decode(opened.body)
    assert (opened.kind, body.first, body.resume, body.steals) == (Kind.CONSUMER_OPEN, 10, True, False)
    rig.transactions.check(rig.transaction)


@pytest.mark.parametrize("how", ["the shard restarts", "the shard ends it", "another one is opened"])
def test_deliveries_that_are_in_their_queue_again_are_not_committed(how: str) -> None:
    rig = Rig()
    rig.frontend.policies["q"] = {"exclusive": True}
    rig.close()
    if how == "the shard restarts":
        rig.shard.replaced.reopen()
    elif how == "the shard ends it":
        rig.shard.replaced.ended(Refusal(conditions.RESOURCE_DELETED, "q was deleted"))
    else:
        consumer = ConsumerLink(
            rig.connection,  # type: ignore[arg-type]
            FakeLink(),  # type: ignore[arg-type]
            rig.shard,  # type: ignore[arg-type]
            number=7,
            options=ConsumerOpen("q"),
        )
        assert rig.is_closed
        assert consumer.settlements.held is None
    with pytest.raises(ConditionError) as raised:
        rig.transactions.check(rig.transaction)
    assert raised.value.condition == conditions.TRANSACTION_ROLLBACK
    rig.shard.closed.clear()
    rig.shard.take()
    rig.transactions.roll_back(rig.transaction)
    assert rig.settled() == []
    assert rig.released == [True]
    assert rig.frontend.retiring == {}


@pytest.mark.parametrize("suspended_ms", [0, 1_000])
@pytest.mark.parametrize("commits", [True, False])
def test_the_consumer_ends_as_its_client_ended_the_link(commits: bool, suspended_ms: int) -> None:
    # A delivery that the client did not work on would be shown as a redelivery otherwise.
    rig = Rig(suspended_ms=suspended_ms)
    rig.close()
    if commits:
        rig.transactions.committed(rig.transaction)
    else:
        rig.transactions.roll_back(rig.transaction)
    assert rig.is_closed
    assert rig.shard.endings == [Ending.BY_CLIENT]
