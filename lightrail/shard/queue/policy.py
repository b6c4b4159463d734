"""The policy of a queue machine: what it does beyond first in, first out."""

from dataclasses import dataclass

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
    def is_special(self) -> bool:
        """Whether the queue does anything but hand out its messages by sequence."""
        return self.reads_messages or self.priorities > 1
