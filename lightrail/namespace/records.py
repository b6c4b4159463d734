"""Records of the namespace: names, subscriptions and permissions as the coordinator's entries hold them.

Keys are `names/NAME`, `subscriptions/ROUTER//ID` and `permissions/USER//PREFIX`: names have no empty
segments, so two slashes end them; a user's name is percent-encoded. Values are JSON objects.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from urllib.parse import quote, unquote

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.entries import Entry
from lightrail.model.policy import NONE, InvalidPolicy, Policy, Role

NAMES: Final = "names/"
SUBSCRIPTIONS: Final = "subscriptions/"
PERMISSIONS: Final = "permissions/"


class Right(StrEnum):
    """What a user may do with a name."""

    MANAGE = "manage"
    SEND = "send"
    LISTEN = "listen"


@dataclass(frozen=True, slots=True)
class Name:
    """A name that was given a role."""

    name: str
    policy: Policy
    created: int = 0
    """Revision that gave it; another one after it was deleted and made again: then it is another queue."""
    revision: int = 0
    created_at_ms: int = 0
    changed_at_ms: int = 0
    owner: str = ""
    """Who it goes with, where its lifetime is not its own: `FRONTEND/BOOT/CONNECTION[/SESSION[/LINK]]`."""
    automatic: bool = False
    """It came into being by first use."""
    history: str = ""
    """Of the coordinator, see cluster/history.py: only there is `created` a time before or after another
    one.
    """

    @property
    def role(self) -> Role:
        return self.policy.role

    def is_another(self, before: "Name") -> bool:
        """Whether the name was deleted and made again since; of another history that is not known."""
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
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def read(cls, entry: Entry) -> "Name":
        """From the coordinator. Raises CoordinatorError when it is nothing that this version can read."""
        value = _value(entry)
        try:
            given = value["policy"]
            if given["role"] == Role.ROUTER and "capture" in given:
                # Allowed before anything was captured, and without a meaning.
                given = {key: found for key, found in given.items() if key != "capture"}
            policy = Policy.parse(given)
        except (InvalidPolicy, KeyError, TypeError) as error:
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
        )


@dataclass(frozen=True, slots=True)
class Subscription:
    """Messages of a router go to a queue, a router, or an HTTP endpoint."""

    router: str
    id: str
    target: str
    """A name, or a URL that begins with http:// or https://."""
    filter: Mapping[str, Any] | None = None
    """As lightrail/filters/filter.py reads it; None for every message."""
    action: Mapping[str, Any] | None = None
    """As lightrail/filters/action.py reads it."""
    expires_at: str | None = None
    revision: int = 0
    owner: str = ""
    """As of a name: it goes with this link, for the subscription of a receiver."""
    secret: str = ""
    """Key of the signature that pushes carry; never shown again after it was made."""

    @property
    def push(self) -> bool:
        """Whether it is pushed to a URL."""
        return self.target.startswith(("http://", "https://"))

    @property
    def key(self) -> str:
        return f"{SUBSCRIPTIONS}{self.router}//{self.id}"

    def shown(self) -> dict[str, Any]:
        """What people and programs are shown; no secret."""
        value: dict[str, Any] = {"id": self.id, "router": self.router, "target": self.target}
        for key in ("filter", "action", "expires_at"):
            if getattr(self, key) is not None:
                value[key] = getattr(self, key)
        return value

    def to_value(self) -> str:
        value: dict[str, Any] = {"target": self.target}
        for key in ("filter", "action", "expires_at", "owner", "secret"):
            if getattr(self, key):
                value[key] = getattr(self, key)
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def read(cls, entry: Entry) -> "Subscription":
        """From the coordinator. Raises CoordinatorError."""
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
        )


@dataclass(frozen=True, slots=True)
class Permission:
    """What a user may do with all names at or below a prefix; the empty prefix is everything."""

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
        """From the coordinator. Raises CoordinatorError."""
        user, _, prefix = entry.key.removeprefix(PERMISSIONS).partition("//")
        try:
            rights = frozenset(Right(each) for each in _value(entry)["rights"])
        except (KeyError, ValueError, TypeError) as error:
            raise CoordinatorError(f"the entry {entry.key} can't be read: {error}") from None
        return cls(unquote(user), prefix, rights, entry.revision)


def permission_key(user: str, prefix: str) -> str:
    return f"{PERMISSIONS}{quote(user, safe='')}//{prefix}"


def undefined(name: str) -> Name:
    """A name that nobody gave a role: it exists, as all do, and does nothing."""
    return Name(name, NONE)


def _value(entry: Entry) -> dict[str, Any]:
    try:
        value = json.loads(entry.value or "")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise CoordinatorError(f"the entry {entry.key} can't be read: expected a JSON object")
    return value
