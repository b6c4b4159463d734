"""Senders: send messages, and receive their outcomes."""

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Unpack

from lightrail.amqp import events
from lightrail.amqp.link import Link as EngineLink
from lightrail.amqp.performatives import AmqpError, Source, Target, TransactionalState
from lightrail.amqp.session import Session
from lightrail.amqp.values import Symbol, Timestamp
from lightrail.client.delivery import DELIVERY_TIME
from lightrail.client.errors import ClientError, ClosedError, SendError, WindowFullError
from lightrail.client.keywords import MessageFields
from lightrail.client.link import Link
from lightrail.client.message import Message
from lightrail.client.outcomes import ACCEPTED, UNKNOWN, Outcome, outcome_of, outcome_of_size

if TYPE_CHECKING:
    from lightrail.client.connection import Connection
    from lightrail.client.wire import Wire

DELAYED_DELIVERY: Final = Symbol("DELAYED_DELIVERY")
"""Capability of queues or brokers that apply the delivery time (JMS mapping of OASIS)."""
CLOSE_S: Final = 5.0
"""How long closing a sender or connection waits for outcomes of sent messages."""
WINDOW: Final = 1_000
"""Messages of a sender without an outcome, at most."""

Answer = asyncio.Future[Outcome]


class Sender(Link):
    """Sends messages to one address. Opened by `Connection.sender`, and again after each loss."""

    def __init__(
        self, connection: "Connection", address: str | None, *, window: int, name: str, presettled: bool
    ) -> None:
        super().__init__(connection, address, name, presettled=presettled)
        self._window = window
        self._waiting: deque[tuple[bytes, Answer, TransactionalState | None]] = deque()
        """Messages that wait for credit, each with its transaction, if it has one."""
        self._answers: dict[int, Answer] = {}
        """Futures of sent messages without an outcome, by their numbers on the link."""
        self._room: deque[asyncio.Future[None]] = deque()
        """Calls of `send` that wait for room in the window."""

    # --- for the application -----------------------------------------------------------------------------

    async def __aenter__(self) -> "Sender":
        await self._enter()
        return self

    @property
    def what(self) -> str:
        return f"the sender to {self.address}"

    async def send(self, message: Any = None, **fields: Unpack[MessageFields]) -> Outcome:
        """Sends a message, and returns when it is accepted.

        Args:
            message: a Message, or a body for one.
            fields: of Message, in addition to a body.

        Raises:
            SendError: the message was not accepted, or the connection was lost before its outcome.
            ClosedError: the sender or its connection is closed.
        """
        payload = encoded(message, fields)
        while len(self._answers) + len(self._waiting) >= self._window:
            await self._for_room()
        answer = self._hand_in(payload)
        try:
            outcome = await answer
        except asyncio.CancelledError:
            self._take_back(answer)
            raise
        if outcome is not ACCEPTED and not outcome.accepted:
            raise SendError(f"{self.address}: a message was {outcome}", outcome)
        return outcome

    def send_nowait(self, message: Any = None, **fields: Unpack[MessageFields]) -> Answer:
        """Sends a message when there is credit; returns a future of its outcome, accepted or not.

        Raises:
            WindowFullError: the window is full of messages without an outcome.
            ClosedError: the sender or its connection is closed.
        """
        if len(self._answers) + len(self._waiting) >= self._window:
            raise WindowFullError(
                f"{self.address}: {self._window} messages have no outcome yet: await one of them, or `send`"
            )
        return self._hand_in(encoded(message, fields))

    async def send_all(self, messages: Iterable[Any]) -> list[Outcome]:
        """Sends messages without waiting for each outcome; returns the outcomes, in order.

        A message that is not accepted raises nothing: check `accepted` of its outcome. Raises ClosedError.
        """
        answers: list[Answer] = []
        try:
            for message in messages:
                payload = encoded(message, {})
                while len(self._answers) + len(self._waiting) >= self._window:
                    await self._for_room()
                answers.append(self._hand_in(payload))
            return [await answer for answer in answers]
        except asyncio.CancelledError:
            for answer in answers:
                if answer.cancelled() or not answer.done():
                    self._take_back(answer)
            raise

    async def schedule(
        self,
        message: Any = None,
        *,
        at: float | None = None,
        delay: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> Outcome:
        """Sends a message that the broker delivers at a given time; returns when the broker has accepted it.

        The queue needs the policy `delay`. `Management.cancel` removes it by its id.

        Args:
            at: seconds since the Unix epoch, or
            delay: seconds from now.
            message, fields: as of `send`.

        Raises:
            SendError, ClosedError: as `send`.
            ClientError: the queue would deliver it at once.
        """
        return await self.send(await self.delayed(message, at, delay, fields))

    async def delayed(
        self, message: Any, at: float | None, delay: float | None, fields: MessageFields
    ) -> Message:
        """A message with the time at which the broker delivers it. Raises as `schedule`."""
        if (at is None) == (delay is None):
            raise ValueError(f"expected either a time or a delay, found at={at} and delay={delay}")
        await self.opened()
        link = self._link
        offered = () if link is None or link.attach is None else link.attach.offered_capabilities or ()
        is_offered = DELAYED_DELIVERY in offered or self._connection.offers(DELAYED_DELIVERY)
        if self._attached and not is_offered:
            raise ClientError(
                f"{self.address}: expected a queue that delays messages, and this one would deliver them at "
                "once: set its policy `delay`"
            )
        due = time.time() + delay if delay is not None else at
        given = message if isinstance(message, Message) else Message(message)
        annotations = dict(given.annotations) | dict(fields.get("annotations") or {})
        annotations[DELIVERY_TIME] = Timestamp(round(due * 1000)) if due is not None else None
        fields["annotations"] = annotations
        return given.replace(**fields)

    async def close(self) -> None:
        """Waits for the outcomes of sent messages, CLOSE_S at most, then detaches.

        Then messages without one have the outcome unknown; those that were never sent raise ClosedError.
        """
        if self._closed is not None:
            return
        self._connection.check_loop()
        try:
            async with asyncio.timeout(CLOSE_S):
                while (self._answers or self._waiting) and self._closed is None:
                    await self._for_room()
        except TimeoutError:
            pass
        finally:
            self.end(ClosedError(f"{self.what} is closed"))

    # --- inside ------------------------------------------------------------------------------------------

    async def send_with(self, payload: bytes, state: TransactionalState) -> Outcome:
        """Sends an encoded message in a transaction; returns its provisional outcome. Raises ClosedError."""
        while len(self._answers) + len(self._waiting) >= self._window:
            await self._for_room()
        answer = self._hand_in(payload, state)
        try:
            return await answer
        except asyncio.CancelledError:
            self._take_back(answer)
            raise

    def _hand_in(self, payload: bytes, state: TransactionalState | None = None) -> Answer:
        self._connection.check_loop()
        if self._closed is not None:
            raise self._closed.with_traceback(None)
        answer: Answer = self._connection.loop.create_future()
        self._waiting.append((payload, answer, state))
        if self._wire is not None:
            self._wire.touch(self)
        return answer

    async def _for_room(self) -> None:
        waiter: asyncio.Future[None] = self._connection.loop.create_future()
        self._room.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            with suppress(ValueError):
                self._room.remove(waiter)
            # This call was woken for room that another one may use.
            self._wake()
            raise

    def _take_back(self, answer: Answer) -> bool:
        """Drops a message whose call was cancelled; False if it has been sent."""
        for index, (_, waiting, _) in enumerate(self._waiting):
            if waiting is answer:
                del self._waiting[index]
                self._wake()
                return True
        return False

    def _wake(self) -> None:
        """Wakes as many calls of `send` as there is room for; all of them when the window is empty."""
        room = self._window - len(self._answers) - len(self._waiting)
        if not (self._answers or self._waiting) or self._closed is not None:
            room = len(self._room)
        while self._room and room > 0:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1

    def end(self, error: Exception) -> None:
        if self._closed is not None:
            return
        self._closed = error
        self._connection.forget(self)
        link, self._link = self._link, None
        if link is not None and self._wire is not None:
            link.detach()
            self._wire.touch()
        self._attached = False
        self._fail_opening(error)
        self._unknown()
        self._drop_waiting(error)

    def _drop_waiting(self, error: Exception) -> None:
        """Ends the calls whose messages were not sent."""
        waiting, self._waiting = self._waiting, deque()
        for _, answer, _ in waiting:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()
        self._wake()

    def _unknown(self) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_result(UNKNOWN)

    # --- from the connection -----------------------------------------------------------------------------

    def attach(self, wire: "Wire", session: Session) -> None:
        """Attaches, to send messages that wait."""
        self._wire = wire
        link = self._link = session.attach(
            self.name,
            True,
            source=Source(),
            target=Target(address=self.address),
            snd_settle_mode=1 if self._presettled else 0,
        )
        link.context = self
        wire.touch()

    def lost(self) -> None:
        """The outcome of messages without one is unknown."""
        self._wire = self._link = None
        self._attached = False
        self._unknown()
        self._drop_transactions()
        self._wake()

    def _drop_transactions(self) -> None:
        """Drops waiting messages of transactions, which have ended with the connection."""
        if any(state is not None for _, _, state in self._waiting):
            waiting, self._waiting = self._waiting, deque()
            for entry in waiting:
                if entry[2] is None:
                    self._waiting.append(entry)
                elif not entry[1].done():
                    entry[1].set_result(UNKNOWN)

    # --- from the engine ---------------------------------------------------------------------------------

    def attached(self) -> None:
        if self._link is None or self._link.attach is None or self._link.attach.target is None:
            # The broker's detach follows at once, with the reason (2.6.3).
            return
        self._attached = True
        self._open()
        self._connection.link_attached(self)
        assert self._wire is not None
        self._wire.touch(self)

    def detached(self, error: AmqpError | None) -> None:
        self._link = None
        self._attached = False
        self._unknown()
        self._connection.link_lost(self, self.what, error)
        self._wake()

    def handle(self, event: events.Event) -> None:
        if isinstance(event, events.Outcome):
            answers = self._answers
            outcome = outcome_of(event.state)
            for number in range(event.first, event.last + 1):
                answer = answers.pop(number, None)
                if answer is not None and not answer.done():
                    answer.set_result(outcome)
            if not event.settled and self._link is not None and self._wire is not None:
                # The receiver waits for us to settle (receiver-settle-mode second).
                self._link.settle_sent(event.first, event.last, event.state)
                self._wire.touch()
            if self._room:
                self._wake()
            if self._waiting and self._wire is not None:
                self._wire.touch(self)
        elif isinstance(event, events.Credit):
            if self._waiting and self._wire is not None:
                self._wire.touch(self)
            if event.drain:
                event.link.drained()

    def flush(self) -> None:
        """Sends waiting messages, as many as there is credit for: those of one transaction in one batch."""
        link = self._link
        while link is not None and self._attached and self._waiting:
            number = link.sent  # type: ignore[attr-defined]
            room = link.limit - number
            if room <= 0:
                break
            self._send_batch(link, number, room)
        if self._presettled and self._room:
            self._wake()

    def _send_batch(self, link: EngineLink, number: int, room: int) -> None:
        waiting = self._waiting
        payloads: list[bytes] = []
        presettled = self._presettled
        largest = link.peer_max_message_size
        state = waiting[0][2]
        while waiting and len(payloads) < room and waiting[0][2] is state:
            payload, answer, _ = waiting.popleft()
            if answer.cancelled():
                continue
            if largest and len(payload) > largest:
                # It would end the link, and the outcomes of all other messages would be unknown.
                answer.set_result(outcome_of_size(len(payload), largest))
                self._wake()
                continue
            if presettled:
                answer.set_result(ACCEPTED)
            else:
                self._answers[number + len(payloads)] = answer
            payloads.append(payload)
        if payloads:
            ends = array("I", accumulate(map(len, payloads)))
            link.send(len(payloads), ends, b"".join(payloads), 0, presettled, state=state)


def encoded(message: Any, fields: MessageFields) -> bytes:
    """A message, or a body with fields, as bytes."""
    if isinstance(message, Message):
        return (message.replace(**fields) if fields else message).encode()
    return Message(message, **fields).encode()
