"""The phases of a connection, in their order; connection_endpoint.py has the theory."""

from typing import Final

HEADER: Final = 0
"""A protocol header is awaited."""
SASL: Final = 1
"""SASL frames are exchanged."""
OPENING: Final = 2
"""The AMQP headers have been exchanged; the peer's open is awaited."""
OPEN: Final = 3
CLOSING: Final = 4
"""Our close is written; the peer's is awaited."""
CLOSED: Final = 5
