"""Bytes that the broker allocates for each byte of a large message, step by step from socket to socket.

A copy needs memory to be made in, so that what a step allocates at its height is what it copied. ZeroMQ and
the kernel copy as well, outside Python: not counted, and the same whatever the broker does.
"""

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from lightrail.amqp import events
from lightrail.amqp.connection import Connection
from lightrail.amqp.link import Link
from lightrail.amqp.performatives import Source, Target
from lightrail.amqp.settings import ConnectionSettings
from lightrail.frontend.client_socket import gathered
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import HEADER, Kind
from tests.support.amqp.frontend_fakes import FakeConnection
from tests.support.shard.scene import Peer, Scene

Result = TypeVar("Result")

READ_BYTES = 256_000
"""What uvloop reads from a socket at once."""
QUEUE = "large"
PRODUCER, CONSUMER = 1, 2
HEADER_SECTION = b"\x00Sp\xc0\x02\x01A"
"""Durable."""


class Copies:
    """Sends one message through a frontend's engine, a shard with its journal, and back."""

    def __init__(self, directory: Path, size: int) -> None:
        self.size = size
        self.bytes_of: dict[str, int] = {}
        """Allocated, by step."""
        body = bytes(range(256)) * (-(-size // 256))
        self.message = HEADER_SECTION + b"\x00Su\xb0" + size.to_bytes(4, "big") + body[:size]
        self.received = b""
        """The message as the client has it back."""
        journal = Journal(RealFiles(directory / "journal"))
        self._scene = Scene(journal, journal.recover(1 << 30))
        self._peer = _Peer(self._scene)
        self._peer.greet()
        self._client = Connection(ConnectionSettings(is_server=False), 0)
        self._server = Connection(ConnectionSettings(), 0)
        self._sender, self._receiver, links = self._attached()
        connection: Any = FakeConnection()
        home: Any = _Home()
        self._home = home
        incoming, outgoing = links
        incoming.take_pieces()
        self._producer = ProducerLink(connection, incoming, home, number=PRODUCER, queue=QUEUE)
        self._consumer = ConsumerLink(
            connection, outgoing, home, number=CONSUMER, options=ConsumerOpen(QUEUE)
        )
        self._consumer.start(10, False)
        self._peer.produce(PRODUCER, QUEUE)
        self._peer.consume(CONSUMER, QUEUE)
        self._scene.settle_down()

    def run(self) -> None:
        """The message goes in and comes out."""
        tracemalloc.start()
        try:
            self._deliver(self._enqueue())
        finally:
            tracemalloc.stop()
            self._scene.store.close()

    def per_byte(self, *steps: str) -> float:
        """Bytes allocated for each byte of the message, in these steps together."""
        return sum(self.bytes_of[step] for step in steps) / self.size

    # --- the way in --------------------------------------------------------------------------------------

    def _enqueue(self) -> bytes:
        """From the client's bytes to the record on disk; gives the ENQUEUE frame."""
        self._sender.send(1, (len(self.message),), self.message)
        stream = memoryview(b"".join(self._client.output))
        self._client.output.clear()
        for start in range(0, len(stream), READ_BYTES):
            read = self._measured("socket", partial(bytes, stream[start : start + READ_BYTES]))
            for event in self._measured("engine", partial(self._server.feed, read, 0)):
                assert isinstance(event, events.Transfers)
                self._measured("enqueue", partial(self._producer.transfers, event, 0))
            del read
        (part,) = self._home.take(Kind.ENQUEUE)
        received = memoryview(bytearray(part))
        self._measured("shard", lambda: self._peer.say(cast(bytes, received)))
        self._measured("journal", self._scene.settle_down)
        assert self._peer.accepted(PRODUCER) == [1]
        return bytes(part)

    # --- the way out -------------------------------------------------------------------------------------

    def _deliver(self, _kept: bytes) -> None:
        """From the queue to the client's bytes."""
        self._measured("deliver", lambda: self._peer.credit(CONSUMER, 1))
        (part,) = self._peer.slices
        received = memoryview(bytearray(part))
        self._server.output.clear()
        self._measured("link", lambda: self._consumer.deliver(received, 0, 1))
        assert self._server.has_large_output
        pieces = self._measured("output", lambda: gathered(self._server.output))
        for event in self._client.feed(b"".join(pieces), 0):
            if isinstance(event, events.Transfers):
                (self.received,) = event.payloads

    def _measured(self, step: str, work: Callable[[], Result]) -> Result:
        """Do one step, and note what it allocated at its height beyond what was there before."""
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        result = work()
        _, most = tracemalloc.get_traced_memory()
        self.bytes_of[step] = self.bytes_of.get(step, 0) + most - before
        return result

    def _attached(self) -> tuple[Link, Link, list[Any]]:
        """The client's sender and receiver, and the server's links of both, with credit."""
        client, server = self._client, self._server
        client.open()
        session = client.begin()
        sender = session.attach("in", True, source=Source(address="s"), target=Target(address=QUEUE))
        receiver = session.attach("out", False, source=Source(address=QUEUE), target=Target(address="r"))
        links: list[Any] = []
        for _ in range(4):
            for event in server.feed(_taken(client), 0):
                if isinstance(event, events.Attached):
                    event.link.accept()
                    links.append(event.link)
                    if not event.link.is_sender:
                        event.link.grant(10)
            client.feed(_taken(server), 0)
        receiver.grant(10)
        server.feed(_taken(client), 0)
        return sender, receiver, links


def _taken(connection: Connection) -> bytes:
    data = b"".join(connection.output)
    connection.output.clear()
    return data


class _Home:
    """Keeps what links post, as it is."""

    epoch = 0

    def __init__(self) -> None:
        self._posted: list[bytes] = []

    def post(self, part: bytes) -> None:
        self._posted.append(part)

    def take(self, kind: Kind) -> list[bytes]:
        posted, self._posted = self._posted, []
        return [part for part in posted if HEADER.unpack_from(part)[0] == kind]


class _Peer(Peer):
    """Keeps slices of deliveries as they are."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.slices: list[bytes] = []

    def hear(self, parts: Any) -> None:
        others = []
        for part in parts:
            if HEADER.unpack_from(part)[0] == Kind.DELIVER:
                self.slices.append(part)
            else:
                others.append(part)
        super().hear(others)
