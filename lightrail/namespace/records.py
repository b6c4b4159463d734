"""Records of the namespace: names, subscriptions and permissions as entries of the coordinator.

Keys are `names/NAME`, `subscriptions/ROUTER//ID` and `permissions/USER//PREFIX`: names have no empty
segments, so two slashes end them; a user's name is percent-encoded. Values are JSON objects. The
authorization rules of a name are in its entry, with sealed keys (service_bus/rule_keys.py), so that they end
with the name.

Shared policies: equal policies are parsed once and are one object, since many names have the same.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.entries import Entry
from lightrail.model import limits
from lightrail.model.policy import NONE, QUEUE, InvalidPolicyError, Policy, Role, fields_of


def shared_policy(value: Any) -> Policy:
    """See Policy.parse."""
    try:
        return _parsed(*chain.from_iterable(value.items()))
    except (TypeError, AttributeError):
        # Values that can't be hashed, such as a template, and what is no object at all.
        return Policy.parse(value)


@lru_cache(maxsize=limits.EQUAL_VALUES_MAX, typed=True)
def _parsed(*items: Any) -> Policy:
    """The policy of these names and values, one after the other; `typed`, since 1 is no flag and True is."""
    return Policy.parse(dict(zip(items[::2], items[1::2], strict=True)))


NAMES: Final = "names/"
SUBSCRIPTIONS: Final = "subscriptions/"
PERMISSIONS: Final = "permissions/"
PLACED: Final = frozenset({Role.QUEUE, Role.CONNECTION_POINT})
"""Roles that live on a shard."""


class Right(StrEnum):
    """A right of a user on a name."""

    MANAGE = "manage"
    SEND = "send"
    LISTEN = "listen"


_DISABLED: Final[Mapping[str, frozenset[Right]]] = {
    "active": frozenset(),
    "disabled": frozenset((Right.SEND, Right.LISTEN)),
    "send_disabled": frozenset((Right.SEND,)),
    "receive_disabled": frozenset((Right.LISTEN,)),
}
"""By the status of a name: the uses that it refuses."""


def refused_by_status(policy: Policy, right: Right) -> str:
    """Why the status of a name refuses links and requests that send or listen; empty where it does not.

    A router refuses no listener: what it sends to subscribers is theirs.
    """
    status = policy["status"]
    if right not in _DISABLED[status] or (policy.role is Role.ROUTER and right is Right.LISTEN):
        return ""
    what = "sent to it" if right is Right.SEND else "received from it"
    return f"its status is {status}, and nothing is {what} until a manager changes that"


def refused_by_forwarding(policy: Policy, right: Right) -> str:
    """Why nobody may listen at a queue that forwards its messages; empty for others."""
    if right is not Right.LISTEN or policy["forward_to"] is None:
        return ""
    return f"it forwards its messages to {policy['forward_to']}: receive them there"


DIGEST_BYTES: Final = 16


class SealedKey(NamedTuple):
    """A key of an authorization rule, as it is stored."""

    digest: bytes
    """Of the rule's name and the key, under the secret: equal for equal keys, and says nothing else."""
    cipher: bytes

    @property
    def text(self) -> str:
        """Both in base64."""
        return base64.b64encode(self.digest + self.cipher).decode()

    @classmethod
    def read(cls, text: str) -> "SealedKey":
        """Decodes such a text. Raises ValueError, TypeError."""
        found = base64.b64decode(text, validate=True)
        if len(found) <= DIGEST_BYTES:
            raise ValueError(f"expected a sealed key of more than {DIGEST_BYTES} bytes, found {len(found)}")
        return cls(found[:DIGEST_BYTES], found[DIGEST_BYTES:])


class AuthorizationRule(NamedTuple):
    """Rights at one queue or router of everybody who has one of two keys, under a name for them."""

    name: str
    rights: frozenset[Right]
    primary: SealedKey
    secondary: SealedKey
    created_at_ms: int = 0
    changed_at_ms: int = 0

    def has_key(self, digest: bytes) -> bool:
        return digest in (self.primary.digest, self.secondary.digest)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "rights": sorted(self.rights),
            "keys": [self.primary.text, self.secondary.text],
            "created_at_ms": self.created_at_ms,
            "changed_at_ms": self.changed_at_ms,
        }

    @classmethod
    def read(cls, value: Any) -> "AuthorizationRule":
        """Decodes such an object. Raises KeyError, TypeError, ValueError."""
        primary, secondary = map(SealedKey.read, value["keys"])
        rights = frozenset(map(Right, value["rights"]))
        times = int(value["created_at_ms"]), int(value["changed_at_ms"])
        return cls(str(value["name"]), rights, primary, secondary, *times)


Rules = tuple[AuthorizationRule, ...]


@dataclass(frozen=True, slots=True)
class Name:
    """A name with a role."""

    name: str
    policy: Policy
    created: int = 0
    """Revision that created the entry. A name that was deleted and created again has a different revision,
    and is a different queue."""
    revision: int = 0
    created_at_ms: int = 0
    changed_at_ms: int = 0
    owner: str = ""
    """The client whose end deletes the name, as `FRONTEND/BOOT/CONNECTION[/SESSION[/LINK]]`; empty for
    none."""
    automatic: bool = False
    """Whether the name was created by its first use."""
    history: str = ""
    """Id of the coordinator's history (cluster/history.py). Values of `created` compare only within one
    history.
    """
    authorization_rules: Rules = ()

    @property
    def role(self) -> Role:
        return self.policy.role

    def is_another(self, before: "Name") -> bool:
        """Whether the name was deleted and created again since; unknown, hence False, across histories."""
        return self.history == before.history and self.created != before.created

    def to_value(self) -> str:
        value: dict[str, Any] = {"policy": self.policy.to_json()}
        for key, found in (
            ("created_at_ms", self.created_at_ms),
            ("changed_at_ms", self.changed_at_ms),
            ("owner", self.owner),
            ("automatic", self.automatic),
        ):
            if found:
                value[key] = found
        if self.authorization_rules:
            value["authorization_rules"] = [each.to_json() for each in self.authorization_rules]
        return json.dumps(value, separators=(",", ":"))

    def authorization_rule(self, name: str) -> AuthorizationRule | None:
        """The rule of this name; case makes a difference."""
        return next((each for each in self.authorization_rules if each.name == name), None)

    @classmethod
    def read(cls, entry: Entry, history: str = "") -> "Name":
        """Decode an entry of the coordinator. Raises CoordinatorError for one that this version can't
        read."""
        value = _value(entry)
        try:
            given = value["policy"]
            if given["role"] == Role.ROUTER and "capture" in given:
                # Earlier versions allowed `capture` for routers, where it had no effect.
                given = {key: found for key, found in given.items() if key != "capture"}
            policy = shared_policy(given)
            rules = tuple(map(AuthorizationRule.read, value.get("authorization_rules", ())))
        except (InvalidPolicyError, KeyError, TypeError, ValueError) as error:
            raise CoordinatorError(f"the entry {entry.key} can't be read: {error}") from None
        return cls(
            entry.key.removeprefix(NAMES),
            policy,
            entry.created,
            entry.revision,
            int(value.get("created_at_ms", 0)),
            int(value.get("changed_at_ms", 0)),
            str(value.get("owner", "")),
            bool(value.get("automatic", False)),
            history,
            rules,
        )


def is_url(target: str) -> bool:
    """Whether the target of a subscription is a URL, and not a name."""
    return target.startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription: messages of a router go to a queue, a router, or an HTTP endpoint."""

    router: str
    id: str
    target: str
    """A name, or a URL that begins with http:// or https://."""
    filter: Mapping[str, Any] | None = None
    """JSON of a filter (lightrail/filters/filter.py); None for every message."""
    action: Mapping[str, Any] | None = None
    """JSON of an action (lightrail/filters/action.py)."""
    expires_at: str | None = None
    revision: int = 0
    owner: str = ""
    """The link whose end deletes the subscription of a receiver, in the form of `Name.owner`."""
    secret: str = ""
    """Key that signs pushes; shown only in the answer that creates the subscription."""
    no_local: str = ""
    """Container-id of a client whose messages the subscription does not receive; empty for none."""
    rules: Mapping[str, Mapping[str, Any]] | None = None
    """Instead of one filter and one action: by name, objects with `filter` and `action` (rules.py)."""
    drop_failed: bool | None = None
    """True if a message for which a rule has no result is dropped for this subscription, None if it becomes a
    dead letter of the target."""

    @property
    def push(self) -> bool:
        """Whether the target is a URL."""
        return is_url(self.target)

    @property
    def key(self) -> str:
        return f"{SUBSCRIPTIONS}{self.router}//{self.id}"

    @property
    def filter_bytes(self) -> int:
        """Bytes of the filters and actions as JSON, which count towards FILTERS_BYTES_MAX."""
        given = [each for each in (self.filter, self.action, self.rules) if each]
        return len(json.dumps(given)) if given else 0

    def shown(self) -> dict[str, Any]:
        """The subscription in the form of HTTP and commands, without the secret."""
        value: dict[str, Any] = {"id": self.id, "router": self.router, "target": self.target}
        for key in ("filter", "action", "rules", "expires_at", "drop_failed"):
            if getattr(self, key) is not None:
                value[key] = getattr(self, key)
        return value

    def to_value(self) -> str:
        value: dict[str, Any] = {"target": self.target}
        for key in ("filter", "action", "expires_at", "owner", "secret", "no_local", "drop_failed"):
            if getattr(self, key):
                value[key] = getattr(self, key)
        if self.rules is not None:
            value["rules"] = self.rules
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def read(cls, entry: Entry) -> "Subscription":
        """Decode an entry of the coordinator. Raises CoordinatorError."""
        router, _, id = entry.key.removeprefix(SUBSCRIPTIONS).partition("//")
        value = _value(entry)
        return cls(
            router,
            id,
            str(value.get("target", "")),
            value.get("filter"),
            value.get("action"),
            value.get("expires_at"),
            entry.revision,
            str(value.get("owner", "")),
            str(value.get("secret", "")),
            str(value.get("no_local", "")),
            value.get("rules"),
            bool(value.get("drop_failed")) or None,
        )


@dataclass(frozen=True, slots=True)
class Permission:
    """Rights of a user on all names at or below a prefix; the empty prefix means all names."""

    user: str
    prefix: str
    rights: frozenset[Right] = field(default_factory=frozenset)
    revision: int = 0

    @property
    def key(self) -> str:
        return permission_key(self.user, self.prefix)

    def to_value(self) -> str:
        return json.dumps({"rights": sorted(self.rights)})

    @classmethod
    def read(cls, entry: Entry) -> "Permission":
        """Decode an entry of the coordinator. Raises CoordinatorError."""
        user, _, prefix = entry.key.removeprefix(PERMISSIONS).partition("//")
        try:
            rights = frozenset(Right(each) for each in _value(entry)["rights"])
        except (KeyError, ValueError, TypeError) as error:
            raise CoordinatorError(f"the entry {entry.key} can't be read: {error}") from None
        return cls(unquote(user), prefix, rights, entry.revision)


def permission_key(user: str, prefix: str) -> str:
    return f"{PERMISSIONS}{quote(user, safe='')}//{prefix}"


_OF_DEAD_LETTERS: Final = (
    "authorization",
    "transport_protection",
    "discoverability",
    "capture",
    "retry_delay",
    "retry_growth",
    "retry_delay_max",
    "lock_ends",
    "durable",
)


def dead_letter_policy(policy: Policy) -> Policy:
    """The policy of `NAME/$dlq`: fields of the policy of NAME that hold for its dead letters as well."""
    given = {key: policy.given[key] for key in _OF_DEAD_LETTERS if key in policy.given}
    return Policy(Role.QUEUE, given) if given else QUEUE


def policy_at_first_use(role: Role, template: Policy, before: Name) -> Policy:
    """The policy of a name without a role that is used as a queue, or as a router.

    Templates are policies of queues: a router gets those of their fields that it has. It drops messages
    without a subscriber, as senders to a topic expect it (JMS 2.0, 4.2).
    """
    given = {**template.given, **before.policy.given}
    if role is Role.ROUTER:
        known = {field.name for field in fields_of(Role.ROUTER)}
        given = {"unroutable": "drop"} | {name: value for name, value in given.items() if name in known}
    return Policy(role, given)


def policy_from(text: bytes | str) -> Policy:
    """A policy from JSON text. Raises InvalidPolicyError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidPolicyError("", str(error), 'a JSON object such as {"role": "queue"}') from None
    return Policy.parse(value)


def undefined(name: str) -> Name:
    """The record of a name without an entry."""
    return Name(name, NONE)


def _value(entry: Entry) -> dict[str, Any]:
    try:
        value = json.loads(entry.value or "")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise CoordinatorError(f"the entry {entry.key} can't be read: expected a JSON object")
    return value
