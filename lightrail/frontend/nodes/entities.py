"""The entities of AMQP management: their types, their attributes, and their form as maps."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from lightrail.amqp.messages import plain
from lightrail.model.policy import BY_NAME, Policy, Role, fields_of
from lightrail.model.policy_fields import FIELDS
from lightrail.namespace.records import Name, Subscription

MANAGEMENT: Final = "org.amqp.management"
ENTITY: Final = "manageableEntity"
NAME: Final = "lightrail.name"
QUEUE: Final = "lightrail.queue"
SUBSCRIPTION: Final = "lightrail.subscription"

ROLE_OF: Final[Mapping[str, Role]] = {
    QUEUE: Role.QUEUE,
    "lightrail.router": Role.ROUTER,
    "lightrail.metadata": Role.METADATA,
    "lightrail.connection-point": Role.CONNECTION_POINT,
    NAME: Role.NONE,
}
TYPE_OF: Final[Mapping[Role, str]] = {role: name for name, role in ROLE_OF.items()}
SUPERTYPES: Final[Mapping[str, tuple[str, ...]]] = {
    MANAGEMENT: (ENTITY,),
    NAME: (ENTITY,),
    **{name: (NAME, ENTITY) for name in ROLE_OF if name != NAME},
    SUBSCRIPTION: (ENTITY,),
}

COMMON: Final = ("name", "identity", "type")
SHOWN: Final = ("revision", "created_at", "changed_at", "automatic", "given")
"""Attributes of a name beside its policy; they are read only."""
FIGURES: Final = "figures"
"""Attribute of a queue: a map of its figures, null if its shard does not answer. It is read only."""
_KINDS: Final[Mapping[str, tuple[type, str]]] = {
    "filter": (dict, "a map"),
    "action": (dict, "a map"),
    "rules": (dict, "a map"),
    "drop_failed": (bool, "a boolean"),
}
"""Types of attributes of subscriptions that are no texts, and their names."""
SUBSCRIPTION_FIELDS: Final = ("router", "target", "filter", "action", "rules", "expires_at", "drop_failed")

_CRUD: Final[Mapping[str, tuple[str, ...]]] = {"CREATE": (), "READ": (), "UPDATE": (), "DELETE": ()}
OPERATIONS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    MANAGEMENT: {
        "READ": (),
        "QUERY": ("entityType", "offset", "count"),
        "GET-TYPES": ("entityType",),
        "GET-ATTRIBUTES": ("entityType",),
        "GET-OPERATIONS": ("entityType",),
        "GET-MGMT-NODES": (),
        "renew-locks": ("link",),
    },
    **dict.fromkeys(ROLE_OF, _CRUD),
    QUEUE: {**_CRUD, "purge": (), "peek": ("from", "count"), "cancel-scheduled": ("sequence",)},
    SUBSCRIPTION: _CRUD,
}
"""Operations by type, and their application properties beside type, name and identity."""


class InvalidAttributeError(ValueError):
    """An attribute can't have this value; the message has what was expected and found."""


def attributes_of(type: str) -> tuple[str, ...]:
    """The names of all attributes of a type's entities."""
    if type == MANAGEMENT:
        return COMMON
    if type == SUBSCRIPTION:
        return (*COMMON, "id", *SUBSCRIPTION_FIELDS, "revision")
    if type == NAME:
        policy = tuple(field.name for field in FIELDS)
    else:
        policy = tuple(field.name for field in fields_of(ROLE_OF[type]))
    return (*COMMON, *SHOWN, *policy, *((FIGURES,) if type in (QUEUE, NAME) else ()))


@dataclass(frozen=True, slots=True)
class Entity:
    """One entity; `figures` of a queue are added by a request to its shard."""

    type: str
    identity: str
    attributes: dict[str, Any]
    queue: bool = False
    """Whether it has figures."""


def entity_of(record: Name) -> Entity:
    """A name with its policy, every field with its effective value."""
    type = TYPE_OF[record.role]
    attributes: dict[str, Any] = {
        "name": record.name,
        "identity": record.name,
        "type": type,
        "revision": record.revision,
        "created_at": _time(record.created_at_ms),
        "changed_at": _time(record.changed_at_ms),
        "automatic": record.automatic,
        "given": dict(record.policy.given),
    }
    for name, value in record.policy.effective().items():
        if name != "role":
            attributes[name] = value
    return Entity(type, record.name, attributes, record.role is Role.QUEUE)


def subscription_entity(subscription: Subscription) -> Entity:
    """A subscription; its identity is ROUTER//ID."""
    identity = f"{subscription.router}//{subscription.id}"
    attributes: dict[str, Any] = {
        "name": identity,
        "identity": identity,
        "type": SUBSCRIPTION,
        "id": subscription.id,
        "revision": subscription.revision,
    }
    for name in SUBSCRIPTION_FIELDS:
        value = getattr(subscription, name)
        attributes[name] = dict(value) if isinstance(value, Mapping) else value
    return Entity(SUBSCRIPTION, identity, attributes)


def policy_of(type: str, attributes: Mapping[str, Any], given: Mapping[str, Any]) -> Policy:
    """The policy `given`, changed by these attributes; null resets a field to its default.

    Raises:
        InvalidAttributeError, InvalidPolicyError: an attribute is unknown, read only, or has a wrong value.
    """
    fields = dict(given)
    for name, value in attributes.items():
        if name in SHOWN or name == FIGURES:
            raise InvalidAttributeError(f"{name} is read only; leave it out")
        if value is None and name in BY_NAME:
            fields.pop(name, None)
        else:
            fields[name] = value
    return Policy.parse({"role": str(ROLE_OF[type]), **fields})


def subscription_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a subscription in a body. Raises InvalidAttributeError."""
    fields: dict[str, Any] = {}
    for name, value in attributes.items():
        if name not in SUBSCRIPTION_FIELDS and name != "id":
            known = ", ".join(("id", *SUBSCRIPTION_FIELDS))
            raise InvalidAttributeError(
                f"{name} is no attribute of {SUBSCRIPTION} that can be set; those are {known}"
            )
        kinds = _KINDS.get(name, (str, "a text"))
        if value is not None and not isinstance(value, kinds[0]):
            expected = kinds[1]
            raise InvalidAttributeError(f"{name} is {value!r:.80}; expected {expected}")
        fields[name] = value
    return fields


def body_attributes(body: Any, type: str, identity: str) -> dict[str, Any]:
    """The attributes in the body of a CREATE or UPDATE, as values of JSON.

    `name`, `identity` and `type` may be among them if they agree with the request; they are left out.
    Raises InvalidAttributeError.
    """
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise InvalidAttributeError("expected the body to be an amqp-value with a map of attributes")
    attributes: dict[str, Any] = {}
    for key, value in body.items():
        if not isinstance(key, str):
            raise InvalidAttributeError(f"expected texts as names of attributes, found {key!r:.80}")
        try:
            attributes[str(key)] = plain(value)
        except ValueError as error:
            raise InvalidAttributeError(f"{key!s:.80}: {error}") from None
    for name, expected in (("name", identity), ("identity", identity), ("type", type)):
        found = attributes.pop(name, expected)
        if expected and found != expected:
            raise InvalidAttributeError(
                f"{name} is {found!r:.80} in the body and {expected!r:.80} in the request"
            )
    return attributes


def _time(ms: int) -> str | None:
    if not ms:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
