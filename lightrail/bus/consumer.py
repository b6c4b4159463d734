"""Consumer: one queue, the handler of its messages, and the tasks that call it."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

from lightrail.bus.context import Context
from lightrail.bus.errors import MiddlewareError
from lightrail.bus.fault import Faults
from lightrail.bus.formats import Formats
from lightrail.bus.handlers import Collector, Middleware, Registration
from lightrail.bus.limits import Gate
from lightrail.bus.messages import MessageType, Sending, known_type
from lightrail.bus.outgoing import Outgoing
from lightrail.bus.store import AlreadyHandledError, Step
from lightrail.bus.typed import converter
from lightrail.transport import (
    Clock,
    Envelope,
    Handler,
    Received,
    Transport,
    TransportClosedError,
    TransportError,
)
from lightrail.transport.endpoint import HANDLER_FAILED, NOT_READABLE, description_of, notes_of, sendable
from lightrail.transport.threads import call_in_thread

log = logging.getLogger("lightrail.bus")

SKIPPED: Final = "lightrail:skipped"
"""Reason of a dead letter of an unknown type."""
PAUSE_FIRST_S: Final = 0.1
PAUSE_LONGEST_S: Final = 5.0


class Outcome(Enum):
    """Result of handling a message."""

    HANDLED = "handled"
    RETRIED = "retried"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_READABLE = "not-readable"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class Handled:
    """A handled message, for functions that watch the bus."""

    queue: str
    type: MessageType
    context: Context | None
    envelope: Envelope
    outcome: Outcome
    error: BaseException | None
    seconds: float


class Consumer:
    """Handles the messages of one queue.

    Args:
        post: sends a message.
        accept_and_post: accepts a message and sends those of its handler, in one transaction of the broker.
        commit: writes a step into the store of the bus; None without a store.
        watch: is called with every Handled.
    """

    def __init__(
        self,
        registration: Registration,
        type: MessageType,
        queue: str,
        *,
        formats: Formats,
        outgoing: Outgoing,
        middlewares: list[Middleware],
        post: Callable[[Sending], Awaitable[None]],
        accept_and_post: Callable[[Received, list[Sending]], Awaitable[None]],
        commit: Callable[[Step], Awaitable[None]] | None,
        watch: Callable[[Handled], None],
        clock: Clock,
    ) -> None:
        self.registration: Final = registration
        self.type: Final = type
        self.queue: Final = queue
        self.gate: Final = Gate(registration.rate_limit, registration.kill_switch, clock)
        self._load = converter(type.cls).load
        self._formats = formats
        self._outgoing = outgoing
        self._middlewares = [*middlewares, *registration.middlewares]
        self._post = post
        self._accept_and_post = accept_and_post
        self._has_transaction = registration.parameters.has_transaction
        self._faults = Faults(outgoing, post, commit if self._has_transaction else None, clock)
        self._watch = watch
        self._clock = clock
        self._name = registration.name
        self._workers: set[asyncio.Task[None]] = set()
        self._idle: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._collector: Collector | None = None
        if registration.batch is not None:
            self._collector = Collector(registration.batch, self._call, clock)

    # --- life ----------------------------------------------------------------------------------------------

    def start(self, transport: Transport) -> None:
        """Begins to receive."""
        count = self.registration.concurrency
        if self._collector is not None:
            # Each message of a batch occupies a worker until the batch is handled.
            count = max(count, self._collector.batch.size)
        for number in range(count):
            task = asyncio.create_task(self._work(transport), name=f"{self.queue} {number}")
            self._workers.add(task)

    async def stop(self, timeout: float) -> None:  # noqa: ASYNC109 - running handlers are cancelled then
        """Stops receiving, and waits for running handlers; after `timeout` seconds it cancels them.

        A plain function runs in a thread, which can't be stopped: it is waited for to its end, and then its
        transaction is rolled back.
        """
        self._is_stopping = True
        for task in self._idle:
            task.cancel()
        if self._workers:
            _, running = await asyncio.wait(self._workers, timeout=timeout)
            for task in running:
                log.warning("%s: a handler did not end within %g s and is cancelled", self.queue, timeout)
                task.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
        if self._collector is not None:
            await self._collector.stop()
        self._workers.clear()

    async def _work(self, transport: Transport) -> None:
        task = asyncio.current_task()
        assert task is not None
        idle = self._idle
        gate = self.gate if self.gate.has_limits else None
        failures = 0

        async def handle(received: Received) -> None:
            idle.discard(task)
            try:
                if gate is not None and not await gate.enter():
                    # The kill switch paused the handler while this task waited for a message: release it for
                    # other processes.
                    await received.release()
                    return
                await self.handle(received)
            finally:
                idle.add(task)

        def select(envelope: Envelope) -> Handler:
            return handle

        while not self._is_stopping:
            idle.add(task)
            try:
                if gate is not None:
                    await gate.opened()
                await transport.receive(select)
                failures = 0
            except TransportClosedError:
                return
            except TransportError as error:
                failures += 1
                log.warning("%s: %s", self.queue, error)
                await self._clock.sleep(min(PAUSE_LONGEST_S, PAUSE_FIRST_S * 2 ** min(failures, 10)))
            except Exception:
                # An error of the bus; a handler's exception is caught before. The message is delivered again.
                failures += 1
                log.exception("%s: internal error", self.queue)
                await self._clock.sleep(min(PAUSE_LONGEST_S, PAUSE_FIRST_S * 2 ** min(failures, 10)))
        idle.discard(task)

    # --- one message ---------------------------------------------------------------------------------------

    async def handle(self, received: Received) -> None:
        """Dispatches a message, and settles it."""
        envelope = received.envelope
        began = self._clock.time()
        try:
            read = self._formats.read(envelope)
            type, load = self.type, self._load
            if read.types:
                for name in read.types:
                    if name == self.type.wire_name:
                        break
                    known = known_type(name)
                    if known is not None and _is_subclass(known.cls, self.type.cls):
                        type, load = known, converter(known.cls).load
                        break
                else:
                    await self._skip(received, read.types, began)
                    return
            message = load(read.data)
        except Exception as error:
            # Also errors of a library's validators, or of Python's recursion limit: the message is at fault.
            await received.dead_letter(NOT_READABLE, description_of(error), notes_of(error))
            log.warning("%s: a message is not readable as %s: %s", self.queue, self.type.name, error)
            self._done(None, envelope, Outcome.NOT_READABLE, error, began)
            return
        context = Context(self._outgoing, received, message, self._name, self.queue, read.envelope)
        failure = await self._attempt(context)
        if failure is None and received.settled:
            # The handler has deferred the message, or its lock has expired: drop the messages that it sent.
            self._done(context, envelope, Outcome.DEFERRED, None, began)
            return
        if failure is None:
            failure = await self._conclude(received, context)
        if failure is None:
            self._done(context, envelope, Outcome.HANDLED, None, began)
        elif received.settled:
            # The transaction was rolled back, or its outcome is unknown. Unless it was committed, the broker
            # delivers the message again.
            log.warning("%s: the transaction of %s was not committed: %s", self.queue, self._name, failure)
            self._done(context, envelope, Outcome.RETRIED, failure, began)
        elif self.registration.is_responder and context.envelope.reply_to is not None:
            log.error("%s: %s raised; the requester gets the error", self.queue, self._name, exc_info=failure)
            await self._faults.answer(failure, type, context)
            await received.accept()
            self._done(context, envelope, Outcome.FAILED, failure, began)
        else:
            await self._failed(received, context, failure, type, began)

    async def _conclude(self, received: Received, context: Context) -> Exception | None:
        """Sends the messages of the handler, and accepts the handled one; returns the error, or None."""
        try:
            if self.registration.transaction and context.sent:
                await self._accept_and_post(received, context.sent)
                return None
            for sending in context.sent:
                await self._post(sending)
        except TransportError as error:
            return error
        await received.accept()
        return None

    async def _attempt(self, context: Context) -> Exception | None:
        """Calls the handler, with its immediate retries; returns the exception of the last call, or None."""
        retry = self.registration.retry
        while True:
            try:
                if self._collector is not None:
                    await self._collector.add(context)
                else:
                    answer = await self._call(context.message, context)
                    if not self._has_transaction:
                        self._answer(context, answer)
                return None
            except AlreadyHandledError as error:
                # The message was handled: its effects are in the database, its messages in the outbox.
                context.sent.clear()
                log.info("%s: %s", self.queue, error)
                return None
            except Exception as error:
                context.sent.clear()
                if context.attempt > retry.immediate or isinstance(error, retry.never):
                    return error
                log.info("%s: attempt %d of %s failed: %r", self.queue, context.attempt, self._name, error)
            context.attempt += 1

    def _answer(self, context: Context, answer: Any) -> None:
        """Adds the answer of a responder to the messages that are sent when it has succeeded."""
        if self.registration.is_responder and answer is not None and context.envelope.reply_to:
            context.reply(answer)

    async def _call(self, message: Any, context: Context) -> Any:
        """Calls the handler within its middlewares; `message` is a list if the handler has batches."""
        if not self._middlewares:
            return await self._call_function(message, context)
        return await self._through(0, message, context)

    async def _through(self, index: int, message: Any, context: Context) -> Any:
        """Calls the middleware of an index around those after it, and the handler as the last."""
        if index == len(self._middlewares):
            return await self._call_function(message, context)
        middleware = self._middlewares[index]
        calls = 0

        async def call_next() -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise MiddlewareError(f"{middleware!r} called the next one {calls} times: expected once")
            return await self._through(index + 1, message, context)

        result = await middleware(context, call_next)
        if calls == 0:
            raise MiddlewareError(f"{middleware!r} did not call the next one: expected once")
        return result

    async def _call_function(self, message: Any, context: Context) -> Any:
        parameters = self.registration.parameters
        function = self.registration.function
        if not parameters.needs_stack:
            values = {} if parameters.context is None else {parameters.context: context}
            if parameters.is_async:
                return await function(message, **values)
            return await call_in_thread(partial(function, message, **values))
        async with AsyncExitStack() as stack:
            values = await parameters.values(context, stack, {})
            if parameters.is_async:
                result = await function(message, **values)
            else:
                result = await call_in_thread(partial(function, message, **values))
                if inspect.isawaitable(result):
                    result = await result
            if self._has_transaction:
                # Before the commit, at the end of the stack, which has to have the answer in the outbox.
                self._answer(context, result)
            return result

    # --- failures ------------------------------------------------------------------------------------------

    async def _skip(self, received: Received, types: tuple[str, ...], began: float) -> None:
        text = sendable(f"expected a message of {self.type.wire_name}, found one of {', '.join(types)}")
        await received.dead_letter(SKIPPED, text)
        log.warning("%s: %s", self.queue, text)
        self._done(None, received.envelope, Outcome.SKIPPED, None, began)

    async def _failed(
        self, received: Received, context: Context, error: Exception, type: MessageType, began: float
    ) -> None:
        envelope = received.envelope
        pause_s = self.registration.retry.pause_s(error, envelope.delivery_count)
        if pause_s is not None:
            log.warning(
                "%s: %s failed, and is called again in %g s: %r", self.queue, self._name, pause_s, error
            )
            await received.fail(pause_s)
            self._done(context, envelope, Outcome.RETRIED, error, began)
            return
        log.error("%s: %s failed after its last attempt", self.queue, self._name, exc_info=error)
        attempts = envelope.delivery_count * (self.registration.retry.immediate + 1) + context.attempt
        # Published before the message is settled: a crash in between leads to two faults, never to none.
        await self._faults.publish(error, type, context, attempts)
        notes = notes_of(error) | {"x-opt-handler": self._name, "x-opt-attempts": attempts}
        await received.dead_letter(HANDLER_FAILED, description_of(error), notes)
        self._done(context, envelope, Outcome.FAILED, error, began)

    def _done(
        self,
        context: Context | None,
        envelope: Envelope,
        outcome: Outcome,
        error: BaseException | None,
        began: float,
    ) -> None:
        if self.gate.ended(outcome in (Outcome.HANDLED, Outcome.DEFERRED)):
            switch = self.registration.kill_switch
            assert switch is not None
            log.error("%s: too many calls fail: %s pauses for %g s", self.queue, self._name, switch.pause)
        seconds = self._clock.time() - began
        self._watch(Handled(self.queue, self.type, context, envelope, outcome, error, seconds))


def _is_subclass(cls: Any, base: Any) -> bool:
    return isinstance(cls, type) and isinstance(base, type) and issubclass(cls, base)
