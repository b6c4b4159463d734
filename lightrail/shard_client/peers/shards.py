"""Shard connections: the connection of a frontend or gateway to one shard: greeting, heartbeats and links.

The frontend may lose the shard at any time (it is killed, stopped or moved), and a frame is certain only when
the shard has answered it. So the links keep the state to open them again: producers their unanswered batches,
consumers their credit. After each greeting (HELLO, WELCOME) they are opened and send again from the start;
the shard identifies batches by producer and number and stores none twice. Requests are not repeated: they
fail, since only the caller can decide whether to send them again.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from lightrail.model import conditions, limits
from lightrail.model.links import Ending
from lightrail.shard_client.deadlines import ShardClock, due_ms, left_ms
from lightrail.shard_client.links import (
    TO_CONSUMERS,
    TO_PRODUCERS,
    Consumer,
    MissingDeliveriesError,
    Producer,
)
from lightrail.shard_client.peers.requests import Requests, ShardDownError, ShardRefusedError, Watch
from lightrail.wire.bodies import Answer, Hello, Refusal, Welcome, decode_request, encode_request
from lightrail.wire.frames import COUNT_MASK, HEADER, HELD, VERSION, Kind, Part, frame
from lightrail.wire.sockets.wiring import Connecting, Wiring
from lightrail.wire.versions import VERSIONS, for_version, unknown

log = logging.getLogger("lightrail.shard_client.peers.shards")

COUNT: Final = int(Kind.COUNT)
PING: Final = frame(Kind.PING)
CONNECTING_MS: Final = 5
"""Pause before the second greeting while the shard does not listen, which takes a new connection a moment;
doubled each time."""
GREETING_MS: Final = 100
"""The longest such pause."""
GREETING_MS_MAX: Final = 3_200
"""Pause between two greetings that a shard does not answer; only the answer to the latest one counts."""


class ConnectionState(Enum):
    """GREETING until the shard has answered the latest HELLO, then SERVING."""

    GREETING = 1
    SERVING = 2


class ShardPeer:
    """The connection of one frontend to one shard."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wiring: Wiring,
        *,
        shard: int,
        address: str,
        frontend: str,
        boot: int,
        now_ms: Callable[[], int],
        schedule_flush: Callable[[], None],
        flush: Callable[[], None],
        watch: "Watch[ShardPeer] | None" = None,
    ) -> None:
        self.shard = shard
        self.address = address
        self.state = ConnectionState.GREETING
        self.version = VERSION
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.greetings = 0
        self._frontend = frontend
        self._boot = boot
        self._now_ms = now_ms
        self._schedule_flush = schedule_flush
        self._attempt = 0
        self._connections = 0
        self._greeting_ms, self._connecting_ms = GREETING_MS, CONNECTING_MS
        self._shard_boot = 0
        self._heard_ms = now_ms()
        self._silent = False
        """Whether the shard serves and has sent nothing for a long time."""
        self._said = 0
        """ZeroMQ messages sent since the shard's WELCOME, and those received after it: a TCP connection may
        break and reconnect unnoticed, and then messages in transit are lost."""
        self._heard = 0
        self._pings = 0
        """PINGs sent since the shard's WELCOME, and answered ones: they are answered in their order."""
        self._pongs = 0
        self._out: list[bytes] = []
        self._clock = ShardClock()
        self._requests = Requests(loop, shard, self.post, self.due)
        self._loop = loop
        self._wiring = wiring
        self._flush = flush
        # Owners have a length, and are empty at first: as a truth value they would be false.
        self._watch: Watch[ShardPeer] = Watch() if watch is None else watch
        self._socket = self._connected(address)
        self._timer: asyncio.TimerHandle | None = None
        self._beat()

    def _connected(self, address: str) -> Connecting:
        # A new name for each connection: if the shard read the handshake of a former connection after that of
        # a new connection with the same name, ROUTER_HANDOVER would leave the new one open and never read it.
        self._connections += 1
        name = f"{self._boot:08x}/{self._frontend}/{self._connections}".encode()
        # Messages in transit are bounded by link credit, not by a count of ZeroMQ messages.
        ahead = limits.WIRE_MESSAGES_AHEAD
        # `_flush`: frames for clients are sent at once, not with the next turn of the loop.
        return self._wiring.connect(
            address, self._receive, self._flush, receive_max=ahead, name=name, copies=False
        )

    @property
    def serving_boot(self) -> int | None:
        """Boot number of the shard process that has answered the latest HELLO; None while none has."""
        return self._shard_boot if self.state is ConnectionState.SERVING else None

    @property
    def speaks(self) -> bool:
        """Whether the shard serves and has sent frames lately; False while it, or its disk, hangs."""
        return self.state is ConnectionState.SERVING and not self._silent

    def reach(self, address: str) -> None:
        """Connects again: the shard has another address, or another process has replaced it."""
        self._socket.close()
        self.address = address
        self._socket = self._connected(address)
        if self.state is ConnectionState.SERVING:
            self.greet_again("it was started elsewhere")
        else:
            self._begin_greeting()

    # --- sending ---------------------------------------------------------------------------------------

    def post(self, part: bytes) -> None:
        """Adds a frame to be sent at the end of this turn; it is dropped while the shard does not serve.

        Nothing is lost: links are reopened after the next greeting.
        """
        if self.state is ConnectionState.SERVING:
            self._out.append(part)
            self._schedule_flush()

    def ping(self) -> int:
        """Requests an answer of the shard behind all frames posted so far; returns the number of this PING,
        counted since the greeting."""
        if self.state is ConnectionState.SERVING and not (self._out and self._out[-1] is PING):
            self._pings += 1
            self.post(PING)
        return self._pings

    def flush(self) -> bool:
        """Sends the frames of this turn as one message; False if the socket was closed."""
        if self._out:
            out, self._out = for_version(self._out, self.version), []
            self._said += 1
            if not self._socket.send([HEADER.pack(COUNT, 0, 0, 0, 0, 0, self._said), *out]):
                self.greet_again("its socket was closed")
                return False
        return True

    def open_producer(self, producer: Producer) -> None:
        self.producers[producer.number] = producer
        if self.state is ConnectionState.SERVING:
            producer.reopen()

    def open_consumer(self, consumer: Consumer) -> None:
        self.consumers[consumer.number] = consumer
        if self.state is ConnectionState.SERVING:
            consumer.reopen()

    def close_producer(self, number: int) -> None:
        if self.producers.pop(number, None) is not None:
            self.post(frame(Kind.PRODUCER_CLOSE, link=number))

    def close_consumer(self, number: int, flags: int) -> None:
        if self.consumers.pop(number, None) is not None:
            self.post(frame(Kind.CONSUMER_CLOSE, flags=flags, link=number))

    def due(self, wait_ms: int) -> int | None:
        """Until when the shard executes what is sent now by a caller that waits so long: lower 32 bits of its
        clock, for DUE. None if that is unknown."""
        return self._clock.at(due_ms(self._now_ms(), wait_ms))

    async def request(
        self, op: str, fields: dict[str, Any], *, blob: bytes = b"", wait_ms: int = limits.REQUEST_MS
    ) -> Answer:
        """Sends a request and waits for its answer; operations are listed in docs/formats/wire.md.

        Raises ShardDownError: the shard does not serve, does not answer within `wait_ms`, or was lost
        meanwhile; ShardRefusedError: the answer is an error.
        """
        if self.state is not ConnectionState.SERVING:
            raise ShardDownError(f"shard {self.shard} is not connected; try again")
        return await self._requests.ask(encode_request({"op": op, **fields}, blob), left_ms(wait_ms))

    async def owns(self, queue: str) -> bool | None:
        """Whether the shard owns a queue; None if the queue does not exist. Raises ShardDownError."""
        try:
            await self.request("queue", {"queue": queue})
        except ShardRefusedError as refused:
            return False if refused.condition == conditions.MOVED else None
        return True

    def close(self) -> None:
        """Sends GOODBYE, so that the shard requeues the consumers' unsettled deliveries at once."""
        if self._timer is not None:
            self._timer.cancel()
        if self.state is ConnectionState.SERVING:
            self.post(frame(Kind.GOODBYE))
            self.flush()
        self._socket.close(linger_ms=500)

    # --- greeting and heartbeats -----------------------------------------------------------------------

    def _beat(self) -> None:
        now = self._now_ms()
        if self.state is ConnectionState.SERVING:
            wait_ms = limits.HEARTBEAT_MS
            self.ping()
            if not self.flush():
                return
            silent_ms = now - self._heard_ms
            if silent_ms > limits.PEER_SILENCE_MS:
                # A stopped shard continues where it stopped; a new greeting would only repeat its work.
                if not self._silent:
                    log.warning("shard %d has been silent for %d ms", self.shard, silent_ms)
                    self._silent = True
                self._watch.silent(self, silent_ms)
            elif self._silent:
                self._silent = False
                log.info("shard %d speaks again", self.shard)
                self._watch.spoke(self)
        else:
            wait_ms = self._greet()
        self._timer = self._loop.call_later(wait_ms / 1000, self._beat)

    def _greet(self) -> int:
        """Sends HELLO; returns how long to wait for the answer, in milliseconds."""
        self._attempt += 1
        hello = Hello(self.version, self._frontend, self._boot, self._attempt)
        wait_ms = self._greeting_ms
        if self._socket.send([frame(Kind.HELLO, body=hello.encode())]):
            self._greeting_ms = min(2 * wait_ms, GREETING_MS_MAX)
        else:
            self._greeting_ms = GREETING_MS
            wait_ms = self._connecting_ms
            self._connecting_ms = min(2 * wait_ms, GREETING_MS)
        return wait_ms

    def _begin_greeting(self) -> None:
        self._greeting_ms, self._connecting_ms = GREETING_MS, CONNECTING_MS
        if self._timer is not None:
            self._timer.cancel()
        self._beat()

    def greet_again(self, why: str) -> None:
        """The shard or some frames were lost: after the next greeting the links are opened again.

        Unsettled deliveries return to their queues.
        """
        if self.state is ConnectionState.SERVING:
            log.warning("shard %d is lost (%s); links wait for it", self.shard, why)
            self.state = ConnectionState.GREETING
            self.version = VERSION
            self._silent = False
            self._out.clear()
            self._requests.lost(why)
            self._watch.lost(self)
            self._begin_greeting()

    def _welcomed(self, welcome: Welcome, part: Part) -> None:
        if welcome.attempt != self._attempt or self.state is ConnectionState.SERVING:
            return
        if welcome.version not in VERSIONS:
            log.error("%s", unknown(f"shard {self.shard}", welcome.version))
            return
        if welcome.version != self.version:
            self.version = welcome.version
            self._begin_greeting()
            return
        self.state = ConnectionState.SERVING
        self._clock.forget()
        self._clock.read(part, self._now_ms())
        self._said = self._heard = self._pings = self._pongs = 0
        self._shard_boot = welcome.boot
        self.greetings += 1
        log.info("shard %d serves (boot %08x)", self.shard, welcome.boot)
        links: list[Producer | Consumer] = [*self.producers.values(), *self.consumers.values()]
        for link in links:
            link.reopen()
        self._watch.welcomed(self)
        self._schedule_flush()

    # --- receiving -------------------------------------------------------------------------------------

    def _receive(self, parts: list[Part]) -> None:
        self._heard_ms = self._now_ms()
        self._heard += 1
        for part in parts:
            kind = link = 0
            try:
                kind, _flags, _reserved, _epoch, link, count, number = HEADER.unpack_from(part)
                if kind == Kind.WELCOME:
                    self._welcomed(Welcome.decode(memoryview(part)[HEADER.size :]), part)
                elif self.state is ConnectionState.SERVING:
                    self._apply(kind, link, count, number, part)
            except MissingDeliveriesError as missing:
                # The slice was lost with a connection; the PING that would show it was not answered yet.
                self.greet_again(str(missing))
            except Exception:
                log.exception("a frame of kind %d from shard %d could not be applied", kind, self.shard)
                try:
                    self._give_up(link)
                except Exception:
                    log.exception("link %d could not be ended", link)
                    self.greet_again("it is unknown which of its messages were applied")

    def _apply(self, kind: int, link: int, count: int, number: int, part: Part) -> None:
        producers = self.producers
        consumers = self.consumers
        if kind == Kind.DELIVER:
            if (consumer := consumers.get(link)) is not None:
                consumer.deliver(part, number, count)
        elif kind == Kind.ACCEPTED:
            if (producer := producers.get(link)) is not None:
                if part[1] & HELD:
                    producer.credit_held()
                producer.answered(number, count)
        elif kind == Kind.FREED:
            if (producer := producers.get(link)) is not None:
                producer.credit_freed(count)
        elif kind == Kind.DRAINED:
            if (consumer := consumers.get(link)) is not None:
                consumer.drained(number)
        elif kind == Kind.PONG:
            self._clock.read(part, self._now_ms())
            if number != self._shard_boot:
                self.greet_again("it was started again")
            elif count and (lost := (count - self._heard) & COUNT_MASK):
                self.greet_again(f"{lost} of its messages got lost on their way")
            else:
                self._pongs += 1
                self._watch.ponged(self, self._pongs)
        elif kind == Kind.ABSENT:
            self.greet_again("it does not know us")
        elif kind == Kind.PRODUCER_READY:
            if (producer := producers.get(link)) is not None:
                self._watch.opened(self, link)
                producer.ready()
        elif kind == Kind.CONSUMER_READY:
            if (consumer := consumers.get(link)) is not None:
                self._watch.opened(self, link)
                consumer.ready()
        elif kind == Kind.RESPONSE:
            self._requests.answered(number, part)
        elif kind in TO_PRODUCERS and (producer := producers.get(link)) is not None:
            TO_PRODUCERS[kind](producer, part)
        elif kind in TO_CONSUMERS and (consumer := consumers.get(link)) is not None:
            TO_CONSUMERS[kind](consumer, part)
        else:
            self._apply_end(kind, link, part)

    def _apply_end(self, kind: int, link: int, part: Part) -> None:
        """Frames that end a link here, or that are for links that may have ended."""
        if kind == Kind.GONE:
            refusal = Refusal.decode(memoryview(part)[HEADER.size :])
            bound = self.producers.pop(link, None) or self.consumers.pop(link, None)
            if bound is not None:
                self._watch.ended(self, link)
                bound.ended(refusal)
        elif kind == Kind.MOVED:
            if link in self.producers or link in self.consumers:
                self._watch.moved(self, link)
        elif kind == Kind.BOUNCED:
            fields, late = decode_request(memoryview(part)[HEADER.size :])
            self._watch.bounced(self, str(fields["queue"]), bytes(late))
        elif kind == Kind.YIELD:
            self.post(frame(Kind.YIELDED, link=link))  # After all frames that were posted for the link.

    def _give_up(self, link: int) -> None:
        """Ends one link after an internal error; its unsettled deliveries are requeued, other links stay."""
        refusal = Refusal(conditions.INTERNAL_ERROR, "an internal error ended this link; attach it again")
        bound = self.producers.get(link) or self.consumers.get(link)
        if bound is not None:
            self.close_producer(link)
            self.close_consumer(link, Ending.BY_BROKER)
            self._watch.ended(self, link)
            bound.ended(refusal)
