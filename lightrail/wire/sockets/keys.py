"""Wire keys: the key of an installation, which clients of its sockets have to prove that they have.

All processes share one CURVE key pair (RFC 26 of ZeroMQ), stored in one file. A process that connects uses it
as client key and expects it as server key; a process that listens checks, by ZAP (RFC 27), that a client has
this public key. So each end verifies that the other end belongs to the installation, and the connection is
encrypted. Without a key nothing is checked or encrypted: for loopback and private networks.
"""

import asyncio
import logging
import os
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

from lightrail.wire.sockets.counts import SocketCounts
from lightrail.wire.sockets.zeromq import LoopSocket

log = logging.getLogger("lightrail.wire.sockets.keys")

HEAD: Final = "lightrail-wire-key 1"
KEY_BYTES: Final = 40
"""Of a key in Z85, the text form of 32 bytes."""
FILE_BYTES_MAX: Final = 1_024
ZAP_ADDRESS: Final = "inproc://zeromq.zap.01"
ZAP_VERSION: Final = b"1.0"
DOMAIN: Final = b"lightrail"


class WireKeyError(Exception):
    """A key file that can't be used or created; the message has its path, the reason and the remedy."""


class WireKey(NamedTuple):
    """Both halves in the form of ZeroMQ: 40 characters of Z85 each."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return "WireKey(...)"  # the secret half must not be logged by accident


def write(path: str) -> None:
    """Draws a key into a new file, readable only by its owner. Raises WireKeyError, also if it exists."""
    public, secret = zmq.curve_keypair()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise WireKeyError(
            f"{path} exists already and is not changed: processes with its key could not connect to "
            "others; give another name, or remove it first"
        ) from None
    except OSError as error:
        raise WireKeyError(f"{path} can't be created: {error.strerror}") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{HEAD}\n{public.decode()}\n{secret.decode()}\n")


def read(path: str | None) -> WireKey | None:
    """The key in a file, or None without one. Raises WireKeyError."""
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            lines = file.read(FILE_BYTES_MAX).split()
    except OSError as error:
        raise WireKeyError(f"the wire key {path} can't be read: {error.strerror}") from None
    if lines[:2] != HEAD.encode().split() or len(lines) not in (3, 4):
        raise WireKeyError(f"{path} is no wire key: expected a file made by `lightrail wire-key FILE`")
    try:
        public = zmq.curve_public(lines[-1])
    except (ValueError, zmq.ZMQError):
        public = b""
    # The secret half alone suffices: a Helm chart can draw nothing else.
    if not public or (len(lines) == 4 and public != lines[2]):
        raise WireKeyError(f"the wire key {path} is damaged: its halves don't belong together; restore it")
    key = WireKey(public, lines[-1])
    return key


def context(key: WireKey | None) -> "zmq.Context[zmq.Socket[bytes]]":
    """A context whose sockets use the key for all their connections."""
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    if key is not None:
        made.setsockopt(zmq.CURVE_PUBLICKEY, key.public)
        made.setsockopt(zmq.CURVE_SECRETKEY, key.secret)
        made.setsockopt(zmq.CURVE_SERVERKEY, key.public)
    return made


class Admission:
    """Decides who may connect to the listening sockets of one context."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: "zmq.Context[zmq.Socket[bytes]]",
        key: WireKey | None,
        counts: SocketCounts,
    ) -> None:
        self._key = key
        self._counts = counts
        self._public = None if key is None else z85.decode(key.public)
        self._asked: LoopSocket | None = None
        if key is not None:
            socket = context.socket(zmq.REP)
            socket.bind(ZAP_ADDRESS)
            self._asked = LoopSocket(loop, socket, self._answer, _nothing)

    def guard(self, socket: "zmq.Socket[bytes]") -> None:
        """Makes a socket require the key; call it before the socket is bound."""
        if self._key is not None:
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._key.secret)
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)

    def close(self) -> None:
        """Call it after the guarded sockets are closed."""
        if self._asked is not None:
            self._asked.close()

    def _answer(self, parts: list[bytes]) -> None:
        """A request: version, id, domain, address, identity, mechanism, and for CURVE the client's key."""
        assert self._asked is not None
        number = parts[1] if len(parts) > 1 else b""
        known = len(parts) == 7 and parts[5] == b"CURVE" and parts[6] == self._public
        if not known:
            self._counts.refused += 1
            refused = self._counts.refused
            if refused & (refused - 1) == 0:  # the 1st, 2nd, 4th, 8th: attempts are unlimited
                where = parts[3].decode(errors="replace") if len(parts) > 3 else "?"
                log.warning("%s has shown another wire key and is refused (%d so far)", where, refused)
        status = (b"200", b"OK") if known else (b"400", b"another key")
        self._asked.send([ZAP_VERSION, number, *status, b"", b""])


def _nothing() -> None:
    """Answers leave one by one: nothing is to be done at the end of a turn."""
