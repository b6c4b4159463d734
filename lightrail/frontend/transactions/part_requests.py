"""Part requests: the part of a transaction at one shard, as the fields and the blob of a request.

A client that waits for each of 10,000 messages sends as many batches, and one that settles the deliveries of
two receivers in turn as many ranges. Each of them costs the shard as much as one of hundreds: what is one
after the other in its queue, or at its receiver, is joined here.
"""

import json
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final

from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.links.outcomes import encode_outcome
from lightrail.frontend.transactions.transaction import Attributes, LockRetirement, Post, Retirement
from lightrail.model import limits
from lightrail.shard_client.commits import Request
from lightrail.wire.bodies import ConsumerOpen

Batch = tuple[frozenset[str], Post, Sequence[bytes]]
"""Queues, the post of the messages, and the messages."""
Joined = tuple[frozenset[str], Attributes, list[bytes], int | None]
"""Queues, attributes, messages, and the sequence of the first message if the queue has given it before."""
CANCELLED: Final = "cancelled"
"""In the place of the outcome of a scheduled message that is cancelled (docs/formats/wire.md)."""


def request_of(
    batches: Iterable[Batch],
    retirements: Iterable[Retirement],
    locks: Iterable[LockRetirement],
    cancelled: Iterable[tuple[str, int]] = (),
) -> Request:
    """The fields and the blob of `transact` and `prepare` (docs/formats/wire.md)."""
    posts: list[list[Any]] = []
    blob: list[bytes] = []
    for queues, attributes, payloads, sequence in _joined(batches):
        ends = array("I", accumulate(map(len, payloads)))
        durable, priority, expires_at_ms, message_format = attributes
        posts.append(
            [sorted(queues), durable, priority, expires_at_ms, message_format, len(payloads), ends[-1]]
        )
        if sequence is not None:
            posts[-1].append(sequence)
        blob += (ends.tobytes(), *payloads)
    settles: list[list[Any]] = []
    for consumer, first, last, outcome in _joined_ranges(retirements):
        code, detail = encode_outcome(outcome, consumer.options)
        found = json.loads(detail) if detail else {}
        settled = [consumer.queue, consumer.number, first, last - first + 1, int(code), found]
        if consumer.options.lock_key:
            settled.append(consumer.options.lock_key)
        settles.append(settled)
    for lock in locks:
        code, detail = encode_outcome(lock.outcome, ConsumerOpen(lock.queue))
        found = json.loads(detail) if detail else {}
        settles.append([lock.queue, 0, lock.number, 1, int(code), found, lock.key])
    settles += [[queue, 0, sequence, 1, CANCELLED, {}] for queue, sequence in cancelled]
    return {"posts": posts, "settles": settles}, b"".join(blob)


def _joined(batches: Iterable[Batch]) -> list[Joined]:
    """The batches, of which neighbours are one; the messages of each queue stay in their order.

    Those with numbers are not joined, and are in no order with others.
    """
    found: list[Joined] = []
    sizes: list[int] = []
    newest: dict[str, int] = {}
    """By queue, the index of its last batch."""
    for queues, post, payloads in batches:
        size = sum(map(len, payloads))
        if post.sequence is not None:
            found.append((queues, post.attributes, [*payloads], post.sequence))
            sizes.append(size)
            continue
        index = -1
        if not newest.keys().isdisjoint(queues):
            index, *others = {newest.get(queue, -1) for queue in queues}
            index = -1 if others else index
        if (
            index >= 0
            and found[index][:2] == (queues, post.attributes)
            and sizes[index] + size <= limits.JOINED_BYTES
            and len(found[index][2]) + len(payloads) <= limits.LOOKED_INTO_AT_ONCE
        ):
            found[index][2].extend(payloads)
            sizes[index] += size
            continue
        newest.update(dict.fromkeys(queues, len(found)))
        found.append((queues, post.attributes, [*payloads], None))
        sizes.append(size)
    return found


def _joined_ranges(retirements: Iterable[Retirement]) -> list[tuple[ConsumerLink, int, int, Any]]:
    """Receiver, first and last delivery, and outcome of ranges."""
    found: list[tuple[ConsumerLink, int, int, Any]] = []
    newest: dict[ConsumerLink, int] = {}
    """By receiver, the index of its last range."""
    for each in retirements:
        index = newest.get(each.consumer)
        if index is not None:
            consumer, first, last, outcome = found[index]
            if last + 1 == each.first and outcome == each.outcome:
                found[index] = (consumer, first, each.last, outcome)
                continue
        newest[each.consumer] = len(found)
        found.append((each.consumer, each.first, each.last, each.outcome))
    return found
