"""Names: where the queues and exchanges of a virtual host are in the broker, and what they are there.

A virtual host is a name, `kombu` where the URL has none; below it are `queue/NAME` and `exchange/NAME`.
AMQP 0-9-1 lets a queue and an exchange have one name, and Celery makes use of that.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kombu.exceptions import ChannelError

HOST: Final = "kombu"
PRIORITIES: Final = 10
"""Levels of a queue that has any: Kombu's priorities go from 0 to 9."""
EXCHANGE_TYPES: Final = frozenset(("direct", "topic", "fanout"))


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one virtual host."""

    host: str = HOST

    @classmethod
    def of(cls, virtual_host: str | None) -> "Names":
        return cls((virtual_host or "").strip("/") or HOST)

    def queue(self, name: str) -> str:
        return f"{self.host}/queue/{name}"

    def exchange(self, name: str) -> str:
        return f"{self.host}/exchange/{name}"

    def target(self, exchange: str, routing_key: str) -> str:
        """Where a message goes: the exchange without a name leads to the queue that the key names."""
        return self.exchange(exchange) if exchange else self.queue(routing_key)

    def bare(self, address: str | None) -> str | None:
        """The name of a queue, as Kombu knows it; another address stays as it is."""
        return None if address is None else address.removeprefix(f"{self.host}/queue/")


def queue_policy(
    *,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    delay: bool,
    arguments: Mapping[str, Any],
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """The policy of a queue. `x-expires` has no counterpart; auto_delete is what Celery's own queues rely on.

    Args:
        delay: whether it keeps delayed messages; queues that go with their consumer never do.
        arguments: of Kombu: x-message-ttl (ms), x-max-length, x-max-length-bytes, x-max-priority.
        more: fields of the policy that the application gives (transport option queue_policy).
    """
    # A worker that dies returns what it prefetched as failed. As with RabbitMQ's classic queues that never
    # makes a dead letter, unless queue_policy says so.
    policy: dict[str, Any] = {"max_delivery_count": 0}
    if not durable:
        policy["durable"] = "never"
    if exclusive:
        policy["exclusive"] = True
    if auto_delete or exclusive:
        policy["lifetime"] = "last_consumer"
    elif delay:
        policy["delay"] = True
    if arguments.get("x-max-priority"):
        policy["priorities"] = PRIORITIES
    if arguments.get("x-message-ttl"):
        policy["max_age"] = arguments["x-message-ttl"] / 1000
    if arguments.get("x-max-length"):
        policy["max_length"] = int(arguments["x-max-length"])
    if arguments.get("x-max-length-bytes"):
        policy["max_bytes"] = int(arguments["x-max-length-bytes"])
    return {**policy, **more}


def exchange_policy(type: str, durable: bool) -> dict[str, Any]:
    """The policy of the router that an exchange is.

    A durable direct exchange refuses what no queue is bound for: tasks that are accepted are in a queue. With
    others (events, broadcasts, replies) it is usual that nobody listens. Raises ChannelError for other types.
    """
    if type not in EXCHANGE_TYPES:
        raise ChannelError(
            f"expected an exchange of type {', '.join(sorted(EXCHANGE_TYPES))}, found {type}: "
            "bind by routing keys"
        )
    return {"unroutable": "reject" if type == "direct" and durable else "drop"}


def binding_id(queue: str, routing_key: str) -> str:
    """The subscription of a binding: the same for whoever declares it."""
    return hashlib.sha256(f"{queue}\0{routing_key}".encode()).hexdigest()[:32]


def binding_filter(type: str, routing_key: str) -> dict[str, Any] | None:
    """What a binding lets through; None is everything. Routing keys are subjects."""
    if type == "fanout":
        return None
    if type == "topic":
        return {"subject": routing_key}
    return {"properties": {"subject": routing_key}}
