"""One shard as a frontend or gateway sees it: greeting, heartbeats, what is open there, what is sent again.

The frontend may lose the shard at any time (it dies, is stopped, is moved) and nothing that was sent to it
counts until it was answered. So this end keeps what it needs to say everything once more: its producers with
their unanswered batches, its consumers with their credit. After each greeting (HELLO, WELCOME) that is said
again from the start; the shard knows batches by producer and number and stores none twice. Requests are not
repeated: whoever asked is told that the shard went away, and knows best whether to ask again.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import zmq

from lightrail.model import conditions, limits
from lightrail.wire.frames import COUNT_MASK, HEADER, HELD, SEQUENCE, UNCERTAIN, VERSION, Kind, frame
from lightrail.wire.messages import (
    Answer,
    Hello,
    Refusal,
    SettleDetail,
    Welcome,
    decode_request,
    encode_request,
)
from lightrail.wire.peer import LoopSocket, connect

log = logging.getLogger("lightrail.wire.shards")

COUNT: Final = int(Kind.COUNT)
PING: Final = frame(Kind.PING)
GREETING_MS: Final = 100
"""Between two greetings while the shard is not there."""
GREETING_MS_MAX: Final = 3_200
"""The same while it is there and does not answer: a shard that is slower than we ask is asked more slowly,
since only the answer to the latest greeting counts."""


class Producer:
    """What sends to a queue, a set of queues or a relay through a peer; the first group every one has."""

    __slots__ = ("number",)

    number: int
    """Of the link, unique over the life of this process."""

    def say_all(self) -> None:
        """The shard has greeted us: open there, and send what has no answer."""
        raise NotImplementedError

    def ready(self) -> None:
        """The shard took the producer."""
        raise NotImplementedError

    def answered(self, number: int, count: int) -> None:
        """The batches number .. number+count-1 are stored."""
        raise NotImplementedError

    def credit_held(self) -> None:
        """What the next `answered` is about gives no credit for more before `credit_freed`."""

    def credit_freed(self, count: int) -> None:
        """Consumers have caught up, as far as for so many messages; 0: for all."""

    def refused(self, number: int, refusal: Refusal) -> None:
        """One batch could not be stored, or not all of it."""
        raise NotImplementedError

    def gone(self, refusal: Refusal) -> None:
        """The shard will not have this producer (any more)."""
        raise NotImplementedError

    def stored(self, number: int, sequence: int) -> None:
        """One batch is stored, from this sequence on: only for who asked for sequences."""

    def granted(self, limit: int) -> None:
        """A relay's listeners take messages numbered below `limit`, counted over the life of the link."""

    def outcome(self, number: int, first: int, count: int, code: int, detail: SettleDetail) -> None:
        """What a relay's listener made of messages `first` to before `first + count` of a batch."""

    def away(self) -> None:
        """What is posted from here on reaches no shard, until everything is said again."""

    def give_up(self) -> None:
        """The shard has been away for as long as senders wait: what has no answer gets one, now."""

    def back(self) -> None:
        """The shard that was away is there again and has taken this producer."""


class Consumer:
    """What receives from a queue or relay through a peer."""

    __slots__ = ("number",)

    number: int
    """Of the link, unique over the life of this process."""

    def say_all(self) -> None:
        """The shard has greeted us: open there with the credit that is left."""
        raise NotImplementedError

    def ready(self) -> None:
        """The shard took the consumer."""
        raise NotImplementedError

    def deliver(self, part: bytes | memoryview, number: int, count: int) -> None:
        """A slice of the queue: a DELIVER frame, its first delivery number and its messages.

        A large frame is a view of what ZeroMQ received, which lives as long as the view does.
        """
        raise NotImplementedError

    def drained(self, number: int) -> None:
        """Everything numbered below was delivered, and no credit is left."""
        raise NotImplementedError

    def larger(self, number: int, size: int) -> None:
        """The next message has up to `size` bytes, more than the exact credit had left, which is used up."""

    def gone(self, refusal: Refusal) -> None:
        """The shard will not have this consumer (any more)."""
        raise NotImplementedError

    def settled(self, number: int, count: int, is_certain: bool) -> None:
        """What was said of deliveries number .. number+count-1 is on disk: only for SETTLE that asked.

        Where it is not certain, some of them may be delivered again after a restart of the shard.
        """


class DeliveriesMissing(Exception):
    """A slice came that does not follow the one before: the link would settle others than it means."""


class ShardAway(Exception):
    """The shard is not there, or went before it answered: what was asked may or may not have been done."""


class ShardRefused(Exception):
    """The shard's answer to a request was an error."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


class Watch:
    """Who follows the peers of a process: the homes of queues (wire/homes.py); this one follows nothing."""

    def lost(self, peer: "ShardPeer") -> None:
        """The shard is not there any more; links stay, and are said again when it is."""

    def welcomed(self, peer: "ShardPeer") -> None:
        """The shard has greeted us, and every link has said all that it had to."""

    def silent(self, peer: "ShardPeer", silent_ms: int) -> None:
        """The shard has said nothing for so long, and was not started again as far as is known."""

    def spoke(self, peer: "ShardPeer") -> None:
        """A shard that was silent goes on."""

    def taken(self, peer: "ShardPeer", link: int) -> None:
        """The shard took a producer or consumer."""

    def left(self, peer: "ShardPeer", link: int) -> None:
        """A producer or consumer is gone; it has been told."""

    def moved(self, peer: "ShardPeer", link: int) -> None:
        """The queue of a link is not here, or not in the epoch that the link said."""

    def heard(self, peer: "ShardPeer", ping: int) -> None:
        """The shard has answered a PING (see ShardPeer.ping), and nothing of what either end said before is
        missing."""

    def bounced(self, peer: "ShardPeer", queue: str, part: bytes) -> None:
        """A settlement or close came too late for this shard; it has to be said where the queue is now."""


class State(Enum):
    """GREETING until the shard has answered our latest Hello, then SERVING."""

    GREETING = 1
    SERVING = 2


class ShardPeer:
    """The link of one frontend to one shard."""

    __slots__ = (
        "_attempt",
        "_boot",
        "_connections",
        "_context",
        "_flush",
        "_frontend",
        "_greeting_ms",
        "_heard",
        "_heard_ms",
        "_loop",
        "_next_request",
        "_now_ms",
        "_out",
        "_pings",
        "_pongs",
        "_requests",
        "_said",
        "_schedule_flush",
        "_shard_boot",
        "_silent",
        "_socket",
        "_timer",
        "_watch",
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
        watch: Watch | None = None,
    ) -> None:
        self.shard = shard
        self.address = address
        self.state = State.GREETING
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.greetings = 0
        self._frontend = frontend
        self._boot = boot
        self._now_ms = now_ms
        self._schedule_flush = schedule_flush
        self._attempt = 0
        self._connections = 0
        self._greeting_ms = GREETING_MS
        self._shard_boot = 0
        self._heard_ms = now_ms()
        self._silent = False
        """It is there and has said nothing for long."""
        self._said = 0
        """ZeroMQ messages since the shard has welcomed us, and those that came from it behind its welcome:
        a TCP connection may break and be made anew without a word; what was on its way is gone then."""
        self._heard = 0
        self._pings = 0
        """Said since the shard has welcomed us, and answered: they are answered in their order."""
        self._pongs = 0
        self._out: list[bytes] = []
        self._requests: dict[int, asyncio.Future[Answer]] = {}
        self._next_request = 0
        self._loop = loop
        self._context = context
        self._flush = flush
        # Homes have a length, and are empty at first: they would not count as true.
        self._watch = Watch() if watch is None else watch
        self._socket = self._connected(address)
        self._timer: asyncio.TimerHandle | None = None
        self._beat()

    def _connected(self, address: str) -> LoopSocket:
        socket = self._context.socket(zmq.DEALER)
        # Nothing waits inside ZeroMQ for a shard that is not there: it would come before the greeting.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        # What may be under way is bounded by link credit, not by a count of ZeroMQ messages.
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, limits.WIRE_MESSAGES_AHEAD)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        # A name for each connection: where the shard reads the handshake of a former one after that of a new
        # one by the same name, ROUTER_HANDOVER leaves the new one open and unheard for ever.
        self._connections += 1
        name = f"{self._frontend}/{self._connections}"
        socket.setsockopt(zmq.ROUTING_ID, self._boot.to_bytes(4, "little") + name.encode())
        connect(socket, address)
        # What shards said leaves for the clients at once, not with the next round of the loop.
        looped = LoopSocket(self._loop, socket, self._receive, self._flush)
        looped.copies = False
        return looped

    @property
    def serving_boot(self) -> int | None:
        """Of the shard's process that has answered our latest Hello; None while none has."""
        return self._shard_boot if self.state is State.SERVING else None

    @property
    def speaks(self) -> bool:
        """Whether the shard serves and was heard lately: one that stands still, or its disk, is silent."""
        return self.state is State.SERVING and not self._silent

    def reach(self, address: str) -> None:
        """The shard is at another address, or another process has taken its place: a new connection."""
        self._socket.close()
        self.address = address
        self._socket = self._connected(address)
        if self.state is State.SERVING:
            self._lost("it was started elsewhere")
        else:
            self._greeting_ms = GREETING_MS
            if self._timer is not None:
                self._timer.cancel()
            self._beat()

    # --- sending ---------------------------------------------------------------------------------------

    def post(self, part: bytes) -> None:
        """Adds a frame to what leaves at the end of this turn; dropped while the shard is not serving.

        Dropping loses nothing: the caller's state is told to the shard after the next greeting.
        """
        if self.state is State.SERVING:
            self._out.append(part)
            self._schedule_flush()

    def ping(self) -> int:
        """Asks the shard to answer when it has taken all that was posted so far; gives the number of that
        PING, counted over the life of this greeting."""
        if self.state is State.SERVING and not (self._out and self._out[-1] is PING):
            self._pings += 1
            self.post(PING)
        return self._pings

    def flush(self) -> bool:
        """Sends what gathered in this turn as one message; False where the socket went away."""
        if self._out:
            out, self._out = self._out, []
            self._said += 1
            if not self._socket.send([HEADER.pack(COUNT, 0, 0, 0, 0, 0, self._said), *out]):
                self._lost("its socket went away")
                return False
        return True

    def open_producer(self, producer: Producer) -> None:
        self.producers[producer.number] = producer
        if self.state is State.SERVING:
            producer.say_all()

    def open_consumer(self, consumer: Consumer) -> None:
        self.consumers[consumer.number] = consumer
        if self.state is State.SERVING:
            consumer.say_all()

    def close_producer(self, number: int) -> None:
        if self.producers.pop(number, None) is not None:
            self.post(frame(Kind.PRODUCER_CLOSE, link=number))

    def close_consumer(self, number: int) -> None:
        if self.consumers.pop(number, None) is not None:
            self.post(frame(Kind.CONSUMER_CLOSE, link=number))

    async def request(
        self, op: str, fields: dict[str, Any], blob: bytes = b"", *, wait_ms: int = limits.REQUEST_MS
    ) -> Answer:
        """Asks the shard something and waits for its answer; operations are listed in docs/formats/wire.md.

        Raises:
            ShardAway: it is not there, does not answer within `wait_ms`, or went away meanwhile.
            ShardRefused: it answered with an error.
        """
        if self.state is not State.SERVING:
            raise ShardAway(f"shard {self.shard} is not there now; try again")
        if len(self._requests) >= limits.REQUESTS_MAX:
            raise ShardAway(f"{limits.REQUESTS_MAX} requests wait for shard {self.shard} already; try again")
        number = self._next_request = self._next_request + 1
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._requests[number] = answer
        self.post(frame(Kind.REQUEST, number=number, body=encode_request({"op": op, **fields}, blob)))
        try:
            return await asyncio.wait_for(answer, wait_ms / 1000)
        except TimeoutError:
            raise ShardAway(f"shard {self.shard} did not answer within {wait_ms} ms; try again") from None
        finally:
            self._requests.pop(number, None)

    def _answer(self, number: int, part: bytes, apart: memoryview | None = None) -> None:
        waiting = self._requests.get(number)
        if waiting is None or waiting.done():
            return
        fields, blob = decode_request(memoryview(part)[HEADER.size :])
        error = fields.get("error")
        if error is not None:
            waiting.set_exception(ShardRefused(str(error["condition"]), str(error["description"])))
        else:
            waiting.set_result(Answer(fields, blob if apart is None else apart))

    def greet_again(self, why: str) -> None:
        """Everything is said anew, and what consumers hold returns: nobody knows what the shard has heard."""
        self._lost(why)

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
            self.ping()
            if not self.flush():
                return
            silent_ms = now - self._heard_ms
            if silent_ms > limits.PEER_SILENCE_MS:
                # A stopped shard goes on where it stood; greeting it anew would only redo its work.
                if not self._silent:
                    log.warning("shard %d has said nothing for %d ms", self.shard, silent_ms)
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
            self._silent = False
            self._out.clear()
            for waiting in self._requests.values():
                if not waiting.done():
                    waiting.set_exception(ShardAway(f"shard {self.shard} went away ({why}); try again"))
            self._greeting_ms = GREETING_MS
            if self._timer is not None:
                self._timer.cancel()
            self._watch.lost(self)
            self._beat()

    def _welcomed(self, welcome: Welcome) -> None:
        if welcome.attempt != self._attempt or self.state is State.SERVING:
            return
        if welcome.version != VERSION:
            log.error("shard %d speaks wire version %d, we speak %d", self.shard, welcome.version, VERSION)
            return
        self.state = State.SERVING
        self._said = self._heard = self._pings = self._pongs = 0
        self._shard_boot = welcome.boot
        self.greetings += 1
        log.info("shard %d serves (boot %08x)", self.shard, welcome.boot)
        for producer in list(self.producers.values()):
            producer.say_all()
        for consumer in list(self.consumers.values()):
            consumer.say_all()
        self._watch.welcomed(self)
        self._schedule_flush()

    # --- receiving -------------------------------------------------------------------------------------

    def _receive(self, parts: list[bytes]) -> None:
        self._heard_ms = self._now_ms()
        self._heard += 1
        for part in parts:
            kind = link = 0
            try:
                kind, _flags, _reserved, _epoch, link, count, number = HEADER.unpack_from(part)
                if kind == Kind.WELCOME:
                    self._welcomed(Welcome.decode(memoryview(part)[HEADER.size :]))
                elif self.state is State.SERVING:
                    self._apply(kind, link, count, number, part)
            except DeliveriesMissing as missing:
                # Lost with a connection; the PING that would say so has not been answered yet.
                self._lost(str(missing))
            except Exception:
                log.exception("a frame of kind %d from shard %d could not be applied", kind, self.shard)
                try:
                    self._give_up(link)
                except Exception:
                    log.exception("link %d could not be ended", link)
                    self._lost("nobody knows what of its messages was applied")

    def _apply(self, kind: int, link: int, count: int, number: int, part: bytes) -> None:
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
        elif kind == Kind.LARGER:
            if (consumer := consumers.get(link)) is not None:
                consumer.larger(number, count << 10)
        elif kind == Kind.PONG:
            if number != self._shard_boot:
                self._lost("it was started again")
            elif count and count != self._heard & COUNT_MASK:
                self._lost(f"of its messages {(count - self._heard) & COUNT_MASK} got lost on their way")
            else:
                self._pongs += 1
                self._watch.heard(self, self._pongs)
        elif kind == Kind.ABSENT:
            self._lost("it does not know us")
        elif kind == Kind.PRODUCER_READY:
            if (producer := producers.get(link)) is not None:
                self._watch.taken(self, link)
                producer.ready()
        elif kind == Kind.CONSUMER_READY:
            if (consumer := consumers.get(link)) is not None:
                self._watch.taken(self, link)
                consumer.ready()
        elif kind == Kind.RESPONSE:
            self._answer(number, part)
        elif kind == Kind.SETTLED:
            if (consumer := consumers.get(link)) is not None:
                consumer.settled(number, count, not part[1] & UNCERTAIN)
        elif kind == Kind.STORED:
            if (producer := producers.get(link)) is not None:
                producer.stored(number, SEQUENCE.unpack_from(part, HEADER.size)[0])
        elif kind == Kind.GRANT:
            if (producer := producers.get(link)) is not None:
                producer.granted(number)
        elif kind == Kind.OUTCOME:
            if (producer := producers.get(link)) is not None:
                _, code, _, first, _, count, number = HEADER.unpack_from(part)
                body = memoryview(part)[HEADER.size :]
                producer.outcome(
                    number, first, count, code, SettleDetail.decode(body) if body else SettleDetail()
                )
        elif kind == Kind.REFUSED:
            if (producer := producers.get(link)) is not None:
                producer.refused(number, Refusal.decode(memoryview(part)[HEADER.size :]))
        elif kind == Kind.GONE:
            refusal = Refusal.decode(memoryview(part)[HEADER.size :])
            if (gone := producers.pop(link, None)) is not None:
                self._watch.left(self, link)
                gone.gone(refusal)
            elif (left := consumers.pop(link, None)) is not None:
                self._watch.left(self, link)
                left.gone(refusal)
        elif kind == Kind.MOVED:
            if link in producers or link in consumers:
                self._watch.moved(self, link)
        elif kind == Kind.BOUNCED:
            fields, late = decode_request(memoryview(part)[HEADER.size :])
            self._watch.bounced(self, str(fields["queue"]), bytes(late))

    def _give_up(self, link: int) -> None:
        """An error of ours with one link: it ends, and what it held goes back; the others go on."""
        refusal = Refusal(conditions.INTERNAL_ERROR, "an internal error ended this link; attach it again")
        bound = self.producers.get(link) or self.consumers.get(link)
        if bound is not None:
            self.close_producer(link)
            self.close_consumer(link)
            self._watch.left(self, link)
            bound.gone(refusal)
