"""Policies: the role of a name and its behaviour, read from JSON and checked field by field.

A policy is an object with `role` and the fields of that role; policy_fields.py has the unit, range and
default of each.
Unknown fields are refused by name. A policy is stored as the client wrote it, without defaults
(`Policy.given`), so that a later version may choose better ones; `Policy[...]` reads a field with its
default.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from lightrail.model.policy_field import Field, instant_ms
from lightrail.model.policy_field import Role as Role
from lightrail.model.policy_fields import FIELDS

LOCK_SECONDS_DEFAULT: Final = 60.0
"""Lock of a peek over HTTP where the policy has none."""
CAPTURE_OF_ROUTER: Final = (
    "no such field for role router, which holds no messages that could be captured: subscribe a queue with "
    'capture to it, without a filter; {"role": "queue", "capture": true, "max_length": 1, "overflow": '
    '"discard_existing"} keeps every message in the archive and none waiting'
)


class InvalidPolicyError(ValueError):
    """A policy that can't be used: `field` (empty for the whole), what was found, what is allowed."""

    def __init__(self, field: str, found: Any, allowed: str) -> None:
        shown = found if isinstance(found, str) else json.dumps(found, default=str)
        where = f"{field} is {shown[:120]!a}" if field else f"the policy is {shown[:120]!a}"
        super().__init__(f"{where}; expected {allowed}")
        self.field = field
        self.found = found
        self.allowed = allowed


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
        if self["forward_to"] is not None:
            # Its one consumer is a gateway, whose restart must not delete it.
            wrong = "groups" if self["groups"] else "lifetime" if self["lifetime"] == "last_consumer" else ""
            if wrong:
                raise InvalidPolicyError("forward_to", self["forward_to"], f"null beside {wrong}")
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
