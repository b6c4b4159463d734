"""Senders, receivers and deliveries without await, for lightrail.client.sync."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack

from lightrail import client
from lightrail.client.errors import LostError
from lightrail.client.keywords import MessageFields
from lightrail.client.message import Message
from lightrail.client.outcomes import Outcome
from lightrail.client.thread_loop import ThreadLoop

Wrappee = TypeVar("Wrappee")


@dataclass(slots=True, eq=False, repr=False)
class _Wrapped(Generic[Wrappee]):
    """An asynchronous object whose methods run on the client's loop."""

    _loop: ThreadLoop
    _inner: Wrappee


class Delivery(_Wrapped[client.Delivery]):
    """See client.Delivery."""

    __slots__ = ()

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

    @property
    def resumes(self) -> bool: ...


Inner = TypeVar("Inner", bound=_Opens)
InnerLink = TypeVar("InnerLink", bound=_Named)


class Opened(_Wrapped[Inner]):
    """An object that a connection opens; a with block closes it."""

    def __enter__(self) -> Self:
        self.opened()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def opened(self) -> None:
        self._loop.call(self._inner.opened())

    def close(self) -> None:
        self._loop.call(self._inner.close())


class _Link(Opened[InnerLink]):
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

    @property
    def resumes(self) -> bool:
        return self._inner.resumes


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
        """Deliveries, each when it is received. Ends when the receiver is closed, by any thread."""
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
