"""Ages: how long messages live in the queues behind a router, by the policies on their ways."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

NEVER: Final = -1
"""In place of an age: messages do not expire, since they are dead letters."""


def expiry(expires_at_ms: int, came_ms: int, age_ms: int | None) -> int:
    """When a message that came at a time expires in a queue by the age of its messages there (`ages_ms`).

    Args:
        expires_at_ms: by the message itself, 0 for never.
    """
    if age_ms is None:
        return expires_at_ms
    return 0 if age_ms == NEVER else earlier_expiry(expires_at_ms, came_ms + age_ms)


def earlier_expiry(expires_at_ms: int, latest_ms: int) -> int:
    """The earlier of an expiry (0 for none) and a time, in milliseconds since the epoch."""
    return min(expires_at_ms, latest_ms) if expires_at_ms else latest_ms


def ages_behind(
    router: str,
    targets: Mapping[str, Sequence[str]],
    sources: Collection[str],
    ages_ms: Mapping[str, int | None],
) -> dict[str, int]:
    """The age at which messages expire in each queue behind a router; queues without one are missing.

    It is the least of the routers and sources on a path, and with several paths to a queue the greatest of
    these. A source has the age of those before it, for what the last queue of its chain refuses.

    Args:
        targets: by router, and by queue that forwards: the queues and routers to which it sends messages.
        sources: the first queues of chains.
        ages_ms: the ages of the keys of `targets`, by their own policies.
    """
    if not any(ages_ms.values()):
        return {}
    behind: dict[str, dict[str, int | None]] = {}

    def walk(name: str) -> dict[str, int | None]:
        if name not in behind:
            found: dict[str, int | None] = {}
            for target in targets[name]:
                inner = walk(target) if target in targets else {target: None}
                stored = {target: None} if target in sources else {}
                for queue, age in (inner | stored).items():
                    least = _least(ages_ms[name], age)
                    found[queue] = _greatest(found[queue], least) if queue in found else least
            behind[name] = found
        return behind[name]

    return {queue: age for queue, age in walk(router).items() if age is not None}


def _least(one: int | None, other: int | None) -> int | None:
    """The lesser of two ages; None is no bound."""
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


def _greatest(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)
