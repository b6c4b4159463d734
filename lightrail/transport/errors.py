"""Errors that all transports raise."""


class TransportError(Exception):
    """A transport could not execute a call; the text has a remedy."""


class SendRefusedError(TransportError):
    """The message was not stored at its address, for example because a queue is full.

    Attributes:
        is_certain: False if the answer was lost: the message may have been stored.
        is_passing: whether the reason may pass, such as a queue that is full or moves.
    """

    def __init__(self, text: str, *, is_certain: bool = True, is_passing: bool = False) -> None:
        super().__init__(text)
        self.is_certain = is_certain
        self.is_passing = is_passing


class TransportClosedError(TransportError):
    """The transport was closed by the application."""
