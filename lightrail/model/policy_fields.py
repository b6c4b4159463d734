"""The fields of policies: the unit, range and default of each, by the roles that have them."""

from typing import Any, Final

from lightrail.model.policy_field import COUNT_MAX, Field, Role

SECONDS_MAX: Final = 10 * 365 * 86_400.0
"""Longest duration: ten years."""
BYTES_MAX: Final = 1 << 50
MESSAGE_BYTES_MAX: Final = 1 << 30
REPLICAS_MAX: Final[int] = 7
"""Members of one shard, which cluster/replica_sets.py bounds."""

_ALL: Final = frozenset(Role)
_HOLDERS: Final = frozenset({Role.QUEUE, Role.ROUTER, Role.CONNECTION_POINT})
_KEEPERS: Final = frozenset({Role.QUEUE, Role.ROUTER})
_QUEUE: Final = frozenset({Role.QUEUE})
_ROUTER: Final = frozenset({Role.ROUTER})
_METADATA: Final = frozenset({Role.METADATA})


def _seconds(name: str, roles: frozenset[Role], doc: str, low: float = 0, default: Any = None) -> Field:
    return Field(name, roles, "seconds", default, doc, low, SECONDS_MAX)


def _count(name: str, roles: frozenset[Role], default: Any, low: int, high: int, doc: str) -> Field:
    return Field(name, roles, "count", default, doc, low, high)


def _flag(name: str, roles: frozenset[Role], doc: str) -> Field:
    return Field(name, roles, "boolean", False, doc)


def _choice(name: str, roles: frozenset[Role], default: str, choices: tuple[str, ...], doc: str) -> Field:
    return Field(name, roles, "choice", default, doc, choices=choices)


FIELDS: Final[tuple[Field, ...]] = (
    # --- every role
    _choice(
        "authorization",
        _ALL,
        "required",
        ("required", "send", "listen", "none"),
        "which links need a right once users exist: required (all of them), only send, only listen, none",
    ),
    _choice(
        "discoverability",
        _ALL,
        "public",
        ("public", "managers"),
        "who sees the name in lists: everybody who may use it, or only its managers",
    ),
    Field("expires_at", _ALL, "time", None, "when the name falls back to role none unless it is renewed"),
    _choice(
        "transport_protection",
        _ALL,
        "none",
        ("none", "tls"),
        "tls: links and requests without TLS are refused",
    ),
    Field(
        "auto_create",
        _ALL,
        "boolean",
        None,
        "whether names below become queues at their first use; null: as the name above",
    ),
    Field("template", _ALL, "object", None, "policy of queues that are created below by first use"),
    Field("description", _ALL, "text", "", "for people", 0, 1024),
    Field("service_bus", _KEEPERS, "text", "", "NAME=VALUE, set and read by clients of Azure alone", 0, 1024),
    # --- what takes messages
    Field(
        "max_message_bytes",
        _HOLDERS,
        "bytes",
        None,
        "largest message; null: the server's",
        1,
        MESSAGE_BYTES_MAX,
    ),
    _choice(
        "status",
        _KEEPERS,
        "active",
        ("active", "disabled", "send_disabled", "receive_disabled"),
        "what links and requests are refused: nothing, all that send or receive, only those that send, only "
        "those that receive; what a router sends to a queue is stored, and subscribers receive it",
    ),
    # --- metadata
    Field("reference", _METADATA, "text", "", "URI of the resource", 1, 4096),
    # --- queue
    _choice(
        "durable",
        _QUEUE,
        "default",
        ("default", "always", "never"),
        "which messages are on disk before they are accepted: durable ones, all, none",
    ),
    _seconds(
        "max_age",
        _KEEPERS,
        "age at which a message expires, if its own ttl is not shorter; at a router: in the queues behind "
        "it, counted from when it routes the message",
        0.001,
    ),
    _count(
        "max_delivery_count",
        _QUEUE,
        None,
        0,
        1_000_000,
        "failed deliveries that make a dead letter; 0 never; null: the server's",
    ),
    _seconds(
        "retry_delay",
        _QUEUE,
        "how long a message waits after its first failed delivery before it is delivered again; null: not at "
        "all",
        0.001,
    ),
    Field(
        "retry_growth",
        _QUEUE,
        "number",
        1,
        "each further wait is that many times longer than the one before",
        1,
        100,
    ),
    _seconds("retry_delay_max", _QUEUE, "longest wait; null: a hundred times retry_delay", 0.001),
    _seconds(
        "lock_duration",
        _QUEUE,
        "lock of a delivery; null: 60 over HTTP, the life of the link over AMQP",
        0.05,
    ),
    _choice(
        "lock_ends",
        _QUEUE,
        "time",
        ("time", "link"),
        "what ends locks of lock_duration for clients of Azure Service Bus that attach from now on: time "
        "alone, or the end of their link as well, as for other clients",
    ),
    _count("max_length", _QUEUE, None, 0, COUNT_MAX, "most messages, unsettled deliveries included"),
    Field("max_bytes", _QUEUE, "bytes", None, "most bytes of messages", 0, BYTES_MAX),
    _choice(
        "overflow",
        _QUEUE,
        "reject",
        ("reject", "discard_incoming", "discard_existing", "flow_control", "flow_to_disk"),
        "what happens to messages beyond max_length or max_bytes",
    ),
    _seconds(
        "enqueue_timeout",
        _QUEUE,
        "how long a sender waits while the queue is full; null: 0, with flow_control for ever",
    ),
    Field("dead_letter", _QUEUE, "name", None, "name that gets dead letters; null: NAME/$dlq"),
    Field(
        "forward_to",
        _QUEUE,
        "name",
        None,
        "queue or router that gets all messages of this queue, from which nobody receives then; what the "
        "target refuses is in NAME/$transfer/$dlq",
    ),
    _choice(
        "expired", _QUEUE, "dead_letter", ("dead_letter", "discard"), "what becomes of messages that expire"
    ),
    _count(
        "priorities", _QUEUE, 1, 1, 10, "levels of priority; messages stored before a change may come first"
    ),
    _choice(
        "order",
        _QUEUE,
        "fifo",
        ("fifo", "last_value", "sorted"),
        "which message is delivered next, and which one is kept per key",
    ),
    Field("order_key", _QUEUE, "key", None, "field that is the key of last_value and sorted"),
    _flag("groups", _QUEUE, "messages of one group-id go to one consumer at a time, in order"),
    _seconds(
        "duplicate_window", _QUEUE, "time in which only one message of each message-id is stored", 0.001
    ),
    _flag(
        "delay",
        _QUEUE,
        "x-opt-delivery-time and x-opt-delivery-delay delay messages; a first delay by JMS sets it, and "
        "a rule that schedules, by Azure's clients",
    ),
    _count("max_consumers", _QUEUE, None, 1, COUNT_MAX, "most consumers at a time"),
    _flag("single_active", _QUEUE, "one consumer gets all messages; when it closes, the next takes over"),
    _flag("exclusive", _QUEUE, "a second consumer is refused"),
    _choice(
        "lifetime",
        _QUEUE,
        "permanent",
        ("permanent", "connection", "session", "link", "last_consumer"),
        "what deletes the queue at its end: nothing, its last consumer, or the connection, session or link "
        "that created it by first use (in a template) or as a dynamic node",
    ),
    _seconds(
        "max_idle",
        _KEEPERS,
        "time without use after which the queue is deleted, with its messages: nobody sends, receives, "
        "peeks, settles or changes it, and no message waits for its time; or the router with the queues of "
        "its subscriptions: nobody sends to it, or uses one of them",
        300,
    ),
    _flag("capture", _QUEUE, "all events of its messages, and of its dead letters, are kept in the archive"),
    _count(
        "replicas",
        _QUEUE,
        1,
        1,
        REPLICAS_MAX,
        "the queue is on a shard that is to have at least so many members, each with all of its messages; "
        "where it is on another one, it moves",
    ),
    # --- router
    _choice(
        "distribution",
        _ROUTER,
        "all",
        ("all", "one"),
        "a message goes to every subscriber, or to one chosen at random",
    ),
    _count("max_subscribers", _ROUTER, None, 1, 1_000_000, "most subscriptions"),
    _choice(
        "unroutable",
        _ROUTER,
        "reject",
        ("reject", "drop"),
        "what happens to a message without a matching subscriber",
    ),
    _seconds("buffer_timeout", _ROUTER, "how long a sender waits for the first subscriber", 0, 0),
    _count("push_retries", _ROUTER, 10, 0, 1_000, "further attempts to push a message to a URL"),
    _seconds(
        "push_backoff",
        _ROUTER,
        "pause before the first of them; it doubles up to a hundred times this",
        0.01,
        1.0,
    ),
)
