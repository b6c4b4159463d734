"""What a transport does: it sends envelopes to one address, and receives from it selectively.

A transport knows nothing of messages as objects; `Endpoint` translates between the two. `Offers` declares
what a transport guarantees, and one suite of contract tests checks each declaration.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lightrail.transport.envelope import NO_HEADERS, Envelope, Header
from lightrail.transport.topology import Topology


@dataclass(frozen=True, slots=True)
class Offers:
    """What a transport guarantees.

    Attributes:
        at_least_once: `send` returns when the message is stored with the receiver's side, and a message
            leaves only when its handler has returned. Otherwise at most once.
        locks: a message that is being handled is hidden from other receivers and returns if they die.
        delays: `Envelope.deliver_at` and `Received.fail(delay)` hold messages back.
        dead_letters: `Received.dead_letter` keeps the message, with the reason.
        expiry: `Envelope.ttl` ends messages.
        groups: messages of one `Envelope.group` are handled one after the other, by one receiver at a time.
        selective: a message without a handler stays for other receivers.
        transactions: `Broker.accept_and_send` does all of it or nothing.
    """

    at_least_once: bool = False
    locks: bool = False
    delays: bool = False
    dead_letters: bool = False
    expiry: bool = False
    groups: bool = False
    selective: bool = True
    transactions: bool = False


class Received(Protocol):
    """A message that was received, until it is settled by one of the methods.

    On transports without locks the message has left its queue already, and the methods that would bring it
    back raise TransportError.
    """

    @property
    def envelope(self) -> Envelope:
        """The message."""
        ...

    @property
    def settled(self) -> bool:
        """Whether one of the methods was called, or the message was lost to another receiver."""
        ...

    async def accept(self) -> None:
        """The message was handled: it leaves its queue."""
        ...

    async def release(self) -> None:
        """The message was not handled: it is delivered again, and the delivery is not counted."""
        ...

    async def fail(self, delay: float = 0.0) -> None:
        """The attempt failed: the message is delivered again after `delay` seconds, and that is counted."""
        ...

    async def dead_letter(
        self, reason: str, description: str = "", notes: Mapping[str, Header] = NO_HEADERS
    ) -> None:
        """The message can't be handled: it goes to the dead letters of its queue.

        Args:
            reason: a symbol such as lightrail:handler-failed, by which dead letters are found again.
            description: for people.
            notes: annotations that are written on the dead letter.
        """
        ...


Handler = Callable[[Received], Awaitable[None] | None]
"""Handles one message. It is accepted when the handler returns without having settled it."""

Selector = Callable[[Envelope], Handler | None]
"""Looks at a message and returns its handler; None leaves the message to other receivers."""


class Transport(Protocol):
    """One address of one kind of network, opened by `open_transport` or by a broker."""

    @property
    def address(self) -> str:
        """Name of what it sends to and receives from."""
        ...

    @property
    def offers(self) -> Offers:
        """What it guarantees."""
        ...

    async def open(self) -> None:
        """Connects or listens, so that errors show now; `send` and `receive` do it otherwise."""
        ...

    async def listen(self) -> None:
        """Returns when messages can be received. Raises TransportError where they can't."""
        ...

    async def send(self, envelope: Envelope) -> None:
        """Sends a message; returns when the guarantee of the transport holds for it.

        Raises:
            SendRefusedError: the message was not stored, or it is not known whether it was.
            TransportClosedError: the transport is closed.
        """
        ...

    async def receive(self, select: Selector, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Waits for a message that `select` has a handler for, and calls the handler with it.

        The handler is called only if this receiver has really got the message. Several tasks may call
        `receive` at the same time: each handles one message. What `select` or the handler raises counts as
        a failed delivery, and goes on to the caller; a message whose handler is cancelled is released.

        Args:
            timeout: seconds to wait for a message that has a handler; None: for ever.

        Returns:
            Whether a handler was called.
        """
        ...

    async def close(self) -> None:
        """Ends the transport; messages that are not settled are delivered again."""
        ...


class Broker(Protocol):
    """What has queues and routers: AmqpBroker, or MemoryBroker for tests."""

    @property
    def offers(self) -> Offers:
        """What its transports guarantee."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether everything that was opened works now."""
        ...

    async def open(self) -> None:
        """Connects. Raises TransportError or the client's ConnectError."""
        ...

    async def close(self) -> None:
        """Closes all transports and the connection."""
        ...

    def transport(self, address: str, *, credit: int = ..., renew_for: float = ...) -> Transport:
        """A transport of a queue or router.

        Args:
            credit: messages that the broker sends ahead.
            renew_for: seconds for which locks are renewed, where the queue has a lock_duration.
        """
        ...

    async def temporary(self, on_lost: Callable[[], None]) -> Transport:
        """A transport of a queue of its own, which is deleted with it.

        Args:
            on_lost: called when messages on their way to it are lost, since the connection was.
        """
        ...

    async def declare(self, topology: Topology) -> None:
        """Makes what is not there yet. Raises TopologyError for contradictions."""
        ...

    async def accept_and_send(self, received: Received, sends: Sequence[tuple[Transport, Envelope]]) -> None:
        """Accepts a message and sends others in one transaction: all of it takes effect, or nothing.

        Args:
            received: by a transport of this broker, and not settled.
            sends: messages, each with a transport of this broker to its address.

        Raises:
            SendRefusedError: nothing was done, or, where it is not certain, all or nothing. The message is
                not settled, or is delivered again.
        """
        ...

    async def cancel(self, queue: str, id: str) -> bool:
        """Removes a message that is held back until its time; whether there was one with this id."""
        ...
