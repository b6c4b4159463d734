"""Sagas: processes of several messages, whose state a store keeps in between.

    orders = Saga("shop.order-process", OrderState, store)

    @orders.starts(key="order")
    async def placed(event: OrderPlaced, state: OrderState, context: SagaContext) -> None:
        await context.send(Bill(event.order))
        await context.timeout(PaymentOverdue(event.order), delay=3600)

    @orders.handles(key="order")
    async def billed(event: Billed, state: OrderState, context: SagaContext) -> None:
        context.complete()

    bus.include(orders)

A step reads the state, calls the function, and writes the state, the messages sent and the message's id in
one commit. If another process has changed the saga meanwhile, the step is repeated with the new state.
"""

import inspect
import json
import logging
import typing
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from lightrail.bus.context import DONE, Context
from lightrail.bus.depends import name_of
from lightrail.bus.errors import ConfigurationError, NotReadableError
from lightrail.bus.handlers import Handlers, types_of
from lightrail.bus.limits import Retry
from lightrail.bus.messages import Kind
from lightrail.bus.store import AlreadyHandledError, ConflictError, SagaChange, Step, Store
from lightrail.bus.typed import converter

log = logging.getLogger("lightrail.bus")

CONFLICTS_MAX: Final = 20
"""Attempts of one step; then it fails, which counts as a failure of the handler."""
NO_CONFLICT: Final = Retry(immediate=2)

State = TypeVar("State")
Function = TypeVar("Function", bound=Callable[..., Any])
Key = str | Callable[[Any], Any]


class SagaContext:
    """The context of a step.

    Attributes:
        message: the Context of the message.
        key: correlation of the saga.
        is_new: whether this step begins the saga.
    """

    def __init__(self, context: Context, key: str, is_new: bool) -> None:
        self.message: Final = context
        self.key: Final = key
        self.is_new: Final = is_new
        self.is_complete = False

    def publish(self, event: Any, **options: Any) -> Awaitable[None]:
        """As of `Context`: the event is sent after the commit of the step."""
        return self.message.publish(event, **options)

    def send(self, command: Any, **options: Any) -> Awaitable[None]:
        """As of `Context`: the command is sent after the commit of the step."""
        return self.message.send(command, **options)

    def timeout(
        self, message: Any, *, delay: float | None = None, at: float | None = None
    ) -> Awaitable[None]:
        """Delivers a message to the saga later: after `delay` seconds, or at a time since the epoch."""
        self.message.schedule(message, delay=delay, at=at)
        return DONE

    def complete(self) -> None:
        """Ends the saga with this step: its state is deleted."""
        self.is_complete = True


class Saga(Handlers, Generic[State]):
    """A kind of saga.

    Args:
        name: in the store, and the default id of its subscriptions.
        state: class of the state; called without arguments for a new saga.
        store: where states are kept; the bus has the same one as its `store`.
    """

    def __init__(self, name: str, state: type[State], store: Store) -> None:
        super().__init__()
        self.name: Final = name
        self.store: Final = store
        self._state = state
        self._converter = converter(state)

    def starts(
        self, *, key: Key, retry: Retry = NO_CONFLICT, **options: Any
    ) -> Callable[[Function], Function]:
        """Registers a function for a message that begins a saga, or continues one that exists.

        Args:
            key: attribute or function of the message that identifies its saga.
            retry, options: as of `Handlers.handler`.
        """
        return self._step(key, True, retry, options)

    def handles(
        self, *, key: Key, retry: Retry = NO_CONFLICT, **options: Any
    ) -> Callable[[Function], Function]:
        """Registers a function for a message of an existing saga; without one, the message is ignored."""
        return self._step(key, False, retry, options)

    def _step(
        self, key: Key, starts: bool, retry: Retry, options: dict[str, Any]
    ) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            parameters = list(inspect.signature(function).parameters)
            if len(parameters) != 3:
                raise ConfigurationError(
                    f"{name_of(function)}: expected the parameters message, state and context, found "
                    f"{', '.join(parameters) or 'none'}"
                )
            annotation = typing.get_type_hints(function).get(parameters[0])

            async def step(message: Any, context: Context) -> None:
                await self._run(function, starts, _key_of(message, key), message, context)

            step.__annotations__["message"] = annotation
            step.__qualname__ = function.__qualname__
            step.__module__ = function.__module__
            chosen = dict(options)
            if not _is_command(annotation):
                chosen.setdefault("subscription", self.name)
            self.handler(retry=retry, **chosen)(step)
            return function

        return register

    async def _run(
        self, function: Callable[..., Any], starts: bool, key: str, message: Any, context: Context
    ) -> None:
        for _ in range(CONFLICTS_MAX):
            found = await self.store.saga(self.name, key)
            if found is None and not starts:
                log.info("%s %s: there is no such saga for %s", self.name, key, context.envelope.id)
                return
            state = self._state() if found is None else self._read(key, found.state)
            step = SagaContext(context, key, found is None)
            context.sent.clear()
            result = function(message, state, step)
            if inspect.isawaitable(result):
                await result
            change = SagaChange(
                self.name,
                key,
                0 if found is None else found.version,
                None if step.is_complete else self._written(state),
            )
            try:
                await self.store.commit(Step(context.handler, context.envelope.id, context.sent, change))
            except ConflictError:
                continue
            except AlreadyHandledError:
                log.info("%s %s: %s was handled before", self.name, key, context.envelope.id)
            # Its messages are in the outbox.
            context.sent.clear()
            return
        raise ConflictError(
            f"{self.name} {key}: {CONFLICTS_MAX} attempts conflicted with changes of other processes"
        )

    def _written(self, state: State) -> str:
        dump = self._converter.dump
        return json.dumps(state if dump is None else dump(state), separators=(",", ":"))

    def _read(self, key: str, text: str) -> State:
        try:
            found: State = self._converter.load(json.loads(text))
        except NotReadableError as error:
            raise NotReadableError(f"the state of {self.name} {key} is not readable: {error}") from error
        return found


def _key_of(message: Any, key: Key) -> str:
    found = (
        key(message)
        if callable(key)
        else message[key]
        if isinstance(message, dict)
        else getattr(message, key)
    )
    if found is None:
        raise NotReadableError(f"expected a key of the saga, found None in {message!r:.200}")
    return str(found)


def _is_command(annotation: Any) -> bool:
    return all(each.kind is Kind.COMMAND for each in types_of(annotation))
