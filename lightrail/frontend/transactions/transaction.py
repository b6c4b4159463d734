"""A transaction: what a client sends and settles until it is discharged (transactions 4.4).

The frontend gathers the work. Nothing of it reaches a shard before the commit, so a frontend or a client that
dies leaves nothing behind: messages were never sent, and deliveries return as those of any lost link.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.model import conditions, limits
from lightrail.wire.bodies import Refusal


class Attributes(NamedTuple):
    """What a shard has to know of a batch."""

    durable: bool
    priority: int
    expires_at_ms: int
    """0 for never."""
    message_format: int


@dataclass(slots=True)
class Post:
    """Messages that were sent by one link, in their order."""

    name: str
    """Of a queue or router; of a link without a target, the address in the messages."""
    is_address: bool
    payloads: list[bytes]
    attributes: Attributes
    container: str = ""
    """Container-id of the client, whose own messages some subscriptions do not get."""
    may_delay: bool = False
    """Messages may ask for a delay where the policy of their queue has none yet."""


@dataclass(slots=True)
class Retirement:
    """Deliveries of one receiving link that get an outcome."""

    consumer: ConsumerLink
    first: int
    last: int
    """Delivery numbers; `last` belongs to it."""
    outcome: Any
    settled: bool
    """The client has settled; else it waits for us to settle."""


class Transaction:
    """One, from its declare to its discharge."""

    __slots__ = ("failure", "id", "is_ending", "messages", "posts", "retirements", "size", "work_began_ms")

    def __init__(self, id: bytes) -> None:
        self.id = id
        self.posts: list[Post] = []
        self.retirements: list[Retirement] = []
        self.messages = 0
        self.size = 0
        """Bytes of the messages."""
        self.failure: Refusal | None = None
        """Why it can only be rolled back."""
        self.is_ending = False
        """It is discharged: no more work belongs to it."""
        self.work_began_ms = 0
        """When the first work came, in ms since 1970; 0 before."""

    def fail(self, condition: str, description: str) -> None:
        """From now on it can only be rolled back; the first reason counts."""
        if self.failure is None:
            self.failure = Refusal(condition, description)

    def post(self, post: Post) -> None:
        """Messages are sent in it. What exceeds the bounds makes it fail."""
        self.messages += len(post.payloads)
        size = sum(map(len, post.payloads))
        if (
            self.messages > limits.TRANSACTION_MESSAGES_MAX
            or self.size + size > limits.TRANSACTION_BYTES_MAX
            or len(self.posts) >= limits.TRANSACTION_PARTS_MAX
        ):
            self.fail(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"expected a transaction of at most {limits.TRANSACTION_MESSAGES_MAX} messages and "
                f"{limits.TRANSACTION_BYTES_MAX} bytes, found more",
            )
        if self.failure is None:
            self.posts.append(post)
            self.size += size

    def retire(self, retirement: Retirement) -> None:
        """Deliveries are settled in it; neighbours with the same outcome are one entry."""
        if self.retirements:
            newest = self.retirements[-1]
            if (
                newest.consumer is retirement.consumer
                and newest.last + 1 == retirement.first
                and newest.outcome == retirement.outcome
                and newest.settled == retirement.settled
            ):
                newest.last = retirement.last
                return
        if len(self.retirements) >= limits.TRANSACTION_PARTS_MAX:
            self.fail(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"expected a transaction that settles at most {limits.TRANSACTION_PARTS_MAX} ranges of "
                "deliveries, found more",
            )
        self.retirements.append(retirement)
