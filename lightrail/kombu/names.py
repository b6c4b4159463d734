"""Names: addresses and policies of the queues and exchanges of a virtual host at the broker.

A virtual host is a name, `kombu` if the URL has none; below it are `queue/NAME` and `exchange/NAME`. In AMQP
0-9-1 a queue and an exchange may have the same name, and Celery uses that.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kombu.exceptions import ChannelError

HOST: Final = "kombu"
PRIORITIES: Final = 10
"""Priorities of a queue with priorities: Kombu has 0 to 9."""
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
        """The address of a message: that of its exchange, or of the queue in its key without an exchange."""
        return self.exchange(exchange) if exchange else self.queue(routing_key)

    def bare(self, address: str | None) -> str | None:
        """Kombu's name of a queue; other addresses are returned unchanged."""
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
    """The policy of a queue. `x-expires` has no counterpart; Celery's internal queues rely on auto_delete.

    Args:
        delay: whether it keeps delayed messages; queues that are deleted with their consumer never do.
        arguments: of Kombu: x-message-ttl (ms), x-max-length, x-max-length-bytes, x-max-priority.
        more: fields of the policy from the application (transport option queue_policy).
    """
    # Prefetched messages of a worker that dies return as failed. As with RabbitMQ's classic queues they never
    # become dead letters, unless queue_policy has a max_delivery_count.
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
    """The policy of the router for an exchange.

    A durable direct exchange refuses messages without a bound queue: accepted tasks are in a queue. Messages
    of other exchanges (events, broadcasts, replies) often have no receiver. Raises ChannelError for other
    types.
    """
    if type not in EXCHANGE_TYPES:
        raise ChannelError(
            f"expected an exchange of type {', '.join(sorted(EXCHANGE_TYPES))}, found {type}: "
            "bind by routing keys"
        )
    return {"unroutable": "reject" if type == "direct" and durable else "drop"}


def binding_id(queue: str, routing_key: str) -> str:
    """The id of the subscription of a binding: the same in all processes."""
    return hashlib.sha256(f"{queue}\0{routing_key}".encode()).hexdigest()[:32]


def binding_filter(type: str, routing_key: str) -> dict[str, Any] | None:
    """The filter of a binding, None to match every message. Routing keys are subjects."""
    if type == "fanout":
        return None
    if type == "topic":
        return {"subject": routing_key}
    return {"properties": {"subject": routing_key}}
