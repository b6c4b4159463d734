"""The bus: applications publish, send and register handlers with it."""

import asyncio
import logging
import re
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, TypeVar, Unpack

from lightrail.bus.brokers import BrokerOptions, broker_at
from lightrail.bus.consumer import Consumer, Handled
from lightrail.bus.errors import BrokerAwayError, BusError, ConfigurationError
from lightrail.bus.formats import Format, Formats
from lightrail.bus.forwarder import Forwarder, Scheduler
from lightrail.bus.handlers import Handlers
from lightrail.bus.health import Health
from lightrail.bus.messages import Conventions, MessageType, Scheduled, Sending, message_type
from lightrail.bus.outgoing import Outgoing, Senders
from lightrail.bus.plan import Plan, Planned
from lightrail.bus.requests import Requests
from lightrail.bus.store import Store
from lightrail.client import AuthenticationError, ClientError, LinkError
from lightrail.transport import Broker, Clock, LoopClock, Received, TopologyError, Transport, TransportError

log = logging.getLogger("lightrail.bus")

STOP_S: Final = 30.0
"""How long running handlers may take when the bus stops."""
PAUSE_FIRST_S: Final = 0.1
PAUSE_LONGEST_S: Final = 5.0
"""Pause between attempts to start while the broker is unreachable."""
REQUEST_S: Final = 30.0
RENEW_S: Final = 86_400.0
"""How long the lock of a message is renewed while its handler runs."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")

Answer = TypeVar("Answer")


class Bus(Handlers):
    """A service on the bus.

        bus = Bus("amqp://localhost", name="billing")

        @bus.handler
        async def bill(order: OrderPlaced, context: Context) -> None:
            await context.publish(Invoice(order.id))

        async with bus:
            await bus.publish(OrderPlaced(id=7))

    Args:
        urls: of the broker, as of `lightrail.client.connect`; memory:// for queues in this process.
        name: of the service: the default id of its subscriptions. All its processes use the same name.
        format: in which messages are written, Json by default; JSON and CloudEvents are read as well.
        conventions: of names at the broker.
        broker: in place of URLs.
        store: for handlers with transactions and for sagas; the bus forwards its outbox.
        stop_timeout: seconds that handlers may take when the bus stops.
        options: as of `lightrail.client.connect`.
    """

    def __init__(
        self,
        *urls: str,
        name: str,
        format: Format | None = None,
        conventions: Conventions | None = None,
        broker: Broker | None = None,
        store: Store | None = None,
        stop_timeout: float = STOP_S,
        **options: Unpack[BrokerOptions],
    ) -> None:
        super().__init__()
        if not _NAME.match(name):
            raise ConfigurationError(f"expected a name of letters, digits, '.', '_' and '-', found {name!r}")
        if broker is None:
            broker = broker_at(urls, options)
        elif urls:
            raise ConfigurationError(f"expected URLs or a broker, found both: {', '.join(urls)}")
        self.name: Final = name
        self.broker: Broker = broker
        self.conventions: Final = conventions or Conventions()
        self.formats: Final = Formats(format)
        self.clock: Clock = LoopClock()
        self.outgoing: Final = Outgoing(name, self.formats.written, self.conventions, lambda: self.clock)
        self.store: Final = store
        self._forwarder: Forwarder | None = None
        self._stop_timeout = stop_timeout
        self._consumers: list[Consumer] = []
        self._transports: list[Transport] = []
        self._senders: Senders | None = None
        self._requests: Requests | None = None
        self._scheduler: Scheduler | None = None
        self._watchers: list[Callable[[Handled], None]] = []
        self._sent_watchers: list[Callable[[Sending], None]] = []
        self._is_started = False
        self.sent_types: Final[list[MessageType]] = []
        """Message types named by `sends`."""

    # --- life --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> "Bus":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Connects, declares what is missing at the broker, and begins to handle messages.

        Raises:
            ConfigurationError: handlers contradict each other.
            TopologyError: names at the broker have other roles or policies than expected.
            BrokerAwayError: the broker could not be reached, or the connection was lost meanwhile.
            BusError: the broker refused the user, or the user's access to a queue.
        """
        if self._is_started:
            return
        try:
            await self._start()
        except TopologyError:
            raise
        except (ClientError, TransportError) as error:
            text = f"the bus {self.name} could not be started: {error}"
            cause = error.__cause__ or error
            if isinstance(cause, AuthenticationError | LinkError):
                raise BusError(text) from error
            raise BrokerAwayError(text) from error
        self._is_started = True

    async def _start(self) -> None:
        plan = Plan(self.name, self.conventions)
        planned = plan.handlers(self.registrations)
        topology = plan.topology(planned)
        await self.broker.open()
        try:
            if self.store is not None:
                await self.store.open()
            await self.broker.declare(topology)
            self._senders = Senders(self.broker, plan, self._watch_sent)
            self._senders.add_declared((*topology.routers, *topology.queues))
            self._requests = Requests(self.broker, self.formats)
            if self.store is not None:
                self._forwarder = Forwarder(self.store, self._post, self.clock)
                self._forwarder.start()
            self._consumers = [self._consumer(each) for each in planned]
            for consumer in self._consumers:
                transport = self._received_by(consumer)
                self._transports.append(transport)
                consumer.start(transport)
            due = self.broker.transport(plan.schedule)
            self._transports.append(due)
            self._scheduler = Scheduler(due, self._post, self.clock)
            self._scheduler.start()
            await asyncio.gather(*(transport.listen() for transport in self._transports))
        except BaseException:
            await self._close()
            raise

    async def stop(self) -> None:
        """Stops receiving, waits for handlers, and disconnects; unsettled messages are delivered again.

        If this call is cancelled, running handlers are cancelled, and the rest is done all the same.
        """
        self._is_started = False
        await self._close()

    async def run(
        self, *, health: tuple[str, int] | None = None, metrics: Callable[[], bytes] | None = None
    ) -> None:
        """Starts, waiting for the broker if need be, and stops at SIGINT or SIGTERM.

        Args:
            health: host and port for /healthz and /readyz.
            metrics: text for /metrics, as `Metrics.text`.
        """
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        server = Health(lambda: self.healthy, metrics)
        try:
            if health is not None:
                port = await server.open(*health)
                log.info("health and metrics are at http://%s:%d", health[0], port)
            if await self._started(ended):
                log.info("the bus %s handles messages of %d queues", self.name, len(self._consumers))
                await ended.wait()
        finally:
            await self.stop()
            await server.close()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def _started(self, ended: asyncio.Event) -> bool:
        """Starts once the broker is reachable; False if `ended` is set before."""
        pause_s = PAUSE_FIRST_S
        while not ended.is_set():
            try:
                await self.start()
                return True
            except BrokerAwayError as error:
                log.warning("%s; trying again", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await ended.wait()
            pause_s = min(PAUSE_LONGEST_S, 2 * pause_s)
        return False

    @property
    def healthy(self) -> bool:
        """Whether the bus runs, and all of its links at the broker work."""
        return self._is_started and self.broker.healthy

    @property
    def queues(self) -> list[str]:
        """Queues whose messages the bus handles, while it runs."""
        return [transport.address for transport in self._transports]

    async def _close(self) -> None:
        consumers, self._consumers = self._consumers, []
        # In reverse: each part is closed although the closing of one before it failed or was cancelled.
        async with AsyncExitStack() as rest:
            rest.push_async_callback(self.broker.close)
            rest.callback(self._forget_parts)
            if self._senders is not None:
                rest.push_async_callback(self._senders.close)
            for transport in reversed(self._transports):
                rest.push_async_callback(transport.close)
            if self._requests is not None:
                rest.push_async_callback(self._requests.close)
            if self.store is not None:
                rest.push_async_callback(self.store.close)
            if self._forwarder is not None:
                rest.push_async_callback(self._forwarder.stop)
            if self._scheduler is not None:
                rest.push_async_callback(self._scheduler.stop)
            for consumer in consumers:
                # Without time for handlers that still run, where this call was cancelled.
                rest.push_async_callback(consumer.stop, 0.0)
            await asyncio.gather(*(consumer.stop(self._stop_timeout) for consumer in consumers))

    def _forget_parts(self) -> None:
        self._scheduler = self._forwarder = self._requests = self._senders = None
        self._transports.clear()

    # --- sending -----------------------------------------------------------------------------------------

    async def publish(self, event: Any, **options: Any) -> None:
        """Publishes an event; returns when every subscription has stored it.

        Args:
            event: an instance of a class that was declared with @message.
            topic: words that subscriptions select by, as eu.7.express; by default the name of the type.
            type: the class, if `event` is a dict of a TypedDict.
            id, headers, ttl, group, correlation_id, priority: of the message.

        Raises:
            SendRefusedError: a queue did not accept the event, or it is unknown whether all queues did.
            ConfigurationError: the object is not an event.
        """
        await self._post(self.outgoing.event(event, **options))

    async def send(self, command: Any, **options: Any) -> None:
        """Sends a command; returns when its queue has stored it.

        Args:
            command: an instance of a class that was declared with @command.
            to: address of a queue, in place of the queue of the type.
            type, id, headers, ttl, group, correlation_id, priority: as of `publish`.
        """
        await self._post(self.outgoing.command(command, **options))

    async def request(
        self,
        request: Any,
        *answers: type[Answer],
        timeout: float = REQUEST_S,  # noqa: ASYNC109 - the request expires then
        **options: Any,
    ) -> Answer:
        """Sends a request, and returns the answer as an instance of one of the classes.

        Raises:
            RequestTimeoutError: there was no answer in time.
            RequestFailedError: the responder raised.
            UnexpectedAnswerError: the answer is of another type.
            RequestError: the connection was lost meanwhile.
        """
        if not answers:
            raise ConfigurationError("expected the classes of the answers, found none")
        if self._requests is None:
            raise BusError(f"the bus {self.name} is not started: use it in `async with`, or await start()")
        reply_to = await self._requests.open()
        sending = self.outgoing.request(request, reply_to, timeout, **options)
        found: Answer = await self._requests.answer(sending, answers, self._post, timeout)
        return found

    async def schedule(self, message: Any, **options: Any) -> Scheduled:
        """Sends a command or publishes an event later.

        Args:
            at: seconds since the Unix epoch, or
            delay: seconds from now.
            options: as of `send` or `publish`; the message can be cancelled by an explicit `id`.

        Returns:
            The argument of `cancel`.
        """
        found = self.outgoing.scheduled(message, **options)
        await self._post(found.sending)
        return found.scheduled

    async def cancel(self, scheduled: Scheduled) -> bool:
        """Cancels a scheduled message; False if it was sent or cancelled before."""
        return await self.broker.cancel(scheduled.queue, scheduled.id)

    def sends(self, *classes: Any) -> None:
        """Declares messages that this service sends, for `lightrail bus docs`. It may send others as well."""
        for cls in classes:
            self.sent_types.append(message_type(cls))

    # --- watching ----------------------------------------------------------------------------------------

    def on_handled(self, call: Callable[[Handled], None]) -> None:
        """Registers a function to call with every message that has been handled and settled."""
        self._watchers.append(call)

    def on_sent(self, call: Callable[[Sending], None]) -> None:
        """Registers a function to call with every message that was sent."""
        self._sent_watchers.append(call)

    def forget(self, *calls: Callable[..., None]) -> None:
        """Removes functions that `on_handled` or `on_sent` registered."""
        self._watchers = [each for each in self._watchers if each not in calls]
        self._sent_watchers = [each for each in self._sent_watchers if each not in calls]

    def _watch(self, handled: Handled) -> None:
        for call in self._watchers:
            call(handled)

    # --- inside ------------------------------------------------------------------------------------------

    async def _post(self, sending: Sending) -> None:
        await self._sending().post(sending)

    async def _accept_and_post(self, received: Received, sendings: list[Sending]) -> None:
        await self._sending().accept_and_post(received, sendings)

    def _sending(self) -> Senders:
        if self._senders is None:
            raise BusError(f"the bus {self.name} is not started: use it in `async with`, or await start()")
        return self._senders

    def _watch_sent(self, sending: Sending) -> None:
        for call in self._sent_watchers:
            call(sending)

    def _consumer(self, planned: Planned) -> Consumer:
        return Consumer(
            planned.registration,
            planned.type,
            planned.queue,
            formats=self.formats,
            outgoing=self.outgoing,
            middlewares=self.middlewares,
            post=self._post,
            accept_and_post=self._accept_and_post,
            commit=None if self.store is None else self.store.commit,
            watch=self._watch,
            clock=self.clock,
        )

    def _received_by(self, consumer: Consumer) -> Transport:
        """The transport of a consumer's queue."""
        registration = consumer.registration
        at_once = registration.concurrency
        if registration.batch is not None:
            at_once = max(at_once, registration.batch.size)
        renew_for = 0.0 if registration.lock_duration is None else RENEW_S
        return self.broker.transport(consumer.queue, credit=2 * at_once, renew_for=renew_for)
