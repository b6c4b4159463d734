"""A broker in the memory of the process: queues and routers with the rules of LightRail, for tests."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lightrail.filters.patterns import compile_pattern, split_words
from lightrail.transport.clock import Clock, LoopClock
from lightrail.transport.envelope import NO_HEADERS, Envelope, Header
from lightrail.transport.errors import SendRefusedError, TransportClosedError, TransportError
from lightrail.transport.memory_queue import DEAD_LETTERS, MemoryQueue, QueuedMessage
from lightrail.transport.protocol import EVERYTHING, Received, Selector, Transport, handle
from lightrail.transport.topology import QueueRules, Subscription, Topology, TopologyError, attributes_of


class MemoryBroker:
    """Queues and routers of one process. A queue is created at its first use.

    Args:
        clock: the time of locks, delays and expiry.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or LoopClock()
        self.offers: Final = EVERYTHING
        self._queues: dict[str, MemoryQueue] = {}
        self._routers: dict[str, dict[str, Subscription]] = {}
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._numbers = 0

    async def open(self) -> None:
        """Nothing has to be opened."""

    async def close(self) -> None:
        """No action: the messages stay in their queues."""

    @property
    def healthy(self) -> bool:
        """Returns True: memory can't be disconnected."""
        return True

    def transport(self, address: str, *, credit: int = 0, renew_for: float = 0.0) -> "MemoryTransport":
        """A transport that sends to a queue or router, or receives from a queue.

        Args:
            credit: has no effect here, since no message is sent ahead.
            renew_for: seconds for which locks are renewed, if the queue has a lock_duration.
        """
        return MemoryTransport(self, address, renew_for=renew_for)

    async def temporary(self, on_lost: Callable[[], None]) -> "MemoryTransport":
        """A transport of a new queue, which is deleted when the transport is closed.

        Args:
            on_lost: is never called: memory can't be disconnected.
        """
        self._numbers += 1
        return MemoryTransport(self, f"$temporary/{self._numbers}", is_temporary=True)

    async def declare(self, topology: Topology) -> None:
        """Creates missing queues, routers and subscriptions. Raises TopologyError for contradictions."""
        topology.refuse_contradictions()
        for name, rules in topology.queues.items():
            if name in self._routers:
                raise TopologyError(f"{name}: expected a queue, found a router")
            queue = self.queue(name)
            queue.rules = dataclasses.replace(queue.rules, **dict(attributes_of(rules)))
            dead = self._queues.get(name + DEAD_LETTERS)
            if dead is not None:
                dead.rules = _of_dead_letters(queue)
        for name in topology.routers:
            if name in self._queues:
                raise TopologyError(f"{name}: expected a router, found a queue")
            self._routers.setdefault(name, {})
        for each in topology.subscriptions:
            self._routers.setdefault(each.router, {})[each.id] = each

    def queue(self, name: str) -> MemoryQueue:
        """The queue of a name, which is created if it does not exist."""
        found = self._queues.get(name)
        if found is None:
            if name in self._routers:
                raise TransportError(
                    f"{name}: expected a queue, found a router: receive from a queue that subscribes"
                )
            source = (
                self._queues.get(name.removesuffix(DEAD_LETTERS)) if name.endswith(DEAD_LETTERS) else None
            )
            rules = QueueRules() if source is None else _of_dead_letters(source)
            found = MemoryQueue(name, rules, self.clock, self._dead_letter, lambda: self._wake(name))
            self._queues[name] = found
        return found

    def queues(self) -> Mapping[str, MemoryQueue]:
        """All queues, by name."""
        return self._queues

    def send(self, address: str, envelope: Envelope) -> None:
        """Stores a message in a queue, or in all queues that subscribe to a router."""
        for target in self._targets(address, envelope):
            self.queue(target).put(envelope)

    def _targets(self, address: str, envelope: Envelope) -> list[str]:
        """Names of the queues for a message."""
        if address not in self._routers:
            return [address]
        targets: dict[str, None] = {}
        self._route(address, envelope, targets, set())
        return list(targets)

    async def accept_and_send(self, received: Received, sends: Sequence[tuple[Transport, Envelope]]) -> None:
        """Accepts a message and sends others, in one transaction. Raises SendRefusedError."""
        found = [
            (self.queue(target), envelope)
            for transport, envelope in sends
            for target in self._targets(transport.address, envelope)
        ]
        if received.settled:
            raise SendRefusedError("expected a message that is locked, found one whose lock expired")
        for queue, count in Counter(queue for queue, _ in found).items():
            queue.check_room(count)
        await received.accept()
        for queue, envelope in found:
            queue.put(envelope)

    async def cancel(self, queue: str, id: str) -> bool:
        """Removes a delayed message; returns whether there was one with this id."""
        return self.queue(queue).cancel_delayed(id)

    def delete(self, name: str) -> None:
        """Deletes a queue with its messages."""
        self._queues.pop(name, None)

    async def ready(self, name: str) -> None:
        """Returns when a message of a queue may have become deliverable."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(name, []).append(waiter)
        await waiter

    def _route(self, router: str, envelope: Envelope, targets: dict[str, None], seen: set[str]) -> None:
        seen.add(router)
        words = split_words(envelope.subject or "")
        for each in self._routers[router].values():
            if each.subject is not None and not compile_pattern(each.subject)(words):
                continue
            if each.target not in self._routers:
                targets[each.target] = None
            elif each.target not in seen:
                self._route(each.target, envelope, targets, seen)

    def _dead_letter(self, queue: MemoryQueue, envelope: Envelope) -> None:
        if not queue.name.endswith(DEAD_LETTERS):
            self.queue(queue.name + DEAD_LETTERS).put(envelope)

    def _wake(self, name: str) -> None:
        for waiter in self._waiters.pop(name, ()):
            if not waiter.done():
                waiter.set_result(None)


def _of_dead_letters(source: MemoryQueue) -> QueueRules:
    """The rules of a dead-letter queue: the retries are those of its source."""
    rules = source.rules
    return QueueRules(
        retry_delay=rules.retry_delay,
        retry_growth=rules.retry_growth,
        retry_delay_max=rules.retry_delay_max,
    )


class MemoryTransport:
    """One address of a MemoryBroker."""

    def __init__(
        self, broker: MemoryBroker, address: str, *, renew_for: float = 0.0, is_temporary: bool = False
    ) -> None:
        self.address: Final = address
        self.offers: Final = EVERYTHING
        self._broker = broker
        self._renew_for = renew_for
        self._is_temporary = is_temporary
        self._unsettled: dict[MemoryReceived, None] = {}
        self._closed: asyncio.Event = asyncio.Event()

    async def open(self) -> None:
        """Nothing has to be opened."""

    async def listen(self) -> None:
        """Raises TransportError for a router."""
        self._broker.queue(self.address)

    async def send(self, envelope: Envelope) -> None:
        """Stores the message. Raises SendRefusedError if a queue is full."""
        if self._closed.is_set():
            raise TransportClosedError(f"the transport to {self.address} is closed")
        self._broker.send(self.address, envelope)

    async def receive(self, select: Selector, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Waits for a message that `select` has a handler for; returns whether one was handled."""
        queue = self._broker.queue(self.address)
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while True:
            if self._closed.is_set():
                raise TransportClosedError(f"the transport from {self.address} is closed")
            found = queue.take(self, select)
            if found is not None:
                break
            try:
                async with asyncio.timeout_at(deadline):
                    await self._broker.ready(self.address)
            except TimeoutError:
                return False
        entry, handler = found
        received = MemoryReceived(queue, entry)
        self._unsettled[received] = None
        if self._renew_for > 0 and queue.rules.lock_duration is not None:
            clock = self._broker.clock
            received.keep_locked(clock, queue.rules.lock_duration / 2, clock.time() + self._renew_for)
        try:
            await handle(handler, received)
        finally:
            self._unsettled.pop(received, None)
        return True

    async def close(self) -> None:
        """Releases unsettled messages; calls of `receive` that wait raise TransportClosedError."""
        self._closed.set()
        for received in list(self._unsettled):
            await received.release()
        if self._is_temporary:
            self._broker.delete(self.address)
        self._broker._wake(self.address)


class MemoryReceived:
    """A message that was received from a MemoryQueue."""

    def __init__(self, queue: MemoryQueue, entry: QueuedMessage) -> None:
        self.envelope: Final = entry.envelope
        self._queue = queue
        self._entry = entry
        self._lock = entry.lock

    def keep_locked(self, clock: Clock, every: float, until: float) -> None:
        """Renews the lock at intervals until the message is settled."""

        def renew() -> None:
            if self._queue.renew(self._entry, self._lock) and clock.time() < until:
                clock.call_at(clock.time() + every, renew)

        clock.call_at(clock.time() + every, renew)

    @property
    def settled(self) -> bool:
        """Whether it was settled, or its lock expired."""
        return not self._queue.is_locked(self._entry, self._lock)

    async def accept(self) -> None:
        """Removes the message from its queue."""
        self._queue.accept(self._entry, self._lock)

    async def release(self) -> None:
        """The message is delivered again; this delivery is not counted."""
        self._queue.release(self._entry, self._lock)

    async def fail(self, delay: float = 0.0) -> None:
        """The message is delivered again after `delay` seconds; this delivery is counted."""
        self._queue.fail(self._entry, self._lock, delay)

    async def dead_letter(
        self, reason: str, description: str = "", notes: Mapping[str, Header] = NO_HEADERS
    ) -> None:
        """The message becomes a dead letter of the queue."""
        self._queue.reject(self._entry, self._lock, reason, description, notes)
