"""Links of a gateway to a shard's engine over the memory store, in one loop and without sockets."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from lightrail.model.policy import Policy
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard_client.links import Consumer
from lightrail.shard_client.peers.requests import Requests
from lightrail.wire.bodies import Answer, ConsumerOpen, Refusal, SettleDetail, encode_request
from lightrail.wire.frames import DELIVER_COLUMNS, HEADER, HEADER_SIZE, Kind, OutcomeCode, frame
from tests.support.shard.scene import Peer, Scene

BATCH_MESSAGES = 100
WAIT_MS = 10_000
QUEUE = Policy.parse({"role": "queue"})

Outcome = tuple[OutcomeCode, SettleDetail]


class EngineQueue:
    """A queue of the engine, and what consumers did with its messages, by sequence."""

    def __init__(self, scene: Scene, sender: Peer, link: int, name: str) -> None:
        self.outcomes: dict[int, Outcome] = {}
        """The last one of each message."""
        self.delivered: Counter[int] = Counter()
        self._scene = scene
        self._sender = sender
        self._link = link
        self._name = name
        self._batches = 0

    def add(self, *messages: bytes) -> None:
        """Stores messages."""
        if not self._batches:
            self._sender.produce(self._link, self._name)
        for at in range(0, len(messages), BATCH_MESSAGES):
            self._batches += 1
            self._sender.send(self._link, self._batches, messages[at : at + BATCH_MESSAGES])
        self._scene.settle_down()

    @property
    def ready(self) -> int:
        """Messages that no consumer has."""
        return self._scene.queue(self._name)["ready"]

    def bodies(self) -> list[bytes]:
        """Its messages in order, as a browser finds them."""
        link = 1_000_000 + self._link
        self._sender.delivered.pop(link, None)
        self._sender.consume(link, self._name, 1_000_000, browse=True)
        self._sender.close_consumer(link)
        return self._sender.messages(link)


class EnginePeer(Peer):
    """The gateway's connection to the shard, which is also the owner of every queue."""

    epoch = 1

    def __init__(self, scene: Scene, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(scene, "gateway-0")
        self.consumers: dict[int, Consumer] = {}
        """Those that are open, by link."""
        self.credit_limits: dict[int, int] = {}
        """By link: the latest CREDIT."""
        self.users: list[str] = []
        """Of the consumers that were opened, in order."""
        self.opened_ever = 0
        self.queues: dict[str, EngineQueue] = {}
        self._queue_of: dict[int, EngineQueue] = {}
        self._sequences: dict[tuple[int, int], int] = {}
        """By link and number of the delivery."""
        self._sender = scene.peer("sender")
        self._shard = scene
        self._loop = loop
        self._parts: list[bytes] = []
        self.asked = Requests(loop, 0, self.post, lambda _: None)
        self.greet()

    def queue(self, name: str) -> EngineQueue:
        if name not in self.queues:
            self.queues[name] = EngineQueue(self._shard, self._sender, len(self.queues) + 1, name)
        return self.queues[name]

    # --- as an owner -----------------------------------------------------------------------------------

    def open_consumer(self, consumer: Consumer) -> None:
        self.consumers[consumer.number] = consumer
        self.opened_ever += 1
        consumer.reopen()

    def close_consumer(self, number: int, flags: int = 0) -> None:
        if self.consumers.pop(number, None) is not None:
            self.post(frame(Kind.CONSUMER_CLOSE, flags=flags, link=number))

    def resumes(self, _number: int) -> bool:
        return False

    def post(self, part: bytes) -> None:
        """The frame leaves at the end of the loop's turn."""
        self._note(part)
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(part)

    def flush(self) -> None:
        """What was posted reaches the shard, which does all that there is to do."""
        parts, self._parts = self._parts, []
        if parts:
            self._shard.receive(self.identity, parts)
        self._shard.settle_down()

    def reconnect(self) -> None:
        """The connection is lost and made anew: unsettled deliveries are in their queues again."""
        self.flush()
        self.greet()
        for consumer in list(self.consumers.values()):
            consumer.reopen()

    def delete(self, queue: str) -> None:
        """The name is deleted from the directory."""
        names = self._shard.names
        assert isinstance(names, EveryName)
        names.drop(queue)
        self._shard.refresh()

    def create(self, queue: str) -> None:
        """The name is in the directory again."""
        names = self._shard.names
        assert isinstance(names, EveryName)
        names.give(queue, QUEUE)
        self._shard.refresh()

    # --- from the shard --------------------------------------------------------------------------------

    def hear(self, parts: Sequence[bytes]) -> None:
        for part in parts:
            kind, _, _, _, link, count, number = HEADER.unpack_from(part)
            if kind == Kind.RESPONSE:
                self.asked.answered(number, part)
                continue
            consumer = self.consumers.get(link)
            if consumer is None:
                continue
            if kind == Kind.CONSUMER_READY:
                consumer.ready()
            elif kind == Kind.DELIVER:
                (sequence, *_) = DELIVER_COLUMNS.unpack_from(part, HEADER_SIZE)
                for index in range(count):
                    self._sequences[link, number + index] = sequence + index
                    self._queue_of[link].delivered[sequence + index] += 1
                consumer.deliver(part, number, count)
            elif kind == Kind.DRAINED:
                consumer.drained(number)
            elif kind == Kind.GONE:
                del self.consumers[link]
                consumer.ended(Refusal.decode(part[HEADER_SIZE:]))

    def _note(self, part: bytes) -> None:
        kind, flags, _, _, link, count, number = HEADER.unpack_from(part)
        body = part[HEADER_SIZE:]
        if kind == Kind.CONSUMER_OPEN:
            opening = ConsumerOpen.decode(body)
            self._queue_of[link] = self.queue(opening.queue)
            self.users.append(opening.user)
        elif kind == Kind.CREDIT:
            self.credit_limits[link] = number
        elif kind == Kind.SETTLE:
            detail = SettleDetail.decode(body) if body else SettleDetail()
            for each in range(number, number + count):
                sequence = self._sequences[link, each]
                self._queue_of[link].outcomes[sequence] = (OutcomeCode(flags), detail)


class EngineLinks:
    """Links to one shard, as forwarding uses them."""

    def __init__(self) -> None:
        self.peer = EnginePeer(Scene(), asyncio.get_running_loop())
        self.now = 1_000_000
        self._link = 0

    def now_ms(self) -> int:
        return self.now

    def next_link(self) -> int:
        self._link += 1
        return self._link

    async def route(self, _name: str) -> Any:
        return self.peer

    async def request(self, name: str, op: str, fields: dict[str, Any]) -> Answer:
        return await self.peer.asked.ask(encode_request({"op": op, "queue": name, **fields}), WAIT_MS)
