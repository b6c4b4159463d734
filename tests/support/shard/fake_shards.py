"""A shard that a gateway's senders and receivers think they talk to: what they said, and what it says."""

from array import array
from typing import Any

from lightrail.shard_client.links import Consumer, Producer
from lightrail.shard_client.peers.shards import ConnectionState
from lightrail.wire import frames
from lightrail.wire.bodies import Answer, Refusal
from lightrail.wire.frames import HEADER, Kind


class FakePeer:
    """Notes every frame as (kind, flags, link, count, number)."""

    queue = "q"

    def __init__(self) -> None:
        self.shard = 0
        self.epoch = 1
        self.resuming = False
        self.state = ConnectionState.SERVING
        self.parts: list[bytes] = []
        self.late: list[tuple[str, dict[str, Any]]] = []
        """Requests that wait for the shard."""
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}

    @property
    def is_there(self) -> bool:
        return self.state is ConnectionState.SERVING

    def resumes(self, number: int) -> bool:
        return self.resuming

    def post(self, part: bytes) -> None:
        self.parts.append(part)

    def ask_late(self, operation: str, fields: dict[str, Any]) -> None:
        self.late.append((operation, fields))

    def open_producer(self, producer: Producer) -> None:
        self.producers[producer.number] = producer
        producer.reopen()

    def open_consumer(self, consumer: Consumer) -> None:
        self.consumers[consumer.number] = consumer
        consumer.reopen()

    def close_producer(self, number: int) -> None:
        if self.producers.pop(number, None) is not None:
            self.post(frames.frame(Kind.PRODUCER_CLOSE, link=number))

    def close_consumer(self, number: int, flags: int) -> None:
        if self.consumers.pop(number, None) is not None:
            self.post(frames.frame(Kind.CONSUMER_CLOSE, flags=flags, link=number))

    def said(self, *kinds: Kind) -> list[tuple[int, int, int]]:
        """(flags, count, number) of the frames of these kinds since the last look."""
        found = []
        for part in self.parts:
            kind, flags, _, _, _, count, number = HEADER.unpack_from(part)
            if kind in kinds:
                found.append((flags, count, number))
        self.parts.clear()
        return found

    @property
    def consumer(self) -> Any:
        (found,) = self.consumers.values()
        return found

    @property
    def producer(self) -> Any:
        (found,) = self.producers.values()
        return found

    def deliver(
        self, number: int, *messages: bytes, sequence: int = 0, attempts: int = 0, at_ms: int = 1_000_000
    ) -> None:
        """One slice for the only consumer."""
        ends = array("I")
        for message in messages:
            ends.append(len(message) + (ends[-1] if ends else 0))
        part = frames.deliver(
            1, 1, number, len(messages), at_ms, sequence, attempts, 0, 1_000, 0, 0, ends, b"".join(messages)
        )
        self.consumer.deliver(part, number, len(messages))


class FakeShards:
    """One shard, on which everything is."""

    def __init__(self) -> None:
        self.peer = FakePeer()
        self.peers: dict[int, Any] = {}
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.wiring: Any = None
        self._links = 0
        self.moved = 0

    @staticmethod
    def now_ms() -> int:
        return 1_000_000

    def next_link(self) -> int:
        self._links += 1
        return self._links

    def forget(self, queue: str) -> None:
        """Nothing is remembered."""

    async def route(self, name: str) -> FakePeer:
        return self.peer

    def looks_up(self, name: str) -> bool:
        return False

    async def request(self, name: str, op: str, fields: dict[str, Any]) -> Answer:
        self.requests.append((name, op, fields))
        return Answer({"found": True}, memoryview(b""))


FULL = Refusal("amqp:resource-limit-exceeded", "the queue is full")
