"""Outgoing messages: their envelopes and addresses, and the senders that post them."""

import asyncio
import itertools
import json
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from lightrail.bus.context import CAUSE, CONVERSATION, FAULT_ADDRESS, REQUEST, Context
from lightrail.bus.errors import ConfigurationError
from lightrail.bus.formats import Format, new_id
from lightrail.bus.messages import (
    Conventions,
    Kind,
    MessageType,
    Scheduled,
    Scheduling,
    Sending,
    message_type,
)
from lightrail.bus.typed import converter
from lightrail.transport import Broker, Envelope, Header, Received, Transport

if TYPE_CHECKING:
    from lightrail.bus.plan import Plan
    from lightrail.transport import Clock

SENDERS_MAX: Final = 1_000
"""Addresses with an open sender; the least recently used one is closed for another."""
SOURCE: Final = "lightrail-source"
"""Header: name of the bus that sent the message."""
FAULT: Final = "lightrail-fault"
"""Header of an answer whose body is the responder's exception."""
ANSWER: Final = "lightrail-answer"
"""Header of all answers: nothing is lost with one whose requester has ended."""
TARGET: Final = "lightrail-target"
"""Header of an event in a queue of schedules: the address that it is published to when it is due."""


class Outgoing:
    """Makes envelopes.

    Args:
        bus: name of the bus.
    """

    def __init__(
        self, bus: str, format: Format, conventions: Conventions, clock: "Callable[[], Clock]"
    ) -> None:
        self._bus = bus
        self._format = format
        self._conventions = conventions
        self._clock = clock
        self._prefix = new_id()
        self._watchers: list[Callable[[str, str, dict[str, Header], str], None]] = []
        self._numbers = itertools.count(1)

    def on_envelope(self, call: Callable[[str, str, dict[str, Header], str], None]) -> None:
        """Registers a function to call with address, type, headers and id of each message; it may add
        headers."""
        self._watchers.append(call)

    def event(
        self,
        event: Any,
        context: Context | None = None,
        *,
        topic: str | None = None,
        type: Any = None,
        **options: Any,
    ) -> Sending:
        """An event to its router. Raises ConfigurationError for a command."""
        found = message_type(type or event.__class__)
        if found.kind is not Kind.EVENT:
            raise ConfigurationError(
                f"{found.name} is a command: expected an event; use `send` or `request` for it"
            )
        address = self._conventions.event(found)
        return self._sending(address, found, event, context, subject=topic or found.wire_name, **options)

    def command(
        self,
        command: Any,
        context: Context | None = None,
        *,
        to: str | None = None,
        type: Any = None,
        **options: Any,
    ) -> Sending:
        """A command to its queue. Raises ConfigurationError for an event without `to`."""
        found = message_type(type or command.__class__)
        if found.kind is not Kind.COMMAND and to is None:
            raise ConfigurationError(
                f"{found.name} is an event: expected a command, or the address of a queue in `to`; "
                "use `publish` for it"
            )
        address = to or self._conventions.command(found)
        return self._sending(address, found, command, context, subject=found.wire_name, **options)

    def request(self, request: Any, reply_to: str, timeout: float, **options: Any) -> Sending:
        """A command that expires, and whose answers come to an address with its correlation id."""
        return self.command(request, **(options | {"reply_to": reply_to, "ttl": timeout}))

    def answer(self, answer: Any, context: Context) -> Sending:
        """The answer to a request. Raises ValueError for a message without reply_to."""
        reply_to = context.envelope.reply_to
        if reply_to is None:
            raise ValueError(f"{context.handler}: expected a message with reply_to, found none")
        found = message_type(answer.__class__)
        return self._reply(reply_to, found, answer, context)

    def knows_faults(self, context: Context) -> bool:
        """Whether the requester of a message reads `fault`, and not `fault_answer`."""
        return self._format.knows_faults(context.envelope)

    def fault(self, fault: Any, type: MessageType, context: Context) -> Sending:
        """That a message could not be handled: an event, or a message to the address that its sender wants it
        at."""
        address = context.envelope.headers.get(FAULT_ADDRESS)
        if address is None and self.knows_faults(context):
            address = context.envelope.reply_to
        if address is None:
            address = self._conventions.fault(type)
            return self._sending(address, type, fault, context, subject=type.wire_name)
        return self._reply(str(address), type, fault, context)

    def fault_answer(self, error: Exception, context: Context) -> Sending:
        """The answer to a request whose responder raised, as plain JSON."""
        raised = {
            "exception": f"{error.__class__.__module__}.{error.__class__.__qualname__}",
            "text": str(error),
            "host": socket.gethostname(),
        }
        assert context.envelope.reply_to is not None
        envelope = Envelope(
            body=json.dumps(raised).encode(),
            id=self._id(context),
            subject=FAULT,
            content_type="application/json",
            correlation_id=_request_id(context),
            headers={FAULT: True, ANSWER: True, SOURCE: self._bus, CONVERSATION: context.conversation},
        )
        return Sending(context.envelope.reply_to, envelope, None, error)

    def scheduled(
        self,
        message: Any,
        context: Context | None = None,
        *,
        at: float | None = None,
        delay: float | None = None,
        **options: Any,
    ) -> Scheduling:
        """A message for later: a command waits in its queue, an event in the bus's queue of schedules."""
        if (at is None) == (delay is None):
            raise ValueError(f"expected either a time or a delay, found at={at} and delay={delay}")
        due = at if at is not None else self._clock().time() + (delay or 0.0)
        found = message_type(options.get("type") or message.__class__)
        if found.kind is Kind.COMMAND or options.get("to"):
            sending = self.command(message, context, **options)
            sending.envelope.deliver_at = due
        else:
            event = self.event(message, context, **options)
            headers = dict(event.envelope.headers) | {TARGET: event.address}
            envelope = event.envelope.replace(headers=headers, deliver_at=due)
            sending = Sending(self._conventions.schedule(self._bus), envelope, found, message)
        id = sending.envelope.id
        assert id is not None
        return Scheduling(sending, Scheduled(id, sending.address, due))

    def _sending(
        self,
        address: str,
        type: MessageType,
        value: Any,
        context: Context | None,
        *,
        subject: str,
        id: str | None = None,
        headers: Mapping[str, Header] | None = None,
        ttl: float | None = None,
        group: str | None = None,
        correlation_id: str | None = None,
        priority: int | None = None,
        reply_to: str | None = None,
    ) -> Sending:
        dump = converter(type.cls).dump
        if id is None:
            id = self._id(context)
        carried: dict[str, Header] = {SOURCE: self._bus}
        if context is None:
            carried[CONVERSATION] = id
        else:
            carried[CONVERSATION] = context.conversation
            carried[CAUSE] = context.envelope.id
        if headers:
            carried.update(headers)
        for call in self._watchers:
            call(address, type.wire_name, carried, id)
        envelope = Envelope(
            id=id,
            subject=subject,
            correlation_id=correlation_id if reply_to is None else id,
            reply_to=reply_to,
            group=group if group is not None else type.group_of(value),
            ttl=ttl,
            headers=carried,
        )
        if priority is not None:
            envelope.priority = priority
        # Last: some formats repeat headers, ids and addresses in the body.
        self._format.write(
            type.wire_names,
            value if dump is None else dump(value),
            envelope,
            source=self._bus,
            cause=None if context is None else context.envelope,
        )
        return Sending(address, envelope, type, value)

    def _reply(self, address: str, type: MessageType, value: Any, context: Context) -> Sending:
        """A message that answers the one of the context."""
        headers: dict[str, Header] = {ANSWER: True}
        request = context.envelope.headers.get(REQUEST)
        if request is not None:
            headers[REQUEST] = request
        return self._sending(
            address,
            type,
            value,
            context,
            subject=type.wire_name,
            headers=headers,
            correlation_id=_request_id(context),
        )

    def _id(self, context: Context | None) -> str:
        if context is None or context.envelope.id is None:
            return f"{self._prefix}-{next(self._numbers)}"
        # The same id when the message is handled again: queues with a duplicate_window drop the repetition.
        return f"{context.envelope.id}/{context.handler}/{len(context.sent)}"


def _request_id(context: Context) -> str | None:
    """The correlation id of answers."""
    request = context.envelope.headers.get(REQUEST)
    return str(request) if request is not None else context.envelope.correlation_id or context.envelope.id


class Senders:
    """The senders of a bus: a transport for each address, whose queue or router is declared first.

    Args:
        watch: is called with every message that was sent.
    """

    def __init__(self, broker: Broker, plan: "Plan", watch: Callable[[Sending], None]) -> None:
        self._broker = broker
        self._plan = plan
        self._watch = watch
        self._transports: OrderedDict[str, Transport] = OrderedDict()
        self._declared: set[str] = set()
        self._declaring: dict[str, asyncio.Future[None]] = {}

    def add_declared(self, addresses: Iterable[str]) -> None:
        """Records queues and routers that have been declared."""
        self._declared.update(addresses)

    async def post(self, sending: Sending) -> None:
        """Sends a message; returns when its address has stored it. Raises the errors of transports."""
        transport = await self._transport(sending)
        await transport.send(sending.envelope)
        self._watch(sending)

    async def accept_and_post(self, received: Received, sendings: list[Sending]) -> None:
        """Accepts a message and sends others, in one transaction. Raises the errors of transports."""
        sends = [(await self._transport(sending), sending.envelope) for sending in sendings]
        await self._broker.accept_and_send(received, sends)
        for sending in sendings:
            self._watch(sending)

    async def _transport(self, sending: Sending) -> Transport:
        """The transport to the message's address, whose router or queue is declared."""
        address = sending.address
        transport = self._transports.get(address)
        if transport is None:
            transport = await self._opened(address, sending.type)
        else:
            self._transports.move_to_end(address)
        target = sending.envelope.headers.get(TARGET)
        if isinstance(target, str):
            # Its router has to exist when the event is due: the broker creates a queue for an unknown name.
            await self._declare(target, sending.type)
        return transport

    async def close(self) -> None:
        """Closes all senders."""
        for transport in self._transports.values():
            await transport.close()
        self._transports.clear()

    async def _opened(self, address: str, type: MessageType | None) -> Transport:
        await self._declare(address, type)
        transport = self._transports.get(address)
        if transport is None:
            transport = self._transports[address] = self._broker.transport(address)
            if len(self._transports) > SENDERS_MAX:
                _, oldest = self._transports.popitem(last=False)
                await oldest.close()
        return transport

    async def _declare(self, address: str, type: MessageType | None) -> None:
        """Declares the router or queue of a message's address, once."""
        if address in self._declared or type is None:
            return
        waiting = self._declaring.get(address)
        if waiting is not None:
            await asyncio.shield(waiting)
            return
        topology = self._plan.of_message(address, type)
        if topology is None:
            return
        future = self._declaring[address] = asyncio.get_running_loop().create_future()
        try:
            await self._broker.declare(topology)
            self._declared.add(address)
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)
            # Mark the exception as retrieved: there may be no other sender that awaits it.
            future.exception()
            raise
        finally:
            del self._declaring[address]
