"""The open transactions of one connection, with their sends and settlements."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from lightrail.amqp.events import ACCEPTED, Acquire, Outcome, Posting, Retire, Transfers
from lightrail.amqp.performatives import Accepted, Modified, Rejected, Released, TransactionalState
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.anonymous import AnonymousLink, addressed, sends_delays
from lightrail.frontend.links.batched import BATCHED, unpacked
from lightrail.frontend.links.bound import RequestingLink, Terms
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.links.incoming import attributes_of
from lightrail.frontend.links.outcomes import FAILED, rejected
from lightrail.frontend.links.resolving import check_sendable
from lightrail.frontend.links.routing import RouterLink
from lightrail.frontend.links.scheduling import SchedulingRouterLink
from lightrail.frontend.links.terminus import container_of
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.frontend.transactions.acquisitions import Acquisitions
from lightrail.frontend.transactions.committing import RETURNED
from lightrail.frontend.transactions.coordinator import CoordinatorLink
from lightrail.frontend.transactions.transaction import Account, Attributes, Post, Retirement, Transaction
from lightrail.model import conditions
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection

TRANSACTIONS_PER_CONNECTION_MAX: Final[int] = 1_024
"""Open transactions of one connection."""
TRANSACTION_TIME_MS: Final[int] = 300_000
"""Time without a discharge after which a transaction that has work is rolled back; one without work, if its
connection declares more transactions than it may have open."""
SEND_LOST: Final = "a message that the client sent in the transaction was dropped, because its link has ended"
UNFINISHED: Final = "the transaction of this message was discharged before the message was complete"
NOT_UNSETTLED: Final = (
    "expected unsettled deliveries, found an outcome of deliveries {first} to {last} of the session, which "
    "were never sent, are settled, or are in their queue again because their link has ended"
)


class Transactions:
    """All transactions of a connection, of all of its coordinator links."""

    __slots__ = ("_account", "_acquisitions", "_by_id", "_connection", "_frontend", "_last", "_unfinished")

    def __init__(self, connection: "ClientConnection") -> None:
        self._connection = connection
        self._frontend = connection.frontend
        self._account = Account(connection.frontend.counts)
        self._by_id: dict[bytes, Transaction] = {}
        """In the order of their declares."""
        self._unfinished: dict[Link, bytes] = {}
        """Links on which a message was sent in part when its transaction ended."""
        self._acquisitions = Acquisitions(connection)
        self._last = 0

    def attach(self, link: "Link") -> None:
        """Answers the attach of a link to the coordinator."""
        connection = self._connection
        if link.is_sender:
            self._frontend.counts.links_refused += 1
            link.refuse(conditions.INVALID_FIELD, "expected a client that sends to a coordinator")
            connection.touch()
            return
        number = self._frontend.next_link()
        coordinator = CoordinatorLink(connection, link, self, number)
        link.context = coordinator
        connection.links.bind(coordinator, Terms(f"{connection.client.session_owner(link.session)}/{number}"))
        coordinator.start()

    # --- for the coordinator ---------------------------------------------------------------------------

    def declare(self, control: "Link | None" = None) -> Transaction:
        """Begins a transaction, on a link to the coordinator. Raises ConditionError."""
        if len(self._by_id) >= TRANSACTIONS_PER_CONNECTION_MAX and not self._end_abandoned():
            raise ConditionError(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"this connection has {TRANSACTIONS_PER_CONNECTION_MAX} open transactions, the most: "
                "discharge some of them",
            )
        if self._account.is_overdrawn:
            raise ConditionError(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                "the open transactions of this broker process have no memory left; try again later",
            )
        self._last += 1
        id, now_ms = self._last.to_bytes(8, "big"), self._frontend.now_ms()
        transaction = self._by_id[id] = Transaction(id, control, self._account, now_ms)
        self._frontend.counts.transactions_declared += 1
        return transaction

    def _end_abandoned(self) -> bool:
        """Ends the oldest transaction that its client has left for too long; False if there is none.

        One without work ends only here: clients of JMS declare the next transaction with each commit, and may
        have nothing to do for days.
        """
        until_ms = self._frontend.now_ms() - TRANSACTION_TIME_MS
        for each in self._by_id.values():
            if each.declared_ms > until_ms:
                return False
            if not each.is_ending and (not each.work_began_ms or each.is_timed_out):
                if each.control is not None and isinstance(each.control.context, CoordinatorLink):
                    each.control.context.forget(each)
                self.roll_back(each)
                return True
        return False

    def check(self, transaction: Transaction) -> None:
        """Raises ConditionError if it can only be rolled back."""
        if any(each.consumer.settlements.is_lost for each in transaction.retirements):
            transaction.fail(conditions.TRANSACTION_ROLLBACK, RETURNED)
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
        except for those that were acquired in the transaction, or whose link has ended.
        """
        self._frontend.counts.transactions_rolled_back += 1
        _give_back(transaction, state)
        self._acquisitions.roll_back(transaction, state)
        self._forget(transaction)

    def _forget(self, transaction: Transaction) -> None:
        self._by_id.pop(transaction.id, None)
        self._unfinished.update(dict.fromkeys(transaction.partial, transaction.id))
        transaction.forget()

    def session_ended(self) -> None:
        """An error has ended a session: frames of it that were part of a transaction may be dropped."""
        for each in self._by_id.values():
            if not each.is_ending:
                each.fail(
                    conditions.TRANSACTION_ROLLBACK,
                    "an error has ended a session of the connection; what the client sent there was dropped",
                )

    # --- work ------------------------------------------------------------------------------------------

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """Messages are sent in a transaction: they get its provisional outcome (transactions 4.4.1)."""
        assert event.txn_id is not None
        link, bound = event.link, event.link.context
        if self._unfinished.pop(link, None) == event.txn_id:
            self._refuse_unfinished(event)
            return
        transaction = self._find(event.txn_id, link)
        if transaction is None:
            return
        transaction.partial.pop(link, None)
        if bound is None:
            transaction.fail(conditions.TRANSACTION_ROLLBACK, SEND_LOST)
            return
        if isinstance(bound, RequestingLink) and bound.is_transactional:
            self._begin_work(transaction, now_ms)
            bound.transacted(event, transaction)
            return
        if not isinstance(bound, ProducerLink | RouterLink | AnonymousLink):
            transaction.fail(conditions.TRANSACTION_ROLLBACK, SEND_LOST)
            self._connection.links.detach(
                link,
                conditions.NOT_IMPLEMENTED,
                "transactions send to queues and routers; of requests, only those to NAME/$management that "
                "settle, schedule or cancel messages may be part of one",
            )
            return
        self._begin_work(transaction, now_ms)
        parts: Iterable[tuple[str | ConditionError | None, Transfers]] = [(None, event)]
        if isinstance(bound, AnonymousLink):
            parts = addressed(event)
        elif event.message_format == BATCHED:
            parts = unpacked(event, now_ms)
        if isinstance(bound, ProducerLink) and bound.checks:
            parts = ((bound.refusal(part) or address, part) for address, part in parts)
        hold = self._connection.links.hold_of(bound)
        stores_all = self._frontend.hooks.stores_all(link)
        entity = isinstance(bound, AnonymousLink) and bound.names_entities
        for address, part in parts:
            if isinstance(address, str):
                try:
                    delays = sends_delays(bound)
                    check_sendable(self._connection, address, part.payloads, delays=delays, entity=entity)
                except ConditionError as error:
                    address = error
            if isinstance(address, ConditionError):
                if isinstance(bound, AnonymousLink) and self._refuse(part, bound, transaction, address):
                    continue
                transaction.fail(address.condition, address.description)
                continue
            name = bound.queue if isinstance(bound, ProducerLink) else ""
            name = bound.router if isinstance(bound, RouterLink) else address or name
            payloads = part.payloads if part.pieces is None else [b"".join(part.pieces)]
            attributes = Attributes(*attributes_of(part, now_ms, stores_all=stores_all), part.message_format)
            post = Post(name, address is not None, payloads, attributes, container_of(link), hold=hold)
            post.may_delay, post.is_entity = sends_delays(bound), entity
            post.may_schedule = isinstance(bound, SchedulingRouterLink)
            transaction.post(post)
            if isinstance(bound, AnonymousLink):
                self._settle(part, transaction, transaction.failure)
        counts = self._frontend.counts
        counts.messages_received += event.count
        counts.message_bytes_received += sum(
            map(len, event.payloads if event.pieces is None else event.pieces)
        )
        if not isinstance(bound, AnonymousLink):
            self._settle(event, transaction, transaction.failure)
        bound.relieved()
        self._connection.touch()

    def _settle(self, event: Transfers, transaction: Transaction, refusal: Refusal | None) -> None:
        """The provisional outcome of messages that are sent in a transaction."""
        if not event.settled:
            outcome: Accepted | Rejected = ACCEPTED
            if refusal is not None:
                outcome = rejected(refusal.condition, refusal.description)
            first, last = event.first_delivery_id, event.first_delivery_id + event.count - 1
            state = TransactionalState(txn_id=transaction.id, outcome=outcome)
            (event.link.settle if refusal is None else event.link.answer)(first, last, state)

    def _refuse(
        self, event: Transfers, anonymous: AnonymousLink, transaction: Transaction, why: ConditionError
    ) -> bool:
        """Rejects messages with an address to which they can't be sent.

        The client may commit everything else, since it has the outcome. Returns False if it can't get one:
        then the link ends, and the transaction fails.
        """
        if event.settled or not anonymous.can_reject:
            transaction.fail(why.condition, why.description)
            self._connection.links.detach(event.link, why.condition, why.description)
            return False
        self._settle(event, transaction, Refusal(why.condition, why.description))
        return True

    def _refuse_unfinished(self, event: Transfers) -> None:
        """The rest of a message whose transaction has ended meanwhile."""
        if not event.settled:
            state = rejected(conditions.TRANSACTION_ROLLBACK, UNFINISHED)
            event.link.answer(event.first_delivery_id, event.first_delivery_id, state)
        if event.link.context is not None:
            event.link.context.relieved()
        self._connection.touch()

    def posting(self, event: Posting) -> None:
        """A message of several frames is sent in a transaction, or is lost before it is complete."""
        if event.phase == Posting.BEGUN:
            transaction = self._find(event.txn_id, event.link)
            if transaction is not None:
                transaction.partial[event.link] = None
                self._begin_work(transaction, self._frontend.now_ms())
            return
        if self._unfinished.get(event.link) == event.txn_id:
            del self._unfinished[event.link]
        transaction = self._by_id.get(event.txn_id)
        if transaction is not None:
            transaction.partial.pop(event.link, None)
            if event.phase == Posting.LOST:
                transaction.fail(conditions.TRANSACTION_ROLLBACK, SEND_LOST)

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

    def retire(self, event: Retire) -> None:
        """Deliveries get an outcome in a transaction (transactions 4.4.2).

        It fails if some of them can't be settled any more, as it must not be committed without them.
        """
        session, first, last = event.session, event.first_id, event.last_id
        transaction = self._by_id.get(event.state.txn_id)
        if transaction is None or transaction.is_ending:
            for outcome in event.outcomes:
                self._find(event.state.txn_id, outcome.link)
            return
        replaces = transaction.named.overlaps(session, first, last)
        for outcome in event.outcomes:
            self._retire(outcome, transaction, event.state, replaces=replaces)
        missing = next((each for each in event.missing if not transaction.named.has(session, *each)), None)
        if missing is not None:
            transaction.fail(
                conditions.TRANSACTION_ROLLBACK, NOT_UNSETTLED.format(first=missing[0], last=missing[1])
            )
        elif transaction.failure is None:
            transaction.named.add(session, first, last)

    def _retire(
        self, event: Outcome, transaction: Transaction, state: TransactionalState, *, replaces: bool
    ) -> None:
        link, consumer = event.link, event.link.context
        if consumer is None:
            transaction.fail(conditions.TRANSACTION_ROLLBACK, RETURNED)
            return
        if not isinstance(consumer, ConsumerLink) or consumer.options.relay:
            description = "transactions settle deliveries of queues and subscriptions"
            transaction.fail(conditions.TRANSACTION_ROLLBACK, description)
            self._connection.links.detach(link, conditions.NOT_IMPLEMENTED, description)
            return
        if consumer.options.presettled or consumer.options.browse:
            return
        if not self._acquisitions.accepts(consumer, event, transaction):
            return
        self._begin_work(transaction, self._frontend.now_ms())
        try:
            found = consumer.transacted(event, state)
        except ConditionError as error:
            transaction.fail(conditions.TRANSACTION_ROLLBACK, error.description)
            return
        first = consumer.settlements.retire(event.first, event.last, settled=found.settled)
        if first > event.first:
            transaction.fail(
                conditions.TRANSACTION_ROLLBACK,
                "the shard of deliveries that the transaction settles has ended, and delivers them again",
            )
        if first <= event.last:
            if replaces:
                transaction.replace(consumer, first, event.last)
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
            transaction.timer = self._frontend.timer(
                TRANSACTION_TIME_MS, partial(self._time_out, transaction)
            )

    def _time_out(self, transaction: Transaction) -> None:
        if transaction.is_ending or transaction.id not in self._by_id:
            return
        transaction.fail(
            conditions.TRANSACTION_TIMEOUT,
            f"it was not discharged within {TRANSACTION_TIME_MS // 1000} s of its first work",
        )
        transaction.is_timed_out = True
        _give_back(transaction, FAILED)
        self._acquisitions.time_out(transaction)
        transaction.forget()


def _give_back(transaction: Transaction, state: Modified | Released) -> None:
    """Returns the deliveries that the client has settled in a transaction to their queues.

    So do those of links that have ended: their client gives them no other outcome.
    """
    for each in transaction.retirements:
        settlements = each.consumer.settlements
        if each.settled or settlements.is_closed:
            settlements.give_back(each.first, each.last, state)
