"""A transaction gathers work within bounds; what exceeds them can only be rolled back."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.amqp.performatives import Accepted, Released
from lightrail.frontend.transactions.transaction import (
    TRANSACTION_BYTES_MAX,
    TRANSACTION_OVERHEAD,
    Attributes,
    NamedDeliveries,
    Post,
    Retirement,
    Transaction,
)
from lightrail.model import conditions, limits

RANGES = st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda each: (each[0], sum(each)))


@given(st.lists(RANGES), RANGES)
def test_ranges_are_those_of_a_set(added: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    named, session, other = NamedDeliveries(), object(), object()
    ids: set[int] = set()
    for first, last in added:
        named.add(session, first, last)
        ids.update(range(first, last + 1))
    mine = set(range(asked[0], asked[1] + 1))
    assert named.has(session, *asked) is (mine <= ids)
    assert named.overlaps(session, *asked) is bool(mine & ids)
    assert not named.overlaps(other, *asked)


ATTRIBUTES = Attributes(durable=True, priority=4, expires_at_ms=0, message_format=0)


def post(*payloads: bytes) -> Post:
    return Post("q", False, list(payloads), ATTRIBUTES)


class Consumer:
    """Counts what a transaction holds, and notes what returns to the queue."""

    def __init__(self) -> None:
        self.settlements = self
        self.held: set[Retirement] = set()
        self.returned: list[tuple[int, int]] = []

    def hold(self, held: Retirement) -> None:
        self.held.add(held)

    def release(self, held: Retirement) -> None:
        self.held.remove(held)

    def give_back(self, first: int, last: int) -> None:
        self.returned.append((first, last))


def retirement(
    first: int, last: int, consumer: Any = None, outcome: Any = None, settled: bool = True
) -> Retirement:
    return Retirement(consumer or cast(Any, Consumer()), first, last, outcome or Accepted(), settled)


def ranges(transaction: Transaction) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in transaction.retirements]


def failed(transaction: Transaction) -> bool:
    if transaction.failure is None:
        return False
    assert transaction.failure.condition == conditions.RESOURCE_LIMIT_EXCEEDED
    return True


def test_messages_up_to_the_most() -> None:
    transaction = Transaction(b"t")
    transaction.post(post(*[b"x"] * limits.TRANSACTION_MESSAGES_MAX))
    assert not failed(transaction)
    transaction.post(post(b"x"))
    assert failed(transaction)
    # It can only be rolled back, which needs none of them.
    assert transaction.posts == []


def test_bytes_up_to_the_most() -> None:
    transaction = Transaction(b"t")
    half = bytes(TRANSACTION_BYTES_MAX // 2)
    transaction.post(post(half))
    transaction.post(post(half))
    assert not failed(transaction)
    transaction.post(post(b"x"))
    assert failed(transaction)
    assert transaction.size == TRANSACTION_OVERHEAD


def test_batches_up_to_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_PARTS_MAX", 3)
    transaction = Transaction(b"t")
    for _ in range(3):
        transaction.post(post(b"x"))
    assert not failed(transaction)
    transaction.post(post(b"x"))
    assert failed(transaction)


def test_ranges_up_to_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_PARTS_MAX", 3)
    transaction = Transaction(b"t")
    for number in range(3):
        transaction.retire(retirement(2 * number, 2 * number))
    assert not failed(transaction)
    consumer = Consumer()
    transaction.retire(retirement(10, 10, consumer))
    assert failed(transaction)
    # It has to be rolled back as well.
    assert (consumer.returned, len(transaction.retirements)) == ([(10, 10)], 3)


def test_neighbours_with_one_outcome_are_one_range() -> None:
    transaction = Transaction(b"t")
    consumer = Consumer()
    transaction.retire(retirement(0, 1, consumer))
    transaction.retire(retirement(2, 2, consumer))
    transaction.retire(retirement(3, 3, consumer, Released()))
    transaction.retire(retirement(4, 4, consumer, Released(), settled=False))
    transaction.retire(retirement(5, 5, Consumer(), Released(), settled=False))
    transaction.retire(retirement(7, 7, consumer))
    assert ranges(transaction) == [(0, 2), (3, 3), (4, 4), (5, 5), (7, 7)]


def test_a_delivery_has_the_outcome_that_its_client_gave_it_last() -> None:
    transaction, consumer, other = Transaction(b"t"), Consumer(), Consumer()
    transaction.retire(retirement(0, 9, consumer))
    transaction.retire(retirement(0, 9, other))
    transaction.replace(consumer, 4, 5)  # type: ignore[arg-type]
    transaction.retire(retirement(4, 5, consumer, Released()))
    mine = [each for each in transaction.retirements if each.consumer is consumer]  # type: ignore[comparison-overlap]
    assert sorted((each.first, each.last, type(each.outcome)) for each in mine) == [
        (0, 3, Accepted),
        (4, 5, Released),
        (6, 9, Accepted),
    ]
    assert (consumer.held, len(other.held)) == (set(mine), 1)
    transaction.forget()
    assert not consumer.held
    assert not other.held


def test_the_first_reason_to_fail_counts() -> None:
    transaction = Transaction(b"t")
    transaction.fail(conditions.TRANSACTION_TIMEOUT, "one")
    transaction.fail(conditions.TRANSACTION_ROLLBACK, "two")
    assert transaction.failure is not None
    assert transaction.failure.condition == conditions.TRANSACTION_TIMEOUT


def test_locks_of_deferred_messages_up_to_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together with ranges of deliveries; what exceeds them is not added."""
    monkeypatch.setattr(limits, "TRANSACTION_PARTS_MAX", 3)
    transaction = Transaction(b"t")
    transaction.retire(retirement(0, 0))
    transaction.retire_lock("q", "k", 5, Accepted())
    transaction.retire_lock("q", "k", 6, Accepted())
    assert not failed(transaction)
    assert transaction.has_lock("k", 6)
    assert not transaction.refusal
    transaction.retire_lock("q", "k", 7, Accepted())
    assert failed(transaction)
    assert not transaction.has_lock("k", 7)
    assert "at most 3 ranges" in transaction.refusal


def test_a_discharged_transaction_accepts_no_request() -> None:
    transaction = Transaction(b"t")
    transaction.is_ending = True
    assert transaction.refusal == "the transaction is discharged"
