"""Numbered batches over HTTP: POST /name/!batch stores each batch of a named producer once.

The body is u32 count, u32 ends[count] (little-endian, counted from the first byte of the first message), the
encoded messages. `LightRail-Producer` names the producer, `LightRail-Batch` numbers the batch. An answer of
200 means that the batch is stored as the policies of its queues want it. After any other answer, or none, the
client sends the same batch again with the same number, through any gateway.
"""

import asyncio
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from aiohttp import web

from lightrail.amqp.sections import attributes, scan
from lightrail.amqp.values import DecodeError
from lightrail.gateway.errors import ProblemError, refused
from lightrail.gateway.messages.batches import BatchMessage, RequestBatch
from lightrail.gateway.request import Request, whole_number
from lightrail.gateway.resources.names import used
from lightrail.model import conditions, limits
from lightrail.namespace.records import Right

PRODUCER: Final = "LightRail-Producer"
BATCH: Final = "LightRail-Batch"
_COUNT: Final = struct.Struct("<I")
_CHECKED_AT_ONCE: Final = 2_000
"""Messages that are checked before other requests run."""


async def store(request: Request) -> web.Response:
    """POST /name/!batch."""
    producer, number = _producer(request), _number(request)
    record = await used(request, Right.SEND)
    services = request.services
    most = max(limits.HTTP_BATCH_BYTES, services.settings.max_message_bytes + 2 * _COUNT.size)
    with services.sender.room() as room:
        body = await request.body_in(room, most)
        messages = await _messages(body, services.settings.max_message_bytes)
        batch = RequestBatch(request.caller.user, producer, number, messages)
        stored = await services.batches.send(record, batch)
    services.counts.sent += stored
    return web.json_response({"stored": stored, "duplicate": not stored})


def _producer(request: Request) -> str:
    text = request.http.headers.get(PRODUCER, "")
    if not text or not text.isprintable() or len(text.encode(errors="replace")) > limits.HTTP_PRODUCER_BYTES:
        raise ProblemError(
            400,
            f"the header {PRODUCER} is {text[:80]!a}; expected a name for the producer, of 1 to "
            f"{limits.HTTP_PRODUCER_BYTES} bytes: its batches are identified by their numbers",
            field=PRODUCER,
        )
    return text


def _number(request: Request) -> int:
    return whole_number(BATCH, request.http.headers.get(BATCH, ""), 0, limits.HTTP_BATCH_NUMBER_MAX)


async def _messages(body: bytes, most: int) -> list[BatchMessage]:
    """The messages of a body, each checked. Raises ProblemError: nothing is stored then."""
    view = memoryview(body)
    ends = _ends(view)
    base = _COUNT.size * (1 + len(ends))
    messages = []
    start = 0
    for index, end in enumerate(ends):
        if end - start > most:
            raise refused(
                conditions.MESSAGE_SIZE_EXCEEDED,
                f"message {index} has {end - start} bytes; this broker accepts at most {most}. Nothing of "
                "the batch is stored",
            )
        messages.append(_message(index, view[base + start : base + end]))
        start = end
        if index % _CHECKED_AT_ONCE == _CHECKED_AT_ONCE - 1:
            await asyncio.sleep(0)
    return messages


def _ends(view: memoryview) -> Sequence[int]:
    layout = "u32 count, u32 ends[count], the messages; little-endian"
    if len(view) < _COUNT.size:
        raise ProblemError(400, f"the body has {len(view)} bytes; expected {layout}")
    (count,) = _COUNT.unpack_from(view)
    base = _COUNT.size * (1 + count)
    if not 1 <= count <= limits.HTTP_BATCH_MESSAGES:
        raise ProblemError(400, f"the batch has {count} messages; expected 1 to {limits.HTTP_BATCH_MESSAGES}")
    if len(view) < base:
        raise ProblemError(400, f"the body has {len(view)} bytes for {count} messages; expected {layout}")
    ends = struct.unpack_from(f"<{count}I", view, _COUNT.size)
    if ends[-1] != len(view) - base or any(a > b for a, b in pairwise(ends)):
        raise ProblemError(
            400,
            f"the ends of the messages do not rise to {len(view) - base}, the bytes that follow; expected "
            f"{layout}",
        )
    return ends


def _message(index: int, data: memoryview) -> BatchMessage:
    """A checked message. Without a header it is durable, since senders of batches expect storage on disk."""
    try:
        if not data:
            raise DecodeError("it has no bytes")
        # A message without a body is accepted: qpid-proton sends such messages, and replays repeat them.
        sections = scan(data)
        durable, priority, ttl_ms, expires_at_ms = attributes(data)
    except DecodeError as error:
        raise ProblemError(
            422, f"message {index} of the batch is no AMQP message: {error}; nothing of the batch is stored"
        ) from None
    return BatchMessage(data, durable or sections.header is None, priority, ttl_ms, expires_at_ms)
