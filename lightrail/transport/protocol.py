"""The protocol of transports: a transport sends envelopes to one address, and receives from it selectively.

A transport does not handle objects; `Endpoint` translates between envelopes and objects. `Offers` declares
the guarantees of a transport, and one suite of contract tests checks each declaration.

Handling: calls a handler with a message, and settles the message by the result.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from lightrail.transport.envelope import NO_HEADERS, Envelope, Header
from lightrail.transport.topology import Topology


@dataclass(frozen=True, slots=True)
class Offers:
    """The guarantees of a transport.

    Attributes:
        at_least_once: `send` returns when the message is stored at the receiver's side, and a message is
            removed only when its handler has returned. Otherwise at most once.
        locks: a message that is being handled is hidden from other receivers, until its receiver fails.
        delays: `Envelope.deliver_at` and `Received.fail(delay)` delay messages.
        dead_letters: `Received.dead_letter` keeps the message, with the reason.
        expiry: messages expire after `Envelope.ttl`.
        groups: messages of one `Envelope.group` are handled one after the other, by one receiver at a time.
        selective: a message without a handler stays for other receivers.
        transactions: `Broker.accept_and_send` is atomic.
    """

    at_least_once: bool = False
    locks: bool = False
    delays: bool = False
    dead_letters: bool = False
    expiry: bool = False
    groups: bool = False
    selective: bool = True
    transactions: bool = False


EVERYTHING: Final = Offers(True, True, True, True, True, True, True, True)
"""The guarantees of a broker: all of them."""


class Received(Protocol):
    """A message that was received, until it is settled by one of the methods.

    On transports without locks the message was removed from its queue already, and the methods that would
    return it raise TransportError.
    """

    @property
    def envelope(self) -> Envelope:
        """The message."""
        ...

    @property
    def settled(self) -> bool:
        """Whether one of the methods was called, or the message was delivered to another receiver."""
        ...

    async def accept(self) -> None:
        """The message was handled: removes it from its queue."""
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
        """The message can't be handled: it becomes a dead letter of its queue.

        Args:
            reason: a symbol such as lightrail:handler-failed, by which dead letters can be found.
            description: for people.
            notes: annotations that are written on the dead letter.
        """
        ...


Handler = Callable[[Received], Awaitable[None] | None]
"""Handles one message, which is accepted when the handler returns without having settled it."""

Selector = Callable[[Envelope], Handler | None]
"""Returns the handler of a message; None leaves the message to other receivers."""


class Transport(Protocol):
    """One address of one kind of network, opened by `open_transport` or by a broker."""

    @property
    def address(self) -> str:
        """Name of the queue, router or group that the transport sends to and receives from."""
        ...

    @property
    def offers(self) -> Offers:
        """The guarantees of the transport."""
        ...

    async def open(self) -> None:
        """Connects or listens, so that errors show now; otherwise the first `send` or `receive` does."""
        ...

    async def listen(self) -> None:
        """Returns when messages can be received. Raises TransportError if they can't."""
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

        The handler is called only if the message was delivered to this receiver. Several tasks may call
        `receive` at the same time: each handles one message. An exception of `select` or the handler counts
        as a failed delivery, and is raised here; a message whose handler is cancelled is released.

        Args:
            timeout: seconds to wait for a message that has a handler; None: no limit.

        Returns:
            Whether a handler was called.
        """
        ...

    async def close(self) -> None:
        """Ends the transport; messages that are not settled are delivered again."""
        ...


class Broker(Protocol):
    """Queues and routers: AmqpBroker, or MemoryBroker for tests."""

    @property
    def offers(self) -> Offers:
        """The guarantees of this broker's transports."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether the connection and all opened transports work now."""
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
            renew_for: seconds for which locks are renewed, if the queue has a lock_duration.
        """
        ...

    async def temporary(self, on_lost: Callable[[], None]) -> Transport:
        """A transport of a new queue, which is deleted with the transport.

        Args:
            on_lost: called when the connection was lost, and with it possibly messages for the queue.
        """
        ...

    async def declare(self, topology: Topology) -> None:
        """Creates missing queues, routers and subscriptions. Raises TopologyError for contradictions."""
        ...

    async def accept_and_send(self, received: Received, sends: Sequence[tuple[Transport, Envelope]]) -> None:
        """Accepts a message and sends others in one transaction: all of these take effect, or none.

        Args:
            received: an unsettled message of a transport of this broker.
            sends: messages, each with a transport of this broker to its address.

        Raises:
            SendRefusedError: the transaction had no effect or, unless `is_certain`, may have taken effect.
                The message is not settled, or is delivered again.
        """
        ...

    async def cancel(self, queue: str, id: str) -> bool:
        """Removes a delayed message; returns whether there was one with this id."""
        ...


async def handle(handler: Handler, received: Received) -> None:
    """Calls a handler. A message that it has not settled is accepted, or failed if the handler raises.

    Raises the exceptions of the handler.
    """
    try:
        result = handler(received)
        if inspect.isawaitable(result):
            await result
    except asyncio.CancelledError:
        # The application stops the receiver, which is no failure of the message.
        if not received.settled:
            await received.release()
        raise
    except BaseException:
        if not received.settled:
            await received.fail()
        raise
    if not received.settled:
        await received.accept()
