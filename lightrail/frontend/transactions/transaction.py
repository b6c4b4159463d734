"""A transaction: the sends and settlements of a client until it is discharged (transactions 4.4).

The frontend collects them. None is sent to a shard before the commit, so nothing is left after the end of a
frontend or a client: messages were never sent, and deliveries return as those of any lost link.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lightrail.amqp.performatives import TransactionalState
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.model import conditions, limits
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.amqp.link import Link


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
    may_schedule: bool = False
    """Whether messages for a router may wait for their time in its queue of scheduled messages."""


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


class Acquisition:
    """Deliveries of one receiving link that are acquired in a transaction (transactions 4.4.3)."""

    __slots__ = ("_last", "consumer", "first", "link", "state")

    def __init__(self, txn_id: bytes, link: "Link", consumer: ConsumerLink) -> None:
        self.link = link
        self.consumer = consumer
        self.state = TransactionalState(txn_id=txn_id)
        """Of the transfers."""
        self.first = consumer.delivered()
        """The first delivery number."""
        self._last: int | None = None

    @property
    def last(self) -> int:
        """The last delivery number so far; below the first one if there is none."""
        return self.consumer.delivered() - 1 if self._last is None else self._last

    @property
    def is_open(self) -> bool:
        """Whether further deliveries of the link are acquired."""
        return self._last is None

    def end(self) -> None:
        """Acquires no more deliveries; those of which no frame is sent yet are in no transaction."""
        if self._last is None:
            self.link.forget_state(self.state)
            self._last = self.consumer.delivered() - self.link.backlog - 1

    def overlaps(self, first: int, last: int) -> bool:
        """Whether some of these deliveries are acquired by it."""
        return self.first <= last and first <= self.last


class Transaction:
    """One transaction, from its declare to its discharge."""

    __slots__ = (
        "acquisitions",
        "control",
        "failure",
        "id",
        "is_ending",
        "messages",
        "posts",
        "retirements",
        "size",
        "work_began_ms",
    )

    def __init__(self, id: bytes, control: "Link | None" = None) -> None:
        self.id = id
        self.control = control
        """The link on which it was declared."""
        self.acquisitions: dict[Acquisition, None] = {}
        """In their order."""
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
