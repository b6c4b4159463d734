"""Multicast UDP: a datagram for each message, to every process that listens to the group, at most once.

docs/formats/datagram.md draws the bytes. Datagrams of other formats are counted and dropped: every host on
the network can send them.
"""

import asyncio
import inspect
import ipaddress
import socket
import struct
from collections import deque
from typing import Any, Final

from lightrail.transport.envelope import Envelope, decode_head, encode_head
from lightrail.transport.errors import SendRefusedError, TransportClosedError
from lightrail.transport.loopback import AtMostOnce
from lightrail.transport.protocol import Offers, Selector

MAGIC: Final = b"LRD1"
"""Beginning of a datagram: LightRail datagram, version 1."""
DATAGRAM_MAX: Final = 65_000
"""Largest datagram in bytes; IPv4 allows 65,507 in a datagram of UDP."""
WAITING_MAX: Final = 1_000
"""Messages that no `receive` call has examined yet; the oldest is dropped for a new one."""
TTL_DEFAULT: Final = 1
"""Routers that a datagram passes: 1 means the local network."""
OFFERS: Final = Offers(selective=False)
_LENGTH: Final = struct.Struct("!I")


def encode(envelope: Envelope) -> bytes:
    """The datagram of a message."""
    text = encode_head(envelope)
    return MAGIC + _LENGTH.pack(len(text)) + text + envelope.body


def decode(datagram: bytes) -> Envelope:
    """The message of a datagram. Raises ValueError for other bytes."""
    start = len(MAGIC) + _LENGTH.size
    if not datagram.startswith(MAGIC) or len(datagram) < start:
        raise ValueError(f"expected a datagram that begins with {MAGIC!r}, found {datagram[:8]!r}")
    (length,) = _LENGTH.unpack_from(datagram, len(MAGIC))
    if length > len(datagram) - start:
        raise ValueError(f"expected headers of {length} bytes, found {len(datagram) - start}")
    return decode_head(datagram[start : start + length], datagram[start + length :])


class UdpTransport:
    """A multicast group and port.

    Args:
        group: an address of a multicast group, as 239.255.7.1.
        port: of UDP.
        interface: address of the local network interface, by default loopback.
        ttl: routers that a datagram passes.
    """

    def __init__(
        self, group: str, port: int, *, interface: str = "127.0.0.1", ttl: int = TTL_DEFAULT
    ) -> None:
        if not ipaddress.ip_address(group).is_multicast or ":" in group:
            raise ValueError(f"expected the IPv4 address of a multicast group, as 239.255.7.1, found {group}")
        self.address: Final = f"{group}:{port}"
        self.offers: Final = OFFERS
        self.dropped = 0
        """Arrived messages without room at any receiver, and datagrams of other formats."""
        self._group = group
        self._port = port
        self._interface = interface
        self._ttl = ttl
        self._sending: socket.socket | None = None
        self._receiving: asyncio.DatagramTransport | None = None
        self._waiting: deque[Envelope] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._is_closed = False

    async def open(self) -> None:
        """Joins the group: messages that are sent from now on are received."""
        if self._receiving is not None:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((self._group, self._port))
            membership = socket.inet_aton(self._group) + socket.inet_aton(self._interface)
            listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
            listener.setblocking(False)
            loop = asyncio.get_running_loop()
            self._receiving, _ = await loop.create_datagram_endpoint(lambda: _Listener(self), sock=listener)
        except BaseException:
            listener.close()
            raise

    async def listen(self) -> None:
        """Joins the group."""
        await self.open()

    async def send(self, envelope: Envelope) -> None:
        """Sends a datagram; whether a process receives it is not known.

        Raises SendRefusedError for a message of more than DATAGRAM_MAX bytes.
        """
        if self._is_closed:
            raise TransportClosedError(f"the transport to {self.address} is closed")
        datagram = encode(envelope)
        if len(datagram) > DATAGRAM_MAX:
            raise SendRefusedError(
                f"{self.address}: expected a message of at most {DATAGRAM_MAX} bytes, found {len(datagram)}: "
                "send large ones through a broker"
            )
        if self._sending is None:
            made = self._sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(self._interface))
            made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, self._ttl)
        try:
            await asyncio.get_running_loop().sock_sendto(self._sending, datagram, (self._group, self._port))
        except OSError as error:
            raise SendRefusedError(f"{self.address}: the datagram could not be sent: {error}") from error

    async def receive(self, select: Selector, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Waits for a message that `select` has a handler for; one without a handler is dropped."""
        await self.open()
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while True:
            while self._waiting:
                envelope = self._waiting.popleft()
                handler = select(envelope)
                if handler is not None:
                    result = handler(AtMostOnce(envelope))
                    if inspect.isawaitable(result):
                        await result
                    return True
            if self._is_closed:
                raise TransportClosedError(f"the transport from {self.address} is closed")
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return False

    async def close(self) -> None:
        """Leaves the group; calls of `receive` that wait raise TransportClosedError."""
        self._is_closed = True
        if self._receiving is not None:
            self._receiving.close()
        if self._sending is not None:
            self._sending.close()
        self._wake()

    def arrived(self, datagram: bytes) -> None:
        """Stores an arrived datagram for `receive`."""
        try:
            envelope = decode(datagram)
        except ValueError:
            self.dropped += 1
            return
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(envelope)
        self._wake()

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)


class _Listener(asyncio.DatagramProtocol):
    def __init__(self, transport: UdpTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._transport.arrived(data)
