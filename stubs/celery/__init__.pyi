# What the tests use of Celery, which has no types of its own.

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar, overload

from celery.canvas import Signature, _Task
from celery.canvas import chain as chain
from celery.canvas import chord as chord
from celery.canvas import group as group

P = ParamSpec("P")
R = TypeVar("R")

class Settings:
    def update(self, **settings: Any) -> None: ...

class Control:
    def ping(self, timeout: float = 1.0, limit: int | None = None) -> list[dict[str, Any]]: ...

class Celery:
    conf: Settings
    def __init__(self, main: str) -> None: ...
    control: Control
    def close(self) -> None: ...
    def connection_for_read(self) -> AbstractContextManager[Any]: ...
    def signature(self, name: str, args: Sequence[Any] = ()) -> Signature: ...
    @overload
    def task(self, function: Callable[P, R], /) -> _Task[P, R]: ...
    @overload
    def task(
        self, *, bind: bool = ..., max_retries: int = ..., acks_late: bool = ...
    ) -> Callable[[Callable[P, R]], _Task[P, R]]: ...
