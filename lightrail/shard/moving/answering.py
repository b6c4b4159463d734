"""Answers the requests of a shard that copies a queue from this one.

The destination of a move sends `export` and `freeze` through a connection like that of a frontend.
"""

from collections.abc import Callable
from typing import Any, Final

from lightrail.model import conditions, limits
from lightrail.shard.effects.answers import Fields, Operation, RequestError, whole
from lightrail.shard.effects.peers import Peer
from lightrail.shard.links.links import Links
from lightrail.shard.moving.exports import Exports
from lightrail.shard.moving.freezing import Freezing
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue
from lightrail.shard.queues.tenancy import moved
from lightrail.shard.queues.waiting import Waiter
from lightrail.wire.bodies import Refusal, encode_request
from lightrail.wire.frames import Kind, frame

SEQUENCE_MAX: Final = (1 << 63) - 1
FREEZE_OP: Final = "freeze"


class CallWhenStored:
    """A call that waits until all records so far are on disk; a Waiter."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], None]) -> None:
        self._make = make

    def accept(self, _: int) -> None:
        """See Waiter: all records are on disk."""
        self._make()


class MoveRequests:
    """The operations `export` and `freeze`."""

    def __init__(
        self,
        queues: Queues,
        links: Links,
        freezing: Freezing,
        exports: Exports,
        when_synced: Callable[[Waiter, int], None],
    ) -> None:
        self._queues = queues
        self._links = links
        self._freezing = freezing
        self._exports = exports
        self._when_synced = when_synced
        self.operations: dict[str, Operation] = {
            "export": self._export,
            FREEZE_OP: self._freeze,
        }

    def _export(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> Fields | None:
        """Answers with messages of a queue that moves; `absent` if there is no such dead-letter queue."""
        queue = self._owned(fields, now_ms)
        if queue is None:
            return {"absent": True}
        first = whole(fields, "from", 0, SEQUENCE_MAX, 0)
        size = whole(fields, "bytes", 1, limits.MOVE_CHUNK_BYTES, limits.MOVE_CHUNK_BYTES)
        messages = whole(fields, "messages", 1, limits.MOVE_CHUNK_MESSAGES, limits.MOVE_CHUNK_MESSAGES)

        def done(answer: dict[str, Any], blob: bytes) -> None:
            peer.out.append(frame(Kind.RESPONSE, number=number, body=encode_request(answer, blob)))

        rewritten = fields.get("rewritten") is True
        self._exports.of(queue).piece(first, size, messages, done, rewritten=rewritten)
        return None

    def _freeze(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Freezes a queue; answers with its state, and that of its dead-letter queue, when that is on
        disk."""
        name, epoch = _name(fields), whole(fields, "epoch", 1, (1 << 63) - 1, None)
        queues = self._freezing.freeze(name, epoch, now_ms)
        if isinstance(queues, Refusal):
            raise RequestError(queues.condition, queues.description)

        def answer() -> None:
            states: list[Fields] = []
            blobs: list[bytes] = []
            for queue in queues:
                state, blob = self._exports.of(queue).state(now_ms)
                blobs.append(blob)
                links = [list(key) for key in (found.key for found in self._links.receiving.of(queue))]
                states.append({"queue": queue.name, "state": state, "links": links, "blob": len(blob)})
            body = encode_request({"states": states}, b"".join(blobs))
            peer.out.append(frame(Kind.RESPONSE, number=number, body=body))

        def synced() -> None:
            if all(queue.is_frozen and self._queues.find(queue.name) is queue for queue in queues):
                answer()
            else:
                gone = {"error": {"condition": conditions.MOVED, "description": f"{name} is not here now"}}
                peer.out.append(frame(Kind.RESPONSE, number=number, body=encode_request(gone)))

        self._when_synced(CallWhenStored(synced), 0)

    def _owned(self, fields: Fields, now_ms: int) -> Queue | None:
        """The queue of a request, if this shard owns it in that epoch. Raises RequestError."""
        name, epoch = _name(fields), whole(fields, "epoch", 1, (1 << 63) - 1, None)
        queue = self._queues.find(name)
        if queue is not None and queue.is_frozen and queue.epoch == epoch:
            return queue
        if queue is None and self._queues.is_absent_dead_letter(name):
            return None
        found = self._queues.open(name, now_ms, epoch)
        if isinstance(found, Refusal):
            raise RequestError(found.condition, found.description)
        if not found.is_serving:
            refusal = moved(f"{name} is not served at this shard")
            raise RequestError(refusal.condition, refusal.description)
        return found


def _name(fields: Fields) -> str:
    name = fields.get("queue")
    if not isinstance(name, str) or not name:
        raise RequestError(conditions.INVALID_FIELD, "queue is expected to be the name of a queue")
    return name
