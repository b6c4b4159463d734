"""Numbered batches of POST /name/!batch, as a client of a few lines would make them."""

import struct
from collections.abc import Sequence
from itertools import accumulate

from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import Header, encode_header
from tests.support.http_client import Http, Response


def message(text: str, *, durable: bool = True, priority: int = 4, ttl_ms: int | None = None) -> bytes:
    """An encoded message with a data section."""
    header = encode_header(Header(durable=durable, priority=priority, ttl=ttl_ms))
    return header + b"\x00\x53\x75" + encode(text.encode())


def body(messages: Sequence[bytes]) -> bytes:
    """count, ends, messages."""
    ends = list(accumulate(map(len, messages)))
    return struct.pack(f"<{1 + len(ends)}I", len(ends), *ends) + b"".join(messages)


def post(http: Http, name: str, producer: str, number: int, messages: Sequence[bytes]) -> Response:
    """Sends a batch."""
    headers = {
        "LightRail-Producer": producer,
        "LightRail-Batch": str(number),
        "Content-Type": "application/octet-stream",
    }
    return http("POST", f"/{name}/!batch", body(messages), headers)


def texts(http: Http, queue: str) -> list[str]:
    """What is in a queue, in order, without taking it."""
    found: list[str] = []
    first: int | None = 0
    while first is not None:
        answer = http("GET", f"/{queue}/!messages?from={first}&count=1000").json()
        found += [each["body"]["text"] for each in answer["messages"]]
        first = answer["next"]
    return found
