"""Policies: the role of a name and its behaviour, read from JSON and checked field by field.

A policy is an object with `role` and the fields of that role; FIELDS has the unit, range and default of each.
Unknown fields are refused by name. A policy is stored as the client wrote it, without defaults
(`Policy.given`), so that a later version may choose better ones; `Policy[...]` reads a field with its
default.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final

from lightrail.model.policy_field import COUNT_MAX, Field, instant_ms

SECONDS_MAX: Final = 10 * 365 * 86_400.0
"""Longest duration: ten years."""
BYTES_MAX: Final = 1 << 50
MESSAGE_BYTES_MAX: Final = 1 << 30
LOCK_SECONDS_DEFAULT: Final = 60.0
"""Lock of a peek over HTTP where the policy has none."""
CAPTURE_OF_ROUTER: Final = (
    "no such field for role router, which holds no messages that could be captured: subscribe a queue with "
    'capture to it, without a filter; {"role": "queue", "capture": true, "max_length": 1, "overflow": '
    '"discard_existing"} keeps every message in the archive and none waiting'
)


class Role(StrEnum):
    """The role of a name."""

    NONE = "none"
    METADATA = "metadata"
    CONNECTION_POINT = "connection-point"
    QUEUE = "queue"
    ROUTER = "router"


class InvalidPolicyError(ValueError):
    """A policy that can't be used: `field` (empty for the whole), what was found, what is allowed."""

    def __init__(self, field: str, found: Any, allowed: str) -> None:
        shown = found if isinstance(found, str) else json.dumps(found, default=str)
        where = f"{field} is {shown[:120]!a}" if field else f"the policy is {shown[:120]!a}"
        super().__init__(f"{where}; expected {allowed}")
        self.field = field
        self.found = found
        self.allowed = allowed


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
        "x-opt-delivery-time and x-opt-delivery-delay delay messages; a first delay by JMS sets it",
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
    _flag("capture", _QUEUE, "all events of its messages, and of its dead letters, are kept in the archive"),
    _count("replicas", _QUEUE, 1, 1, 1, "copies of the queue; later versions allow more"),
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
BY_NAME: Final[Mapping[str, Field]] = {field.name: field for field in FIELDS}


def _meant(name: object) -> str:
    """The field that a mistyped name may mean, as a part of a sentence."""
    near = get_close_matches(str(name), ["role", *BY_NAME], 1)
    return f" (is {near[0]} meant?)" if near else ""


def fields_of(role: Role) -> Iterable[Field]:
    """The fields that a policy of this role may have, in order."""
    return [field for field in FIELDS if role in field.roles]


def field_value(name: str, value: Any) -> Any:
    """The value of a field as it is stored. Raises InvalidPolicyError."""
    field = BY_NAME[name]
    if field.kind == "object" and isinstance(value, dict):
        return _inner(field, value)
    if not field.allows(value):
        raise InvalidPolicyError(field.name, value, field.allowed)
    return value


def _inner(field: Field, value: dict[str, Any]) -> dict[str, Any]:
    """A policy of a queue inside another policy, without its role. Raises InvalidPolicyError."""
    try:
        policy = Policy.parse({"role": "queue", **value})
    except InvalidPolicyError as error:
        raise InvalidPolicyError(f"{field.name}.{error.field}", error.found, error.allowed) from None
    if policy.role is not Role.QUEUE:
        raise InvalidPolicyError(field.name, value, field.allowed)
    return dict(policy.given)


@dataclass(frozen=True, slots=True)
class Policy:
    """A checked policy. `given` has the fields that differ from their defaults, without `role`."""

    role: Role
    given: Mapping[str, Any]

    @classmethod
    def parse(cls, value: Any) -> "Policy":
        """Check a decoded JSON value. Raises InvalidPolicyError: the field, what was found, what is
        allowed."""
        if not isinstance(value, dict):
            raise InvalidPolicyError("", value, 'a JSON object such as {"role": "queue"}')
        if "role" not in value:
            # The mistyped field may be the role itself.
            for name, found in value.items():
                if name not in BY_NAME:
                    raise InvalidPolicyError(str(name), found, f"no such field{_meant(name)}, and a role")
        try:
            role = Role(value.get("role", ""))
        except (ValueError, TypeError):
            raise InvalidPolicyError("role", value.get("role"), "one of " + ", ".join(Role)) from None
        given: dict[str, Any] = {}
        for name, found in value.items():
            if name == "role":
                continue
            field = BY_NAME.get(name)
            if field is None or role not in field.roles:
                if name == "capture" and role is Role.ROUTER:
                    raise InvalidPolicyError(name, found, CAPTURE_OF_ROUTER)
                known = ", ".join(each.name for each in fields_of(role))
                allowed = f"no such field for role {role}{_meant(name)}; it has {known}"
                raise InvalidPolicyError(str(name), found, allowed)
            checked = field_value(name, found)
            if checked != field.default:
                given[field.name] = checked
        policy = cls(role, given)
        policy._check_together()
        return policy

    def __getitem__(self, name: str) -> Any:
        return self.given.get(name, BY_NAME[name].default)

    def to_json(self) -> dict[str, Any]:
        """The policy without defaults."""
        return {"role": str(self.role), **self.given}

    def effective(self) -> dict[str, Any]:
        """The policy with all defaults."""
        return {"role": str(self.role)} | {field.name: self[field.name] for field in fields_of(self.role)}

    def milliseconds(self, name: str) -> int | None:
        """A duration in whole milliseconds, at least one unless it is 0; None where it is null."""
        value = self[name]
        return None if value is None else max(round(value * 1000), 1 if value else 0)

    @property
    def examines(self) -> bool:
        """Whether a queue reads fields of each message, for its order or to find duplicates."""
        is_ordered = self["order"] != "fifo" or self["groups"] or self["delay"]
        return bool(is_ordered or self["duplicate_window"] is not None)

    @property
    def expires_at_ms(self) -> int | None:
        """When the name falls back to none, in milliseconds since 1970, rounded up: never before its time."""
        text = self["expires_at"]
        return instant_ms(text) if text else None

    def _check_together(self) -> None:
        if self.role is Role.METADATA and not self["reference"]:
            raise InvalidPolicyError(
                "reference", None, BY_NAME["reference"].allowed + " (metadata has nothing else)"
            )
        if self.role is not Role.QUEUE:
            return
        if self["order"] != "fifo" and not self["order_key"]:
            raise InvalidPolicyError(
                "order_key", None, BY_NAME["order_key"].allowed + f" (order is {self['order']})"
            )
        if self["order"] == "fifo" and self["order_key"]:
            raise InvalidPolicyError("order", "fifo", "last_value or sorted beside an order_key")
        self._check_retries()
        special = [
            name
            for name, on in (
                ("priorities", self["priorities"] > 1),
                ("order", self["order"] != "fifo"),
                ("groups", self["groups"]),
            )
            if on
        ]
        if len(special) > 1:
            raise InvalidPolicyError(
                special[1],
                self[special[1]],
                f"only one of priorities, order and groups ({special[0]} is set)",
            )

    def _check_retries(self) -> None:
        """The fields of retries stand together. Raises InvalidPolicyError."""
        delay, longest = self["retry_delay"], self["retry_delay_max"]
        for name in ("retry_growth", "retry_delay_max"):
            if delay is None and name in self.given:
                allowed = BY_NAME["retry_delay"].allowed.removesuffix(", or null")
                raise InvalidPolicyError("retry_delay", None, f"{allowed} ({name} is set)")
        if longest is not None and longest < delay:
            raise InvalidPolicyError("retry_delay_max", longest, f"at least retry_delay, which is {delay:g}")


QUEUE: Final = Policy(Role.QUEUE, {})
"""The policy of a queue with all defaults."""
NONE: Final = Policy(Role.NONE, {})
"""The policy of a name without a role."""
