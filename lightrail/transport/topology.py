"""Topology: the queues, routers and subscriptions that an application expects of a broker, as data.

The fields have the names and meanings of LightRail's policies (docs/operate/policies.md).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightrail.transport.errors import TransportError


@dataclass(frozen=True, slots=True)
class QueueRules:
    """Rules of a queue; None leaves a rule to the broker.

    Attributes:
        delay: messages may be delayed until a time.
        groups: messages of one group are handled one after the other.
        max_delivery_count: failed deliveries that make a dead letter; 0: never.
        retry_delay: seconds that a message waits after its first failed delivery, unless the consumer names a
            time; dead letters of the queue that fail again wait in the same way.
        retry_growth: each further wait is that many times longer.
        retry_delay_max: seconds of the longest wait.
        lock_duration: seconds after which a message that is not settled is delivered again.
        duplicate_window: seconds within which a second message with the same id is dropped.
        max_age: seconds after which a message expires, if its own ttl is not shorter.
        max_length: messages that the queue may have.
    """

    delay: bool | None = True
    groups: bool | None = None
    max_delivery_count: int | None = None
    retry_delay: float | None = None
    retry_growth: float | None = None
    retry_delay_max: float | None = None
    lock_duration: float | None = None
    duplicate_window: float | None = None
    max_age: float | None = None
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription of a queue or router at a router.

    Attributes:
        router: source of the messages.
        id: name of the subscription, unique at its router.
        target: queue or router that receives the messages.
        subject: pattern of words of the subject, as orders.*.created or orders.#; None: all messages.
    """

    router: str
    id: str
    target: str
    subject: str | None = None


@dataclass(slots=True)
class Topology:
    """The queues, routers and subscriptions that have to exist.

    Attributes:
        queues: rules by name.
        routers: names of routers.
        subscriptions: of all routers.
    """

    queues: dict[str, QueueRules] = field(default_factory=dict)
    routers: set[str] = field(default_factory=set)
    subscriptions: list[Subscription] = field(default_factory=list)

    def refuse_contradictions(self) -> None:
        """Raises TopologyError for a name with two roles, or a subscription with two targets or filters."""
        both = sorted(self.routers & self.queues.keys())
        if both:
            raise TopologyError(
                f"expected each name to be a queue or a router, found both of {', '.join(both)}"
            )
        found: dict[tuple[str, str], Subscription] = {}
        for each in self.subscriptions:
            other = found.setdefault((each.router, each.id), each)
            if other != each:
                raise TopologyError(
                    f"expected one target and filter for the subscription {each.id} of {each.router}, found "
                    f"{other.target} with subject {other.subject or 'any'}, and {each.target} with subject "
                    f"{each.subject or 'any'}: give one of them another id"
                )


class TopologyError(TransportError):
    """The topology contradicts itself, or the names of the broker."""


def attributes_of(rules: QueueRules) -> Mapping[str, Any]:
    """The fields of a policy that the rules set."""
    found = {each.name: getattr(rules, each.name) for each in dataclasses.fields(rules)}
    return {name: value for name, value in found.items() if value is not None}
