"""A request of a frontend or gateway: the fields of its JSON, what is wrong with them, and its answer."""

from collections.abc import Callable
from typing import Any

from lightrail.model import conditions
from lightrail.shard.effects.peers import Peer
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.bodies import Refusal, encode_request
from lightrail.wire.frames import Kind, frame

Fields = dict[str, Any]
Operation = Callable[[Peer, int, Fields, int], Fields | None]
"""(peer, number of the request, fields, now_ms): the answer, or None if it follows. Raises RequestError."""


class RequestError(Exception):
    """A failed request, with the error for its answer."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition


class Reply:
    """An answer that waits for a commit, like answers to producers."""

    __slots__ = ("_body", "_number", "_peer")

    def __init__(self, peer: Peer, number: int, fields: Fields) -> None:
        self._peer = peer
        self._number = number
        self._body = encode_request(fields)

    def accept(self, _: int) -> None:
        """See Waiter: all records of the request are on disk."""
        self._peer.out.append(frame(Kind.RESPONSE, number=self._number, body=self._body))


def named(queues: Queues, fields: Fields) -> Queue:
    """The queue that a request names. Raises RequestError."""
    name = fields.get("queue")
    if not isinstance(name, str) or not name:
        raise RequestError(conditions.INVALID_FIELD, "queue is expected to be the name of a queue")
    queue = queues.look(name)
    if isinstance(queue, Refusal):
        raise RequestError(queue.condition, queue.description)
    return queue


def whole(fields: Fields, name: str, low: int, high: int, default: int | None) -> int:
    """A whole number of a request, within bounds; required if there is no default. Raises RequestError."""
    found = fields.get(name, default)
    if type(found) is not int or not low <= found <= high:
        raise RequestError(
            conditions.INVALID_FIELD,
            f"{name} is {str(found)[:80]!a}; expected a whole number from {low} to {high}",
        )
    return found


def answer(peer: Peer, number: int, fields: Fields) -> None:
    """Answers a request of a peer that was not answered at once."""
    peer.out.append(frame(Kind.RESPONSE, number=number, body=encode_request(fields)))


def error_of(error: RequestError) -> Fields:
    """The answer to a failed request."""
    return error_fields(error.condition, str(error))


def error_fields(condition: str, description: str) -> Fields:
    """The fields of an answer that is an error."""
    return {"error": {"condition": condition, "description": description}}
