"""Errors that all transports raise."""


class TransportError(Exception):
    """A transport could not do what it was asked for; the text says what to do."""


class SendRefusedError(TransportError):
    """The message was not stored at its address, such as by a queue that is full.

    Attributes:
        is_certain: False where the answer was lost: the message may have been stored.
        is_passing: whether the reason passes, such as that of a queue that is full or moves.
    """

    def __init__(self, text: str, *, is_certain: bool = True, is_passing: bool = False) -> None:
        super().__init__(text)
        self.is_certain = is_certain
        self.is_passing = is_passing


class TransportClosedError(TransportError):
    """The transport was closed by the application."""
