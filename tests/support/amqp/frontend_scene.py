"""A frontend between a client (our own engine in the other role) and shards that do what the test says."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from lightrail.amqp import events
from lightrail.amqp.connection import Connection
from lightrail.amqp.link import Link
from lightrail.amqp.performatives import Source, Target
from lightrail.amqp.session import Session
from lightrail.amqp.settings import ConnectionSettings
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.frontend.auth import Authenticator
from lightrail.frontend.connection import ClientConnection
from lightrail.frontend.engine import Frontend
from lightrail.frontend.hooks import FrontendHooks
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.model.settings import Settings
from lightrail.service_bus.frontend import HOOKS
from lightrail.shard_client.peers.shards import ConnectionState
from lightrail.wire.sockets.wiring import Wiring
from tests.support.amqp.frontend_fakes import FakeShard

Found = TypeVar("Found", bound=events.Event)


class FakeTransport(asyncio.Transport):
    """A socket that is a list."""

    def __init__(self, protocol: ClientConnection, host: str = "127.0.0.1") -> None:
        self.extra: dict[str, Any] = {"peername": (host, 40_000)}
        super().__init__(self.extra)
        self.protocol: asyncio.Protocol = protocol
        self.written = bytearray()
        self.closing = False
        self.aborted = False
        self.reading = True
        self.stuck = False
        """The peer does not read: close() waits for ever."""
        self.has_eof = True
        """Whether one direction can be ended, as TLS can't."""
        self.ended = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    def write(self, data: Any) -> None:
        assert not self.closing, "written after it was closed"
        assert not self.ended, "written after its end"
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def can_write_eof(self) -> bool:
        return self.has_eof

    def write_eof(self) -> None:
        assert self.has_eof
        self.ended = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            if not self.stuck:
                self._lose()

    def abort(self) -> None:
        if not self.aborted:
            self.closing = self.aborted = True
            self._lose()

    def _lose(self) -> None:
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Shard(FakeShard):
    """A shard that opens links when the test says so."""

    state = ConnectionState.SERVING
    greetings = 1

    def __init__(self) -> None:
        super().__init__()
        self.producers: dict[int, ProducerLink] = {}
        self.consumers: dict[int, ConsumerLink] = {}

    def due(self, wait_ms: int) -> int | None:
        """See ShardPeer: this shard never sent the time of its clock."""
        return None

    def open_producer(self, producer: ProducerLink) -> None:
        self.producers[producer.number] = producer
        producer.reopen()

    def open_consumer(self, consumer: ConsumerLink) -> None:
        self.consumers[consumer.number] = consumer
        consumer.reopen()

    def ready(self) -> None:
        """Everything that waits is ready."""
        for producer in self.producers.values():
            producer.ready()
        for consumer in self.consumers.values():
            consumer.ready()

    def flush(self) -> None:
        return

    def close(self) -> None:
        return


class Client:
    """The other end of a connection."""

    def __init__(self, scene: "Scene", host: str = "127.0.0.1", settings: ConnectionSettings | None = None):
        self.scene = scene
        self.protocol = scene.frontend.protocol()
        self.transport = FakeTransport(self.protocol, host)
        self.amqp = Connection(
            settings or ConnectionSettings(is_server=False, container_id="client", idle_time_out_ms=0),
            scene.frontend.now_ms(),
        )
        self.events: list[events.Event] = []
        self.heard = bytearray()
        """Everything that the broker has written."""
        self.protocol.connection_made(self.transport)

    async def turn(self) -> None:
        """Bytes go both ways until there are none; the loop runs in between."""
        for _ in range(6):
            data = b"".join(self.amqp.output)
            self.amqp.output.clear()
            if data and not self.transport.closing:
                self.protocol.data_received(data)
            await self.scene.settle()
            written = bytes(self.transport.written)
            self.transport.written.clear()
            if written:
                self.heard += written
                self.events += self.amqp.feed(written, self.scene.frontend.now_ms())
            elif not data:
                break

    async def open(self) -> Session:
        self.amqp.open()
        await self.turn()
        session = self.amqp.begin()
        await self.turn()
        return session

    async def sender(self, session: Session, name: str = "s", queue: str = "q", **options: Any) -> Link:
        link = session.attach(name, True, source=Source(), target=Target(address=queue), **options)
        await self.turn()
        return link

    async def receiver(self, session: Session, name: str = "r", queue: str = "q", **options: Any) -> Link:
        link = session.attach(name, False, source=Source(address=queue), target=Target(), **options)
        await self.turn()
        return link

    def take(self, kind: type[Found]) -> list[Found]:
        """Events of one kind since the last time."""
        found = [event for event in self.events if isinstance(event, kind)]
        self.events = [event for event in self.events if not isinstance(event, kind)]
        return found


class Scene:
    """One frontend with one shard."""

    def __init__(self, coordinator: MemoryCoordinator, hooks: FrontendHooks = HOOKS, **settings: Any) -> None:
        self.coordinator = coordinator
        self.shard = Shard()
        self.time_ms = 1_000_000
        self.authenticator = Authenticator(
            coordinator, Settings(**settings), hooks.anonymous_mechanisms, hooks.keys
        )
        self.frontend = Frontend(
            name="frontend-0",
            boot=7,
            settings=Settings(**settings),
            coordinator=coordinator,
            authenticator=self.authenticator,
            loop=asyncio.get_running_loop(),
            wiring=Wiring(asyncio.get_running_loop()),
            hooks=hooks,
        )
        self.frontend.now_ms = lambda: self.time_ms  # type: ignore[method-assign]
        self.frontend.shards[0] = self.shard  # type: ignore[assignment]

    @classmethod
    async def start(
        cls, coordinator: MemoryCoordinator | None = None, hooks: FrontendHooks = HOOKS, **settings: Any
    ) -> "Scene":
        coordinator = coordinator or MemoryCoordinator()
        await coordinator.set_shards(1)
        scene = cls(coordinator, hooks, **settings)
        await scene.authenticator.refresh()
        return scene

    @property
    def connections(self) -> list[ClientConnection]:
        """Those whose sockets are open."""
        return [each for each in self.frontend.connections if isinstance(each, ClientConnection)]

    def client(self, host: str = "127.0.0.1", settings: ConnectionSettings | None = None) -> Client:
        return Client(self, host, settings)

    async def settle(self) -> None:
        """Lets everything that was scheduled for now run."""
        for _ in range(10):
            await asyncio.sleep(0)

    def links_attached(self) -> int:
        counts = self.frontend.counts
        return counts.links_opened - counts.links_closed


def play(test: Callable[[Scene], Any], hooks: FrontendHooks = HOOKS, **settings: Any) -> None:
    """Runs a test on a loop, with a frontend, into which the same plugs as in its process."""

    async def run() -> None:
        scene = await Scene.start(hooks=hooks, **settings)
        try:
            await test(scene)
        finally:
            scene.frontend.shard_connections.owners.close()
            scene.frontend.shard_connections.wiring.close()
            scene.frontend.deadlines.close()

    asyncio.run(run())


__all__: Sequence[str] = ["Client", "FakeTransport", "Scene", "Shard", "play"]
