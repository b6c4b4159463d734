"""The AMQP transport: queues of a broker through `lightrail.client`."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Unpack

from lightrail.amqp.values import DecodeError
from lightrail.client import (
    ClientError,
    ClosedError,
    Connection,
    Delivery,
    LinkError,
    LostError,
    Management,
    OutcomeKind,
    Receiver,
    Sender,
    SendError,
    Transaction,
    TransactionError,
)
from lightrail.client.connection import ConnectOptions
from lightrail.transport.amqp_messages import AmqpReceived, envelope_of, message_of, pass_over, unless_lost
from lightrail.transport.declaring import declare
from lightrail.transport.envelope import Envelope
from lightrail.transport.errors import SendRefusedError, TransportClosedError, TransportError
from lightrail.transport.protocol import EVERYTHING, Received, Selector, Transport, handle
from lightrail.transport.topology import Topology

CREDIT: Final = 100
"""Messages that the broker sends ahead."""
FULL: Final = "amqp:resource-limit-exceeded"
"""Condition of what a queue or a shard has no room for now."""
NOT_READABLE: Final = "amqp:decode-error"
_NO_TIME: Final = 0.0


class AmqpBroker:
    """An AMQP 1.0 broker; `declare` and delays need LightRail.

    Args:
        urls, options: as of `lightrail.client.connect`.
    """

    def __init__(self, *urls: str, **options: Unpack[ConnectOptions]) -> None:
        self.offers: Final = EVERYTHING
        self._urls = urls
        self._options = options
        self._connection: Connection | None = None
        self._transports: dict[AmqpTransport, None] = {}
        self._management: Management | None = None

    async def open(self) -> None:
        """Connects; a broker that is open stays so. Raises ConnectError where no address can be reached."""
        if self._connection is not None:
            return
        connection = Connection(*self._urls, **self._options)
        await connection.open()
        self._connection = connection

    async def close(self) -> None:
        """Closes all transports and the connection."""
        connection, self._connection = self._connection, None
        self._management = None
        if connection is not None:
            await asyncio.gather(*(transport.close() for transport in list(self._transports)))
            await connection.close()

    @property
    def is_open(self) -> bool:
        """Whether `open` has connected it, and `close` was not called; see `healthy` as well."""
        return self._connection is not None

    @property
    def connection(self) -> Connection:
        """The client's connection. Raises TransportClosedError where it is not open."""
        if self._connection is None:
            raise TransportClosedError(
                f"{', '.join(self._urls)}: expected a broker that is open: await open() first"
            )
        return self._connection

    @property
    def healthy(self) -> bool:
        """Whether the broker is connected, with all links."""
        return self._connection is not None and self._connection.healthy

    def transport(
        self, address: str, *, credit: int = CREDIT, renew_for: float = _NO_TIME
    ) -> "AmqpTransport":
        """A transport that sends to an address, or receives from it.

        Args:
            credit: messages that the broker sends ahead.
            renew_for: seconds for which locks are renewed, where the queue has a lock_duration.
        """
        made = AmqpTransport(self, address, credit=credit, renew_for=renew_for)
        self._transports[made] = None
        return made

    async def temporary(self, on_lost: Callable[[], None]) -> "AmqpTransport":
        """A transport of a node that lives as long as its link, and has another address after a loss.

        Args:
            on_lost: called when the link is lost, before it is attached again.
        """
        made = AmqpTransport(self, None)
        self._transports[made] = None
        made.on_lost(on_lost)
        await made.listen()
        return made

    async def declare(self, topology: Topology) -> None:
        """Makes what is not there yet, and changes rules that differ. Raises TopologyError."""
        topology.refuse_contradictions()
        await declare(self.connection, topology)

    async def accept_and_send(self, received: Received, sends: Sequence[tuple[Transport, Envelope]]) -> None:
        """Accepts a message and sends others in one transaction of the broker. Raises SendRefusedError."""
        assert isinstance(received, AmqpReceived)
        try:
            async with self.connection.transaction() as transaction:
                for transport, envelope in sends:
                    assert isinstance(transport, AmqpTransport)
                    await transport.send_in(transaction, envelope)
                await transaction.accept(received.delivery)
        except TransactionError as error:
            raise SendRefusedError(str(error), is_certain=not error.is_unknown, is_passing=True) from error
        except ClosedError as error:
            raise TransportClosedError(str(error)) from error
        except ClientError as error:
            raise SendRefusedError(
                f"no transaction: {error}", is_passing=isinstance(error, LostError)
            ) from error

    async def cancel(self, queue: str, id: str) -> bool:
        """Removes a message that is held back until its time; whether there was one with this id."""
        if self._management is None:
            management = self.connection.management()
            await management.opened()
            self._management = management
        return await self._management.cancel(queue, id)

    def forget(self, transport: "AmqpTransport") -> None:
        """The transport is closed."""
        self._transports.pop(transport, None)


class AmqpTransport:
    """One address of an AmqpBroker. Its links are opened at their first use, and again after a loss."""

    def __init__(
        self, broker: AmqpBroker, address: str | None, *, credit: int = CREDIT, renew_for: float = _NO_TIME
    ) -> None:
        self.offers: Final = EVERYTHING
        self._broker = broker
        self._address = address
        self._credit = credit
        self._renew_for = renew_for
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None
        self._groups: dict[str, deque[Delivery]] = {}
        """By group of which a message is being handled: the deliveries that wait for that."""
        self._parked = 0
        """How many those are, of all groups: no more than the credit."""
        self._freed = asyncio.Event()
        self._is_closed = False

    @property
    def address(self) -> str:
        """Of its queue or router; of a temporary one, the broker's name for it."""
        if self._address is not None:
            return self._address
        found = None if self._receiver is None else self._receiver.address
        if found is None:
            raise TransportError("expected a temporary node that is open, found one that never was")
        return found

    async def open(self) -> None:
        """Raises TransportClosedError where its broker is not open."""
        if not self._broker.is_open:
            raise TransportClosedError(f"{self._address}: expected a broker that is open: await open() first")

    async def listen(self) -> None:
        """Returns when messages can be received. Raises TransportError where the broker refuses."""
        try:
            await self._receiving().opened()
        except ClientError as error:
            raise TransportError(str(error)) from error

    def on_lost(self, call: Callable[[], None]) -> None:
        """Has a function called when the receiving link is lost, before it is attached again."""
        self._receiving().on_lost = call

    async def send(self, envelope: Envelope) -> None:
        """Sends a message; returns when the broker has accepted it."""
        await self._send(envelope, None)

    async def send_in(self, transaction: Transaction, envelope: Envelope) -> None:
        """Sends a message that is there when the transaction is committed. Raises as `send`."""
        await self._send(envelope, transaction)

    async def _send(self, envelope: Envelope, transaction: Transaction | None) -> None:
        if self._is_closed:
            raise TransportClosedError(f"the transport to {self._address} is closed")
        sender = self._sender
        if sender is None:
            sender = self._sender = self._broker.connection.sender(self._address)
        message, at = message_of(envelope), envelope.deliver_at
        try:
            if transaction is None:
                await (sender.send(message) if at is None else sender.schedule(message, at=at))
            elif at is None:
                await transaction.send(sender, message)
            else:
                await transaction.schedule(sender, message, at=at)
        except SendError as error:
            outcome = error.outcome
            is_passing = outcome.kind is not OutcomeKind.REJECTED or outcome.condition == FULL
            is_certain = outcome.kind is not OutcomeKind.UNKNOWN
            raise SendRefusedError(str(error), is_certain=is_certain, is_passing=is_passing) from error
        except LinkError as error:
            # The next call attaches anew: what was refused may be allowed by then.
            self._sender = None
            raise SendRefusedError(str(error)) from error
        except ClosedError as error:
            raise TransportClosedError(str(error)) from error
        except (ClientError, TypeError, ValueError) as error:
            raise SendRefusedError(f"{self._address}: {error}") from error

    async def receive(self, select: Selector, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Waits for a message that `select` has a handler for, and calls the handler with it."""
        receiver = self._receiving()
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while True:
            try:
                while self._parked >= self._credit:
                    self._freed.clear()
                    async with asyncio.timeout_at(deadline):
                        await self._freed.wait()
                if deadline is None:
                    [delivery] = await receiver.receive()
                else:
                    left = max(0.0, deadline - asyncio.get_running_loop().time())
                    found = await receiver.receive(timeout=left)
                    if not found:
                        return False
                    [delivery] = found
            except TimeoutError:
                return False
            except ClosedError as error:
                raise TransportClosedError(str(error)) from error
            except LinkError as error:
                self._receiver = None
                raise TransportError(str(error)) from error
            if await self._handled(receiver, delivery, select):
                return True

    async def close(self) -> None:
        """Detaches its links; messages that are not settled are delivered again."""
        if self._is_closed:
            return
        self._is_closed = True
        self._broker.forget(self)
        if self._receiver is not None:
            await self._receiver.close()
        if self._sender is not None:
            await self._sender.close()

    # --- inside ------------------------------------------------------------------------------------------

    def _receiving(self) -> Receiver:
        if self._is_closed:
            raise TransportClosedError(f"the transport from {self._address} is closed")
        if self._receiver is None:
            connection = self._broker.connection
            self._freed.set()
            if self._address is None:
                self._receiver = connection.receiver(dynamic=True, credit=self._credit)
            else:
                self._receiver = connection.receiver(
                    self._address, credit=self._credit, renew_for=self._renew_for
                )
        return self._receiver

    async def _handled(self, receiver: Receiver, delivery: Delivery, select: Selector) -> bool:
        """Whether a handler was called for a delivery."""
        message = delivery.message
        try:
            envelope = envelope_of(message)
        except (DecodeError, ValueError) as error:
            await unless_lost(delivery.reject(NOT_READABLE, str(error)[:1000]))
            return False
        group = envelope.group
        if group is not None:
            waiting = self._groups.get(group)
            if waiting is not None:
                waiting.append(delivery)
                self._parked += 1
                return False
            self._groups[group] = deque()
        try:
            try:
                handler = select(envelope)
            except BaseException:
                await unless_lost(delivery.fail())
                raise
            if handler is None:
                receiver.refuse_to_lose()
                if not delivery.settled:
                    pass_over(delivery)
                return False
            await handle(handler, AmqpReceived(envelope, delivery))
            return True
        finally:
            if group is not None:
                self._free(receiver, group)

    def _free(self, receiver: Receiver, group: str) -> None:
        """The message of a group is settled: the next one can be handled."""
        waiting = self._groups.pop(group)
        self._parked -= len(waiting)
        for delivery in reversed(waiting):
            receiver.put_back(delivery)
        self._freed.set()


class OwnedTransport(AmqpTransport):
    """The only transport of a broker, which is connected at the first use and closed with the transport."""

    def __init__(self, broker: AmqpBroker, address: str) -> None:
        super().__init__(broker, address)
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Connects. Raises TransportError where no address can be reached."""
        async with self._opening:
            if self._is_closed or self._broker.is_open:
                return
            try:
                await self._broker.open()
            except ClientError as error:
                raise TransportError(str(error)) from error

    async def listen(self) -> None:
        """Returns when messages can be received. Raises TransportError where the broker refuses."""
        await self.open()
        await super().listen()

    async def send(self, envelope: Envelope) -> None:
        """Sends a message; returns when the broker has accepted it."""
        if not self._broker.is_open:
            await self.open()
        await super().send(envelope)

    async def receive(self, select: Selector, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Waits for a message that `select` has a handler for, and calls the handler with it."""
        if not self._broker.is_open:
            await self.open()
        return await super().receive(select, timeout)

    async def close(self) -> None:
        """Closes the links and the connection."""
        await super().close()
        await self._broker.close()
