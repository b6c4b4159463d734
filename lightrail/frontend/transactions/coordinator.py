"""The coordinator of transactions: the target of a link on which a client declares and discharges them.

A transaction belongs to the link on which it was declared, and is rolled back if that link ends first
(transactions 4.3). It is committed in a task; transactions of one link are committed one after the other.
"""

import asyncio
import logging
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.amqp.events import ACCEPTED, RELEASED, Transfers
from lightrail.amqp.link import SETTLE_FIRST, Link
from lightrail.amqp.performatives import (
    AmqpError,
    Coordinator,
    Declare,
    Declared,
    Modified,
    Rejected,
    Released,
    Source,
)
from lightrail.amqp.transactions import read_coordinator_request
from lightrail.amqp.values import DecodeError, Symbol
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.bound import Bound
from lightrail.frontend.links.outcomes import FAILED
from lightrail.frontend.transactions.committing import Committing
from lightrail.frontend.transactions.transaction import Transaction
from lightrail.model import conditions
from lightrail.model.links import Ending

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.transactions.transactions import Transactions

COORDINATOR_REQUEST_BYTES: Final[int] = 4_096
"""Largest message to a coordinator of transactions."""
COORDINATOR_CREDIT: Final[int] = 100
"""Credit of a link to a coordinator of transactions."""

log = logging.getLogger("lightrail.frontend.transactions")

CAPABILITIES: Final = [
    Symbol("amqp:local-transactions"),
    Symbol("amqp:multi-txns-per-ssn"),
    Symbol("amqp:multi-ssns-per-txn"),
]
"""Transactions 4.5.7."""
REJECTED: Final = Symbol("amqp:rejected:list")
PARTIAL: Final = (
    "expected a discharge after the last frame of each message of the transaction, found one before"
)


@dataclass(slots=True, eq=False, repr=False)
class CoordinatorLink(Bound):
    """One incoming link (the client sends) to the coordinator."""

    _connection: "ClientConnection"
    _link: Link
    _transactions: "Transactions"
    number: InitVar[int]
    _committing: Committing = field(init=False)
    _line: asyncio.Lock = field(default_factory=asyncio.Lock)
    _mine: dict[bytes, Transaction] = field(default_factory=dict)
    """Transactions that were declared here and not discharged."""
    _closed: bool = False
    _can_reject: bool = field(init=False)

    def __post_init__(self, number: int) -> None:
        self._committing = Committing(self._connection, number)
        source = self._link.source
        outcomes = source.outcomes if isinstance(source, Source) else None
        self._can_reject = not outcomes or REJECTED in outcomes

    def start(self) -> None:
        """Answers the attach, with the first credit."""
        if self._connection.frontend.hooks.settles_itself(self._link):
            self._link.let_peer_settle()
        self._link.accept(
            target=Coordinator(capabilities=CAPABILITIES),
            rcv_settle_mode=SETTLE_FIRST,
            max_message_size=COORDINATOR_REQUEST_BYTES,
        )
        self._link.grant(COORDINATOR_CREDIT)
        self._connection.touch()

    # --- from the client -------------------------------------------------------------------------------

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """Executes declares and discharges in their order."""
        for number, payload in enumerate(event.payloads, event.first_delivery_id):
            if self._closed:
                return
            try:
                request = read_coordinator_request(payload)
                if isinstance(request, Declare):
                    self._declare(request, number, event.settled)
                else:
                    self._discharge(request.txn_id, bool(request.fail), number, event.settled)
            except DecodeError as malformed:
                self._refuse(number, event.settled, conditions.DECODE_ERROR, str(malformed))
            except ConditionError as error:
                self._refuse(number, event.settled, error.condition, error.description)
        if not self._closed and self._link.credit <= COORDINATOR_CREDIT // 2:
            self._link.grant(COORDINATOR_CREDIT)
        self._connection.touch()

    def _declare(self, request: Declare, number: int, settled: bool) -> None:
        if request.global_id is not None:
            raise ConditionError(
                conditions.NOT_IMPLEMENTED, "expected a declare without a global-id: transactions are local"
            )
        if settled:
            raise ConditionError(
                conditions.NOT_ALLOWED,
                "expected an unsettled declare, whose outcome has the transaction's id",
            )
        transaction = self._transactions.declare(self._link)
        self._mine[transaction.id] = transaction
        self._link.answer(number, number, Declared(txn_id=transaction.id))

    def _discharge(self, id: bytes, fail: bool, number: int, settled: bool) -> None:
        if settled:
            raise ConditionError(
                conditions.NOT_ALLOWED,
                "expected an unsettled discharge, whose outcome is that of the transaction",
            )
        transaction = self._mine.get(id)
        if transaction is None:
            raise ConditionError(
                conditions.TRANSACTION_UNKNOWN_ID,
                f"expected a transaction that was declared on this link, found {id[:32]!r}",
            )
        if transaction.partial and not fail:
            # The link ends, and so the transaction is rolled back (transactions 4.4.1).
            self._connection.links.detach(self._link, conditions.TRANSACTION_ROLLBACK, PARTIAL)
            return
        del self._mine[id]
        self._transactions.discharge(transaction)
        if fail:
            self._transactions.roll_back(transaction)
            self._link.answer(number, number, ACCEPTED)
            return
        self._connection.frontend.spawn(self._commit(transaction, number))

    async def _commit(self, transaction: Transaction, number: int) -> None:
        """Commits it, and answers the discharge."""
        try:
            async with self._line:
                self._transactions.check(transaction)
                await self._committing.commit(transaction)
        except ConditionError as error:
            self._transactions.roll_back(transaction)
            self._refuse(number, False, error.condition, error.description)
        except Exception:
            log.exception("a transaction could not be committed")
            self._transactions.roll_back(transaction)
            self._refuse(number, False, conditions.TRANSACTION_ROLLBACK, "internal error; it is rolled back")
        else:
            self._transactions.committed(transaction)
            if not self._closed:
                self._link.answer(number, number, ACCEPTED)
        self._connection.touch()

    def _refuse(self, number: int, settled: bool, condition: str, description: str) -> None:
        """A request failed: rejects its delivery, or detaches the link (transactions 4.3)."""
        if self._closed:
            return
        if settled or not self._can_reject:
            self._connection.links.detach(self._link, condition, description)
            return
        error = AmqpError(condition=Symbol(condition), description=description)
        self._link.answer(number, number, Rejected(error=error))

    def forget(self, transaction: Transaction) -> None:
        """A transaction that was declared here has ended without a discharge."""
        self._mine.pop(transaction.id, None)

    # --- the end ---------------------------------------------------------------------------------------

    def ends(self, ending: Ending) -> None:
        """See Bound: what the client settled in transactions has failed only if it ends the link in order.

        It returns before the links of the same connection, whose oldest delivery may be the reason (ADR 5).
        """
        self._roll_back(FAILED if ending is Ending.BY_CLIENT else RELEASED)

    def close(self) -> None:
        """The link has ended: rolls its open transactions back (transactions 4.3)."""
        self._closed = True
        self._roll_back(FAILED)

    def _roll_back(self, state: Modified | Released) -> None:
        for transaction in self._mine.values():
            self._transactions.roll_back(transaction, state)
        self._mine.clear()
