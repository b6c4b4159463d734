"""Ages: how long messages live in queues behind a router, by the policies on their ways and by actions."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from lightrail.model.names import is_dead_letter

NEVER: Final = -1
"""In place of an age: messages do not expire, as they are dead letters. As a time to live: there is none."""
OWN: Final = -2
"""In place of an age: there is none, but some messages are a LivingCopy."""


class LivingCopy(bytes):
    """An encoded message whose time to live an action has set."""

    life_ms: int
    """In milliseconds, or NEVER."""


def living(message: bytes, life_ms: int) -> LivingCopy:
    """The message, which lives so long."""
    copy = LivingCopy(message)
    copy.life_ms = life_ms
    return copy


def life_of_copy(message: object) -> int | None:
    """The time to live that an action has set; None if that of the sender counts."""
    return message.life_ms if isinstance(message, LivingCopy) else None


def expiry(expires_at_ms: int, came_ms: int, age_ms: int | None, message: object = None) -> int:
    """When a message that came at a time expires in a queue by the age of its messages there (`ages_ms`).

    Args:
        expires_at_ms: by the message as it was sent, 0 for never.
        message: its copy for the queue, or one of several that live equally long.
    """
    life_ms = life_of_copy(message)
    if life_ms is not None:
        expires_at_ms = 0 if life_ms == NEVER else came_ms + life_ms
    if age_ms is None or age_ms == OWN:
        return expires_at_ms
    return 0 if age_ms == NEVER else earlier_expiry(expires_at_ms, came_ms + age_ms)


def earlier_expiry(expires_at_ms: int, latest_ms: int) -> int:
    """The earlier of an expiry (0 for none) and a time, in milliseconds since the epoch."""
    return min(expires_at_ms, latest_ms) if expires_at_ms else latest_ms


def ages_again(queues: Iterable[str], ages_ms: Mapping[str, int]) -> dict[str, int]:
    """The ages for messages that a former plan has made, by those of the present one.

    A time to live that an action has set stays, and dead letters don't expire, whatever the rules are now.
    """
    kept = {queue: NEVER if is_dead_letter(queue) else OWN for queue in queues}
    return kept | {queue: ages_ms[queue] for queue in kept.keys() & ages_ms.keys()}


def ages_behind(
    router: str,
    targets: Mapping[str, Sequence[str]],
    sources: Collection[str],
    ages_ms: Mapping[str, int | None],
    changed: Collection[str],
) -> dict[str, int]:
    """The age at which messages expire in each queue behind a router; queues without one are missing.

    It is the least of the routers and sources on a path, and with several paths to a queue the greatest of
    these. A source has the age of those before it, for what the last queue of its chain refuses.

    Args:
        targets: by router, and by queue that forwards: the queues and routers to which it sends messages.
        sources: the first queues of chains.
        ages_ms: the ages of the keys of `targets`, by their own policies.
        changed: queues and routers for which actions set the time to live.
    """
    if not changed and not any(ages_ms.values()):
        return {}
    behind: dict[str, dict[str, int | None]] = {}

    def walk(name: str) -> dict[str, int | None]:
        if name not in behind:
            ages: dict[str, int | None] = {}
            for target in targets[name]:
                inner = walk(target) if target in targets else {target: None}
                stored = {target: None} if target in sources else {}
                for queue, age in (inner | stored).items():
                    least = _least(ages_ms[name], age)
                    ages[queue] = _greatest(ages[queue], least) if queue in ages else least
            behind[name] = ages
        return behind[name]

    found = {queue: age for queue, age in walk(router).items() if age is not None}
    for name in changed:
        # A source stores what the last queue of its chain refuses.
        for queue in (name, *(walk(name) if name in targets else ())):
            found.setdefault(queue, OWN)
    return found


def _least(one: int | None, other: int | None) -> int | None:
    """The lesser of two ages; None is no bound."""
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


def _greatest(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)
