"""The frontend: its connections, its shards, and the turn of the loop that joins them.

One turn: sockets and shards are read, links move batches, then everything that gathered is written: one
message per shard, one write per connection.
"""

import asyncio
import contextlib
import heapq
import itertools
import logging
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Any, Final

from lightrail.amqp.connection import Connection, ConnectionSettings
from lightrail.amqp.values import Symbol
from lightrail.cluster.coordinator import Coordinator, CoordinatorError
from lightrail.cluster.shard_connections import ShardConnections
from lightrail.frontend import cbs, control, management, renewing
from lightrail.frontend.anonymous import ANONYMOUS_RELAY
from lightrail.frontend.auth import Authentication, Authenticator
from lightrail.frontend.cbs import Cbs
from lightrail.frontend.connection import ClientConnection
from lightrail.frontend.guard import Guard
from lightrail.frontend.intake import Intake
from lightrail.frontend.lifetimes import Lifetimes
from lightrail.frontend.management import Management
from lightrail.frontend.nodes import Nodes
from lightrail.frontend.outflow import Outflow
from lightrail.frontend.routing import Routers
from lightrail.frontend.subscribing import SHARED_SUBSCRIPTIONS
from lightrail.model import conditions, limits, names
from lightrail.model.clock import wall_ms
from lightrail.model.destinations import Destinations
from lightrail.model.policy import Role
from lightrail.model.settings import Settings
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.records import Name
from lightrail.namespace.service import Service
from lightrail.telemetry.frontend import FrontendCounts
from lightrail.telemetry.strangers import Strangers
from lightrail.wire.bodies import Answer
from lightrail.wire.control import ControlServer
from lightrail.wire.keys import WireKey
from lightrail.wire.owner import Owner
from lightrail.wire.requests import ShardDownError, ShardRefusedError
from lightrail.wire.shards import ShardPeer

log = logging.getLogger("lightrail.frontend")

IDENTITY: Final = {Symbol("product"): "LightRail", Symbol("version"): version("lightrail")}
"""Properties of the broker's open, by which clients know what they are connected to (2.7.1)."""


class Frontend:
    """Everything one frontend process owns; no durable state."""

    def __init__(
        self,
        *,
        name: str,
        boot: int,
        settings: Settings,
        coordinator: Coordinator,
        authenticator: Authenticator,
        loop: asyncio.AbstractEventLoop,
        key: WireKey | None = None,
    ) -> None:
        self.name = name
        self.boot = boot
        self.settings = settings
        self.counts = FrontendCounts()
        self.intake = Intake(self.counts)
        self.outflow = Outflow()
        self.stopping = False
        self.dirty: list[ClientConnection] = []
        self.connections: set[ClientConnection] = set()
        self.by_number: dict[int, ClientConnection] = {}
        """The same in the order in which they came."""
        self.half_open = 0
        self.shard_connections = ShardConnections(
            coordinator,
            loop,
            name=name,
            boot=boot,
            now_ms=lambda: self.now_ms(),
            schedule_flush=self.schedule_flush,
            flush=self._flush,
            shard_wait_ms=settings.shard_wait,
            key=key,
        )
        self._key = key
        self.shards: dict[int, ShardPeer] = self.shard_connections.peers
        self.directory = Directory(
            coordinator, auto_create=settings.auto_create, now_ms=lambda: self.now_ms()
        )
        """What is at each name, as this process knows it."""
        self.service = Service(
            coordinator,
            self.directory,
            now_ms=lambda: self.now_ms(),
            destinations=Destinations(settings.push_allow),
        )
        self.lifetimes = Lifetimes(self.service, name, boot, self.spawn, self._is_empty)
        self.guard = Guard(self.directory, self.lifetimes.unused)
        self.routers = Routers(self.directory, self.later)
        self.directory.listen(self._names_changed)
        self._unreadable = False
        self.nodes = Nodes(
            {management.ADDRESS: Management(self.service, self), cbs.ADDRESS: Cbs(authenticator)}
        )
        tls_at = f"over TLS at {settings.amqps}" if settings.amqps else "not over TLS, see --amqps"
        self.strangers = Strangers(log, f"AMQP 1.0 is served at {settings.amqp}, {tls_at}")
        self._authenticator = authenticator
        self._loop = loop
        self._flush_scheduled = False
        self._links = itertools.count(1)
        self._numbers = itertools.count(1)
        self._control: ControlServer | None = None
        self._placing: dict[str, asyncio.Future[tuple[int, int]]] = {}
        self._using: dict[str, asyncio.Future[Name]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._deadlines: list[tuple[int, int, ClientConnection]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    # --- time ------------------------------------------------------------------------------------------

    @staticmethod
    def now_ms() -> int:
        """Wall clock: expiry times of messages and of the shard's journal are meant in it."""
        return wall_ms()

    # --- shards ----------------------------------------------------------------------------------------

    def add_shard(self, shard: int, address: str) -> None:
        """Connects to a shard; it may come later."""
        self.shard_connections.add(shard, address)

    def listen_to_gateways(self, address: str) -> str:
        """Binds the control socket; returns where. Raises zmq.ZMQError where the address can't be had."""
        operations, context = control.operations(self), self.shard_connections.context
        self._control = ControlServer(self._loop, context, address, operations, self._key)
        return self._control.address

    def not_ready(self) -> str | None:
        """Why this frontend does not serve, or None: see ShardConnections."""
        self.counts.shards_connected = len(self.shards) - len(self.shard_connections.away())
        return self.shard_connections.not_ready()

    async def place(self, queue: str) -> Owner:
        """The owner of a queue, for a link that is opened before the loop turns; a new queue is placed."""
        return self.shard_connections.owners.at(queue, await self.find(queue))

    async def find(self, queue: str) -> tuple[int, int]:
        """The shard and the epoch of a queue; a new queue is placed by the coordinator."""
        known = self.shard_connections.where(queue)
        if known is None:
            # One look-up per name: many links of one queue often come together.
            pending = self._placing.get(queue)
            if pending is None:
                pending = self._placing[queue] = asyncio.ensure_future(self.shard_connections.place(queue))
            try:
                known = await asyncio.shield(pending)
            finally:
                self._placing.pop(queue, None)
        return known

    def placed(self, queue: str) -> ShardPeer | None:
        """The shard of a queue if both are known here, else None."""
        known = self.shard_connections.where(queue)
        return None if known is None else self.shard_connections.peer(known[0])

    async def ask_shard(self, queue: str, op: str, fields: dict[str, Any]) -> Answer:
        """Asks the shard of a queue. Raises ShardDownError, ShardRefusedError."""
        return await self.shard_connections.request(queue, op, fields)

    # --- names -----------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Takes in what others have changed; links that lost their name or right end."""
        self.shard_connections.refresh()
        try:
            self.directory.refresh()
        except CoordinatorError as error:
            if not self._unreadable:
                log.warning("changes of names and rights can't be read: %s", error)
            self._unreadable = True
        else:
            self._unreadable = False

    async def first_use(self, name: str, client: str, role: Role) -> Name:
        """What a name is that is being used; see `Service.first_use`."""
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
        """Where the name is will be asked anew."""
        self.shard_connections.forget(name)

    def _names_changed(self, changes: Changes) -> None:
        for name in changes.names:
            self.forget_route(name)

    async def _is_empty(self, queue: str) -> bool:
        """Whether a queue holds no message, as its shard says; False where that can't be known now."""
        try:
            found = (await self.ask_shard(queue, "queue", {})).fields
        except (CoordinatorError, ShardDownError, ShardRefusedError):
            return False
        return not any(int(found[state]) for state in ("ready", "delayed", "in_flight"))

    # --- connections -----------------------------------------------------------------------------------

    def protocol(self) -> ClientConnection:
        """For create_server: the protocol of a socket that was accepted."""
        return ClientConnection(self)

    def authentication(self, transport: asyncio.Transport) -> Authentication:
        return self._authenticator.begin(transport)

    def new_amqp(self, mechanisms: tuple[str, ...], anonymous: bool) -> Connection:
        """The engine of a new connection, with the limits of this broker."""
        settings = ConnectionSettings(
            container_id=self.name,
            sasl_mechanisms=mechanisms,
            allow_plain_header=anonymous,
            idle_time_out_ms=self.settings.idle_timeout,
            max_message_size=self.settings.max_message_bytes,
            properties=dict(IDENTITY),
            offered_capabilities=(
                ANONYMOUS_RELAY,
                cbs.CAPABILITY,
                SHARED_SUBSCRIPTIONS,
                renewing.CAPABILITY,
            ),
            unfinished_bytes_max=limits.UNFINISHED_MESSAGES_MAX * self.settings.max_message_bytes,
        )
        return Connection(settings, self.now_ms())

    def connected(self, connection: ClientConnection) -> None:
        self.connections.add(connection)
        self.by_number[connection.number] = connection
        self.half_open += 1
        self.counts.connections_opened += 1
        self.counts.connections += 1
        if self.half_open > limits.HALF_OPEN_MAX or len(self.connections) > limits.CONNECTIONS_MAX:
            self.counts.connections_refused += 1
            connection.abort()

    def opened(self, connection: ClientConnection) -> None:
        self.half_open -= 1

    def disconnected(self, connection: ClientConnection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            self.by_number.pop(connection.number, None)
            self.counts.connections -= 1
            if not connection.opened:
                self.half_open -= 1
            if len(self._deadlines) > 2 * len(self.connections) + limits.STALE_ENTRIES_MIN:
                self._forget_deadlines()

    def next_connection(self) -> int:
        """A number for a connection, rising, unique over the life of this process."""
        return next(self._numbers)

    def next_link(self) -> int:
        """A number for a link, unique over the life of this process."""
        return next(self._links)

    def soon(self, call: Callable[[], None]) -> None:
        """Calls back in the next turn of the loop, after what other sockets have."""
        self._loop.call_soon(call)

    def later(self, wait_ms: int, call: Callable[[], None]) -> None:
        """Calls back after a while, if there still is a loop."""
        self.timer(wait_ms, call)

    def timer(self, wait_ms: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        """The same for a call that can be taken back, by the handle."""
        return self._loop.call_later(wait_ms / 1000, call)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs what has to wait; its errors are logged and end nothing else."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the frontend failed", exc_info=error)

    # --- the turn --------------------------------------------------------------------------------------

    def schedule_flush(self) -> None:
        """Asks for a flush at the end of this turn."""
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
                log.exception("a connection could not be written to; it is ended")
                connection.abort()
        self.shard_connections.flush()

    # --- deadlines -------------------------------------------------------------------------------------

    def schedule_tick(self, connection: ClientConnection) -> None:
        """Keeps one valid entry per connection in the heap: that of its `deadline_ms`.

        A deadline that moves away is found when it comes; where it may come nearer it is set to None first.
        """
        if connection.deadline_ms is None and connection.amqp is not None:
            deadline = connection.next_tick(self.now_ms())
            if deadline is not None:
                connection.deadline_ms = deadline
                heapq.heappush(self._deadlines, (deadline, next(self._order), connection))
                self._arm()

    def _forget_deadlines(self) -> None:
        """Of connections that ended: where many come and go, they would all stay until theirs has passed."""
        self._deadlines[:] = [
            each for each in self._deadlines if each[0] == each[2].deadline_ms and each[2] in self.connections
        ]
        heapq.heapify(self._deadlines)

    def _arm(self) -> None:
        if self._deadlines and (self._timer is None or self._deadlines[0][0] < self._timer_ms):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = self._deadlines[0][0]
            wait = max(0, self._timer_ms - self.now_ms()) / 1000
            self._timer = self._loop.call_later(wait, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now_ms = self.now_ms()
        late_ms = now_ms - self._timer_ms
        if late_ms > limits.STANDSTILL_MS:
            # It was this process that was silent. What its clients said meanwhile waits in their sockets, or
            # in their systems: TCP tries again after about as long as it has tried in vain.
            for connection in self.connections:
                connection.excuse(now_ms + late_ms)
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            deadline, _, connection = heapq.heappop(deadlines)
            if deadline != connection.deadline_ms:
                continue
            try:
                connection.tick(now_ms)
            except Exception:
                log.exception("a deadline of a connection could not be kept; it is ended")
                connection.abort()
            if connection.deadline_ms is not None:
                deadline = connection.deadline_ms = max(connection.deadline_ms, now_ms + 1)
                heapq.heappush(deadlines, (deadline, next(self._order), connection))
        self._arm()

    # --- the end ---------------------------------------------------------------------------------------

    async def stop(self, wait_s: float) -> None:
        """Ends in order: no new credit, what came is answered, every connection is closed with a condition.

        The listeners are closed by the caller before. A shard that does not answer takes nothing of the time
        that clients have to hear why and to answer.
        """
        self.stopping = True
        await self._until(lambda: not self.counts.unanswered_bytes, self._loop.time() + wait_s)
        for connection in list(self.connections):
            connection.close(conditions.CONNECTION_FORCED, "the broker is shutting down; connect again later")
        await self._until(lambda: not self.connections, self._loop.time() + wait_s)
        for connection in list(self.connections):
            connection.abort()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.lifetimes.finish(), wait_s)
        if self._timer is not None:
            self._timer.cancel()
        self._flush()
        self.shard_connections.close()
        if self._control is not None:
            self._control.close()
        for task in list(self._tasks):
            task.cancel()
        self.shard_connections.end()

    async def _until(self, done: Callable[[], bool], deadline: float) -> None:
        """Waits for what ends with the process; asked again every few milliseconds, once in its life."""
        while not done() and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
