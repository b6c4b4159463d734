"""Faults: events about messages that could not be handled."""

import datetime as dt
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, get_args, get_origin

from lightrail.bus.context import Context
from lightrail.bus.errors import ConfigurationError
from lightrail.bus.messages import Kind, MessageType, Sending, message_type
from lightrail.bus.outgoing import Outgoing
from lightrail.bus.store import AlreadyHandledError, Step, StoreError
from lightrail.transport import Clock, TransportError

log = logging.getLogger("lightrail.bus")

T = TypeVar("T")
PREFIX: Final = "fault."


@dataclass(frozen=True)
class Fault(Generic[T]):
    """A message became a dead letter: `@bus.handler async def failed(fault: Fault[OrderPlaced])`.

    Attributes:
        message: the one that could not be handled.
        id: of the message.
        exception: class that was raised, with its module.
        text: of the exception.
        handler: function that raised.
        host: where it ran.
        attempts: calls of the handler with the message, in all deliveries.
        at: time of the last attempt.
    """

    message: T
    id: str | None
    exception: str
    text: str
    handler: str
    host: str
    attempts: int
    at: dt.datetime


_TYPES: dict[MessageType, MessageType] = {}


def fault_type(annotation: Any) -> MessageType:
    """The message type of Fault[T]."""
    (cls,) = get_args(annotation)
    return fault_of(message_type(cls))


def fault_of(type: MessageType) -> MessageType:
    """The message type of the faults of a type."""
    found = _TYPES.get(type)
    if found is None:
        cls = Fault[type.cls]  # type: ignore[name-defined]
        found = MessageType(PREFIX + type.wire_name, 1, Kind.EVENT, cls, None, None, ())
        _TYPES[type] = found
    return found


def is_fault(type: MessageType) -> bool:
    """Whether a type is that of faults."""
    return get_origin(type.cls) is Fault


@dataclass(eq=False, repr=False)
class Faults:
    """Sends the faults of a handler.

    Args:
        post: sends a message.
        commit: writes a step into a store, if the handler's other messages are sent by its outbox.
    """

    _outgoing: Outgoing
    _post: Callable[[Sending], Awaitable[None]]
    _commit: Callable[[Step], Awaitable[None]] | None
    _clock: Clock

    async def publish(self, error: Exception, type: MessageType, context: Context, attempts: int) -> None:
        """Publishes that a message could not be handled; a fault of a fault is not published."""
        if isinstance(context.message, Fault):
            return
        try:
            fault = self._fault(error, context, attempts)
            await self._send(self._outgoing.fault(fault, fault_of(type), context))
        except Exception as failure:
            # For example, the format has no name for faults. The dead letter has the same information.
            log.warning("%s: the fault could not be published: %s", context.queue, failure)

    async def answer(self, error: Exception, type: MessageType, context: Context) -> None:
        """Answers a request with the error of its responder."""
        try:
            if self._outgoing.knows_faults(context):
                fault = self._fault(error, context, context.attempt)
                answer = self._outgoing.fault(fault, fault_of(type), context)
            else:
                answer = self._outgoing.fault_answer(error, context)
            await self._send(answer, context.handler, context.id)
        except AlreadyHandledError:
            log.info("%s: another process has answered %s", context.queue, context.id)
        except (TransportError, ConfigurationError) as failure:
            log.warning("%s: the answer could not be sent: %s", context.queue, failure)

    def _fault(self, error: Exception, context: Context, attempts: int) -> Fault[Any]:
        return Fault(
            message=context.message,
            id=context.envelope.id,
            exception=f"{error.__class__.__module__}.{error.__class__.__qualname__}",
            text=str(error),
            handler=context.handler,
            host=socket.gethostname(),
            attempts=attempts,
            at=dt.datetime.fromtimestamp(self._clock.time(), dt.UTC),
        )

    async def _send(self, sending: Sending, handler: str | None = None, message: str | None = None) -> None:
        """Sends a fault at once or by the outbox, there with the handled message for the inbox."""
        if self._commit is not None:
            try:
                await self._commit(Step(handler, message, [sending]))
                return
            except StoreError as failure:
                log.warning(
                    "%s: a fault does not get into the outbox, and is sent at once: %s", handler, failure
                )
        await self._post(sending)
