"""New headers of messages that are delivered again, or that expire (messaging 3.2.1)."""

from collections.abc import Sequence
from typing import Final, Protocol

from lightrail.amqp.compiled import redelivery
from lightrail.amqp.sections import decode_header, with_header
from lightrail.amqp.values import DecodeError

UINT_MAX: Final = 0xFFFFFFFF
"""The highest delivery-count that a header can have."""


class OutgoingLink(Protocol):
    """The methods of a link with which messages are sent."""

    def send(
        self,
        count: int,
        ends: Sequence[int],
        blob: bytes | bytearray | memoryview,
        base: int = 0,
        settled: bool = False,
        message_format: int = 0,
    ) -> None: ...
    def send_one(self, payload: bytes, message_format: int = 0, settled: bool = False) -> None: ...


def send_with_new_headers(
    link: OutgoingLink,
    part: bytes | memoryview,
    blob_at: int,
    ends: memoryview,
    base: int,
    *,
    attempts: int,
    expires: int,
    now_ms: int,
    presettled: bool,
) -> None:
    """Sends a slice whose messages need a delivery-count or the remaining ttl in their headers.

    Args:
        part: the DELIVER frame, whose messages begin at `blob_at` and end at `ends`, counted from `base`.
        attempts: failed deliveries before this one.
        expires: expiry of the messages, in milliseconds since 1970; 0 for none.
    """
    left_ms = max(0, expires - now_ms) if expires else -1
    if attempts:
        found = redelivery.redeliver(bytes(part), blob_at, ends, base, attempts, left_ms)
        if found is not None:
            blob, after = found
            link.send(len(ends), after, blob, 0, presettled)
            return
    else:
        shortened = bytearray(memoryview(part)[blob_at:])
        if redelivery.shorten_ttl(shortened, ends, base, left_ms):
            link.send(len(ends), ends, memoryview(shortened).toreadonly(), base, presettled)
            return
    # Other encodings than the usual one: message by message.
    start = blob_at
    for end in ends:
        stop = blob_at + end - base
        message = bytes(part[start:stop])
        start = stop
        link.send_one(with_new_header(message, attempts, expires, now_ms), 0, presettled)


def with_new_header(message: bytes, attempts: int, expires: int, now_ms: int) -> bytes:
    """A message with its delivery-count and its remaining time to live.

    Args:
        expires: expiry, in milliseconds since 1970; 0 for none.
    """
    try:
        header = decode_header(message)
    except DecodeError:
        # Incoming messages are checked only for separable sections. An error here would end the link of each
        # receiver of the message.
        return message
    if attempts:
        # A message may have failed at another broker before (3.2.1).
        header.delivery_count = min(header.delivery_count + attempts, UINT_MAX)
        header.first_acquirer = False
    if header.ttl is not None and expires:
        header.ttl = max(0, min(header.ttl, expires - now_ms))
    elif not attempts:
        # The message expires at an absolute time (3.2.4), and its header stays unchanged.
        return message
    return with_header(message, header)
