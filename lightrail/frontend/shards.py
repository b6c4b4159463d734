"""One shard as a frontend sees it: greeting, heartbeats, what is open there, and what is sent again.

The frontend may lose the shard at any time (it dies, is stopped, is moved) and nothing that was sent to it
counts until it was answered. So this end keeps what it needs to say everything once more: its producers with
their unanswered batches, its consumers with their credit. After each greeting (HELLO, WELCOME) that is said
again from the start; the shard knows batches by producer and number and stores none twice.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

import zmq

from lightrail.model import conditions, limits
from lightrail.wire.frames import HEADER, VERSION, Kind, frame
from lightrail.wire.messages import Hello, Refusal, Welcome
from lightrail.wire.peer import LoopSocket

if TYPE_CHECKING:
    from lightrail.frontend.deliveries import ConsumerLink
    from lightrail.frontend.transfers import ProducerLink

log = logging.getLogger("lightrail.frontend.shards")

GREETING_MS: Final = 100
"""Between two greetings while the shard is not there."""
GREETING_MS_MAX: Final = 3_200
"""The same while it is there and does not answer: a shard that is slower than we ask is asked more slowly,
since only the answer to the latest greeting counts."""


class State(Enum):
    """GREETING until the shard has answered our latest Hello, then SERVING."""

    GREETING = 1
    SERVING = 2


class ShardPeer:
    """The link of one frontend to one shard."""

    __slots__ = (
        "_attempt",
        "_boot",
        "_frontend",
        "_greeting_ms",
        "_heard_ms",
        "_loop",
        "_now_ms",
        "_out",
        "_schedule_flush",
        "_shard_boot",
        "_socket",
        "_timer",
        "address",
        "consumers",
        "greetings",
        "producers",
        "shard",
        "state",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: "zmq.Context[zmq.Socket[bytes]]",
        *,
        shard: int,
        address: str,
        frontend: str,
        boot: int,
        now_ms: Callable[[], int],
        schedule_flush: Callable[[], None],
        flush: Callable[[], None],
    ) -> None:
        self.shard = shard
        self.address = address
        self.state = State.GREETING
        self.producers: dict[int, ProducerLink] = {}
        self.consumers: dict[int, ConsumerLink] = {}
        self.greetings = 0
        self._frontend = frontend
        self._boot = boot
        self._now_ms = now_ms
        self._schedule_flush = schedule_flush
        self._attempt = 0
        self._greeting_ms = GREETING_MS
        self._shard_boot = 0
        self._heard_ms = now_ms()
        self._out: list[bytes] = []
        self._loop = loop
        socket = context.socket(zmq.DEALER)
        # Nothing waits inside ZeroMQ for a shard that is not there: it would come before the greeting.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        # What may be under way is bounded by link credit, not by a count of ZeroMQ messages.
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        socket.setsockopt(zmq.ROUTING_ID, boot.to_bytes(4, "little") + frontend.encode())
        socket.connect(address)
        # What shards said leaves for the clients at once, not with the next round of the loop.
        self._socket = LoopSocket(loop, socket, self._receive, flush)
        self._timer: asyncio.TimerHandle | None = None
        self._beat()

    # --- sending ---------------------------------------------------------------------------------------

    def post(self, part: bytes) -> None:
        """Adds a frame to what leaves at the end of this turn; dropped while the shard is not serving.

        Dropping loses nothing: the caller's state is told to the shard after the next greeting.
        """
        if self.state is State.SERVING:
            self._out.append(part)
            self._schedule_flush()

    def flush(self) -> None:
        """Sends what gathered in this turn as one message."""
        if self._out:
            out, self._out = self._out, []
            if not self._socket.send(out):
                self._lost("its socket went away")

    def open_producer(self, producer: "ProducerLink") -> None:
        self.producers[producer.number] = producer
        if self.state is State.SERVING:
            producer.say_all()

    def open_consumer(self, consumer: "ConsumerLink") -> None:
        self.consumers[consumer.number] = consumer
        if self.state is State.SERVING:
            consumer.say_all()

    def close_producer(self, number: int) -> None:
        if self.producers.pop(number, None) is not None:
            self.post(frame(Kind.PRODUCER_CLOSE, link=number))

    def close_consumer(self, number: int) -> None:
        if self.consumers.pop(number, None) is not None:
            self.post(frame(Kind.CONSUMER_CLOSE, link=number))

    def close(self) -> None:
        """Says goodbye, so that the shard takes back at once what our consumers held."""
        if self._timer is not None:
            self._timer.cancel()
        if self.state is State.SERVING:
            self.post(frame(Kind.GOODBYE))
            self.flush()
        self._socket.close(linger_ms=500)

    # --- greeting and heartbeats -----------------------------------------------------------------------

    def _beat(self) -> None:
        now = self._now_ms()
        if self.state is State.SERVING:
            wait_ms = limits.HEARTBEAT_MS
            if not self._socket.send([frame(Kind.PING)]):
                self._lost("its socket went away")
                return
            if now - self._heard_ms > limits.PEER_SILENCE_MS:
                # A stopped shard goes on where it stood; greeting it anew would only redo its work.
                log.warning("shard %d has said nothing for %d ms", self.shard, now - self._heard_ms)
                self._heard_ms = now
        else:
            wait_ms = self._greet()
        self._timer = self._loop.call_later(wait_ms / 1000, self._beat)

    def _greet(self) -> int:
        """Says Hello; gives how long to wait for the answer, in milliseconds."""
        self._attempt += 1
        hello = Hello(VERSION, self._frontend, self._boot, self._attempt)
        wait_ms = self._greeting_ms
        if self._socket.send([frame(Kind.HELLO, body=hello.encode())]):
            self._greeting_ms = min(2 * wait_ms, GREETING_MS_MAX)
        else:
            self._greeting_ms = wait_ms = GREETING_MS
        return wait_ms

    def _lost(self, why: str) -> None:
        if self.state is State.SERVING:
            log.warning("shard %d is gone (%s); links wait for it", self.shard, why)
            self.state = State.GREETING
            self._out.clear()
            self._greeting_ms = GREETING_MS
            if self._timer is not None:
                self._timer.cancel()
            self._beat()

    def _welcomed(self, welcome: Welcome) -> None:
        if welcome.attempt != self._attempt or self.state is State.SERVING:
            return
        if welcome.version != VERSION:
            log.error("shard %d speaks wire version %d, we speak %d", self.shard, welcome.version, VERSION)
            return
        self.state = State.SERVING
        self._shard_boot = welcome.boot
        self.greetings += 1
        log.info("shard %d serves (boot %08x)", self.shard, welcome.boot)
        for producer in list(self.producers.values()):
            producer.say_all()
        for consumer in list(self.consumers.values()):
            consumer.say_all()
        self._schedule_flush()

    # --- receiving -------------------------------------------------------------------------------------

    def _receive(self, parts: list[bytes]) -> None:
        self._heard_ms = self._now_ms()
        for part in parts:
            kind, _flags, _reserved, _epoch, link, count, number = HEADER.unpack_from(part)
            try:
                if kind == Kind.WELCOME:
                    self._welcomed(Welcome.decode(memoryview(part)[HEADER.size :]))
                elif self.state is State.SERVING:
                    self._apply(kind, link, count, number, part)
            except Exception:
                log.exception("a frame of kind %d from shard %d could not be applied", kind, self.shard)
                self._give_up(link)

    def _apply(self, kind: int, link: int, count: int, number: int, part: bytes) -> None:
        producers = self.producers
        consumers = self.consumers
        if kind == Kind.DELIVER:
            if (consumer := consumers.get(link)) is not None:
                consumer.deliver(part, number, count)
        elif kind == Kind.ACCEPTED:
            if (producer := producers.get(link)) is not None:
                producer.answered(number, count)
        elif kind == Kind.DRAINED:
            if (consumer := consumers.get(link)) is not None:
                consumer.drained(number)
        elif kind == Kind.PONG:
            if number != self._shard_boot:
                self._lost("it was started again")
        elif kind == Kind.ABSENT:
            self._lost("it does not know us")
        elif kind == Kind.PRODUCER_READY:
            if (producer := producers.get(link)) is not None:
                producer.ready()
        elif kind == Kind.CONSUMER_READY:
            if (consumer := consumers.get(link)) is not None:
                consumer.ready()
        elif kind == Kind.REFUSED:
            if (producer := producers.get(link)) is not None:
                producer.refused(number, Refusal.decode(memoryview(part)[HEADER.size :]))
        elif kind == Kind.GONE:
            refusal = Refusal.decode(memoryview(part)[HEADER.size :])
            if (gone := producers.pop(link, None)) is not None:
                gone.gone(refusal)
            elif (left := consumers.pop(link, None)) is not None:
                left.gone(refusal)

    def _give_up(self, link: int) -> None:
        """An error of ours with one link: it ends, and what it held goes back; the others go on."""
        refusal = Refusal(conditions.INTERNAL_ERROR, "a mistake of ours ended this link; attach it again")
        bound = self.producers.get(link) or self.consumers.get(link)
        if bound is not None:
            self.close_producer(link)
            self.close_consumer(link)
            bound.gone(refusal)
