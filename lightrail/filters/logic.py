"""Three-valued logic over tests of messages: each test is true, false or None, unknown."""

from collections.abc import Callable, Sequence
from typing import Any

from lightrail.filters.message import MessageView

Test = Callable[[MessageView], bool | None]


def every(tests: Sequence[Test]) -> Test:
    """Whether all are true; false if any is false."""

    def test(view: MessageView) -> bool | None:
        result: bool | None = True
        for each in tests:
            one = each(view)
            if one is False:
                return False
            if one is None:
                result = None
        return result

    return test


def some(tests: Sequence[Test]) -> Test:
    """Whether one is true; false if all are false."""

    def test(view: MessageView) -> bool | None:
        result: bool | None = False
        for each in tests:
            one = each(view)
            if one is True:
                return True
            if one is None:
                result = None
        return result

    return test


def inverted(operand: Test) -> Test:
    """Whether it is false; what is unknown stays so."""

    def test(view: MessageView) -> bool | None:
        value = operand(view)
        return None if value is None else not value

    return test


def truth(operand: Callable[[MessageView], Any]) -> Test:
    """A value as a condition: unknown unless it is a boolean."""

    def test(view: MessageView) -> bool | None:
        value = operand(view)
        return value if type(value) is bool else None

    return test
