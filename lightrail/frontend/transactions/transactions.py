"""The open transactions of one connection, with their sends and settlements."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lightrail.amqp.events import ACCEPTED, Acquire, Outcome, Transfers
from lightrail.amqp.performatives import Accepted, AmqpError, Modified, Rejected, Released, TransactionalState
from lightrail.amqp.values import Symbol
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.anonymous import AnonymousLink, addressed, sends_delays
from lightrail.frontend.links.batched import BATCHED, unpacked
from lightrail.frontend.links.bound import Terms
from lightrail.frontend.links.bus_topics import is_scheduling
from lightrail.frontend.links.context import LinkContext
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.links.incoming import attributes_of
from lightrail.frontend.links.outcomes import FAILED
from lightrail.frontend.links.own_messages import container_of
from lightrail.frontend.links.requesting import RequestingLink
from lightrail.frontend.links.routing import RouterLink
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.frontend.transactions.acquisitions import Acquisitions
from lightrail.frontend.transactions.committing import LINK_ENDED
from lightrail.frontend.transactions.coordinator import CoordinatorLink
from lightrail.frontend.transactions.transaction import Attributes, Post, Retirement, Transaction
from lightrail.model import conditions, limits
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.amqp.link import Link


class Transactions:
    """All transactions of a connection, of all of its coordinator links."""

    __slots__ = ("_acquisitions", "_by_id", "_connection", "_frontend", "_last")

    def __init__(self, connection: LinkContext) -> None:
        self._connection = connection
        self._frontend = connection.frontend
        self._by_id: dict[bytes, Transaction] = {}
        self._acquisitions = Acquisitions(connection)
        self._last = 0

    def attach(self, link: "Link") -> None:
        """Answers the attach of a link to the coordinator."""
        connection = self._connection
        number = self._frontend.next_link()
        coordinator = CoordinatorLink(connection, link, self, number)
        link.context = coordinator
        connection.links.bind(coordinator, Terms(f"{connection.client.session_owner(link.session)}/{number}"))
        coordinator.start()

    # --- for the coordinator ---------------------------------------------------------------------------

    def declare(self, control: "Link | None" = None) -> Transaction:
        """Begins a transaction, on a link to the coordinator. Raises ConditionError."""
        if len(self._by_id) >= limits.TRANSACTIONS_PER_CONNECTION_MAX:
            raise ConditionError(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"this connection has {limits.TRANSACTIONS_PER_CONNECTION_MAX} open transactions, the most: "
                "discharge some of them",
            )
        self._last += 1
        transaction = Transaction(self._last.to_bytes(8, "big"), control)
        self._by_id[transaction.id] = transaction
        self._frontend.counts.transactions_declared += 1
        return transaction

    def check(self, transaction: Transaction) -> None:
        """Raises ConditionError if it can only be rolled back."""
        if any(each.consumer.settlements.is_closed for each in transaction.retirements):
            transaction.fail(conditions.TRANSACTION_ROLLBACK, LINK_ENDED)
        if transaction.requests:
            transaction.fail(
                conditions.TRANSACTION_ROLLBACK, "expected the discharge after the answers to all requests"
            )
        if transaction.failure is not None:
            raise ConditionError(transaction.failure.condition, transaction.failure.description)

    def discharge(self, transaction: Transaction) -> None:
        """The client discharges a transaction, which accepts no more work."""
        transaction.is_ending = True
        self._acquisitions.discharge(transaction)

    def committed(self, transaction: Transaction) -> None:
        """Removes a transaction that is on disk."""
        counts = self._frontend.counts
        counts.transactions_committed += 1
        counts.messages_accepted += transaction.messages
        for each in transaction.retirements:
            each.consumer.settlements.retired(each.first, each.last, each.outcome, settled=each.settled)
        self._forget(transaction)

    def roll_back(self, transaction: Transaction, state: Modified | Released = FAILED) -> None:
        """Rolls a transaction back: settled deliveries return to their queue with this outcome.

        Deliveries that the client has not settled stay in flight, without an outcome (transactions 4.4.2),
        except for those that were acquired in the transaction.
        """
        self._frontend.counts.transactions_rolled_back += 1
        _give_back(transaction, state)
        self._acquisitions.roll_back(transaction, state)
        self._forget(transaction)

    def _forget(self, transaction: Transaction) -> None:
        self._frontend.counts.transaction_bytes -= transaction.size
        self._by_id.pop(transaction.id, None)
        transaction.size = 0
        transaction.posts.clear()
        transaction.retirements.clear()
        transaction.locks.clear()
        transaction.acquisitions.clear()

    # --- work ------------------------------------------------------------------------------------------

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """Messages are sent in a transaction: they get its provisional outcome (transactions 4.4.1)."""
        assert event.txn_id is not None
        link, bound = event.link, event.link.context
        transaction = self._find(event.txn_id, link)
        if transaction is None or bound is None:
            return
        if isinstance(bound, RequestingLink) and bound.is_transactional:
            self._begin_work(transaction, now_ms)
            bound.transacted(event, transaction)
            return
        if not isinstance(bound, ProducerLink | RouterLink | AnonymousLink):
            self._connection.links.detach(
                link,
                conditions.NOT_IMPLEMENTED,
                "transactions send to queues and routers; of requests, only those to NAME/$management that "
                "settle messages by lock tokens may be part of one",
            )
            return
        self._begin_work(transaction, now_ms)
        before = transaction.size
        parts: Iterable[tuple[str | ConditionError | None, Transfers]] = [(None, event)]
        if isinstance(bound, AnonymousLink):
            parts = addressed(event)
        elif event.message_format == BATCHED:
            parts = unpacked(event, now_ms)
        refusal: Refusal | None = None
        for address, part in parts:
            if isinstance(address, ConditionError):
                refusal = Refusal(address.condition, address.description)
                transaction.fail(address.condition, address.description)
                continue
            name = bound.queue if isinstance(bound, ProducerLink) else ""
            name = bound.router if isinstance(bound, RouterLink) else address or name
            payloads = part.payloads if part.pieces is None else [b"".join(part.pieces)]
            attributes = Attributes(*attributes_of(part, now_ms), part.message_format)
            container, delays, schedules = container_of(link), sends_delays(bound), is_scheduling(bound)
            post = Post(name, address is not None, payloads, attributes, container, delays, schedules)
            transaction.post(post)
        counts = self._frontend.counts
        counts.messages_received += event.count
        counts.message_bytes_received += sum(
            map(len, event.payloads if event.pieces is None else event.pieces)
        )
        counts.transaction_bytes += transaction.size - before
        if counts.transaction_bytes > limits.TRANSACTIONS_BYTES_MAX:
            transaction.fail(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"all open transactions of this broker process have {counts.transaction_bytes} bytes, more "
                f"than {limits.TRANSACTIONS_BYTES_MAX}; discharge some and try again",
            )
        if transaction.failure is not None:
            refusal = transaction.failure
        if not event.settled:
            outcome: Accepted | Rejected = ACCEPTED
            if refusal is not None:
                error = AmqpError(condition=Symbol(refusal.condition), description=refusal.description)
                outcome = Rejected(error=error)
            last = event.first_delivery_id + event.count - 1
            link.settle(
                event.first_delivery_id, last, TransactionalState(txn_id=transaction.id, outcome=outcome)
            )
        bound.relieved()
        self._connection.touch()

    def acquire(self, event: Acquire) -> None:
        """Deliveries of a link are acquired in a transaction from now on (transactions 4.4.3)."""
        link, consumer = event.link, event.link.context
        if event.txn_id is None:
            if isinstance(consumer, ConsumerLink):
                self._acquisitions.pause(consumer)
            return
        transaction = self._find(event.txn_id, link)
        if transaction is None:
            return
        try:
            self.check(transaction)
            self._acquisitions.begin(transaction, link, consumer)
        except ConditionError as error:
            self._connection.links.detach(link, error.condition, error.description)
        else:
            self._begin_work(transaction, self._frontend.now_ms())

    def outcome(self, event: Outcome) -> None:
        """Deliveries are settled in a transaction (transactions 4.4.2)."""
        state: TransactionalState = event.state
        link, consumer = event.link, event.link.context
        transaction = self._find(state.txn_id, link)
        if transaction is None or consumer is None:
            return
        if not isinstance(consumer, ConsumerLink) or consumer.options.relay:
            self._connection.links.detach(
                link, conditions.NOT_IMPLEMENTED, "transactions settle deliveries of queues and subscriptions"
            )
            return
        if consumer.options.presettled or consumer.options.browse:
            return
        if not self._acquisitions.accepts(consumer, event, transaction):
            return
        found = consumer.transacted(event, state)
        self._begin_work(transaction, self._frontend.now_ms())
        first = consumer.settlements.retire(event.first, event.last, settled=found.settled)
        if first > event.first:
            transaction.fail(
                conditions.TRANSACTION_ROLLBACK,
                "the shard of deliveries that the transaction settles has ended, and delivers them again",
            )
        if first <= event.last:
            transaction.retire(Retirement(consumer, first, event.last, found.state, found.settled))

    def _find(self, id: bytes, link: "Link") -> Transaction | None:
        transaction = self._by_id.get(id)
        if transaction is None or transaction.is_ending:
            self._connection.links.detach(
                link,
                conditions.TRANSACTION_UNKNOWN_ID,
                f"expected a transaction that was declared and not discharged, found transaction {id[:32]!r}",
            )
            return None
        return transaction

    # --- time ------------------------------------------------------------------------------------------

    def _begin_work(self, transaction: Transaction, now_ms: int) -> None:
        """Begins its time limit with the first work: its deliveries are locked for other receivers."""
        if not transaction.work_began_ms:
            transaction.work_began_ms = now_ms
            self._frontend.later(limits.TRANSACTION_TIME_MS, lambda: self._time_out(transaction))

    def _time_out(self, transaction: Transaction) -> None:
        if transaction.is_ending or transaction.id not in self._by_id:
            return
        transaction.fail(
            conditions.TRANSACTION_TIMEOUT,
            f"it was not discharged within {limits.TRANSACTION_TIME_MS // 1000} s of its first work",
        )
        _give_back(transaction, FAILED)
        self._acquisitions.time_out(transaction)
        transaction.retirements.clear()
        transaction.locks.clear()
        transaction.posts.clear()
        self._frontend.counts.transaction_bytes -= transaction.size
        transaction.size = 0


def _give_back(transaction: Transaction, state: Modified | Released) -> None:
    """Returns the deliveries that the client has settled in a transaction to their queues."""
    for each in transaction.retirements:
        if each.settled:
            each.consumer.settlements.give_back(each.first, each.last, state)
