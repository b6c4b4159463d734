"""Errors of the bus that applications get."""

from typing import Any


class BusError(Exception):
    """Base of all errors of the bus."""


class ConfigurationError(BusError):
    """The application's declarations contradict each other or are incomplete; raised at the start."""


class BrokerAwayError(BusError):
    """The broker could not be reached, or the connection was lost while the bus started: try again."""


class NotReadableError(BusError):
    """A message does not match its type."""


class MiddlewareError(BusError):
    """A middleware did not call the next one exactly once."""


class RequestError(BusError):
    """A request has no answer."""


class RequestTimeoutError(RequestError, TimeoutError):
    """No answer came in time; whether the request was carried out is not known."""


class RequestFailedError(RequestError):
    """The responder raised.

    Attributes:
        exception: name of the class that was raised there.
        text: of the exception.
        host: where the responder runs.
    """

    def __init__(self, exception: str, text: str, host: str) -> None:
        super().__init__(f"the responder on {host or 'another host'} raised {exception}: {text}")
        self.exception = exception
        self.text = text
        self.host = host


class UnexpectedAnswerError(RequestError):
    """The answer is of an unexpected type.

    Attributes:
        types: names of the answer's types.
    """

    def __init__(self, text: str, types: str, answer: Any = None) -> None:
        super().__init__(text)
        self.types = types
        self.answer = answer
