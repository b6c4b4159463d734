"""What can go wrong on the bus, as the application sees it."""

from typing import Any


class BusError(Exception):
    """Base of all of them."""


class ConfigurationError(BusError):
    """The application contradicts itself, or what the bus needs to know is missing; shown at the start."""


class BrokerAwayError(BusError):
    """The broker could not be reached, or was lost while the bus started: trying again helps."""


class NotReadableError(BusError):
    """A message is not what its type says."""


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
    """The answer is of no type that was asked for.

    Attributes:
        types: names of the answer's types.
    """

    def __init__(self, text: str, types: str, answer: Any = None) -> None:
        super().__init__(text)
        self.types = types
        self.answer = answer
