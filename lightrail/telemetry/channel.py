"""The channel between the supervisor and one of its children: JSON, one object per line, both ways.

The channel is a socket pair that the child inherits, so settings never appear in the process list, and each
side notices at once when the other one ends or dies.

Supervisor to child, first: ``{"role", "id", "replaces", "settings", "sockets"}``; later, to the gateway:
``{"processes": [...]}``. Child to supervisor: ``{"waiting": WHAT}`` while it waits for something that it
needs to start, ``{"ready": true, "id", "boot", ...}`` when it serves.
"""

import json
import socket
from typing import Any, Final

LINE_BYTES_MAX: Final = 1024 * 1024
"""A line between processes of one installation: settings, or the list of at most 513 processes."""
Message = dict[str, Any]


class ChannelClosedError(Exception):
    """The other side has closed the channel, or sent a line that is no message of a supervisor or child."""


class Channel:
    """One end of a channel. With a non-blocking socket ``receive`` returns the buffered lines at once."""

    __slots__ = ("_buffer", "socket")

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = bytearray()

    def send(self, message: Message) -> None:
        """Write one line. Raises ChannelClosedError when the other side has closed or doesn't read."""
        line = json.dumps(message).encode() + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise ValueError(f"a line of {len(line)} bytes; at most {LINE_BYTES_MAX} are read")
        try:
            self.socket.sendall(line)
        except OSError as error:
            raise ChannelClosedError(f"the line could not be written: {error}") from error

    def receive(self) -> list[Message]:
        """The messages of all complete lines (of at least one, if the socket blocks). Raises
        ChannelClosedError."""
        while True:
            try:
                data = self.socket.recv(65_536)
            except (BlockingIOError, InterruptedError):
                return []
            except OSError as error:
                raise ChannelClosedError(f"the channel could not be read: {error}") from error
            if not data:
                raise ChannelClosedError("the other side has closed")
            self._buffer += data
            *lines, rest = self._buffer.split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                raise ChannelClosedError(f"a line longer than {LINE_BYTES_MAX} bytes")
            if lines:
                self._buffer = bytearray(rest)
                return [_object(line) for line in lines]
            if not self.socket.getblocking():
                return []

    def close(self) -> None:
        self.socket.close()


def _object(line: bytes | bytearray) -> Message:
    try:
        message = json.loads(line)
    except ValueError as error:
        raise ChannelClosedError(f"a line that is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise ChannelClosedError("a line that is not a JSON object")
    return message
