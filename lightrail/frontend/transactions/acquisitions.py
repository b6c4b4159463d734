"""Acquisitions: deliveries that a client acquires in a transaction (transactions 4.4.3, 4.4.4).

A flow with the id of a transaction makes all further deliveries of its link part of that transaction, until
it is discharged, or a flow names another one. At the shard they are in flight like all deliveries. A commit
leaves those without an outcome with the receiver; a rollback ends all of them at the receiver, and the
messages return to their queue: released, or as failed deliveries if they had an outcome.

An outcome of such a delivery has to be in the same transaction. Otherwise the link on which the transaction
was declared is ended, and so the transaction is rolled back.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from lightrail.amqp.events import RELEASED, Outcome
from lightrail.amqp.performatives import Modified, Released, TransactionalState
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.links.outcomes import FAILED, OUTCOMES
from lightrail.frontend.transactions.transaction import Acquisition, Retirement, Transaction
from lightrail.model import conditions, limits

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection

UNFINISHED: Final = (
    "a transaction was rolled back while a message that the link had acquired in it was sent in part; "
    "attach again"
)
TIMED_OUT: Final = "the transaction in which the link acquires deliveries was not discharged in time"
OTHER_OUTCOME: Final = (
    "expected the outcome of delivery {first} of link {link!r} in the transaction in which it was acquired, "
    "found it {where}"
)


@dataclass(slots=True, eq=False, repr=False)
class AcquiringOutput:
    """Sends the messages of a link as deliveries that are acquired in a transaction."""

    _link: "Link"
    _state: TransactionalState

    def send(
        self,
        count: int,
        ends: Sequence[int],
        blob: bytes | bytearray | memoryview,
        base: int = 0,
        settled: bool = False,
        message_format: int = 0,
    ) -> None:
        """See Link."""
        self._link.send(count, ends, blob, base, settled, message_format, self._state)

    def send_one(self, payload: bytes, message_format: int = 0, settled: bool = False) -> None:
        """See Link."""
        self._link.send(1, (len(payload),), payload, 0, settled, message_format, self._state)


@dataclass(slots=True, eq=False, repr=False)
class Acquisitions:
    """Those of all transactions of a connection that are not discharged."""

    _connection: "ClientConnection"
    _by_consumer: dict[ConsumerLink, list[tuple[Transaction, Acquisition]]] = field(default_factory=dict)

    def begin(self, transaction: Transaction, link: "Link", consumer: object) -> None:
        """Further deliveries of a link are acquired in a transaction. Raises ConditionError."""
        if not isinstance(consumer, ConsumerLink):
            raise ConditionError(
                conditions.NOT_IMPLEMENTED,
                "expected credit for a transaction on an attached link that receives from a queue or a "
                "subscription, found another link",
            )
        if (why := _obstacle(consumer)) is not None:
            raise ConditionError(conditions.NOT_IMPLEMENTED, why)
        mine = self._by_consumer.get(consumer)
        if mine and mine[-1][1].is_open and mine[-1][0] is transaction:
            return
        self.pause(consumer)
        if len(transaction.acquisitions) >= limits.TRANSACTION_PARTS_MAX:
            raise ConditionError(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"expected a transaction that acquires at most {limits.TRANSACTION_PARTS_MAX} ranges of "
                "deliveries, found more",
            )
        acquisition = Acquisition(transaction.id, link, consumer)
        transaction.acquisitions[acquisition] = None
        self._by_consumer.setdefault(consumer, []).append((transaction, acquisition))
        consumer.output = AcquiringOutput(link, acquisition.state)
        consumer.settle = partial(self._settle, consumer)

    def pause(self, consumer: ConsumerLink) -> None:
        """Further deliveries of a link are acquired in no transaction."""
        mine = self._by_consumer.get(consumer)
        if mine and mine[-1][1].is_open:
            transaction, acquisition = mine[-1]
            acquisition.end()
            consumer.output = acquisition.link
            if acquisition.last < acquisition.first:
                mine.pop()
                del transaction.acquisitions[acquisition]

    def discharge(self, transaction: Transaction) -> None:
        """The transaction acquires no more, and its deliveries may have other outcomes from now on."""
        consumers = {each.consumer for each in transaction.acquisitions}
        for acquisition in list(transaction.acquisitions):
            if acquisition.is_open:
                self.pause(acquisition.consumer)
        for consumer in consumers:
            mine = self._by_consumer.pop(consumer, [])
            left = [each for each in mine if each[0] is not transaction]
            if left:
                self._by_consumer[consumer] = left
            else:
                consumer.settle = consumer.settlements.outcome

    def roll_back(self, transaction: Transaction, state: Modified | Released = FAILED) -> None:
        """Ends the deliveries of a transaction at their receivers, and returns the messages.

        Args:
            state: of those that the client settled in it.
        """
        self.discharge(transaction)
        acquisitions, transaction.acquisitions = transaction.acquisitions, {}
        by_consumer: dict[ConsumerLink, list[Acquisition]] = {}
        for each in acquisitions:
            by_consumer.setdefault(each.consumer, []).append(each)
        for consumer, mine in by_consumer.items():
            unfinished = mine[0].link.unfinished
            settlements = consumer.settlements
            if settlements.is_closed:
                continue
            if unfinished is not None and any(each.overlaps(unfinished, unfinished) for each in mine):
                self._connection.links.detach(mine[0].link, conditions.TRANSACTION_ROLLBACK, UNFINISHED)
                continue
            retired = [each for each in transaction.retirements if each.consumer is consumer]
            for first, last in _in_both(mine, sorted(retired, key=_first)):
                settlements.take_back(first, last, state)
            for each in mine:
                settlements.take_back(each.first, each.last, RELEASED)

    def time_out(self, transaction: Transaction) -> None:
        """The transaction has taken too long: ends the links that acquire in it, and rolls it back."""
        for each in list(transaction.acquisitions):
            if each.is_open and not each.consumer.settlements.is_closed:
                self._connection.links.detach(each.link, conditions.TRANSACTION_TIMEOUT, TIMED_OUT)
        self.roll_back(transaction)

    # --- outcomes ----------------------------------------------------------------------------------------

    def accepts(self, consumer: ConsumerLink, event: Outcome, transaction: Transaction) -> bool:
        """Whether deliveries may get an outcome in a transaction: none is acquired in another one.

        Otherwise the link on which the transaction was declared is ended, which rolls it back.
        """
        others = [each for other, each in self._found(consumer, event) if other is not transaction]
        if not others:
            return True
        if event.settled:
            first = consumer.settlements.retire(event.first, event.last, settled=True)
            consumer.settlements.give_back(first, event.last)
        self._refuse(transaction, others[0], event, "in another transaction")
        return False

    def _settle(self, consumer: ConsumerLink, event: Outcome) -> None:
        """Applies an outcome that is in no transaction, except to deliveries that are acquired in one."""
        settlements = consumer.settlements
        if not event.settled and not isinstance(event.state, OUTCOMES):
            # Not an outcome: the received part (messaging 3.4.1), or no state at all.
            return
        at = event.first
        for transaction, acquisition in self._found(consumer, event):
            first, last = acquisition.first, acquisition.last
            self._refuse(transaction, acquisition, event, "without one")
            if at < first and not settlements.is_closed:
                settlements.outcome(Outcome(event.link, at, first - 1, event.state, event.settled))
            at = max(at, last + 1)
        if at <= event.last and not settlements.is_closed:
            settlements.outcome(Outcome(event.link, at, event.last, event.state, event.settled))

    def _found(self, consumer: ConsumerLink, event: Outcome) -> list[tuple[Transaction, Acquisition]]:
        """The acquisitions of deliveries of an outcome, in their order."""
        mine = self._by_consumer.get(consumer, [])
        start = stop = bisect_left(mine, event.first, key=lambda each: each[1].last)
        while stop < len(mine) and mine[stop][1].first <= event.last:
            stop += 1
        return mine[start:stop]

    def _refuse(self, transaction: Transaction, acquisition: Acquisition, event: Outcome, where: str) -> None:
        if transaction.control is not None:
            first = max(event.first, acquisition.first)
            why = OTHER_OUTCOME.format(first=first, link=acquisition.link.name, where=where)
            self._connection.links.detach(transaction.control, conditions.TRANSACTION_ROLLBACK, why)


def _first(retirement: Retirement) -> int:
    return retirement.first


def _in_both(acquired: Sequence[Acquisition], retired: Sequence[Retirement]) -> Iterator[tuple[int, int]]:
    """Ranges of deliveries that are acquired and have an outcome; both arguments are in order."""
    left = iter(acquired)
    each = next(left, None)
    at = 0
    """Deliveries before it are done."""
    for retirement in retired:
        at = max(at, retirement.first)
        while each is not None and at <= retirement.last:
            if each.last < at:
                each = next(left, None)
                continue
            first, last = max(at, each.first), min(retirement.last, each.last)
            if first <= last:
                yield first, last
            at = max(at, last + 1)
            if last < each.last:
                break


def _obstacle(consumer: ConsumerLink) -> str | None:
    """Why a link can't acquire deliveries in a transaction, or None."""
    options = consumer.options
    if options.relay:
        return "expected credit for a transaction on a link to a queue, found one to a connection point"
    if options.browse:
        return "a link that browses acquires no messages; receive without distribution-mode copy"
    if options.presettled:
        return (
            "deliveries that are settled when they are sent can't be rolled back; "
            "attach with snd-settle-mode unsettled or mixed"
        )
    if type(consumer) is not ConsumerLink:
        return (
            "links that their client may resume, and those of clients of Azure Service Bus, acquire no "
            "deliveries in transactions; settle deliveries in transactions"
        )
    return None
