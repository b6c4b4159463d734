"""Messages that clients of Azure Service Bus schedule over $management, and schedules that they cancel.

The messages of one request are stored all or none. A message whose id its queue has stored before, within the
window of duplicates, is answered with the number of the first one: a client whose answer was lost repeats the
request.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lightrail.amqp.lifetime import expiry_from
from lightrail.amqp.sections import attributes, decode_properties
from lightrail.amqp.values import Array, DecodeError, Long
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.scheduling import due_ms
from lightrail.frontend.nodes.posting import Posting, PostingError
from lightrail.frontend.nodes.requests import RequestError
from lightrail.frontend.transactions.transaction import Attributes as PostAttributes
from lightrail.frontend.transactions.transaction import Post
from lightrail.model import conditions, limits
from lightrail.model.names import scheduled_name
from lightrail.model.policy import Role
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import demand
from lightrail.namespace.scheduled import scheduled_queue
from lightrail.service_bus.links.refusals import sending_problem
from lightrail.service_bus.links.sending import demand_session
from lightrail.service_bus.messages import (
    FIRST_SEQUENCE,
)
from lightrail.service_bus.nodes.locks import (
    MESSAGE_NOT_FOUND,
    Fields,
    demand_open,
    queue_of,
    sequences_of,
)
from lightrail.shard_client.deadlines import within
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.shard_client.sending.window import Attributes
from lightrail.wire.frames import UNKNOWN_SEQUENCE

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.transactions.transaction import Transaction

STORED_TOGETHER_MAX: Final[int] = 1_000
"""Messages that the shard stores in one step."""
CANCELLED_TOGETHER_MAX: Final[int] = 1_000
"""Messages that one request to a shard cancels."""
FIRST_PAGES_MAX: Final[int] = 100
"""Pages of MANAGEMENT_PAGE_BYTES in which the first of two equal messages is looked for."""
GONE: Final = 0
"""The number in place of one whose message was received meanwhile, or that is too far behind in its queue."""
STATUSES: Final = {
    conditions.MESSAGE_SIZE_EXCEEDED: 413,
    conditions.RESOURCE_LIMIT_EXCEEDED: 403,
    conditions.UNAUTHORIZED_ACCESS: 401,
    conditions.NOT_FOUND: 404,
    conditions.RESOURCE_DELETED: 404,
}
"""Statuses of conditions for which no message was stored; all others are of shards that do not answer."""


class ScheduledMessage(NamedTuple):
    """A message that a client schedules."""

    attributes: Attributes
    message: bytes
    id: Any
    """The message-id; None without one."""


async def schedule(connection: "ClientConnection", record: Name, body: Fields, path: str) -> Fields:
    """com.microsoft:schedule-message: stores messages until they are due; answers with their sequences.

    Those of a router wait in a queue of their own, and are routed when they are due. Raises RequestError.

    Args:
        path: the path for which the name of the record stands.
    """
    messages = await _messages(connection, record, body, path)
    queue, is_router = record.name, record.role is Role.ROUTER
    if is_router:
        queue = (await scheduled_queue(connection.frontend.service, queue)).name
    has_ids = not is_router and bool(record.policy["duplicate_window"])
    found = await _Storing(connection, queue, is_router=is_router, has_ids=has_ids).all(messages)
    return _numbers(found)


async def schedule_in(
    transaction: "Transaction", connection: "ClientConnection", record: Name, body: Fields, path: str
) -> Fields:
    """com.microsoft:schedule-message in a transaction: stores messages with its commit.

    The answer has their sequences, which their queue gives to no other message, whatever becomes of the
    transaction. One with an id that the queue knows at the commit is dropped, and its sequence is of no
    message. Raises RequestError; then nothing is added to the transaction.
    """
    messages = await _messages(connection, record, body, path)
    frontend, is_router = connection.frontend, record.role is Role.ROUTER
    queue = record.name
    if is_router:
        queue = (await scheduled_queue(frontend.service, queue)).name
    answer = await frontend.ask_shard(queue, "reserve_numbers", {"count": len(messages)})
    first = int(answer.fields["first"])
    _demand_work(transaction)
    # Of several in one batch, one with a known id would take the number of the next one.
    is_alone = not is_router and bool(record.policy["duplicate_window"])
    transaction.senders[record.name] = record
    at = first
    for key, group in groupby(enumerate(messages), key=lambda each: (each[1].attributes, each[0] * is_alone)):
        payloads = [each.message for _, each in group]
        attributes = PostAttributes(*key[0])
        transaction.post(Post(queue, False, payloads, attributes, sequence=at))
        at += len(payloads)
    _demand_work(transaction)
    return _numbers(range(first, at))


def _demand_work(transaction: "Transaction") -> None:
    """Raises RequestError if a transaction accepts no work."""
    if transaction.refusal:
        raise RequestError(400, transaction.refusal, conditions.TRANSACTION_ROLLBACK)


def _numbers(found: Iterable[int]) -> Fields:
    """The answer with the sequences of messages in their queue."""
    return {"sequence-numbers": Array([Long(each + FIRST_SEQUENCE) for each in found], 0x81)}


async def _messages(
    connection: "ClientConnection", record: Name, body: Fields, path: str
) -> list[ScheduledMessage]:
    """The messages of a request that its sender may schedule there. Raises RequestError."""
    frontend = connection.frontend
    demand(frontend.directory, connection.client.caller_for(record.name), Right.SEND, record)
    demand_open(record, Right.SEND)
    if problem := sending_problem(frontend.directory, record, path):
        raise RequestError(400, problem, conditions.NOT_ALLOWED)
    is_router = record.role is Role.ROUTER
    if not is_router and not record.policy["delay"]:
        queue_of(record)
        raise RequestError(
            501, f"{record.name} delays no messages; a manager sets its policy's field delay to true"
        )
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise RequestError(400, "expected messages, a list of maps with a message each, found none")
    messages: list[ScheduledMessage] = []
    for number, each in enumerate(given, 1):
        messages.append(_scheduled(each, frontend.now_ms(), record))
        if not number % STORED_TOGETHER_MAX:
            await asyncio.sleep(0)
    return messages


class _Storing:
    """The messages of one request on their way into their queue."""

    __slots__ = ("_connection", "_has_ids", "_is_checked", "_queue", "_stored")

    def __init__(self, connection: "ClientConnection", queue: str, *, is_router: bool, has_ids: bool) -> None:
        self._connection = connection
        self._queue = queue
        self._is_checked = is_router
        """Whether the sender needs no right at the queue itself, or was found to have it."""
        self._has_ids = has_ids
        """Whether the queue drops messages whose ids it knows."""
        self._stored: list[int] = []
        """Sequences of the queue, of messages that are new there."""

    async def all(self, messages: Sequence[ScheduledMessage]) -> list[int]:
        """The sequence of each message. Raises RequestError: then none of them is stored.

        Those before the refused one stay only where the queue remembers their ids: it would drop them if the
        client sent them again. The answer to such a repetition has their numbers.
        """
        found: list[int] = []
        try:
            for run in self._runs(messages):
                found += await self._store(run)
        except PostingError as error:
            refused = _refused(error)
            if self._has_ids or not self._stored:
                raise refused from None
            try:
                # The client may have given up by now: it must not find them when it sends the list again.
                with within(None):
                    await cancel_all(self._connection, self._queue, self._stored)
            except (ShardDownError, ShardRefusedError):
                raise RequestError(
                    refused.status,
                    f"{refused}; {len(self._stored)} messages before it may stay scheduled",
                    refused.condition,
                ) from None
            raise refused from None
        return found

    def _runs(self, messages: Sequence[ScheduledMessage]) -> Iterator[list[ScheduledMessage]]:
        """Neighbours that one frame stores; one without an id is alone where ids tell which were stored."""
        for key, group in groupby(
            messages, key=lambda each: (each.attributes, self._has_ids and each.id is None)
        ):
            run = list(group)
            most = 1 if key[1] else STORED_TOGETHER_MAX
            for at in range(0, len(run), most):
                yield run[at : at + most]

    async def _store(self, run: list[ScheduledMessage]) -> list[int]:
        """The sequences of messages that are stored together. Raises PostingError, RequestError."""
        # One opening for each frame: the shard refuses what comes too late by its opening.
        if self._is_checked:
            posting = await Posting.open_at(self._connection.frontend, self._queue, sequences=True)
        else:
            posting = await Posting.open(self._connection, self._queue, sequences=True)
            self._is_checked = True
        try:
            first = await posting.store([each.message for each in run], run[0].attributes)
        finally:
            posting.close()
        if first != UNKNOWN_SEQUENCE and (len(run) == 1 or not self._has_ids):
            found = list(range(first, first + len(run)))
            self._stored += found
            return found
        ids = [each.id for each in run]
        if None in ids:
            raise RequestError(500, "a message is stored, but its number is lost with its shard's connection")
        known: dict[Any, int] = {}
        if first != UNKNOWN_SEQUENCE:
            # Those that are new are neighbours, from the first one on.
            await self._look_for(set(ids), known, first, len(run))
        await self._look_for(set(ids), known, 0, None)
        return [known.get(each, GONE - FIRST_SEQUENCE) for each in ids]

    async def _look_for(self, ids: set[Any], known: dict[Any, int], start: int, count: int | None) -> None:
        """Adds the sequences of messages with these ids to `known`, from a sequence of the queue on."""
        left = limits.MANAGEMENT_PAGE_MAX * FIRST_PAGES_MAX if count is None else count
        for _ in range(FIRST_PAGES_MAX):
            if left <= 0 or ids <= known.keys():
                return
            fields = {
                "from": start,
                "count": min(left, limits.MANAGEMENT_PAGE_MAX),
                "bytes": limits.MANAGEMENT_PAGE_BYTES,
            }
            answer = await self._connection.frontend.ask_shard(self._queue, "peek", fields)
            at = 0
            for row in answer.fields["messages"]:
                end = at + int(row["size"])
                id = None if row["message_format"] else _id_of(bytes(answer.blob[at:end]))
                at = end
                if id is not None and id in ids:
                    known.setdefault(id, int(row["sequence"]))
            left -= len(answer.fields["messages"])
            following = answer.fields.get("next")
            if following is None:
                return
            start = int(following)


def _id_of(message: bytes) -> Any:
    try:
        return decode_properties(message).message_id
    except DecodeError:
        return None


def _refused(error: PostingError) -> RequestError:
    """The answer where a message was not stored; no answer of a shard is a condition that clients retry."""
    status = STATUSES.get(error.condition)
    if status is None:
        return RequestError(408, f"the messages may not be scheduled: {error}", conditions.TIMEOUT)
    return RequestError(status, f"no message is scheduled: {error}", error.condition)


def _scheduled(value: Any, now_ms: int, record: Name) -> ScheduledMessage:
    """A message to schedule with its durability, its priority and its expiry. Raises RequestError.

    The ttl begins when the message is due (`expiry_from`); at a router, when it is routed.
    """
    message = value.get("message") if isinstance(value, dict) else None
    if not isinstance(message, bytes):
        raise RequestError(400, "expected each of messages to be a map with an encoded message as message")
    try:
        priority, id = attributes(message).priority, decode_properties(message).message_id
        expires = expiry_from(message, max(now_ms, due_ms(message)))
    except DecodeError as error:
        raise RequestError(400, f"a message can't be read: {error}") from None
    most = record.policy["max_message_bytes"]
    if most is not None and len(message) > most:
        raise RequestError(
            413,
            f"a message has {len(message)} bytes; {record.name} accepts at most {most}",
            conditions.MESSAGE_SIZE_EXCEEDED,
        )
    try:
        demand_session(record, (message,))
    except ConditionError as error:
        raise RequestError(400, error.description, error.condition) from None
    if expires is None or record.role is Role.ROUTER:
        expires = 0
    return ScheduledMessage(Attributes(True, priority, expires, 0), message, id)


# --- cancelling ------------------------------------------------------------------------------------------


async def cancel(connection: "ClientConnection", record: Name, body: Fields) -> Fields:
    """com.microsoft:cancel-scheduled-message: removes messages before their time. Raises RequestError."""
    queue, sequences = _cancelled(connection, record, body)
    cancelled = 0
    if connection.frontend.directory.get(queue).role is Role.QUEUE:
        try:
            cancelled = await cancel_all(connection, queue, [each for each in sequences if each >= 0])
        except ShardRefusedError as refused:
            if refused.condition != conditions.RESOURCE_LOCKED:
                raise
            # These clients try again then, and find out what became of the transaction.
            raise RequestError(503, str(refused), conditions.TIMEOUT) from None
    wanted = len(set(sequences))
    if cancelled < wanted:
        raise RequestError(
            404,
            f"{cancelled} of {wanted} messages were cancelled; the others are not scheduled in {record.name} "
            "(any more)",
            MESSAGE_NOT_FOUND,
        )
    return {}


async def cancel_in(
    transaction: "Transaction", connection: "ClientConnection", record: Name, body: Fields
) -> None:
    """com.microsoft:cancel-scheduled-message in a transaction: removes messages with its commit.

    Raises RequestError if one is not scheduled (any more), or by this transaction, or cancelled in it; then
    nothing is added to the transaction.
    """
    queue, sequences = _cancelled(connection, record, body)
    wanted = list(dict.fromkeys(sequences))
    found: list[bool] = []
    if connection.frontend.directory.get(queue).role is Role.QUEUE and min(wanted) >= 0:
        for at in range(0, len(wanted), CANCELLED_TOGETHER_MAX):
            fields = {"sequences": wanted[at : at + CANCELLED_TOGETHER_MAX]}
            found += (await connection.frontend.ask_shard(queue, "are_delayed", fields)).fields["found"]
    left = [
        each
        for each, is_delayed in zip(wanted, found or [False] * len(wanted), strict=True)
        if not is_delayed or (queue, each) in transaction.cancellations
    ]
    if left:
        raise RequestError(
            404,
            f"{len(left)} of {len(wanted)} messages are not scheduled in {record.name} (any more), such as "
            f"{left[0] + FIRST_SEQUENCE}",
            MESSAGE_NOT_FOUND,
        )
    _demand_work(transaction)
    transaction.senders[record.name] = record
    transaction.cancel(queue, wanted)
    _demand_work(transaction)


def _cancelled(connection: "ClientConnection", record: Name, body: Fields) -> tuple[str, list[int]]:
    """The queue and the sequences of a request to cancel. Raises RequestError."""
    demand(connection.frontend.directory, connection.client.caller_for(record.name), Right.SEND, record)
    sequences = sequences_of(body, GONE)
    return scheduled_name(record.name) if record.role is Role.ROUTER else queue_of(record), sequences


async def cancel_all(connection: "ClientConnection", queue: str, sequences: Sequence[int]) -> int:
    """Removes delayed messages; returns how many there were. Raises ShardDownError, ShardRefusedError."""
    cancelled = 0
    for at in range(0, len(sequences), CANCELLED_TOGETHER_MAX):
        fields = {"sequences": list(sequences[at : at + CANCELLED_TOGETHER_MAX])}
        answer = await connection.frontend.ask_shard(queue, "cancel", fields)
        cancelled += int(answer.fields.get("cancelled", 0))
    return cancelled
