"""The frontend: its connections, its shards, and the turn of the loop that joins them.

One turn: sockets and shards are read, links forward batches, then all output is written: one message per
shard, one write per connection.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from importlib.metadata import version
from typing import Any, Final

from lightrail.amqp.connection import Connection
from lightrail.amqp.settings import ConnectionSettings
from lightrail.amqp.values import Symbol
from lightrail.cluster.coordinator import Coordinator, CoordinatorError
from lightrail.cluster.living import Registered
from lightrail.cluster.map import Member
from lightrail.frontend import connections, sole_connections
from lightrail.frontend.auth import Authentication, Authenticator
from lightrail.frontend.connection import ClientConnection
from lightrail.frontend.connections import ConnectionDeadlines, Connections
from lightrail.frontend.guard import Guard
from lightrail.frontend.hooks import FrontendHooks
from lightrail.frontend.http_forwarding import HttpForwarding
from lightrail.frontend.intake import Intake
from lightrail.frontend.lifetimes import Lifetimes
from lightrail.frontend.links.anonymous import ANONYMOUS_RELAY
from lightrail.frontend.links.retiring import RetiringConsumer
from lightrail.frontend.links.subscribing import SHARED_SUBSCRIPTIONS
from lightrail.frontend.node_usage import NodeUsage
from lightrail.frontend.nodes import cbs, management, requests
from lightrail.frontend.nodes.cbs import Cbs
from lightrail.frontend.nodes.management import Management
from lightrail.frontend.nodes.nodes import Nodes
from lightrail.frontend.outflow import Outflow
from lightrail.frontend.sole_connections import SoleConnections
from lightrail.frontend.unproven import Unproven
from lightrail.model import conditions, limits, names, protocols
from lightrail.model.clock import wall_ms
from lightrail.model.endpoint import Destinations
from lightrail.model.placement import Placement
from lightrail.model.policy import Role
from lightrail.model.protocols import Address
from lightrail.model.settings import Settings
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.records import Name
from lightrail.namespace.routers import Routers
from lightrail.namespace.service import Service
from lightrail.namespace.topic_uses import TopicUses, UseNotes
from lightrail.shard_client.owners.owner import Owner
from lightrail.shard_client.peers.shards import ShardPeer
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.telemetry.frontend import FrontendCounts
from lightrail.telemetry.open_files import OpenFiles
from lightrail.telemetry.strangers import Strangers
from lightrail.wire.bodies import Answer
from lightrail.wire.control import ControlServer
from lightrail.wire.forwarded import TO_GATEWAY, Forwarded
from lightrail.wire.sockets.wiring import Wiring

log = logging.getLogger("lightrail.frontend")

IDENTITY: Final = {Symbol("product"): "LightRail", Symbol("version"): version("lightrail")}
"""Properties of the broker's open, which identify its product to clients (2.7.1)."""

UNTRUSTED: Final = (
    "its header is read from the sources that proxy_protocol_from lists, and this is none of them: add its "
    "address there if it is your balancer's"
)


class Frontend:
    """The state of one frontend process, none of which is durable."""

    def __init__(
        self,
        *,
        name: str,
        boot: int,
        settings: Settings,
        coordinator: Coordinator,
        authenticator: Authenticator,
        loop: asyncio.AbstractEventLoop,
        wiring: Wiring,
        hooks: FrontendHooks | None = None,
    ) -> None:
        self.name = name
        self.boot = boot
        """Random number, drawn when the process starts."""
        self.settings = settings
        self.websocket_origins = settings.websocket_origins
        """Origins of pages that may connect by WebSocket."""
        self.hooks = hooks or FrontendHooks()
        """What else plugs into this frontend; without it, clients of AMQP alone are served."""
        self.stopping = False
        """Whether the process ends, and no more credit is granted."""
        self._authenticator = authenticator
        self._loop = loop
        self._start_bounds()
        self.shard_connections = ShardConnections(
            coordinator,
            loop,
            wiring,
            name=name,
            boot=boot,
            now_ms=lambda: self.now_ms(),
            schedule_flush=self.schedule_flush,
            flush=self._flush,
            shard_wait_ms=settings.shard_wait,
        )
        self.shards: dict[int, ShardPeer] = self.shard_connections.peers
        self._start_namespace(coordinator)
        self.nodes = Nodes(
            {management.ADDRESS: Management(self.service, self), cbs.ADDRESS: Cbs(authenticator)}
        )
        tls_at = f"over TLS at {settings.amqps}" if settings.amqps else "not over TLS, see --amqps"
        self.strangers = Strangers(
            log, f"AMQP 1.0 is served at {settings.amqp}, {tls_at}", {protocols.PROXY: UNTRUSTED}
        )
        self.open_files = OpenFiles(log, loop.time)
        self._control: ControlServer | None = None
        self._using: dict[str, asyncio.Future[Name]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def _start_bounds(self) -> None:
        """Sets up connections and their bounds."""
        self.counts = FrontendCounts()
        self.connections = Connections(self.counts)
        self._authenticator.first_user = self.connections.end_unchecked
        self.deadlines = ConnectionDeadlines(self._loop, lambda: self.now_ms(), self.connections)
        self.intake = Intake(
            self.counts,
            lambda: self.now_ms(),
            lambda wait_ms, call: self.later(wait_ms, call),
            self.settings.shard_wait,
        )
        self.outflow = Outflow(lambda wait_ms, call: self.later(wait_ms, call))
        self.unproven = Unproven(self)
        self.http = HttpForwarding(self)
        self.dirty: list[ClientConnection] = []
        """Connections with output, flushed at the end of this turn."""
        self._flush_scheduled = False

    def _start_namespace(self, coordinator: Coordinator) -> None:
        """Sets up names and the followers of their changes."""
        self.directory = Directory(
            coordinator, auto_create=self.settings.auto_create, now_ms=lambda: self.now_ms()
        )
        self.service = Service(
            coordinator,
            self.directory,
            now_ms=lambda: self.now_ms(),
            destinations=Destinations(self.settings.push_allow),
        )
        self._authenticator.shown_key = self.hooks.shown_keys(self.directory)
        usage = NodeUsage(self.directory, self.shard_connections, self.ask_shard, lambda: self.now_ms())
        self.lifetimes = Lifetimes(self.service, self.name, self.boot, self.spawn, usage)
        self.sole_connections = SoleConnections(
            coordinator, self.name, self.boot, Registered(coordinator, self.settings).frontend, self.spawn
        )
        self.guard = Guard(self.directory, self.lifetimes.unused)
        uses = TopicUses(coordinator, self.directory)
        notes = UseNotes(uses, lambda: self.now_ms(), self.spawn, self.later)
        self.routers = Routers(self.directory, self.later, lambda: self.now_ms(), notes)
        self.retiring: dict[str, RetiringConsumer] = {}
        """Consumers of queues with one consumer only whose links have ended, by queue: see retiring.py."""
        self.directory.listen(self._names_changed)
        self._unreadable = False

    # --- time ------------------------------------------------------------------------------------------

    @staticmethod
    def now_ms() -> int:
        """Wall clock in milliseconds, the unit of messages' expiry times, also in the shard's journal."""
        return wall_ms()

    # --- shards ----------------------------------------------------------------------------------------

    def add_shard(self, shard: int, address: str) -> None:
        """Connects to a shard, which may start later."""
        self.shard_connections.add(shard, address)

    def listen_to_gateways(self, address: str) -> str:
        """Binds the control socket; returns its address. Raises OSError: the address can't be bound."""
        operations = connections.operations(self)
        self._control = ControlServer(self.shard_connections.wiring, address, operations)
        return self._control.address

    def not_ready(self) -> str | None:
        """Why this frontend does not serve, or None: see ShardConnections."""
        self.counts.shards_connected = len(self.shards) - len(self.shard_connections.not_serving())
        return self.shard_connections.not_ready()

    async def place(self, queue: str) -> Owner:
        """The owner of a queue, for a link that is opened before the loop turns; a new queue is placed."""
        return await self.shard_connections.route(queue)

    async def find(self, queue: str) -> Placement:
        """The placement of a queue; a new queue is placed by the coordinator."""
        return await self.shard_connections.find(queue)

    def placed(self, queue: str) -> ShardPeer | None:
        """The shard of a queue if both are known here, otherwise None."""
        return self.shard_connections.placed(queue)

    async def ask_shard(self, queue: str, op: str, fields: dict[str, Any]) -> Answer:
        """Sends a request to the shard of a queue. Raises ShardDownError, ShardRefusedError."""
        return await self.shard_connections.request(queue, op, fields)

    # --- names -----------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Applies changes of names, rights and placements; ends links whose name or right was lost."""
        self.shard_connections.refresh()
        try:
            self.sole_connections.poll()
            self.directory.refresh()
        except CoordinatorError as error:
            if not self._unreadable:
                log.warning("changes of names and rights can't be read: %s", error)
            self._unreadable = True
        else:
            self._unreadable = False

    async def first_use(self, name: str, client: str, role: Role) -> Name:
        """The record of a name that is used for the first time; see `Service.first_use`."""
        owner = names.owner(name)
        pending = self._using.get(owner)
        if pending is None:
            pending = self._using[owner] = asyncio.ensure_future(self.service.first_use(owner, client, role))
        try:
            await asyncio.shield(pending)
        finally:
            self._using.pop(owner, None)
        return self.directory.get(name)

    def forget_route(self, name: str) -> None:
        """Discards the known placement of a name."""
        self.shard_connections.forget(name)

    def _names_changed(self, changes: Changes) -> None:
        for name in changes.names:
            self.forget_route(name)

    # --- connections -----------------------------------------------------------------------------------

    def protocol(self, source: Address | None = None) -> ClientConnection:
        """For create_server: the protocol of a socket that was accepted.

        Args:
            source: the client's address if a load balancer named it; None: the address of the socket.
        """
        return ClientConnection(self, source)

    def opened(self, connection: ClientConnection, hostname: str | None) -> None:
        """The client's open has arrived, with the host name that it expects."""
        self.connections.opened(hostname, connection.client)
        self.unproven.follow(connection)

    def ended(self, connection: ClientConnection) -> None:
        """The socket of a connection is closed."""
        self.connections.remove(connection)
        self.unproven.forget(connection)

    def authentication(self, transport: asyncio.Transport, source: Address | None) -> Authentication:
        """The authentication of a new connection; `source` is None for a socket without an address."""
        return self._authenticator.begin(transport, source)

    def forwarded_authentication(self, client: Forwarded) -> Authentication:
        """The authentication of a client that a gateway forwards."""
        return self._authenticator.begin_for(client.host, tls=client.tls)

    def forwarded(self, value: str, nonce: bytes) -> Forwarded:
        """Reads the header field of a forwarded client. Raises ValueError: no gateway wrote it."""
        return Forwarded.read(value, self._authenticator.secret, nonce, self.now_ms())

    def signed(self, client: Forwarded, nonce: bytes) -> str:
        """The header field about a client that this frontend forwards to a gateway."""
        return client.sign(self._authenticator.secret, nonce, self.now_ms(), TO_GATEWAY)

    def gateways(self) -> Iterable[Member]:
        """The gateways of the installation that are known."""
        return self.shard_connections.map.gateways.values()

    def tokens_changed(self, connection: ClientConnection, audiences: Collection[str]) -> None:
        """Tokens of a connection for these names were put or deleted, or have expired."""
        self.guard.recheck(connection.client, audiences)
        self.unproven.follow(connection)

    def new_amqp(self, mechanisms: tuple[str, ...], anonymous: bool) -> Connection:
        """The engine of a new connection, with the limits of this broker."""
        settings = ConnectionSettings(
            container_id=self.name,
            sasl_mechanisms=mechanisms,
            allow_plain_header=anonymous,
            idle_time_out_ms=self.settings.idle_timeout,
            max_message_size=self.settings.max_message_bytes,
            properties=dict(IDENTITY),
            names_at_termini=self.hooks.names_at_termini,
            transactions=True,
            open_deciding=frozenset((sole_connections.CAPABILITY,)),
            offered_capabilities=(
                ANONYMOUS_RELAY,
                cbs.CAPABILITY,
                SHARED_SUBSCRIPTIONS,
                requests.CAPABILITY,
                sole_connections.CAPABILITY,
            ),
            unfinished_bytes_max=limits.UNFINISHED_MESSAGES_MAX * self.settings.max_message_bytes,
        )
        return Connection(settings, self.now_ms())

    def next_link(self) -> int:
        """A number for a link, unique in the lifetime of this process."""
        return self.shard_connections.next_link()

    def soon(self, call: Callable[[], None]) -> None:
        """Makes a call in the next turn of the loop, after other sockets were read."""
        self._loop.call_soon(call)

    def later(self, wait_ms: int, call: Callable[[], None]) -> None:
        """Makes a call after `wait_ms`; 0: in the next turn of the loop."""
        self.timer(wait_ms, call)

    def timer(self, wait_ms: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        """The same for a call that can be cancelled through the handle."""
        return self._loop.call_later(wait_ms / 1000, call)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine in the background; its errors are only logged."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the frontend failed", exc_info=error)

    # --- the turn --------------------------------------------------------------------------------------

    def schedule_flush(self) -> None:
        """Requests a flush at the end of this turn."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        dirty, self.dirty = self.dirty, []
        for connection in dirty:
            try:
                connection.flush()
            except Exception:
                log.exception("a connection could not be written to; it is closed")
                connection.abort()
        self.shard_connections.flush()

    # --- the end ---------------------------------------------------------------------------------------

    async def stop(self, wait_s: float) -> None:
        """Shuts down: grants no new credit, answers received messages, and sends a close with a condition.

        The caller has closed the listeners before. The wait for a shard that does not answer does not reduce
        the time that clients have to read the condition and to answer.
        """
        self.stopping = True
        await self._until(lambda: not self.counts.unanswered_bytes, self._loop.time() + wait_s)
        for connection in list(self.connections):
            connection.close(conditions.CONNECTION_FORCED, "the broker is shutting down; connect again later")
        await self._until(lambda: not self.connections, self._loop.time() + wait_s)
        for connection in list(self.connections):
            connection.abort()
        self.http.close()
        self.lifetimes.expire_all()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.lifetimes.finish(), wait_s)
        self.deadlines.close()
        self._flush()
        self.shard_connections.close()
        if self._control is not None:
            self._control.close()
        for task in list(self._tasks):
            task.cancel()

    async def _until(self, done: Callable[[], bool], deadline: float) -> None:
        """Waits for a condition by polling, at the end of the process."""
        while not done() and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
