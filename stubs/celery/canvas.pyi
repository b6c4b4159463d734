from typing import Any, Generic, ParamSpec, TypeVar

from celery import Celery
from celery.result import AsyncResult

P = ParamSpec("P")
R = TypeVar("R")

class _Task(Generic[P, R]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

class Signature:
    def apply_async(self, *, countdown: float | None = None) -> AsyncResult: ...

class group(Signature):
    def __init__(self, *tasks: Any, app: Celery) -> None: ...

class chain(Signature):
    def __init__(self, *tasks: Any, app: Celery) -> None: ...

class chord(Signature):
    def __init__(self, header: Any, *, app: Celery) -> None: ...
    def __call__(self, body: Signature) -> AsyncResult: ...
