"""Prepared: transactions over several shards with work at this shard and a decision at another one."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lightrail.journal.record import TransactionState, TransactionStep
from lightrail.shard.queue.values.commands import Outcome, OutcomeKind
from lightrail.shard.transactions.work import Post, posts_of

if TYPE_CHECKING:
    from lightrail.shard.queues.shard_queue import Queue

TRANSACTION_PREPARED_BYTES: Final[int] = 3 * 1024
"""Bytes in memory for such a transaction beside its messages."""
TRANSACTION_PREPARED_PART_BYTES: Final[int] = 1024
"""Bytes in memory for each of its batches and ranges of deliveries."""
TRANSACTION_QUEUES_SHOWN_MAX: Final[int] = 20
"""Queues of each of them that are named."""


class ReservedDeliveries(NamedTuple):
    """Deliveries of one queue that get an outcome with the transaction."""

    queue: str
    holder: int
    """Number of the consumer in the queue's machine that has the deliveries."""
    ranges: list[tuple[int, int]]
    """Sequences (first, before last)."""
    outcome: Outcome


@dataclass(slots=True, eq=False, repr=False)
class Prepared:
    """The work of one transaction at this shard."""

    id: bytes
    shard: int
    """The shard that decides."""
    user: str
    """The user of its client; empty if the frontend's version does not send it."""
    posts: list[Post]
    reserved: list[ReservedDeliveries]
    since_ms: int
    """Time of its preparation."""
    _: KW_ONLY
    cancelled: dict[str, list[int]] = field(default_factory=dict)
    """Sequences of the delayed messages that it cancels, by queue."""
    is_recovered: bool = False
    """Whether it is from the journal: a shard that was lost may have concluded it, without a record."""
    ids: dict[str, int] = field(default_factory=dict)
    """By name, the numbers in the journal of the queues with deliveries or cancelled messages of it; none in
    records of former versions."""
    counted_at: "dict[str, Queue]" = field(default_factory=dict)
    """By name, the queues that keep room for it; one of them may have been deleted and made anew since."""
    queues: set[str] = field(init=False)
    """Names of all queues with work of this transaction."""
    size: int = field(init=False)
    """Its bytes in memory."""

    def __post_init__(self) -> None:
        self.queues = {name for post in self.posts for name in post.queues} | {
            each.queue for each in self.reserved
        }
        self.queues |= self.cancelled.keys()
        self.size = (
            TRANSACTION_PREPARED_BYTES
            + sum(4 * post.batch.count + post.batch.size for post in self.posts)
            + TRANSACTION_PREPARED_PART_BYTES * (len(self.posts) + len(self.reserved))
            + TRANSACTION_PREPARED_PART_BYTES * sum(map(len, self.cancelled.values()))
        )

    def shown(self, now_ms: int) -> dict[str, Any]:
        """Its description for operators: queues (some of many), and numbers of messages and deliveries."""
        return {
            "id": self.id.hex(),
            "decides": self.shard,
            "age_ms": max(0, now_ms - self.since_ms),
            "queues": nsmallest(TRANSACTION_QUEUES_SHOWN_MAX, self.queues),
            "queue_count": len(self.queues),
            "messages": sum(post.batch.count * len(post.queues) for post in self.posts),
            "deliveries": sum(last - first for each in self.reserved for first, last in each.ranges),
        }

    def record(self, fields: Mapping[str, Any]) -> TransactionStep:
        """The record from which recovery makes it; `fields` are those of the request `prepare`."""
        detail = {
            "since_ms": self.since_ms,
            "posts": fields["posts"],
            "reserved": [[each.queue, each.ranges, outcome_fields(each.outcome)] for each in self.reserved],
        }
        if self.cancelled:
            detail["cancelled"] = self.cancelled
        if self.ids:
            detail["queues"] = self.ids
        if self.user:
            detail["user"] = self.user
        # The bytes of the request, which the posts refer to as well.
        blob = fields.get("blob", b"")
        text = json.dumps(detail, separators=(",", ":"))
        return TransactionStep(self.id, TransactionState.PREPARED, self.shard, text, blob)


def recovered(record: TransactionStep, holders: Iterator[int], now_ms: int) -> Prepared:
    """The transaction of a record. Raises ValueError, KeyError, TypeError for an invalid record."""
    detail = json.loads(record.detail)
    reserved = [
        ReservedDeliveries(queue, next(holders), _ranges(ranges), _outcome_of(outcome))
        for queue, ranges, outcome in detail["reserved"]
    ]
    posts = list(posts_of(detail["posts"], memoryview(record.blob), now_ms))
    return Prepared(
        record.id,
        record.shard,
        detail.get("user", ""),
        posts,
        reserved,
        detail["since_ms"],
        cancelled=detail.get("cancelled", {}),
        ids=detail.get("queues", {}),
        is_recovered=True,
    )


def outcome_fields(outcome: Outcome) -> list[Any]:
    """An outcome as JSON; former versions do not support the last field, which only deferrals have."""
    kind, condition, description, failed, here, annotations, defers = outcome
    fields = [int(kind), condition, description, failed, here, annotations.hex() if annotations else ""]
    return [*fields, True] if defers else fields


def _outcome_of(fields: Sequence[Any]) -> Outcome:
    kind, condition, description, failed, here, annotations, *defers = fields
    return Outcome(
        OutcomeKind(kind),
        condition,
        description,
        failed,
        here,
        bytes.fromhex(annotations) or None,
        defers == [True],
    )


def _ranges(found: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    return [(first, last) for first, last in found]
