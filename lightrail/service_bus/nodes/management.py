"""NAME/$management: requests of Azure Service Bus's clients for one queue (operations `com.microsoft:...`).

Requests have the operation as an application property and a map in the body; answers have statusCode,
statusDescription, for some errors errorCondition, and a map. Sequences are one higher than the queue's, as in
links/deliveries.py.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from lightrail.amqp.messages import Message, read_message
from lightrail.amqp.sections import decode_application_properties
from lightrail.amqp.values import DecodeError, Int, Symbol, Timestamp
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.nodes.requests import RequestError, error_of, reply
from lightrail.model import conditions, limits
from lightrail.model.names import InvalidNameError, queue_name
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import demand, demand_look, rights_of
from lightrail.namespace.statuses import LimitExceededError, TakenError
from lightrail.service_bus.messages import (
    DEFERRED,
    FIRST_SEQUENCE,
    LOCKED_UNTIL,
    SCHEDULED,
    annotated,
    annotations_of,
    life_of,
)
from lightrail.service_bus.nodes import locks, rules, scheduling, sessions
from lightrail.service_bus.nodes.locks import SEQUENCE_END, Fields, demand_open, queue_of, whole
from lightrail.service_bus.nodes.sessions import receive
from lightrail.service_bus.paths import entity_name, is_of_subscription
from lightrail.wire.bodies import Answer

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.transactions.transaction import Transaction

SESSION_PEEK_PAGES_MAX: Final[int] = 100
"""Pages of messages that are read from the shard for one request to peek at a session."""
DELETED_MAX: Final = 4_000
"""Messages that one request deletes, as in Service Bus and at the shard."""
SUFFIX: Final = "/$management"
SERVER_TIMEOUT: Final = b"server-timeout"
"""Application property of requests, in milliseconds.

The client for Go writes most of its requests without the prefix `com.microsoft:`.
"""
LAST_MS: Final[int] = 500
"""The time of a client that has less than a second left: that for Go takes a second off, and writes 0."""
PREFIX: Final = "com.microsoft:"
SETTLE: Final = "update-disposition"
BESIDE_TRANSACTIONS: Final = frozenset(
    {
        "peek-message",
        "renew-lock",
        "renew-session-lock",
        "get-session-state",
        "set-session-state",
        "get-message-sessions",
        "receive-by-sequence-number",
    }
)
"""Operations that are no part of the transaction in which a client requests them."""
CONDITIONS: Final = {
    400: "com.microsoft:argument-error",
    401: conditions.UNAUTHORIZED_ACCESS,
    403: conditions.UNAUTHORIZED_ACCESS,
    404: conditions.NOT_FOUND,
    410: conditions.MESSAGE_LOCK_LOST,
    501: conditions.NOT_IMPLEMENTED,
    503: conditions.TIMEOUT,
}
"""errorCondition beside a status; internal-error for all others.

None is `com.microsoft:server-busy`, after which these clients wait for 10 s: shards are back sooner."""
ALREADY_EXISTS: Final = "com.microsoft:entity-already-exists"

OnRules = Callable[["ClientConnection", str, Fields], Awaitable[Fields]]
InTransaction = Callable[["Transaction", "ClientConnection", Name, Fields], Awaitable[Fields | None]]


class EntityManagement:
    """The node of one name on one connection; nodes/links.py receives requests and sends answers."""

    large: Final = (b"peek-message", b"receive-by-sequence-number", b"get-session-state", b"enumerate-rules")

    def __init__(self, address: str) -> None:
        self.address = address
        self._operations: Mapping[
            str, Callable[[ClientConnection, Name, Fields], Awaitable[Fields | None]]
        ] = {
            "peek-message": self._peek,
            "renew-lock": locks.renew,
            SETTLE: locks.settle,
            "renew-session-lock": sessions.renew,
            "get-session-state": sessions.get_state,
            "set-session-state": sessions.set_state,
            "get-message-sessions": sessions.list_sessions,
            "receive-by-sequence-number": receive,
            "schedule-message": self._schedule,
            "cancel-scheduled-message": scheduling.cancel,
            "batch-delete-messages": self._delete,
            "add-rule": partial(self._on_rules, rules.add),
            "remove-rule": partial(self._on_rules, rules.remove),
            "enumerate-rules": partial(self._on_rules, rules.enumerate),
        }
        self._in_transactions: dict[str, InTransaction] = {
            SETTLE: locks.settle_in,
            "schedule-message": self._schedule_in,
            "cancel-scheduled-message": scheduling.cancel_in,
        }
        """Operations that take effect with the commit of a transaction."""

    def silent(self, payload: bytes) -> bool:
        """False: every request has an answer."""
        return False

    def wait_ms(self, payload: bytes) -> int | None:
        """The client's time for the request: it has given up after that, and tries again."""
        found: object = None
        if SERVER_TIMEOUT in payload:
            with suppress(DecodeError):
                given, name = decode_application_properties(payload), SERVER_TIMEOUT.decode()
                found = given.get(PREFIX + name, given.get(name))
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            return None
        return found or LAST_MS

    async def answer(self, connection: "ClientConnection", payload: bytes) -> Message:
        """Executes a request; its errors are in the answer."""
        try:
            operation, body = _parse(payload)
            if operation not in self._operations:
                known = ", ".join(sorted(self._operations))
                raise RequestError(501, f"{PREFIX}{operation!a:.80} is not known; there are {known}")
            found = await self._operations[operation](connection, self._record(connection), body)
        except Exception as error:
            return _refused(connection, error)
        return reply(204, "No Content", None) if found is None else reply(200, "OK", found)

    async def answer_in(
        self, connection: "ClientConnection", payload: bytes, transaction: "Transaction"
    ) -> Message:
        """Settles, schedules or cancels messages in a transaction, which fails with the request.

        Requests that change no message run beside the transaction, as in Service Bus: they have their effect
        at once, and are answered as others are, whatever becomes of it.
        """
        try:
            operation, body = _parse(payload)
            if operation in BESIDE_TRANSACTIONS:
                return await self.answer(connection, payload)
            if operation not in self._in_transactions:
                raise RequestError(
                    501,
                    f"{PREFIX}{operation!a:.80} can't be part of a transaction; expected one of "
                    f"{', '.join(sorted(self._in_transactions))}, or one that runs beside it: "
                    f"{', '.join(sorted(BESIDE_TRANSACTIONS))}",
                )
            work = self._in_transactions[operation]
            found = await work(transaction, connection, self._record(connection), body)
        except Exception as error:
            made = _refused(connection, error)
            why = made.application["statusDescription"]
            transaction.fail(conditions.TRANSACTION_ROLLBACK, f"a request of the transaction failed: {why}")
            return made
        return reply(200, "OK", found or {})

    def _record(self, connection: "ClientConnection") -> Name:
        """The queue of the node. Raises RequestError."""
        directory = connection.frontend.directory
        directory.refresh()
        try:
            path = self._path()
            return directory.get(entity_name(directory, path))
        except InvalidNameError as error:
            raise RequestError(404, str(error)) from None
        except ConditionError as error:
            caller = connection.client.caller_for(path)
            if not rights_of(directory, caller, path):
                # A client without a right gets no information about what exists.
                demand(directory, caller, Right.LISTEN, directory.get(path))
            raise RequestError(404, error.description) from None

    def _path(self) -> str:
        """The path of the node. Raises InvalidNameError."""
        return queue_name(self.address.removesuffix(SUFFIX))

    async def _on_rules(
        self, work: OnRules, connection: "ClientConnection", _record: Name, body: Fields
    ) -> Fields:
        return await work(connection, self._path(), body)

    # --- operations ------------------------------------------------------------------------------------

    async def _schedule(self, connection: "ClientConnection", record: Name, body: Fields) -> Fields | None:
        return await scheduling.schedule(connection, record, body, self._path())

    async def _schedule_in(
        self, transaction: "Transaction", connection: "ClientConnection", record: Name, body: Fields
    ) -> Fields | None:
        return await scheduling.schedule_in(transaction, connection, record, body, self._path())

    async def _peek(self, connection: "ClientConnection", record: Name, body: Fields) -> Fields | None:
        """Messages from a sequence on, without locking or removing them; None if there are none."""
        demand_look(connection.frontend.directory, connection.client.caller_for(record.name), record)
        session = None if body.get("session-id") is None else sessions.session_of(body)
        start = max(0, whole(body, "from-sequence-number", -SEQUENCE_END, SEQUENCE_END) - FIRST_SEQUENCE)
        count = min(whole(body, "message-count", 1, 1 << 31), limits.MANAGEMENT_PAGE_MAX)
        fields = {"from": start, "count": count, "bytes": limits.MANAGEMENT_PAGE_BYTES}
        if session is not None:
            fields["count"] = limits.MANAGEMENT_PAGE_MAX
        messages: list[Fields] = []
        size = 0
        for _ in range(1 if session is None else SESSION_PEEK_PAGES_MAX):
            answer = await connection.frontend.ask_shard(queue_of(record), "peek", fields)
            for message in _peeked(answer, session, is_subscription=is_of_subscription(record.name)):
                if len(messages) == count or (messages and size > limits.MANAGEMENT_PAGE_BYTES):
                    break
                messages.append({"message": message})
                size += len(message)
            following = answer.fields.get("next")
            if following is None or len(messages) == count or size > limits.MANAGEMENT_PAGE_BYTES:
                break
            fields["from"] = following
        return {"messages": messages} if messages else None

    async def _delete(self, connection: "ClientConnection", record: Name, body: Fields) -> Fields | None:
        """Removes the first ready messages that were enqueued before a time; None if there are none."""
        demand(connection.frontend.directory, connection.client.caller_for(record.name), Right.LISTEN, record)
        if body.get("session-id") is not None:
            raise RequestError(
                501, "messages of one session are not deleted together; receive and complete them"
            )
        demand_open(record, Right.LISTEN)
        before = whole(body, "enqueued-time-utc", -SEQUENCE_END, SEQUENCE_END)
        fields = {"count": whole(body, "message-count", 1, DELETED_MAX), "before_ms": max(0, before)}
        answer = await connection.frontend.ask_shard(queue_of(record), "delete", fields)
        deleted = int(answer.fields["deleted"])
        return {"message-count": Int(deleted)} if deleted else None


def node_at(path: str) -> EntityManagement | None:
    """The node at an address; None for an address of another kind."""
    return EntityManagement(path) if path.endswith(SUFFIX) and len(path) > len(SUFFIX) else None


def _refused(connection: "ClientConnection", error: Exception) -> Message:
    """The answer to a request that has failed."""
    known = error_of(error, connection.client.caller_for)
    made = reply(known.status, str(known), None)
    condition = known.condition or CONDITIONS.get(known.status, conditions.INTERNAL_ERROR)
    if isinstance(error, TakenError):
        condition = ALREADY_EXISTS
    elif isinstance(error, LimitExceededError):
        # QuotaExceeded: no client repeats the request.
        made.application["statusCode"] = Int(403)
        condition = conditions.RESOURCE_LIMIT_EXCEEDED
    made.application["errorCondition"] = Symbol(condition)
    return made


def _peeked(answer: Answer, session: str | None, *, is_subscription: bool) -> Iterator[bytes]:
    """The messages of an answer to `peek` with their annotations; those of one session, if there is one."""
    at = 0
    for each in answer.fields.get("messages", ()):
        end = at + int(each["size"])
        message = bytes(answer.blob[at:end])
        at = end
        if session is not None and sessions.session_in(message, int(each["message_format"])) != session:
            continue
        if not each["message_format"]:
            state = SCHEDULED if each["state"] == "delayed" else DEFERRED * bool(each.get("deferred"))
            enqueued = int(each["enqueued_at_ms"])
            notes = annotations_of(int(each["sequence"]), enqueued, state, is_subscription=is_subscription)
            if until_ms := each.get("locked_until_ms"):
                # Shards of former versions do not send it.
                notes[LOCKED_UNTIL] = Timestamp(int(until_ms))
            # The time to live of a scheduled message has not begun.
            life_ms = None if state == SCHEDULED else life_of(enqueued, each["expires_at_ms"])
            message = annotated(message, notes, life_ms=life_ms, attempts=int(each["attempts"]))
        yield message


def _parse(payload: bytes) -> tuple[str, Fields]:
    """The operation without its prefix, and the map of the body. Raises RequestError."""
    try:
        message = read_message(payload)
    except DecodeError as error:
        raise RequestError(400, str(error)) from None
    operation = message.application.get("operation")
    if not isinstance(operation, str) or not operation.startswith(PREFIX):
        raise RequestError(
            400, f"operation is {operation!r:.80}; expected one that begins with {PREFIX}, at this address"
        )
    body = message.body
    if not isinstance(body, dict):
        raise RequestError(400, "expected the body to be an amqp-value with a map")
    return str(operation).removeprefix(PREFIX), {str(key): value for key, value in body.items()}
