"""Handlers: functions for messages, registered by decorators in groups."""

import asyncio
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypedDict, TypeVar, Union, Unpack, get_args, get_origin, overload

from lightrail.bus.context import Context
from lightrail.bus.depends import Parameters, name_of
from lightrail.bus.errors import ConfigurationError
from lightrail.bus.fault import Fault, fault_type
from lightrail.bus.limits import NO_RETRY, KillSwitch, RateLimit, Retry
from lightrail.bus.messages import Kind, MessageType, message_type
from lightrail.transport import Clock
from lightrail.transport.clock import Timer

CONCURRENCY: Final = 10
"""Messages that a handler handles at once."""
DEFAULTS: Final[dict[str, Any]] = {
    "subscription": None,
    "topic": None,
    "retry": NO_RETRY,
    "concurrency": CONCURRENCY,
    "ordered": False,
    "batch": None,
    "lock_duration": None,
    "rate_limit": None,
    "kill_switch": None,
    "transaction": False,
}
BATCH_SIZE: Final = 100
BATCH_WAIT_S: Final = 0.2

Function = TypeVar("Function", bound=Callable[..., Any])
Next = Callable[[], Awaitable[Any]]


class ResponderOptions(TypedDict, total=False):
    """Options of responders, which `Handlers.handler` describes."""

    retry: Retry
    concurrency: int
    ordered: bool
    lock_duration: float | None
    rate_limit: RateLimit | None
    kill_switch: KillSwitch | None
    transaction: bool


class HandlerOptions(ResponderOptions, total=False):
    """Options of handlers, which `Handlers.handler` describes."""

    subscription: str | None
    topic: str | None
    batch: "Batch | None"


class Middleware(Protocol):
    """A function around handlers, in the order of registration, which calls the next one exactly once."""

    async def __call__(self, context: Context, call_next: Next) -> Any:
        """Returns what `await call_next()` returned, or a replacement of it."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Options of a handler that gets several messages as a list.

    Attributes:
        size: largest number of messages in one call.
        wait: seconds that the first message of a call waits for others.
    """

    size: int = BATCH_SIZE
    wait: float = BATCH_WAIT_S


@dataclass(slots=True)
class Registration:
    """A handler with its options, which `Handlers.handler` describes."""

    function: Callable[..., Any]
    types: tuple[MessageType, ...]
    is_responder: bool
    subscription: str | None
    topic: str | None
    retry: Retry
    concurrency: int
    ordered: bool
    batch: Batch | None
    lock_duration: float | None
    rate_limit: RateLimit | None
    kill_switch: KillSwitch | None
    transaction: bool
    parameters: Parameters
    where: str
    middlewares: list[Middleware] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of the function."""
        return name_of(self.function)


@dataclass(eq=False, repr=False)
class Handlers:
    """A group of handlers, which a bus includes; a Bus is one itself."""

    registrations: list[Registration] = field(default_factory=list)
    middlewares: list[Middleware] = field(default_factory=list)

    @overload
    def handler(self, function: Function, /) -> Function: ...

    @overload
    def handler(self, /, **options: Unpack[HandlerOptions]) -> Callable[[Function], Function]: ...

    def handler(self, function: Any = None, /, **options: Unpack[HandlerOptions]) -> Any:
        """Registers a function for the messages that its first parameter is annotated with.

            @bus.handler(retry=Retry(immediate=3, delayed=[5, 60, 600]))
            async def bill(order: OrderPlaced, context: Context) -> None: ...

        Args:
            subscription: of events, by default the name of the bus: handlers with the same id share the
                messages, in all processes; each id gets every message.
            topic: of events: a pattern of words of `publish(topic=…)`, as eu.*.express or eu.#.
            retry: of a message whose handler raises.
            concurrency: messages that are handled at once, in each process.
            ordered: messages of one key (`@message(key=…)`) are handled in order, one at a time in all
                processes.
            batch: the function gets a list of messages, annotated as list[T].
            lock_duration: seconds after which the broker delivers a message to another process if this one
                hangs; locks are renewed while the handler runs. None: a message is locked as long as the
                connection is open.
            rate_limit: largest number of calls in a time, in this process.
            kill_switch: pauses the handler when too many calls fail.
            transaction: the messages that the handler sends, and the settlement of the one that it handles,
                are one transaction of the broker: all take effect once, or the message is delivered again.

        Raises ConfigurationError for a function with unsupported parameters.
        """

        def register(function: Function) -> Function:
            self._register(function, False, options)
            return function

        return register if function is None else register(function)

    @overload
    def responder(self, function: Function, /) -> Function: ...

    @overload
    def responder(self, /, **options: Unpack[ResponderOptions]) -> Callable[[Function], Function]: ...

    def responder(self, function: Any = None, /, **options: Unpack[ResponderOptions]) -> Any:
        """Registers a function for requests: its result is the answer; if it raises, the answer is the error.

        An exception is retried `retry.immediate` times and then answered, because the requester waits.
        """

        def register(function: Function) -> Function:
            self._register(function, True, options)
            return function

        return register if function is None else register(function)

    def middleware(self, function: Function) -> Function:
        """Registers a middleware for the handlers of this group, before the group is included."""
        self.middlewares.append(function)
        return function

    def include(self, handlers: "Handlers") -> None:
        """Adds all handlers of a group; its middlewares wrap only these handlers."""
        for each in handlers.registrations:
            each.middlewares = [*handlers.middlewares, *each.middlewares]
            self.registrations.append(each)

    def _register(
        self, function: Callable[..., Any], is_responder: bool, given: "HandlerOptions | ResponderOptions"
    ) -> None:
        options = {**DEFAULTS, **given}
        unknown = given.keys() - DEFAULTS.keys()
        if unknown:
            raise ConfigurationError(
                f"{name_of(function)}: expected options among {', '.join(DEFAULTS)}, found "
                f"{', '.join(sorted(unknown))}"
            )
        if options["concurrency"] < 1:
            raise ConfigurationError(
                f"{name_of(function)}: expected a concurrency of 1 or more, found {options['concurrency']}"
            )
        parameters = Parameters(function, with_message=True)
        if options["batch"] is not None and parameters.has_transaction:
            raise ConfigurationError(
                f"{name_of(function)}: expected a handler of single messages for a transaction of a store, "
                "found one of batches: the inbox has no record of single messages of a batch"
            )
        if options["transaction"] and parameters.has_transaction:
            raise ConfigurationError(
                f"{name_of(function)}: expected a transaction of the broker or one of a store, found both: "
                "the store's outbox sends the handler's messages already"
            )
        found = message_types(function, options["batch"] is not None)
        for each in found:
            if is_responder and each.kind is not Kind.COMMAND:
                raise ConfigurationError(
                    f"{name_of(function)}: expected a responder for a command, found the event {each.name}: "
                    "declare requests with @command"
                )
            if each.kind is Kind.COMMAND and (options["subscription"] or options["topic"]):
                raise ConfigurationError(
                    f"{name_of(function)}: {each.name} is a command: it has one queue, and neither "
                    "subscription nor topic"
                )
            if options["ordered"] and each.key is None:
                raise ConfigurationError(
                    f"{name_of(function)}: expected a key for the order of {each.name}: declare it with "
                    '@message("…", key=…)'
                )
        code = getattr(inspect.unwrap(function), "__code__", None)
        where = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else name_of(function)
        self.registrations.append(
            Registration(function, tuple(found), is_responder, parameters=parameters, where=where, **options)
        )


def message_types(function: Callable[..., Any], is_batch: bool) -> Sequence[MessageType]:
    """The types that a function's first parameter is annotated with. Raises ConfigurationError."""
    name = name_of(function)
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise ConfigurationError(f"{name}: an annotation can't be read: {error}") from error
    first = next(iter(inspect.signature(function).parameters), None)
    if first is None or first not in hints:
        raise ConfigurationError(
            f"{name}: expected a first parameter that is annotated with the class of its messages, found none"
        )
    annotation = hints[first]
    if is_batch:
        if get_origin(annotation) is not list:
            raise ConfigurationError(
                f"{name}: expected list[…] for the messages of a batch, found {annotation!r}"
            )
        annotation = get_args(annotation)[0]
    return types_of(annotation)


def types_of(annotation: Any) -> list[MessageType]:
    """The message types of a class, a union of classes, or Fault of one. Raises ConfigurationError."""
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return [fault_type(each) if get_origin(each) is Fault else message_type(each) for each in options]


def return_types(function: Callable[..., Any]) -> list[MessageType]:
    """The message types in a responder's return annotation; empty without an annotation."""
    annotation = typing.get_type_hints(function).get("return")
    if annotation is None or annotation is type(None) or annotation is Any:
        return []
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return [message_type(each) for each in options if each is not type(None)]


class Collector:
    """Gathers the messages of several tasks, and calls the handler once for all of them.

    Args:
        call: the handler, with a list of messages and the context of the first.
    """

    def __init__(
        self, batch: Batch, call: Callable[[list[Any], Context], Awaitable[Any]], clock: Clock
    ) -> None:
        self.batch: Final = batch
        self._call = call
        self._clock = clock
        self._waiting: list[tuple[Context, asyncio.Future[None]]] = []
        self._timer: Timer | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def add(self, context: Context) -> None:
        """Returns when the batch of a message was handled; raises what its handler raised."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((context, done))
        if len(self._waiting) >= self.batch.size:
            self._begin()
        elif self._timer is None:
            self._timer = self._clock.call_at(self._clock.time() + self.batch.wait, self._begin)
        await done

    async def stop(self) -> None:
        """Cancels calls under way, whose messages are released, and waits for their end."""
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        waiting = [(context, done) for context, done in waiting if not done.done()]
        if waiting:
            task = asyncio.create_task(self._run(waiting))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def _run(self, waiting: list[tuple[Context, "asyncio.Future[None]"]]) -> None:
        error: BaseException | None = None
        try:
            # Messages that the handler sends belong to the first message, so they are sent once.
            await self._call([context.message for context, _ in waiting], waiting[0][0])
        except BaseException as raised:
            error = raised
        for _, done in waiting:
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
        if isinstance(error, asyncio.CancelledError):
            raise error
