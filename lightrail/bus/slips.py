"""Routing slips: steps of several services in a row, which are undone in reverse if one fails.

    reserve = Activity("shop.reserve-stock", Reserve)

    @reserve.execute(retry=Retry(delayed=[5, 60]))
    async def reserve_stock(arguments: Reserve, context: SlipContext) -> Reservation:
        return Reservation(...)                            # what the compensation needs

    @reserve.compensate
    async def release_stock(log: Reservation, context: SlipContext) -> None: ...

    bus.include(reserve)

    slip = RoutingSlip().add("shop.reserve-stock", Reserve("tea", 1)).add("shop.charge", Charge(9.50))
    await slip.start(bus)                                  # or `slip.start(context)` in a handler

The slip itself is the message: it has the remaining stops, the completed ones and variables, so that services
are stateless. It ends with the event SlipCompleted or SlipFaulted.
"""

import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from lightrail.bus.context import Context
from lightrail.bus.depends import name_of
from lightrail.bus.errors import ConfigurationError
from lightrail.bus.formats import new_id
from lightrail.bus.handlers import Handlers
from lightrail.bus.limits import NO_RETRY, Retry
from lightrail.bus.messages import command, message
from lightrail.bus.typed import converter

PREFIX: Final = "slip."
UNDO: Final = ".undo"

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass
class Stop:
    """A remaining activity, with its arguments as JSON."""

    activity: str
    arguments: Any


@dataclass
class Done:
    """A completed activity, with the log for its compensation as JSON."""

    activity: str
    log: Any


@dataclass
class SlipError:
    """The error because of which a slip is undone."""

    activity: str
    exception: str
    text: str


@dataclass
class Slip:
    """A routing slip.

    Attributes:
        id: of the slip.
        stops: remaining activities, in order.
        done: activities that can be undone, in order.
        variables: values that activities pass to each other.
        error: why it is undone; None before a failure.
    """

    id: str
    stops: list[Stop]
    done: list[Done]
    variables: dict[str, Any]
    error: SlipError | None = None


@message("lightrail.slip-completed")
@dataclass
class SlipCompleted:
    """All activities of a slip are done."""

    id: str
    variables: dict[str, Any] = field(default_factory=dict)


@message("lightrail.slip-faulted")
@dataclass
class SlipFaulted:
    """An activity of a slip has failed, and those before it are undone."""

    id: str
    activity: str
    exception: str
    text: str
    variables: dict[str, Any] = field(default_factory=dict)


class SlipContext:
    """The context of an activity.

    Attributes:
        message: the Context of the message.
        id: of the slip.
        variables: of the slip; changes are passed on.
    """

    def __init__(self, context: Context, slip: Slip) -> None:
        self.message: Final = context
        self.id: Final = slip.id
        self.variables: Final = slip.variables


class CanSend(Protocol):
    """A Bus, or the Context of a message."""

    def send(self, command: Any, **options: Any) -> Awaitable[None]:
        """Sends a command."""
        ...


class RoutingSlip:
    """A slip under construction.

    Args:
        variables: values for the activities, as JSON values.
    """

    def __init__(self, variables: Mapping[str, Any] | None = None) -> None:
        self.id: Final = new_id()
        self._stops: list[Stop] = []
        self._variables = dict(variables or {})

    def add(self, activity: str, arguments: Any) -> "RoutingSlip":
        """Adds a stop: the name of an activity, and its arguments, of a class that JSON can carry."""
        dump = converter(type(arguments)).dump
        self._stops.append(Stop(activity, arguments if dump is None else dump(arguments)))
        return self

    def start(self, sender: CanSend) -> Awaitable[None]:
        """Sends the slip to its first activity. Raises ConfigurationError for a slip without any."""
        if not self._stops:
            raise ConfigurationError("expected a slip with an activity, found none: add one")
        made = slip_class(self._stops[0].activity, False)
        return sender.send(made(self.id, self._stops, [], self._variables), id=self.id)


_CLASSES: Final[dict[tuple[str, bool], Any]] = {}


def slip_class(activity: str, undoes: bool) -> Any:
    """The message class of slips for an activity, or for its compensation: each class has a queue."""
    found = _CLASSES.get((activity, undoes))
    if found is None:
        cls: Any = dataclass(type("Slip", (Slip,), {"__module__": __name__}))
        found = command(f"{PREFIX}{activity}{UNDO if undoes else ''}")(cls)
        _CLASSES[activity, undoes] = found
    return found


class Activity(Handlers):
    """A step of slips, with its compensation.

    Args:
        name: of the activity in slips.
        arguments: class of its arguments.
    """

    def __init__(self, name: str, arguments: type) -> None:
        super().__init__()
        self.name: Final = name
        self._load = converter(arguments).load
        self._dump_log: Callable[[Any], Any] | None = None
        self._can_undo = False

    def execute(self, *, retry: Retry = NO_RETRY, **options: Any) -> Callable[[Function], Function]:
        """Registers the function of the step; its result is passed to the compensation.

        When it raises, and `retry` has no further attempt, the slip is undone.

        Args:
            retry, options: as of `Handlers.handler`.
        """

        def register(function: Function) -> Function:
            returned = typing.get_type_hints(function).get("return")
            if returned is not None and returned is not type(None):
                self._dump_log = converter(returned).dump

            async def execute(slip: Any, context: Context) -> None:
                await self._execute(function, slip, context, retry)

            self._named(execute, function, slip_class(self.name, False))
            self.handler(retry=retry, **options)(execute)
            return function

        return register

    def compensate(self, function: Function) -> Function:
        """Registers the compensation; it is repeated until it succeeds or the slip becomes a dead letter.

        Raises ConfigurationError for a function whose first parameter has no class.
        """
        annotation = next(iter(typing.get_type_hints(function).values()), None)
        if annotation is None:
            raise ConfigurationError(
                f"{name_of(function)}: expected a first parameter with the class of the log"
            )
        load = converter(annotation).load
        self._can_undo = True

        async def undo(slip: Any, context: Context) -> None:
            result = function(load(slip.done[-1].log), SlipContext(context, slip))
            if inspect.isawaitable(result):
                await result
            slip.done.pop()
            self._go_back(slip, context)

        self._named(undo, function, slip_class(self.name, True))
        self.handler(retry=Retry(immediate=2, delayed=(1, 10, 60, 600)))(undo)
        return function

    async def _execute(self, function: Callable[..., Any], slip: Any, context: Context, retry: Retry) -> None:
        stop = slip.stops[0]
        try:
            found = function(self._load(stop.arguments), SlipContext(context, slip))
            log = await found if inspect.isawaitable(found) else found
        except Exception as error:
            has_attempt = context.attempt <= retry.immediate and not isinstance(error, retry.never)
            if has_attempt or retry.pause_s(error, context.delivery_count) is not None:
                raise
            name = f"{error.__class__.__module__}.{error.__class__.__qualname__}"
            slip.error = SlipError(self.name, name, str(error))
            self._go_back(slip, context)
            return
        if self._can_undo:
            slip.done.append(Done(self.name, log if self._dump_log is None else self._dump_log(log)))
        slip.stops.pop(0)
        if slip.stops:
            _forward(slip, slip_class(slip.stops[0].activity, False), context)
        else:
            context.publish(SlipCompleted(slip.id, slip.variables))

    def _go_back(self, slip: Any, context: Context) -> None:
        """Sends the slip to the compensation of the last completed activity, or ends it where there is
        none."""
        if slip.done:
            _forward(slip, slip_class(slip.done[-1].activity, True), context)
            return
        error = slip.error
        context.publish(SlipFaulted(slip.id, error.activity, error.exception, error.text, slip.variables))

    def _named(self, wrapper: Any, function: Callable[..., Any], cls: Any) -> None:
        wrapper.__annotations__["slip"] = cls
        wrapper.__qualname__ = function.__qualname__
        wrapper.__module__ = function.__module__


def _forward(slip: Slip, cls: Any, context: Context) -> None:
    context.send(cls(slip.id, slip.stops, slip.done, slip.variables, slip.error))
