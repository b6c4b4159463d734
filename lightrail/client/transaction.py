"""Transactions: messages that are sent and deliveries that are settled take effect together, or not at all.

async with connection.transaction() as transaction:
    await transaction.accept(delivery)
    await transaction.send(sender, {"id": 7})

The broker applies nothing before the end of the block. An exception in the block rolls everything back.
"""

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Unpack

from lightrail.amqp.events import ACCEPTED, RELEASED
from lightrail.amqp.link import Link
from lightrail.amqp.messages import write_value
from lightrail.amqp.performatives import (
    AmqpError,
    Coordinator,
    Declare,
    Discharge,
    Source,
    TransactionalState,
)
from lightrail.amqp.session import Session
from lightrail.client.delivery import FAILED, Delivery, DeliveryReceiver
from lightrail.client.errors import ClientError, ClosedError, LostError, SendError
from lightrail.client.keywords import MessageFields
from lightrail.client.outcomes import TRANSACTION_ID, Outcome, OutcomeKind
from lightrail.client.sender import Answer, Sender, encoded

if TYPE_CHECKING:
    from lightrail.client.connection import Connection
    from lightrail.client.wire import Wire

WINDOW: Final = 100
"""Requests of a coordinator without an answer."""
NOT_SENT: Final = Outcome(OutcomeKind.RELEASED, description="the connection was lost before the commit")
NOT_OPEN: Final = "expected an open transaction, found one that was not begun or has ended"


class TransactionError(ClientError):
    """A transaction was not begun or not committed; nothing took effect, unless `is_unknown`.

    Attributes:
        condition: of AMQP, as amqp:transaction:rollback; empty if the connection was lost.
        is_unknown: the connection was lost before the answer to the commit: it was committed or rolled back.
    """

    def __init__(self, text: str, condition: str = "", *, is_unknown: bool = False) -> None:
        super().__init__(text)
        self.condition = condition
        self.is_unknown = is_unknown


class TransactionLink(Sender):
    """The link to the broker's coordinator of transactions, one per connection (transactions 4.2)."""

    def __init__(self, connection: "Connection", name: str) -> None:
        super().__init__(connection, None, window=WINDOW, name=name, presettled=False)
        self.losses = 0
        """How often the link was lost: a transaction ends with the link that it was declared on."""
        self._discharges: set[Answer] = set()
        """Of discharges without an answer."""

    @property
    def what(self) -> str:
        return "the link to the coordinator of transactions"

    def attach(self, wire: "Wire", session: Session) -> None:
        """Attaches to the coordinator."""
        self._wire = wire
        link = self._link = session.attach(self.name, True, source=Source(), target=Coordinator())
        link.context = self
        wire.touch()

    def lost(self) -> None:
        """Counts the loss: the broker rolls the transactions of the link back."""
        self.losses += 1
        super().lost()
        self._drop_discharges()

    def detached(self, error: AmqpError | None) -> None:
        self.losses += 1
        super().detached(error)
        self._drop_discharges()

    def _drop_discharges(self) -> None:
        """Drops discharges that wait for credit: a transaction of the next link may have the same id."""
        waiting, self._waiting = self._waiting, deque()
        for entry in waiting:
            if entry[1] not in self._discharges:
                self._waiting.append(entry)
            elif not entry[1].done():
                entry[1].set_result(NOT_SENT)

    async def declare(self) -> bytes:
        """The id of a new transaction. Raises TransactionError, ClosedError, LinkError."""
        await self.opened()
        answer = self._hand_in(write_value(Declare()))
        try:
            outcome = await asyncio.shield(answer)
        except asyncio.CancelledError:
            self._take_back(answer)
            answer.add_done_callback(self._abandon)
            raise
        txn_id = outcome.info.get(TRANSACTION_ID)
        if txn_id is None:
            raise TransactionError(f"no transaction was begun: {outcome}", outcome.condition)
        return bytes(txn_id)

    def _abandon(self, answer: Answer) -> None:
        """Rolls a transaction back whose declare was cancelled after it had been sent."""
        if self._closed is None and not answer.cancelled() and answer.exception() is None:
            txn_id = answer.result().info.get(TRANSACTION_ID)
            if txn_id is not None:
                self._hand_in_discharge(bytes(txn_id), fail=True)

    async def discharge(self, txn_id: bytes, *, fail: bool) -> Outcome:
        """Ends a transaction; returns the coordinator's outcome. Raises ClosedError.

        A commit that is cancelled before it is sent becomes a rollback: otherwise the transaction would stay
        open at the broker, with its messages.
        """
        answer = self._hand_in_discharge(txn_id, fail=fail)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not fail and self._take_back(answer):
                answer.cancel()
                self._hand_in_discharge(txn_id, fail=True)
            raise

    def _hand_in_discharge(self, txn_id: bytes, *, fail: bool) -> Answer:
        answer = self._hand_in(write_value(Discharge(txn_id=txn_id, fail=fail)))
        self._discharges.add(answer)
        answer.add_done_callback(self._discharges.discard)
        return answer


class Transaction:
    """A transaction; created by `Connection.transaction`, for `async with`."""

    def __init__(self, link: TransactionLink) -> None:
        self._link = link
        self._id: bytes | None = None
        self._losses = 0
        """`losses` of the link when the transaction was begun."""
        self._sending: TransactionalState
        """One object for all messages, so that they are sent in batches."""
        self._accepting: TransactionalState
        self._settled: dict[tuple[DeliveryReceiver, Link], None] = {}
        """Receivers and links of settled deliveries: their outcomes are sent before the discharge."""
        self._error: SendError | None = None

    async def __aenter__(self) -> "Transaction":
        await self.begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._id is None:
            return
        if kind is None:
            await self.commit()
        else:
            await self.roll_back()

    async def begin(self) -> None:
        """Begins the transaction. Raises TransactionError; LinkError: the broker does not offer any."""
        if self._id is not None:
            raise ClosedError("the transaction was begun already")
        txn_id = self._id = await self._link.declare()
        self._losses = self._link.losses
        self._sending = TransactionalState(txn_id=txn_id)
        self._accepting = TransactionalState(txn_id=txn_id, outcome=ACCEPTED)

    async def send(self, sender: Sender, message: Any = None, **fields: Unpack[MessageFields]) -> None:
        """Sends a message that the broker stores when the transaction is committed.

        Args:
            sender: of the same connection.
            message, fields: as of `Sender.send`.

        Raises:
            SendError: the broker does not accept it; the transaction can only be rolled back.
            LostError: the connection was lost, and the transaction with it.
            ClosedError: the transaction has ended, or the sender is closed.
        """
        await self._send(sender, encoded(message, fields))

    async def schedule(
        self,
        sender: Sender,
        message: Any = None,
        *,
        at: float | None = None,
        delay: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> None:
        """Sends a message that is delivered at a given time, if the transaction is committed.

        Args:
            sender: of the same connection.
            at, delay, message, fields: as of `Sender.schedule`.

        Raises:
            ClientError: the queue would deliver it at once.
            SendError, LostError, ClosedError: as `send`.
        """
        self._check()
        await self._send(sender, (await sender.delayed(message, at, delay, fields)).encode())

    async def _send(self, sender: Sender, payload: bytes) -> None:
        self._check()
        outcome = await sender.send_with(payload, self._sending)
        if not outcome.accepted:
            self._error = SendError(f"{sender.address}: a message was {outcome}", outcome)
            raise self._error

    async def accept(self, delivery: Delivery) -> None:
        """Accepts a message if the transaction is committed; otherwise it is delivered again.

        Raises LostError: the message is delivered again. ClosedError: the transaction has ended.
        """
        self._check()
        self._settle(delivery, self._accepting)

    async def release(self, delivery: Delivery) -> None:
        """Releases a message that was not processed. Raises as `accept`."""
        self._settle(delivery, TransactionalState(txn_id=self._check(), outcome=RELEASED))

    async def fail(self, delivery: Delivery) -> None:
        """Counts a failed attempt. Raises as `accept`."""
        self._settle(delivery, TransactionalState(txn_id=self._check(), outcome=FAILED))

    def _settle(self, delivery: Delivery, state: TransactionalState) -> None:
        delivery.settle(state)
        self._settled[delivery._receiver, delivery._link] = None

    async def commit(self) -> None:
        """Applies all of the transaction, on disk for durable messages.

        Raises:
            TransactionError: nothing took effect, settled messages are redelivered; unless `is_unknown`.
            ClosedError: the transaction or the connection has ended.
        """
        txn_id, is_lost = self._end()
        if is_lost:
            raise TransactionError("the transaction was rolled back: the connection was lost")
        if self._error is not None:
            await self._discharge_failed(txn_id)
            raise TransactionError(f"the transaction was rolled back: {self._error}")
        try:
            for receiver, link in self._settled:
                receiver.flush_outcomes(link)
        except LostError as error:
            await self._discharge_failed(txn_id)
            raise TransactionError(f"the transaction was rolled back: {error}") from error
        outcome = await self._link.discharge(txn_id, fail=False)
        if outcome.kind is OutcomeKind.UNKNOWN:
            raise TransactionError(f"the transaction may be committed or not: {outcome}", is_unknown=True)
        if not outcome.accepted:
            raise TransactionError(f"the transaction was rolled back: {outcome}", outcome.condition)

    async def roll_back(self) -> None:
        """Applies nothing; settled messages are delivered again as failed ones. Raises ClosedError."""
        txn_id, is_lost = self._end()
        if not is_lost:
            # If the connection is lost meanwhile, the broker rolls the transaction back.
            await self._discharge_failed(txn_id)

    async def _discharge_failed(self, txn_id: bytes) -> None:
        for receiver, link in self._settled:
            with suppress(LostError):
                receiver.flush_outcomes(link)
        await self._link.discharge(txn_id, fail=True)

    def _end(self) -> tuple[bytes, bool]:
        """The id of the transaction, and whether it was lost with its link. Raises ClosedError."""
        txn_id, self._id = self._id, None
        if txn_id is None:
            raise ClosedError(NOT_OPEN)
        return txn_id, self._link.losses != self._losses

    def _check(self) -> bytes:
        """The id of the transaction. Raises ClosedError, LostError."""
        if self._id is None:
            raise ClosedError(NOT_OPEN)
        if self._link.losses != self._losses:
            raise LostError(
                "the connection was lost, and the broker has rolled the transaction back: begin a new one"
            )
        return self._id
