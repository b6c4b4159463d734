"""A transaction: the sends and settlements of a client until it is discharged (transactions 4.4).

The frontend collects them. None is sent to a shard before the commit, so nothing is left after the end of a
frontend or a client: messages were never sent, and deliveries return as those of any lost link.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.model import conditions, limits
from lightrail.wire.bodies import Refusal


class Attributes(NamedTuple):
    """Common fields of a batch for the shard."""

    durable: bool
    priority: int
    expires_at_ms: int
    """0: the messages do not expire."""
    message_format: int


@dataclass(slots=True)
class Post:
    """Messages that were sent by one link, in their order."""

    name: str
    """Name of a queue or router; for a link without a target, the address in the messages."""
    is_address: bool
    payloads: list[bytes]
    attributes: Attributes
    container: str = ""
    """Container-id of the client, whose messages some subscriptions exclude."""
    may_delay: bool = False
    """Whether messages may request a delay, if the policy of their queue has no `delay` yet."""


@dataclass(slots=True)
class Retirement:
    """Deliveries of one receiving link, with their outcome."""

    consumer: ConsumerLink
    first: int
    last: int
    """Delivery numbers, including `last`."""
    outcome: Any
    settled: bool
    """Whether the client has settled; otherwise it waits for the broker to settle."""


class Transaction:
    """One transaction, from its declare to its discharge."""

    __slots__ = ("failure", "id", "is_ending", "messages", "posts", "retirements", "size", "work_began_ms")

    def __init__(self, id: bytes) -> None:
        self.id = id
        self.posts: list[Post] = []
        self.retirements: list[Retirement] = []
        self.messages = 0
        self.size = 0
        """Bytes of the messages."""
        self.failure: Refusal | None = None
        """Reason why it can only be rolled back."""
        self.is_ending = False
        """Whether it is discharged, and accepts no more work."""
        self.work_began_ms = 0
        """Time of the first work, in ms since 1970; 0 before."""

    def fail(self, condition: str, description: str) -> None:
        """Marks it as failed, so that it can only be rolled back; the first reason counts."""
        if self.failure is None:
            self.failure = Refusal(condition, description)

    def post(self, post: Post) -> None:
        """Adds sent messages. It fails if they exceed the bounds."""
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
        """Adds settlements; consecutive deliveries with the same outcome are one entry."""
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
