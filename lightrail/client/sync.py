"""The client without await, for scripts, threads, Django and Flask: the same names; calls return when done.

    with lightrail.client.sync.connect("amqp://localhost") as connection:
        with connection.sender("orders") as sender:
            sender.send({"id": 7})
        with connection.receiver("orders") as receiver:
            for delivery in receiver:
                delivery.accept()

One thread of the process runs a loop for all connections; the first starts it. Objects may be used by any
thread. Objects that were opened before a fork belong to the parent process, and raise ForkError in the child.
"""

import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Self, Unpack

from lightrail import client
from lightrail.client.connection import ConnectOptions
from lightrail.client.errors import ForkError
from lightrail.client.keywords import MessageFields, MessageId, ReceiverOptions, SenderOptions
from lightrail.client.management import NAME
from lightrail.client.message import Message
from lightrail.client.requests import TIMEOUT_S
from lightrail.client.sync_links import Delivery, Opened, Receiver, Sender, _Wrapped
from lightrail.client.thread_loop import loop_of_process

__all__ = [
    "Connection",
    "Delivery",
    "ForkError",
    "Management",
    "Receiver",
    "Requester",
    "Sender",
    "Transaction",
    "connect",
]

_connections: "weakref.WeakSet[client.Connection]" = weakref.WeakSet()


def _after_fork() -> None:
    """Closes copies of the parent's sockets in the child.

    A broker notices the death of the parent by the end of its socket, which a copy in a child would keep
    open. The file descriptor stays in use, for an empty file: closing it later closes no other file.
    """
    numbers = [number for connection in list(_connections) if (number := connection.fileno()) >= 0]
    if numbers:
        empty = os.open(os.devnull, os.O_RDWR)
        for number in numbers:
            os.dup2(empty, number)
        os.close(empty)


os.register_at_fork(after_in_child=_after_fork)


class Connection(_Wrapped[client.Connection]):
    """See client.Connection. Callbacks for events are called on the client's own thread."""

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
        return Sender(self._loop, self._loop.make(self._inner.sender, address, **options))

    def receiver(self, address: str | None = None, **options: Unpack[ReceiverOptions]) -> Receiver:
        return Receiver(self._loop, self._loop.make(self._inner.receiver, address, **options))

    def transaction(self) -> "Transaction":
        return Transaction(self._loop, self._loop.make(self._inner.transaction))

    @property
    def product(self) -> str:
        return self._inner.product

    def requester(self, address: str) -> "Requester":
        return Requester(self._loop, self._loop.make(self._inner.requester, address))

    def management(self) -> "Management":
        return Management(self._loop, self._loop.make(self._inner.management))

    def close(self) -> None:
        self._loop.call(self._inner.close())


class Transaction(_Wrapped[client.Transaction]):
    """See client.Transaction."""

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._loop.call(self._inner.__aexit__(*exc))

    def begin(self) -> None:
        self._loop.call(self._inner.begin())

    def send(self, sender: Sender, message: Any = None, **fields: Unpack[MessageFields]) -> None:
        self._loop.call(self._inner.send(sender._inner, message, **fields))

    def schedule(
        self,
        sender: Sender,
        message: Any = None,
        *,
        at: float | None = None,
        delay: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> None:
        self._loop.call(self._inner.schedule(sender._inner, message, at=at, delay=delay, **fields))

    def accept(self, delivery: Delivery) -> None:
        self._loop.call(self._inner.accept(delivery._inner))

    def release(self, delivery: Delivery) -> None:
        self._loop.call(self._inner.release(delivery._inner))

    def fail(self, delivery: Delivery) -> None:
        self._loop.call(self._inner.fail(delivery._inner))

    def commit(self) -> None:
        self._loop.call(self._inner.commit())

    def roll_back(self) -> None:
        self._loop.call(self._inner.roll_back())


class Requester(Opened[client.Requester]):
    """See client.Requester."""

    def request(
        self, message: Any = None, *, timeout: float | None = TIMEOUT_S, **fields: Unpack[MessageFields]
    ) -> Message:
        return self._loop.call(self._inner.request(message, timeout=timeout, **fields))


class Management(Opened[client.Management]):
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
