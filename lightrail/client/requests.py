"""Requests and answers: a request has the address of our node, an answer the request's correlation-id."""

import asyncio
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Unpack

from lightrail.client.delivery import Delivery
from lightrail.client.errors import ClientError, ClosedError, LostError
from lightrail.client.keywords import MessageFields
from lightrail.client.message import Message

if TYPE_CHECKING:
    from lightrail.client.receiver import Receiver
    from lightrail.client.sender import Sender

CREDIT: Final = 100
TIMEOUT_S: Final = 30.0


@dataclass(eq=False, repr=False)
class Requester:
    """Sends requests to one address. Opened by `Connection.requester`; tasks may use it at the same time.

    Answers are sent to a dynamic node, which lives as long as the link. After the loss of the link requests
    without an answer raise LostError; they may have been carried out.
    """

    _loop: asyncio.AbstractEventLoop
    _sender: "Sender"
    _receiver: "Receiver"
    _reply_to: str | None = None
    """Address for answers; None for the node that the broker creates for the receiver."""
    _answers: dict[str, asyncio.Future[Message]] = field(default_factory=dict)
    _prefix: str = field(default_factory=lambda: secrets.token_hex(8))
    _number: int = 0
    _ended: Exception | None = None
    """Why no further answers are received, once the task has ended."""
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._receiver.on_lost = self._lost

    async def __aenter__(self) -> "Requester":
        try:
            await self.opened()
        except asyncio.CancelledError:
            # The `async with` block does not begin, so its exit does not close the links.
            address = self._sender.address
            self._abandon(ClosedError(f"the opening of the requester of {address} was cancelled"))
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def opened(self) -> None:
        """Returns when the broker has opened both links. Raises LinkError where it refused one."""
        try:
            await self._receiver.opened()
            await self._sender.opened()
        except ClientError as error:
            # One link is of no use without the other.
            self._abandon(error)
            raise
        if self._task is None:
            self._task = self._loop.create_task(self._listen(), name=f"answers for {self._sender.address}")

    async def request(
        self,
        message: Any = None,
        *,
        timeout: float | None = TIMEOUT_S,  # noqa: ASYNC109 - the request expires then
        **fields: Unpack[MessageFields],
    ) -> Message:
        """Sends a request, and returns the answer.

        Args:
            message: a Message, or a body for one.
            timeout: seconds for the answer; the request expires with it.
            fields: of Message.

        Raises:
            TimeoutError: there was no answer in time.
            SendError: the broker did not accept the request.
            LostError: the connection was lost before the answer; the request may have been carried out.
        """
        if self._ended is not None and (self._task is None or self._task.done()):
            raise self._ended.with_traceback(None)
        self._number += 1
        id = f"{self._prefix}-{self._number}"
        answer: asyncio.Future[Message] = self._loop.create_future()
        given = message if isinstance(message, Message) else Message(message)
        try:
            async with asyncio.timeout(timeout):
                # The node for the answers is another one after each loss.
                await self._receiver._until_attached()
                reply_to = self._reply_to or self._receiver.address
                asked = {"id": id, "correlation_id": id, "reply_to": reply_to, "ttl": timeout} | fields
                self._answers[id] = answer
                await self._sender.send(given.replace(**asked))
                return await answer
        finally:
            self._answers.pop(id, None)
            # The answer is not awaited if the request could not be sent.
            answer.cancel()

    async def close(self) -> None:
        """Detaches both links; requests without an answer raise ClosedError."""
        if self._task is not None:
            self._task.cancel()
        error = ClosedError(f"the requester of {self._sender.address} is closed")
        self._fail(error)
        try:
            await self._sender.close()
            await self._receiver.close()
        except asyncio.CancelledError:
            self._receiver.end(error)
            raise

    def _abandon(self, error: ClientError) -> None:
        self._ended = error
        self._sender.end(error)
        self._receiver.end(error)

    async def _listen(self) -> None:
        self._ended = ClosedError(f"the requester of {self._sender.address} is closed")
        try:
            async for delivery in self._receiver:
                self._answered(delivery)
                if not delivery.settled:
                    with suppress(LostError):
                        await delivery.accept()
        except ClientError as error:
            # The broker refused the receiver, or the connection ended.
            self._ended = error
        self._fail(self._ended)

    def _answered(self, delivery: Delivery) -> None:
        answer = self._answers.get(str(delivery.message.correlation_id))
        if answer is not None and not answer.done():
            answer.set_result(delivery.message)

    def _lost(self) -> None:
        self._fail(
            LostError(
                f"{self._sender.address}: the connection was lost before the answer came; the request may "
                "have been carried out"
            )
        )
        # They name the node of the former link for their answers.
        self._sender._drop_waiting(
            LostError(f"{self._sender.address}: the connection was lost before the request was sent")
        )

    def _fail(self, error: Exception) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()
