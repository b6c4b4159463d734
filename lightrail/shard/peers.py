"""A frontend as the shard sees it: its producers, its consumers, and what waits to be sent to it."""

from typing import TYPE_CHECKING, Protocol

from lightrail.wire.frames import Kind, frame

if TYPE_CHECKING:
    from lightrail.shard.queues import Queue


class Waiter(Protocol):
    """Who is told when what it asked for is on disk."""

    def accept(self, number: int) -> None:
        """It is there: the batch of this number, of a producer."""


class Producer:
    """A sending link of a frontend: the batches it sent are numbered, the last number is known."""

    __slots__ = ("ack_count", "ack_first", "id", "last_number", "link", "peer", "queue", "refusing")

    def __init__(self, peer: "Peer", link: int, queue: "Queue", id: int, last_number: int) -> None:
        self.peer = peer
        self.link = link
        self.queue = queue
        self.id = id
        self.last_number = last_number
        self.refusing = False
        """A batch was refused: those behind it are, too, until one comes that is marked AFRESH. Otherwise the
        last number that is remembered could stand for one that was refused and whose refusal got lost."""
        self.ack_first = 0
        self.ack_count = 0

    def accept(self, number: int) -> None:
        """The batch is where it has to be; neighbours are answered with one frame."""
        if self.ack_count and number == self.ack_first + self.ack_count:
            self.ack_count += 1
            return
        self.flush()
        self.ack_first = number
        self.ack_count = 1
        self.peer.acking.append(self)

    def flush(self) -> None:
        if self.ack_count:
            self.peer.out.append(
                frame(Kind.ACCEPTED, link=self.link, count=self.ack_count, number=self.ack_first)
            )
            self.ack_count = 0


class Consumer:
    """A receiving link of a frontend; `id` is its number in the queue machine, never used twice."""

    __slots__ = ("id", "label", "link", "peer", "queue", "since_ms")

    def __init__(
        self, peer: "Peer", link: int, queue: "Queue", id: int, label: str = "", since_ms: int = 0
    ) -> None:
        self.peer = peer
        self.link = link
        self.queue = queue
        self.id = id
        self.label = label
        """Who it is, for people."""
        self.since_ms = since_ms


class Peer:
    """One frontend process, from its greeting to its goodbye, its silence or its successor's greeting."""

    __slots__ = (
        "acking",
        "attempt",
        "boot",
        "consumers",
        "frontend",
        "heard_ms",
        "identity",
        "out",
        "producers",
    )

    def __init__(self, identity: bytes, frontend: str, boot: int, attempt: int, now_ms: int) -> None:
        self.identity = identity
        self.frontend = frontend
        self.boot = boot
        self.attempt = attempt
        self.heard_ms = now_ms
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.out: list[bytes] = []
        self.acking: list[Producer] = []

    def take(self) -> list[bytes]:
        """What has to be sent now, in order."""
        if self.acking:
            for producer in self.acking:
                producer.flush()
            self.acking.clear()
        out, self.out = self.out, []
        return out
