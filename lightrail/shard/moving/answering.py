"""What a shard answers to another one that copies a queue from it, and to people who ask how moves go.

`export` and `seal` are asked by the destination of a move, through a connection like any frontend's; `moves`
by whoever wants to see what comes here.
"""

from collections.abc import Callable
from itertools import count
from typing import Any, Final

from lightrail.model import conditions, limits
from lightrail.shard.links import Links
from lightrail.shard.moving.exporting import Exporting
from lightrail.shard.moving.sealing import Sealing
from lightrail.shard.moving.tenancy import moved
from lightrail.shard.peers import Peer, Waiter
from lightrail.shard.performer import Performer
from lightrail.shard.queues import Queue, Queues
from lightrail.shard.requests import Bad, Fields, Operation, whole
from lightrail.wire.bodies import Refusal, encode_request
from lightrail.wire.frames import Kind, frame

SEQUENCE_MAX: Final = (1 << 63) - 1


class Later:
    """An answer that is made when what it tells of is on disk."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], None]) -> None:
        self._make = make

    def accept(self, _: int) -> None:
        """It is on disk."""
        self._make()


class MoveRequests:
    """The operations `export`, `seal` and `moves`.

    Args:
        identity: of this life of the shard; another one after every start.
    """

    def __init__(
        self,
        queues: Queues,
        performer: Performer,
        links: Links,
        sealing: Sealing,
        when_synced: Callable[[Waiter, int], None],
        identity: str,
    ) -> None:
        self._queues = queues
        self._performer = performer
        self._links = links
        self._sealing = sealing
        self._when_synced = when_synced
        self._identity = identity
        self._numbers = count(1)
        self.shown: Callable[[], list[Fields]] = list
        """How the moves to this shard go, for people."""
        self.operations: dict[str, Operation] = {
            "export": self._export,
            "seal": self._seal,
            "moves": lambda _peer, _number, _fields, _now_ms: {"moves": self.shown()},
        }

    def _export(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> Fields | None:
        """Messages of a queue that moves; `absent` where there is no such dead-letter queue."""
        queue = self._owned(fields, now_ms)
        if queue is None:
            return {"absent": True}
        first = whole(fields, "from", 0, SEQUENCE_MAX, 0)
        size = whole(fields, "bytes", 1, limits.MOVE_CHUNK_BYTES, limits.MOVE_CHUNK_BYTES)
        messages = whole(fields, "messages", 1, limits.MOVE_CHUNK_MESSAGES, limits.MOVE_CHUNK_MESSAGES)

        def done(answer: dict[str, Any], blob: bytes) -> None:
            peer.out.append(frame(Kind.RESPONSE, number=number, body=encode_request(answer, blob)))

        rewritten = fields.get("rewritten") is True
        self._exporting(queue).piece(first, size, messages, done, rewritten=rewritten)
        return None

    def _seal(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """The queue stops here; answered with its state, and that of its dead-letter queue, when on disk."""
        name, epoch = _name(fields), whole(fields, "epoch", 1, (1 << 63) - 1, None)
        queues = self._sealing.seal(name, epoch, now_ms)
        if isinstance(queues, Refusal):
            raise Bad(queues.condition, queues.description)

        def answer() -> None:
            states: list[Fields] = []
            blobs: list[bytes] = []
            for queue in queues:
                state, blob = self._exporting(queue).state(now_ms)
                blobs.append(blob)
                links = [list(key) for key in self._links.keys_of(queue)]
                states.append({"queue": queue.name, "state": state, "links": links, "blob": len(blob)})
            body = encode_request({"states": states}, b"".join(blobs))
            peer.out.append(frame(Kind.RESPONSE, number=number, body=body))

        def synced() -> None:
            if all(queue.sealed and self._queues.find(queue.name) is queue for queue in queues):
                answer()
            else:
                gone = {"error": {"condition": conditions.MOVED, "description": f"{name} is here no more"}}
                peer.out.append(frame(Kind.RESPONSE, number=number, body=encode_request(gone)))

        self._when_synced(Later(synced), 0)

    def _owned(self, fields: Fields, now_ms: int) -> Queue | None:
        """The queue that is asked for, where this shard has it in that epoch. Raises Bad."""
        name, epoch = _name(fields), whole(fields, "epoch", 1, (1 << 63) - 1, None)
        queue = self._queues.find(name)
        if queue is not None and queue.sealed and queue.epoch == epoch:
            return queue
        if queue is None and self._queues.is_absent_dead_letter(name):
            return None
        found = self._queues.open(name, now_ms, epoch)
        if isinstance(found, Refusal):
            raise Bad(found.condition, found.description)
        if not found.served:
            refusal = moved(f"{name} is not served here")
            raise Bad(refusal.condition, refusal.description)
        return found

    def _exporting(self, queue: Queue) -> Exporting:
        if queue.exporting is None:
            identity = f"{self._identity}-{next(self._numbers)}"
            return Exporting(queue, self._performer, self._links, self._when_synced, identity)
        return queue.exporting


def _name(fields: Fields) -> str:
    name = fields.get("queue")
    if not isinstance(name, str) or not name:
        raise Bad(conditions.INVALID_FIELD, "queue is expected to be the name of a queue")
    return name
