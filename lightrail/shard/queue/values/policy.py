"""The policy of a queue machine: its features beyond first in, first out.

The functions apply its limits of messages and bytes: how much of a batch still fits.
"""

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import Final

from lightrail.model import limits, orders
from lightrail.shard.queue.values.runs import Batch


@dataclass(frozen=True, slots=True)
class Policy:
    """The features of a queue beyond first in, first out."""

    max_delivery_count: int = limits.DELIVERY_COUNT_MAX_DEFAULT
    """A message whose delivery-count would reach it is dead-lettered; 0 for never."""
    dead_letter: bool = True
    """Whether rejected, failed and expired messages go to `NAME/$dlq`; never of such a queue itself."""
    expired_to_dead_letter: bool = True
    """Whether expired messages are dead-lettered; otherwise they are removed."""
    priorities: int = 1
    """Levels, 1 to 10: higher ones go first; AMQP's are mapped by `lightrail.model.orders.level`."""
    order: str = orders.FIFO
    """`fifo`; `last_value`: a newer message replaces a ready one with its key; `sorted`: by rising key."""
    order_key: str = ""
    """The field that is the key, as `lightrail/filters/path.py` names it."""
    groups: bool = False
    """Messages of one group-id (messaging 3.2.4) are with one consumer at a time, in order."""
    delay: bool = False
    """Whether messages may request a delay: x-opt-delivery-time, x-opt-delivery-delay."""
    enqueues_due: bool = False
    """Whether a message that a client of Azure Service Bus has scheduled is enqueued when it is due."""
    retry_delay_ms: int | None = None
    """How long a message waits after its first failed delivery; None not at all."""
    retry_growth: float = 1
    """Each further wait is that many times longer."""
    retry_delay_max_ms: int | None = None
    """The longest wait; None for RETRY_DELAY_FACTOR_MAX times the first one."""
    max_age_ms: int | None = None
    """Time after its arrival at which a message expires, unless its time to live is shorter."""
    lock_ms: int | None = None
    """The lock time of deliveries, unless the consumer has one; None to lock them until it detaches."""
    max_length: int | None = None
    """Maximum number of messages: ready, delayed, deferred and in flight."""
    max_bytes: int | None = None
    """Maximum bytes of these messages."""
    overflow: str = "reject"
    """Past these bounds: reject, discard_incoming, discard_existing, flow_control, or flow_to_disk, for which
    they bound only what is in memory."""
    enqueue_timeout_ms: int | None = None
    """How long what came waits for room before the overflow acts: None for not at all, and with flow_control
    for ever."""
    duplicate_window_ms: int | None = None
    """Time after the arrival of a message-id within which another message with it is dropped."""
    max_consumers: int | None = None
    """Maximum number of consumers; browsers don't count."""
    single_active: bool = False
    """Whether one consumer gets all messages, and the next one only after it has detached."""
    exclusive: bool = False
    """Whether only one consumer is allowed."""
    durable: str = "default"
    """`always` and `never` override the messages."""
    max_message_bytes: int | None = None
    discard_to_dead_letter: bool = False
    """With discard_existing: whether discarded messages are dead-lettered."""
    send_disabled: bool = False
    """Whether batches of senders are refused; what routers send here is stored."""
    receive_disabled: bool = False
    """Whether consumers are refused, and those that are attached get no messages."""
    captured: bool = False
    """Whether every outcome has an effect, also those that change nothing, for readers of the journal."""
    guarded: bool = field(init=False, default=False)
    """Whether any field above concerns new messages; if not, batches are stored as they are."""
    examines: bool = field(init=False, default=False)
    """Whether each new message is read: for the order of the queue, or for duplicates."""

    def __post_init__(self) -> None:
        limits_ = (self.max_age_ms, self.max_length, self.max_bytes, self.max_message_bytes)
        guarded = self.durable != "default" or self.duplicate_window_ms is not None or self.send_disabled
        guarded = guarded or any(limit is not None for limit in limits_)
        object.__setattr__(self, "guarded", guarded)
        examines = self.reads_messages or self.duplicate_window_ms is not None
        object.__setattr__(self, "examines", examines)

    def check(self) -> None:
        """Raises ValueError with the fields that do not combine."""
        wrong = orders.conflict(self.priorities, self.order, self.order_key, self.groups)
        if wrong is not None:
            raise ValueError(wrong)

    @property
    def retries(self) -> tuple[int | None, float, int | None]:
        """The fields that decide how long messages wait after failed deliveries."""
        return self.retry_delay_ms, self.retry_growth, self.retry_delay_max_ms

    def retry_ms(self, failures: int) -> int:
        """How long a message waits whose delivery has failed so often; 0 for not at all."""
        first_ms = self.retry_delay_ms or 0
        longest_ms = self.retry_delay_max_ms or first_ms * limits.RETRY_DELAY_FACTOR_MAX
        try:
            return round(min(first_ms * float(self.retry_growth) ** (failures - 1), longest_ms))
        except OverflowError:
            return longest_ms

    @property
    def reads_messages(self) -> bool:
        """Whether the queue looks into its messages: then it keeps all in memory, one run for each."""
        return self.order != orders.FIFO or self.groups or self.delay

    @property
    def arrangement(self) -> tuple[int, str, str, bool, bool, bool]:
        """The fields that decide how messages are arranged: two policies with the same need no new order."""
        enqueues = self.delay and self.enqueues_due
        return self.priorities, self.order, self.order_key, self.groups, self.delay, enqueues

    @property
    def is_special(self) -> bool:
        """Whether the queue does more than deliver its messages by sequence."""
        return self.reads_messages or self.priorities > 1


PLAIN: Final = Policy()
"""The policy of a queue with no feature of these."""


REJECT: Final = "reject"
DISCARD_INCOMING: Final = "discard_incoming"
DISCARD_EXISTING: Final = "discard_existing"
FLOW_CONTROL: Final = "flow_control"
FLOW_TO_DISK: Final = "flow_to_disk"


def refuses_batches(policy: Policy) -> bool:
    """Whether there is a bound beyond which messages are refused or have to wait."""
    return (policy.max_length is not None or policy.max_bytes is not None) and policy.overflow in (
        REJECT,
        DISCARD_INCOMING,
        FLOW_CONTROL,
    )


def admitting_none(policy: Policy) -> Policy:
    """The policy of a queue whose new messages wait, however long."""
    return replace(policy, max_length=0, max_bytes=None, overflow=FLOW_CONTROL, enqueue_timeout_ms=None)


def room_for(policy: Policy, held: int, held_bytes: int, batch: Batch, first: int) -> int:
    """Number of messages of a batch in memory, from index `first` on, that fit into the queue."""
    fits = batch.count - first
    if policy.max_length is not None:
        fits = min(fits, policy.max_length - held)
    if policy.max_bytes is not None and fits > 0:
        ends = batch.loaded().ends
        start = ends[first - 1] if first else 0
        fits = min(fits, bisect_right(ends, start + policy.max_bytes - held_bytes, first) - first)
    return max(fits, 0)


def excess(policy: Policy, held: int, held_bytes: int) -> tuple[int, int]:
    """By how many messages and bytes a queue exceeds its bounds; not positive if it does not."""
    messages = 0 if policy.max_length is None else held - policy.max_length
    size = 0 if policy.max_bytes is None else held_bytes - policy.max_bytes
    return messages, size


def is_full(policy: Policy, held: int, held_bytes: int) -> bool:
    """Whether not even an empty message fits, by the bounds alone."""
    if policy.max_length is not None and held >= policy.max_length:
        return True
    return policy.max_bytes is not None and held_bytes > policy.max_bytes


def largest_message(policy: Policy) -> int | None:
    """Bytes of the largest message that fits into the empty queue, or None."""
    sizes = [policy.max_message_bytes]
    if refuses_batches(policy):
        sizes.append(policy.max_bytes)
    return min((size for size in sizes if size is not None), default=None)


def first_too_large(policy: Policy, batch: Batch, first: int) -> int | None:
    """The first message from index `first` on that is too large for the queue, even an empty one."""
    most = largest_message(policy)
    if most is None or batch.size <= most:
        return None
    ends = batch.loaded().ends
    start = ends[first - 1] if first else 0
    for index in range(first, batch.count):
        if ends[index] - start > most:
            return index
        start = ends[index]
    return None


def disabled_text(what: str) -> str:
    """The description of a refusal by the status of a queue; `what` is done with its messages."""
    return f"the queue is disabled: nothing is {what} it until a manager changes its status"


def refusal_text(policy: Policy, name: str, held: int, held_bytes: int) -> str:
    """The description of a refusal: the queue, its limits, and its present size."""
    limits = []
    if policy.max_length is not None:
        limits.append(f"at most {policy.max_length} messages")
    if policy.max_bytes is not None:
        limits.append(f"at most {policy.max_bytes} bytes")
    return (
        f"queue {name} is full: it may have {' and '.join(limits)}, it has {held} messages of {held_bytes} "
        "bytes; send again when receivers have settled some"
    )
