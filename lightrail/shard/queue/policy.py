"""The policy of a queue machine: what it does beyond first in, first out."""

from dataclasses import dataclass, field

from lightrail.model import limits, orders


@dataclass(frozen=True, slots=True)
class Policy:
    """What a queue does beyond first in, first out."""

    max_delivery_count: int = limits.DELIVERY_COUNT_MAX_DEFAULT
    """A message whose delivery-count would reach it is dead-lettered; 0 for never."""
    dead_letter: bool = True
    """Whether what is rejected, failed or expired goes to `NAME/$dlq`; never of such a queue itself."""
    priorities: int = 1
    """Levels, 1 to 10: higher ones go first; AMQP's are mapped by `lightrail.model.orders.level`."""
    order: str = orders.FIFO
    """`fifo`; `last_value`: a newer message replaces a ready one with its key; `sorted`: by rising key."""
    order_key: str = ""
    """The field that is the key, as `lightrail/filters/path.py` names it."""
    groups: bool = False
    """Messages of one group-id (messaging 3.2.4) are with one consumer at a time, in order."""
    delay: bool = False
    """Whether messages may ask to wait: x-opt-delivery-time, x-opt-delivery-delay."""
    max_age_ms: int | None = None
    """Messages expire so long after they came, or earlier by their own time to live."""
    lock_ms: int | None = None
    """How long a delivery is its consumer's, where the consumer says nothing; None for until it goes."""
    max_length: int | None = None
    """Messages, ready, delayed and in flight."""
    max_bytes: int | None = None
    """Of the same."""
    overflow: str = "reject"
    """Past these bounds: reject, discard_incoming, discard_existing, flow_control, or flow_to_disk, for which
    they bound only what is in memory."""
    enqueue_timeout_ms: int | None = None
    """How long what came waits for room before the overflow acts: None for not at all, and with flow_control
    for ever."""
    duplicate_window_ms: int | None = None
    """A message whose message-id came within so long is dropped."""
    max_consumers: int | None = None
    """Consumers; browsers don't count."""
    single_active: bool = False
    """One consumer gets everything, the next when it goes."""
    exclusive: bool = False
    """One consumer is allowed."""
    durable: str = "default"
    """`always` and `never` stand above what messages say."""
    max_message_bytes: int | None = None
    discard_to_dead_letter: bool = False
    """With discard_existing: what gives way is dead-lettered instead of removed."""
    captured: bool = False
    """Whether every outcome is told, also those that change nothing: somebody keeps a record of them."""
    guarded: bool = field(init=False, default=False)
    """Whether any field above has a say when messages come; without, batches are taken as they are."""
    examines: bool = field(init=False, default=False)
    """Whether each message that comes is looked into: for the order of the queue, or for duplicates."""

    def __post_init__(self) -> None:
        limits_ = (self.max_age_ms, self.max_length, self.max_bytes, self.max_message_bytes)
        guarded = self.durable != "default" or self.duplicate_window_ms is not None
        guarded = guarded or any(limit is not None for limit in limits_)
        object.__setattr__(self, "guarded", guarded)
        examines = self.reads_messages or self.duplicate_window_ms is not None
        object.__setattr__(self, "examines", examines)

    def check(self) -> None:
        """Raises ValueError with the fields that don't go together."""
        wrong = orders.conflict(self.priorities, self.order, self.order_key, self.groups)
        if wrong is not None:
            raise ValueError(wrong)

    @property
    def reads_messages(self) -> bool:
        """Whether the queue looks into its messages: then it keeps all in memory, one run for each."""
        return self.order != orders.FIFO or self.groups or self.delay

    @property
    def arrangement(self) -> tuple[int, str, str, bool, bool]:
        """What says where in the queue a message stands: with the same one, nothing is arranged anew."""
        return self.priorities, self.order, self.order_key, self.groups, self.delay

    @property
    def is_special(self) -> bool:
        """Whether the queue does anything but hand out its messages by sequence."""
        return self.reads_messages or self.priorities > 1
