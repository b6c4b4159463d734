"""Orders: in which order a queue may deliver, and which of these features go together.

| | priorities | last_value | sorted | groups | delay |
|---|---|---|---|---|---|
| priorities | | no | no | no | yes |
| last_value | no | | no | no | yes |
| sorted | no | no | | no | yes |
| groups | no | no | no | | yes |

Consumers may select on each of them.
"""

from functools import cache
from typing import Final

from lightrail.model import limits

FIFO: Final = "fifo"
LAST_VALUE: Final = "last_value"
SORTED: Final = "sorted"
ORDERS: Final = (FIFO, LAST_VALUE, SORTED)
PRIORITY_MIXED: Final = 255
"""As priority of a batch: each message's own header says it. A queue that gets priorities while it holds such
batches delivers them first, in their order."""


def conflict(priorities: int, order: str, order_key: str, groups: bool) -> str | None:
    """What is wrong with these fields of a queue's policy: None if nothing is."""
    if not 1 <= priorities <= limits.PRIORITIES_MAX:
        return f"priorities: expected 1 to {limits.PRIORITIES_MAX} levels, found {priorities}"
    if order not in ORDERS:
        return f"order: expected one of {', '.join(ORDERS)}, found {order}"
    if order != FIFO and not order_key:
        return f"order_key: expected the field of the message that is the key of {order}, found none"
    if order == FIFO and order_key:
        return f"order_key: expected none with order fifo, found {order_key}: set last_value or sorted"
    asked = [name for name, is_asked in (("groups", groups), ("priorities", priorities > 1)) if is_asked]
    if order != FIFO:
        asked.append(f"order {order}")
    if len(asked) > 1:
        return (
            f"expected one of groups, priorities and order (each says which message is next), found"
            f" {' and '.join(asked)}; choose one of them (delay goes with each)"
        )
    return None


def level(priority: int, levels: int) -> int:
    """The level, from 0, of an AMQP priority in a queue that has so many.

    As messaging 3.2.1 has it for fewer than ten distinct priorities: they are told apart around the normal
    one, 4. Two levels part at 4|5 (JMS: normal and expedited), three have 4 for itself, ten are the
    priorities as they are; what is above 9 is 9.
    """
    lowest = 5 - (levels + 1) // 2
    return min(max(priority - lowest, 0), levels - 1)


@cache
def ranks(levels: int) -> tuple[int, ...]:
    """By AMQP priority, 0 to 255: the higher its level, the lower the rank."""
    return tuple(-level(priority, levels) for priority in range(256))
