"""Requests of AMQP management, and the messages that answer them.

renew-locks: a client renews the locks of its unsettled deliveries, if locks end by time.

A delivery is identified by the name of the receiver's link and its delivery-tag (transport 2.7.5). Only links
of the requesting connection are searched, so no client renews the deliveries of another client.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lightrail.amqp.messages import Message, read_message
from lightrail.amqp.values import DecodeError, Int
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.nodes.entities import NAME, OPERATIONS, InvalidAttributeError
from lightrail.model import limits
from lightrail.namespace.rights import Caller, ForbiddenError
from lightrail.namespace.statuses import status_of
from lightrail.shard_client.peers.requests import ShardRefusedError

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

log = logging.getLogger("lightrail.frontend.nodes.requests")

IF_MATCH: Final = "if-match"
"""Application property of UPDATE and DELETE: the revision that the client has read."""
WRONG: Final = frozenset({413, 422})
"""Statuses of HTTP for errors of the request itself: 400 here."""


class RequestError(Exception):
    """A request that is answered with an error: a status and a sentence.

    Args:
        condition: of the answer, if that of its status is not right.
    """

    def __init__(self, status: int, description: str, condition: str = "") -> None:
        super().__init__(description)
        self.status = status
        self.condition = condition


class Request(NamedTuple):
    """A request, with the checks that are common to all operations."""

    operation: str
    type: str
    name: str
    message: Message
    caller_for: Callable[[str], Caller]
    connection: str
    """Owner id of names that are deleted with the client's connection."""

    def number(self, name: str, low: int, high: int, default: int) -> int:
        """A whole number among the application properties. Raises RequestError."""
        value = self.message.application.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise RequestError(400, f"{name} is {value!r:.80}; expected a whole number from {low} to {high}")
        return int(value)

    def text(self, name: str) -> str:
        """A text among the application properties, empty without one. Raises RequestError."""
        value = self.message.application.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise RequestError(400, f"{name} is {value!r:.80}; expected a text")
        return str(value)

    @property
    def revision(self) -> int | None:
        """The revision that the client has read, or None."""
        found = self.number(IF_MATCH, 0, 1 << 62, -1)
        return None if found < 0 else found


def parse(payload: bytes, caller_for: Callable[[str], Caller], connection: str) -> Request:
    try:
        message = read_message(payload)
    except DecodeError as error:
        raise RequestError(400, str(error)) from None
    request = Request("", "", "", message, caller_for, connection)
    operation = request.text("operation")
    if not operation:
        raise RequestError(400, "expected the application property operation, found none")
    known = {name for group in OPERATIONS.values() for name in group}
    if operation not in known:
        raise RequestError(501, f"operation is {operation!a:.80}; expected one of {', '.join(sorted(known))}")
    type = request.text("type") or (NAME if operation in OPERATIONS[NAME] else "")
    if not type:
        type = next(each for each, group in OPERATIONS.items() if operation in group)
    if type not in OPERATIONS:
        raise RequestError(400, f"type is {type!a:.80}; expected one of {', '.join(OPERATIONS)}")
    if operation not in OPERATIONS[type]:
        own = ", ".join(OPERATIONS[type])
        raise RequestError(501, f"a {type} has no operation {operation}; it has {own}")
    name, identity = request.text("name"), request.text("identity")
    if name and identity and name != identity:
        raise RequestError(400, "expected name or identity, found both with different values")
    return Request(operation, type, name or identity, message, caller_for, connection)


def error_of(error: Exception, caller_for: Callable[[str], Caller]) -> RequestError:
    """The answer to an error: its status in HTTP, or 400 for an error of the request itself."""
    if isinstance(error, RequestError):
        return error
    status = 400 if isinstance(error, InvalidAttributeError) else status_of(error)
    if status == 403 and caller_for("").user == "anonymous" and isinstance(error, ForbiddenError):
        status = 401
    if status is not None:
        text = error.description if isinstance(error, ShardRefusedError) else str(error)
        return RequestError(400 if status in WRONG else status, text)
    log.error("a management request failed", exc_info=error)
    return RequestError(500, "internal error; see the broker's log")


def reply(status: int, description: str, body: Any) -> Message:
    message = Message(body=body)
    message.application["statusCode"] = Int(status)
    message.application["statusDescription"] = description
    return message


OPERATION: Final = "renew-locks"
CAPABILITY: Final = "lightrail:renew-locks"
"""Offered in the broker's open: $management has the operation."""


async def renew_locks(connection: "ClientConnection", request: Request) -> Message:
    """Executes the request. Raises RequestError; ShardDownError, ShardRefusedError: no lock was renewed."""
    name = request.text("link")
    if not name:
        raise RequestError(400, "expected the application property link, the name of a receiver, found none")
    body = request.message.body
    tags = body.get("delivery_tags") if isinstance(body, dict) else None
    if (
        not isinstance(tags, list)
        or not 0 < len(tags) <= limits.LOCKS_RENEWED_MAX
        or not all(isinstance(tag, bytes) for tag in tags)
    ):
        raise RequestError(
            400,
            f"expected the body to be a map with delivery_tags, a list of 1 to {limits.LOCKS_RENEWED_MAX} "
            "binaries",
        )
    engine = connection.amqp
    link = None if engine is None else engine.names.get((name, True, ""))
    consumer = None if link is None else link.context
    if not isinstance(consumer, ConsumerLink):
        raise RequestError(
            404, f"this connection has no receiver {name!a:.80} of a queue; expected its link's name"
        )
    return reply(200, "OK", {"locked_ms": await consumer.settlements.renew_locks(tags)})
