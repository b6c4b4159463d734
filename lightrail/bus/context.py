"""Context of a message for its handler: its properties, and the messages that the handler sends.

Messages of a handler are sent when it has succeeded (the memory outbox): a handler that fails sends nothing,
and a message that is handled again sends the same messages with the same ids.
"""

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final

from lightrail.bus.messages import Sending
from lightrail.transport import Envelope, Header, Received

if TYPE_CHECKING:
    from lightrail.bus.outgoing import Outgoing

CONVERSATION: Final = "lightrail-conversation"
"""Header: id of the first message of a chain, in which each message was sent by the handler of the last."""
CAUSE: Final = "lightrail-cause"
"""Header: id of the message whose handler sent this one."""

REQUEST: Final = "lightrail-request"
"""Header: id of a request for its answers, where the sender's format has one beside the correlation id."""
FAULT_ADDRESS: Final = "lightrail-fault-address"
"""Header: address for the fault of this message, in place of the router of the faults of its type."""


class _Done:
    """The awaitable result of a call that is complete when it returns."""

    def __await__(self) -> Any:
        return iter(())


DONE: Final[Awaitable[None]] = _Done()


class Context:
    """The message that a handler is called with.

    Attributes:
        envelope: the received envelope, with what the format of the sender has in the body.
        message: the decoded object.
        handler: name of the handler's function.
        queue: from which the message was received.
        attempt: 1 for the first call of the handler with this message, 2 for the next one, and so on.
        state: values that middlewares and handlers pass to each other.
    """

    def __init__(
        self,
        outgoing: "Outgoing",
        received: Received,
        message: Any,
        handler: str,
        queue: str = "",
        envelope: Envelope | None = None,
    ) -> None:
        self.envelope: Final[Envelope] = envelope or received.envelope
        self.queue: Final = queue
        self.message = message
        self.handler = handler
        self.attempt = 1
        self.state: dict[str, Any] = {}
        self.sent: list[Sending] = []
        """Messages to send when the handler has succeeded."""
        self._received = received
        self._outgoing = outgoing

    @property
    def id(self) -> str | None:
        """Of the message."""
        return self.envelope.id

    @property
    def headers(self) -> Mapping[str, Header]:
        """Of the message."""
        return self.envelope.headers

    @property
    def conversation(self) -> str:
        """Id of the first message of the chain that this one belongs to."""
        found = self.envelope.headers.get(CONVERSATION)
        return str(found) if found is not None else self.envelope.id or ""

    @property
    def delivery_count(self) -> int:
        """Failed deliveries of this message before this one."""
        return self.envelope.delivery_count

    def publish(self, event: Any, **options: Any) -> Awaitable[None]:
        """Publishes an event when the handler has succeeded; options as of `Bus.publish`."""
        self.sent.append(self._outgoing.event(event, self, **options))
        return DONE

    def send(self, command: Any, **options: Any) -> Awaitable[None]:
        """Sends a command when the handler has succeeded; options as of `Bus.send`."""
        self.sent.append(self._outgoing.command(command, self, **options))
        return DONE

    def schedule(self, message: Any, **options: Any) -> Awaitable[None]:
        """Sends or publishes a message later; options as of `Bus.schedule`, and an `id` to cancel it by."""
        self.sent.append(self._outgoing.scheduled(message, self, **options).sending)
        return DONE

    def reply(self, answer: Any) -> Awaitable[None]:
        """Answers a request when the handler has succeeded. Raises ValueError for a message without
        reply_to."""
        self.sent.append(self._outgoing.answer(answer, self))
        return DONE

    async def defer(self, seconds: float) -> None:
        """Makes the broker deliver the message again after a time; messages of the handler are not sent."""
        self.sent.clear()
        await self._received.fail(seconds)
