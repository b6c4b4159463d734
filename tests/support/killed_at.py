"""A process that kills itself at a step of its work: for the drivers of crash tests."""

import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class KilledAt:
    """Ends this process, as by kill -9, when it passes a step for the nth time; never at the step `none`."""

    def __init__(self, step: str, passing: int) -> None:
        self._step = step
        self._left = passing

    def reached(self, step: str) -> None:
        """This process is at a step."""
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, before: str, call: Callable[P, R], after: str) -> Callable[P, R]:
        """A function with a step before it and one after it."""

        def watched(*arguments: P.args, **named: P.kwargs) -> R:
            self.reached(before)
            result = call(*arguments, **named)
            self.reached(after)
            return result

        return watched

    def around_async(
        self, before: str, call: Callable[P, Awaitable[R]], after: str
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """The same for a coroutine function."""

        async def watched(*arguments: P.args, **named: P.kwargs) -> R:
            self.reached(before)
            result = await call(*arguments, **named)
            self.reached(after)
            return result

        return watched
