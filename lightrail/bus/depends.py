"""Dependencies: functions that supply parameters of handlers, called once per message."""

import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, get_args, get_origin

from lightrail.bus.context import Context
from lightrail.bus.errors import ConfigurationError
from lightrail.transport.threads import call_in_thread


@dataclass(frozen=True, slots=True)
class Dependency:
    """A parameter whose value a function supplies."""

    function: Callable[..., Any]


def Depends(function: Callable[..., Any]) -> Any:  # noqa: N802 - as a type it would not fit the parameter's
    """Marks a parameter of a handler, as its default or in Annotated: `db: Session = Depends(session)`.

    Args:
        function: plain or async, or a generator whose part after `yield` runs when the handler has ended,
            with the handler's exception if it raised. It may have dependencies and a Context, too.
    """
    return Dependency(function)


class Parameters:
    """The parameters of a function, analysed once.

    Args:
        function: handler or dependency.
        with_message: whether its first parameter is the message.

    Raises ConfigurationError for a parameter without a source.
    """

    def __init__(self, function: Callable[..., Any], *, with_message: bool) -> None:
        self.function = function
        self.context: str | None = None
        self.dependencies: list[tuple[str, Parameters]] = []
        try:
            signature = inspect.signature(function, eval_str=True)
        except NameError as error:
            raise ConfigurationError(f"{name_of(function)}: an annotation can't be read: {error}") from error
        parameters = list(signature.parameters.values())
        if with_message:
            if not parameters:
                raise ConfigurationError(
                    f"{name_of(function)}: expected the message as first parameter, found none"
                )
            parameters = parameters[1:]
        for each in parameters:
            depends = _depends_of(each)
            if depends is not None:
                self.dependencies.append((each.name, Parameters(depends.function, with_message=False)))
            elif each.annotation is Context or each.name == "context":
                self.context = each.name
            elif each.default is inspect.Parameter.empty and each.kind not in (
                inspect.Parameter.VAR_POSITIONAL,
                inspect.Parameter.VAR_KEYWORD,
            ):
                raise ConfigurationError(
                    f"{name_of(function)}: expected a Context, a default or Depends(…) for the parameter "
                    f"{each.name}, found none"
                )
        self.is_async = inspect.iscoroutinefunction(function)

    @property
    def has_transaction(self) -> bool:
        """Whether one of the dependencies is the transaction of a store."""
        return any(
            getattr(each.function, "is_transaction", False) or each.has_transaction
            for _, each in self.dependencies
        )

    @property
    def needs_stack(self) -> bool:
        """Whether a call needs an exit stack, to close dependencies."""
        return bool(self.dependencies)

    async def values(self, context: Context, stack: AsyncExitStack, made: dict[Any, Any]) -> dict[str, Any]:
        """Keyword arguments for a call.

        Args:
            made: values for this message, by function.
        """
        found: dict[str, Any] = {}
        if self.context is not None:
            found[self.context] = context
        for name, each in self.dependencies:
            if each.function not in made:
                made[each.function] = await each.make(context, stack, made)
            found[name] = made[each.function]
        return found

    async def make(self, context: Context, stack: AsyncExitStack, made: dict[Any, Any]) -> Any:
        """The value of a dependency."""
        values = await self.values(context, stack, made)
        if inspect.isasyncgenfunction(self.function):
            return await stack.enter_async_context(asynccontextmanager(self.function)(**values))
        if inspect.isgeneratorfunction(self.function):
            return stack.enter_context(contextmanager(self.function)(**values))
        if self.is_async:
            return await self.function(**values)
        return await call_in_thread(partial(self.function, **values))


def _depends_of(parameter: inspect.Parameter) -> Dependency | None:
    if isinstance(parameter.default, Dependency):
        return parameter.default
    if get_origin(parameter.annotation) is Annotated:
        for each in get_args(parameter.annotation)[1:]:
            if isinstance(each, Dependency):
                return each
    return None


def name_of(function: Any) -> str:
    """Module and name of a function, for errors and logs."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
