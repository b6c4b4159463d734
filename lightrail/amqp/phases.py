"""The phases of a connection, in their order; connection_endpoint.py has the theory."""

from typing import Final

HEADER: Final = 0
"""A protocol header is awaited."""
SASL: Final = 1
"""SASL frames are exchanged."""
OPENING: Final = 2
"""The AMQP headers have been exchanged; the peer's open is awaited."""
DECIDING: Final = 3
"""The peer's open has come and the caller decides on it (`open_deciding`); until then nothing is read."""
OPEN: Final = 4
CLOSING: Final = 5
"""Our close is written; the peer's is awaited."""
CLOSED: Final = 6
