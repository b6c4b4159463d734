"""The client without await, for scripts, threads, Django and Flask: the same names; calls return when done.

    with lightrail.client.sync.connect("amqp://localhost") as connection:
        with connection.sender("orders") as sender:
            sender.send({"id": 7})
        with connection.receiver("orders") as receiver:
            for delivery in receiver:
                delivery.accept()

One thread of the process runs a loop for all connections; the first starts it. Objects may be used by any
thread. Objects from before a fork belong to the parent process, and raise ForkError in the child.
"""

import asyncio
import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack

from lightrail import client
from lightrail.client.connecting import ConnectOptions
from lightrail.client.errors import ForkError, LostError
from lightrail.client.keywords import MessageFields, MessageId, ReceiverOptions, SenderOptions
from lightrail.client.management import NAME
from lightrail.client.message import Message
from lightrail.client.outcomes import Outcome
from lightrail.client.requests import TIMEOUT_S
from lightrail.client.thread_loop import ThreadLoop, loop_of_process

__all__ = [
    "Connection",
    "Delivery",
    "ForkError",
    "Management",
    "Receiver",
    "Requester",
    "Sender",
    "connect",
]

_connections: "weakref.WeakSet[client.Connection]" = weakref.WeakSet()


def _after_fork() -> None:
    """In the child, none of the parent's sockets.

    A broker notices the death of the parent by the end of its socket, which a copy in a child would keep
    open. The number stays in use, for an empty file: closing it later closes no other file.
    """
    numbers = [number for connection in list(_connections) if (number := connection.fileno()) >= 0]
    if numbers:
        empty = os.open(os.devnull, os.O_RDWR)
        for number in numbers:
            os.dup2(empty, number)
        os.close(empty)


os.register_at_fork(after_in_child=_after_fork)


class Delivery:
    """See client.Delivery."""

    __slots__ = ("_inner", "_loop")

    def __init__(self, loop: ThreadLoop, inner: client.Delivery) -> None:
        self._loop = loop
        self._inner = inner

    @property
    def message(self) -> Message:
        return self._inner.message

    @property
    def body(self) -> Any:
        return self._inner.message.body

    @property
    def settled(self) -> bool:
        return self._inner.settled

    def accept(self) -> None:
        self._loop.call(self._inner.accept())

    def release(self) -> None:
        self._loop.call(self._inner.release())

    def fail(self) -> None:
        self._loop.call(self._inner.fail())

    def modify(
        self,
        *,
        delivery_failed: bool = False,
        undeliverable_here: bool = False,
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        self._loop.call(
            self._inner.modify(
                delivery_failed=delivery_failed,
                undeliverable_here=undeliverable_here,
                annotations=annotations,
            )
        )

    def reject(
        self,
        condition: str = "amqp:internal-error",
        description: str = "",
        info: Mapping[str, Any] | None = None,
    ) -> None:
        self._loop.call(self._inner.reject(condition, description, info))

    def dead_letter(
        self, reason: str, description: str = "", annotations: Mapping[str, Any] | None = None
    ) -> None:
        self._loop.call(self._inner.dead_letter(reason, description, annotations))

    def defer(self, seconds: float, *, delivery_failed: bool = False) -> None:
        self._loop.call(self._inner.defer(seconds, delivery_failed=delivery_failed))

    def renew(self) -> float | None:
        return self._loop.call(self._inner.renew())

    @property
    def lost(self) -> bool:
        return self._inner.lost

    def __repr__(self) -> str:
        return repr(self._inner)


class _Opens(Protocol):
    """Asynchronous objects behind `_Opened`."""

    async def opened(self) -> None: ...

    async def close(self) -> None: ...


class _Named(_Opens, Protocol):
    """Asynchronous objects behind `_Link`."""

    name: str
    address: str | None

    @property
    def healthy(self) -> bool: ...


Inner = TypeVar("Inner", bound=_Opens)
InnerLink = TypeVar("InnerLink", bound=_Named)


class _Opened(Generic[Inner]):
    """An object that a connection opens; a with block closes it."""

    def __init__(self, loop: ThreadLoop, inner: Inner) -> None:
        self._loop = loop
        self._inner = inner

    def __enter__(self) -> Self:
        self.opened()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def opened(self) -> None:
        self._loop.call(self._inner.opened())

    def close(self) -> None:
        self._loop.call(self._inner.close())


class _Link(_Opened[InnerLink]):
    """A sender or receiver."""

    @property
    def address(self) -> str | None:
        return self._inner.address

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def healthy(self) -> bool:
        return self._inner.healthy


class Sender(_Link[client.Sender]):
    """See client.Sender. `send_nowait` returns a future of concurrent.futures."""

    def send(self, message: Any = None, **fields: Unpack[MessageFields]) -> Outcome:
        return self._loop.call(self._inner.send(message, **fields))

    def send_all(self, messages: Iterable[Any]) -> list[Outcome]:
        # The iterable may block, and must not do so on the client's thread.
        return self._loop.call(self._inner.send_all(list(messages)))

    def schedule(
        self,
        message: Any = None,
        *,
        at: float | None = None,
        delay: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> Outcome:
        return self._loop.call(self._inner.schedule(message, at=at, delay=delay, **fields))

    def send_nowait(self, message: Any = None, **fields: Unpack[MessageFields]) -> "Future[Outcome]":
        answer: Future[Outcome] = Future()
        # A message that is being sent can't be cancelled.
        answer.set_running_or_notify_cancel()

        async def hand_in() -> None:
            def done(inner: "asyncio.Future[Outcome]") -> None:
                error = inner.exception()
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(inner.result())

            self._inner.send_nowait(message, **fields).add_done_callback(done)

        self._loop.call(hand_in())
        return answer


class Receiver(_Link[client.Receiver]):
    """See client.Receiver."""

    def __iter__(self) -> Iterator[Delivery]:
        """Messages, each when it is received. Ends when the receiver is closed, by any thread."""
        for inner in self._loop.iterate(self._inner):
            yield Delivery(self._loop, inner)

    def receive(self, count: int = 1, *, timeout: float | None = None) -> list[Delivery]:
        found = self._loop.call(self._inner.receive(count, timeout=timeout))
        return [Delivery(self._loop, inner) for inner in found]

    def select(
        self,
        choose: Callable[[Message], Callable[[Delivery], Any] | None],
        *,
        timeout: float | None = None,
    ) -> bool:
        """See client.Receiver.select; both functions are called on the thread that calls this."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._inner.refuse_to_lose()
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            found = self.receive(timeout=left)
            if not found:
                return False
            [delivery] = found
            try:
                handler = choose(delivery.message)
                if handler is not None:
                    handler(delivery)
            except BaseException:
                if not delivery.settled:
                    with contextlib.suppress(LostError):
                        delivery.fail()
                raise
            if not delivery.settled:
                if handler is not None:
                    delivery.accept()
                    return True
                with contextlib.suppress(LostError):
                    delivery.modify(undeliverable_here=True)
            elif handler is not None:
                return True

    def unsubscribe(self) -> None:
        self._loop.call(self._inner.unsubscribe())

    def grant(self, count: int) -> None:
        self._loop.call(self._inner.grant(count))


class Connection:
    """See client.Connection. Callbacks for events are called on the client's own thread."""

    def __init__(self, loop: ThreadLoop, inner: client.Connection) -> None:
        self._loop = loop
        self._inner = inner

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def healthy(self) -> bool:
        return self._inner.healthy

    @property
    def closed(self) -> bool:
        return self._inner.closed

    def sender(self, address: str | None = None, **options: Unpack[SenderOptions]) -> Sender:
        async def make() -> client.Sender:
            return self._inner.sender(address, **options)

        return Sender(self._loop, self._loop.call(make()))

    def receiver(self, address: str | None = None, **options: Unpack[ReceiverOptions]) -> Receiver:
        async def make() -> client.Receiver:
            return self._inner.receiver(address, **options)

        return Receiver(self._loop, self._loop.call(make()))

    @property
    def product(self) -> str:
        return self._inner.product

    def requester(self, address: str) -> "Requester":
        async def make() -> client.Requester:
            return self._inner.requester(address)

        return Requester(self._loop, self._loop.call(make()))

    def management(self) -> "Management":
        async def make() -> client.Management:
            return self._inner.management()

        return Management(self._loop, self._loop.call(make()))

    def close(self) -> None:
        self._loop.call(self._inner.close())


class Requester(_Opened[client.Requester]):
    """See client.Requester."""

    def request(
        self, message: Any = None, *, timeout: float | None = TIMEOUT_S, **fields: Unpack[MessageFields]
    ) -> Message:
        return self._loop.call(self._inner.request(message, timeout=timeout, **fields))


class Management(_Opened[client.Management]):
    """See client.Management."""

    def create(self, type: str, name: str, attributes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._loop.call(self._inner.create(type, name, attributes))

    def read(self, name: str, type: str = NAME) -> dict[str, Any]:
        return self._loop.call(self._inner.read(name, type))

    def update(
        self, name: str, attributes: Mapping[str, Any], *, type: str = NAME, revision: int | None = None
    ) -> dict[str, Any]:
        return self._loop.call(self._inner.update(name, attributes, type=type, revision=revision))

    def delete(self, name: str, *, type: str = NAME, revision: int | None = None) -> None:
        self._loop.call(self._inner.delete(name, type=type, revision=revision))

    def query(self, type: str = NAME, *attributes: str) -> Iterator[dict[str, Any]]:
        return self._loop.iterate(self._inner.query(type, *attributes))

    def purge(self, queue: str) -> int:
        return self._loop.call(self._inner.purge(queue))

    def peek(self, queue: str, *, start: int = 0, count: int = 20) -> list[tuple[int, str, Message]]:
        return self._loop.call(self._inner.peek(queue, start=start, count=count))

    def cancel_scheduled(self, queue: str, sequence: int) -> None:
        self._loop.call(self._inner.cancel_scheduled(queue, sequence))

    def cancel(self, queue: str, id: MessageId) -> bool:
        return self._loop.call(self._inner.cancel(queue, id))

    def subscriptions(self, router: str) -> list[dict[str, Any]]:
        return self._loop.call(self._inner.subscriptions(router))

    def dead_letters(self, queue: str, *, start: int = 0, count: int = 20) -> list[tuple[int, str, Message]]:
        return self._loop.call(self._inner.dead_letters(queue, start=start, count=count))


def connect(*urls: str, **options: Unpack[ConnectOptions]) -> Connection:
    """See client.connect; connected when it returns."""
    loop = loop_of_process()

    async def make() -> client.Connection:
        connection = await client.connect(*urls, **options)
        _connections.add(connection)
        return connection

    return Connection(loop, loop.call(make()))
