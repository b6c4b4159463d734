"""Errors of filters, paths and actions.

A FilterError is in their text or JSON: what was expected, what was found, and where. An EvaluationError is of
one message, for which a rule of Azure Service Bus has no result.
"""


class FilterError(ValueError):
    """A filter, path or action that cannot be used.

    `expected` and `found` are for people; `position` counts characters of an expression from 1 and is
    None without an expression; `part` is the path of the faulty part of the JSON, empty for the whole.
    """

    def __init__(self, expected: str, found: str, position: int | None = None, part: str = "") -> None:
        where = "" if position is None else f", at character {position}"
        prefix = f"{part}: " if part else ""
        super().__init__(f"{prefix}expected {expected}, found {found}{where}")
        self.expected = expected
        self.found = found
        self.position = position
        self.part = part

    def within(self, part: str) -> "FilterError":
        """The same error, with its path relative to an enclosing part of the JSON."""
        inner = f"{part}.{self.part}" if self.part else part
        return FilterError(self.expected, self.found, self.position, inner)


class EvaluationError(Exception):
    """A rule has no result for a message, such as a division by zero; the text is for people."""


def shown(value: object) -> str:
    """An untrusted value, shortened and in ASCII."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:80] + "..."
