"""Reading a value again after a call that may have changed it: mypy keeps what an assertion narrowed."""

from typing import TypeVar

T = TypeVar("T")


def now(value: T) -> T:
    """The value, without narrowing the expression that gave it for the lines below."""
    return value
