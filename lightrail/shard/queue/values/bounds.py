"""Bounds: the limits of messages and bytes in a queue's policy, and how much of a batch still fits."""

from bisect import bisect_right
from dataclasses import replace
from typing import Final

from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Batch

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
