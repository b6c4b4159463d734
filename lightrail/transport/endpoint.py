"""Endpoints: translate between objects and envelopes, and forward messages that can't be handled."""

import inspect
import socket
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from lightrail.transport.envelope import Envelope, Header
from lightrail.transport.protocol import Handler, Received, Transport

NOT_READABLE: Final = "lightrail:not-readable"
SELECTOR_FAILED: Final = "lightrail:selector-failed"
HANDLER_FAILED: Final = "lightrail:handler-failed"
TEXT_MAX: Final = 1_000
"""Characters of an error's text that are sent with a message."""
TRACE_MAX: Final = 4_000


class Codec(Protocol):
    """Turns objects into envelopes and back."""

    def encode(self, message: Any) -> Envelope:
        """The envelope of a message. Raises TypeError or ValueError for a message that can't be sent."""
        ...

    def decode(self, envelope: Envelope) -> Any:
        """The message of an envelope. Raises ValueError for an envelope that can't be read."""
        ...


MessageHandler = Callable[[Any], Awaitable[None] | None]
MessageSelector = Callable[[Any], MessageHandler | None]


class Endpoint:
    """Sends and receives objects through a transport.

    A message that can't be decoded, or whose selector or handler raises, is sent to the error transport with
    the reason in headers; without an error transport it becomes a dead letter of its queue.

    Args:
        transport: of the address; closed with the endpoint.
        codec: between objects and envelopes.
        errors: the transport for messages that can't be handled; closed with the endpoint, too.

    Raises:
        ValueError: the transport has no dead letters, and there is no error transport.
    """

    def __init__(self, transport: Transport, codec: Codec, errors: Transport | None = None) -> None:
        if errors is None and not transport.offers.dead_letters:
            raise ValueError(
                f"{transport.address}: expected an error transport, as this transport has no dead letters: "
                "give one as `errors`"
            )
        self.transport: Final = transport
        self.errors: Final = errors
        self._codec = codec

    @property
    def address(self) -> str:
        """The address of the transport."""
        return self.transport.address

    async def send(self, message: Any) -> None:
        """Sends an object.

        Raises TypeError or ValueError for an object that the codec can't encode, and errors of the transport.
        """
        await self.transport.send(self._codec.encode(message))

    async def receive(self, select: MessageSelector, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Waits for a message that `select` has a handler for, and calls the handler with the object.

        Args:
            select: looks at an object and returns its handler; None leaves the message to other receivers.
            timeout: seconds to wait; None: no limit.

        Returns:
            Whether a message was received: handled, or sent to the error transport.
        """

        def choose_handler(envelope: Envelope) -> Handler | None:
            try:
                message = self._codec.decode(envelope)
            except Exception as error:
                return self._failing(NOT_READABLE, error)
            try:
                handler = select(message)
            except Exception as error:
                return self._failing(SELECTOR_FAILED, error)
            return None if handler is None else self._calling(handler, message)

        return await self.transport.receive(choose_handler, timeout)

    async def close(self) -> None:
        """Closes the transport and the error transport."""
        await self.transport.close()
        if self.errors is not None:
            await self.errors.close()

    def _calling(self, handler: MessageHandler, message: Any) -> Handler:
        async def call(received: Received) -> None:
            try:
                result = handler(message)
                if inspect.isawaitable(result):
                    await result
            except Exception as error:
                await self._fail(received, HANDLER_FAILED, error)

        return call

    def _failing(self, reason: str, error: Exception) -> Handler:
        async def fail(received: Received) -> None:
            await self._fail(received, reason, error)

        return fail

    async def _fail(self, received: Received, reason: str, error: Exception) -> None:
        notes = notes_of(error)
        if self.errors is None:
            await received.dead_letter(reason, description_of(error), notes)
            return
        # Sent before it is accepted: a crash between the two steps leaves two copies, and loses none.
        why: dict[str, Header] = {
            "error-reason": reason,
            "error-description": description_of(error),
            "error-source": self.address,
        }
        envelope = received.envelope
        headers = dict(envelope.headers) | why
        await self.errors.send(envelope.replace(headers=headers, ttl=None, deliver_at=None))
        await received.accept()


def sendable(text: str) -> str:
    """The beginning of a text, without lone surrogates: JSON of a sender may bring them into it."""
    return _encodable(text[:TEXT_MAX])


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def description_of(error: BaseException) -> str:
    """Type and text of an exception in readable form."""
    return sendable(f"{type(error).__name__}: {error}")


def notes_of(error: BaseException) -> dict[str, Header]:
    """Annotations of a dead letter: the exception and its traceback."""
    trace = "".join(traceback.format_exception(error))
    return {
        "x-opt-exception-type": f"{type(error).__module__}.{type(error).__qualname__}",
        "x-opt-exception-text": sendable(str(error)),
        "x-opt-exception-trace": _encodable(trace[-TRACE_MAX:]),
        "x-opt-host": socket.gethostname(),
    }
