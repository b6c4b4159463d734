"""Orders: the features that decide which message a queue delivers next, and which of them combine.

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

PRIORITIES_MAX: Final[int] = 10
"""Levels of priority of a queue, as in JMS; AMQP's header has 256 values, of which ten are in use."""
FIFO: Final = "fifo"
LAST_VALUE: Final = "last_value"
SORTED: Final = "sorted"
ORDERS: Final = (FIFO, LAST_VALUE, SORTED)
PRIORITY_MIXED: Final = 255
"""Priority of a batch whose messages have different ones in their headers. A queue that gets `priorities`
while it holds such batches delivers them first, in their order."""


def conflict(priorities: int, order: str, order_key: str, groups: bool) -> str | None:
    """The error in these fields of a queue's policy, or None."""
    if not 1 <= priorities <= PRIORITIES_MAX:
        return f"priorities: expected 1 to {PRIORITIES_MAX} levels, found {priorities}"
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
    """The level, from 0, of an AMQP priority in a queue with so many levels.

    As in messaging 3.2.1 for fewer than ten distinct priorities, the levels lie around the normal one, 4. Two
    levels part at 4|5 (JMS: normal and expedited), three have 4 for itself, ten are the priorities
    themselves; above 9 counts as 9.
    """
    lowest = 5 - (levels + 1) // 2
    return min(max(priority - lowest, 0), levels - 1)


@cache
def ranks(levels: int) -> tuple[int, ...]:
    """The rank of each AMQP priority, 0 to 255: the higher the level, the lower the rank."""
    return tuple(-level(priority, levels) for priority in range(256))
