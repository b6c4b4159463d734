"""Requests of AMQP management: what they ask, and how their answers and errors are told."""

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lightrail.amqp.messages import Message, read_message
from lightrail.amqp.types import DecodeError, Int
from lightrail.frontend.entities import NAME, OPERATIONS, BadAttribute
from lightrail.namespace.rights import Caller, Forbidden
from lightrail.namespace.statuses import status_of
from lightrail.wire.requests import ShardRefusedError

log = logging.getLogger("lightrail.frontend.requests")

IF_MATCH: Final = "if-match"
"""Application property of UPDATE and DELETE: the revision that the client has read."""
WRONG: Final = frozenset({413, 422})
"""What HTTP has statuses of its own for is 400 here: all that is wrong with the request itself."""


class Fault(Exception):
    """A request that is answered with an error: its status, and a sentence."""

    def __init__(self, status: int, description: str) -> None:
        super().__init__(description)
        self.status = status


class Request(NamedTuple):
    """What a request asks, checked as far as all operations have it in common."""

    operation: str
    type: str
    name: str
    message: Message
    caller_for: Callable[[str], Caller]
    connection: str
    """Of the client, as the owner of what goes with it."""

    def number(self, name: str, low: int, high: int, default: int) -> int:
        """A whole number among the application properties. Raises Fault."""
        value = self.message.application.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Fault(400, f"{name} is {value!r:.80}; expected a whole number from {low} to {high}")
        return int(value)

    def text(self, name: str) -> str:
        """A text among the application properties, empty without one. Raises Fault."""
        value = self.message.application.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise Fault(400, f"{name} is {value!r:.80}; expected a text")
        return str(value)

    @property
    def revision(self) -> int | None:
        """What the client had read, where it says so."""
        found = self.number(IF_MATCH, 0, 1 << 62, -1)
        return None if found < 0 else found


def parse(payload: bytes, caller_for: Callable[[str], Caller], connection: str) -> Request:
    try:
        message = read_message(payload)
    except DecodeError as error:
        raise Fault(400, str(error)) from None
    request = Request("", "", "", message, caller_for, connection)
    operation = request.text("operation")
    if not operation:
        raise Fault(400, "expected the application property operation, found none")
    known = {name for group in OPERATIONS.values() for name in group}
    if operation not in known:
        raise Fault(501, f"operation is {operation!a:.80}; expected one of {', '.join(sorted(known))}")
    type = request.text("type") or (NAME if operation in OPERATIONS[NAME] else "")
    if not type:
        type = next(each for each, group in OPERATIONS.items() if operation in group)
    if type not in OPERATIONS:
        raise Fault(400, f"type is {type!a:.80}; expected one of {', '.join(OPERATIONS)}")
    if operation not in OPERATIONS[type]:
        raise Fault(501, f"a {type} can't be asked for {operation}; it knows {', '.join(OPERATIONS[type])}")
    name, identity = request.text("name"), request.text("identity")
    if name and identity and name != identity:
        raise Fault(400, "expected name or identity, found both with different values")
    return Request(operation, type, name or identity, message, caller_for, connection)


def fault_of(error: Exception, caller_for: Callable[[str], Caller]) -> Fault:
    """How an error is told: as HTTP tells it, with 400 for all that is wrong with the request itself."""
    if isinstance(error, Fault):
        return error
    status = 400 if isinstance(error, BadAttribute) else status_of(error)
    if status == 403 and caller_for("").user == "anonymous" and isinstance(error, Forbidden):
        status = 401
    if status is not None:
        text = error.description if isinstance(error, ShardRefusedError) else str(error)
        return Fault(400 if status in WRONG else status, text)
    log.error("a management request failed", exc_info=error)
    return Fault(500, "a mistake of the broker; its log says more")


def reply(status: int, description: str, body: Any) -> Message:
    message = Message(body=body)
    message.application["statusCode"] = Int(status)
    message.application["statusDescription"] = description
    return message
