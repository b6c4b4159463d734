"""Senders: a transport for each address that a bus sends to, whose queue or router is declared first."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from lightrail.bus.messages import MessageType
from lightrail.bus.outgoing import TARGET
from lightrail.bus.plan import Plan
from lightrail.bus.sending import Sending
from lightrail.transport import Broker, Received, Transport

SENDERS_MAX: Final = 1_000
"""Addresses with an open sender; the least recently used one is closed for another."""


class Senders:
    """The senders of a bus.

    Args:
        watch: is called with every message that was sent.
    """

    def __init__(self, broker: Broker, plan: Plan, watch: Callable[[Sending], None]) -> None:
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
