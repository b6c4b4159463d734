"""Rights: who may manage, send to and listen at a name, for AMQP and HTTP alike.

Resources: what a signature opens, which bounds the rights of its user (ADR 50).

Entities: queues and routers, at which the rights of their authorization rules begin and end (ADR 70).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from urllib.parse import unquote

from lightrail.model import names
from lightrail.model.names import TEMPORARY_SEGMENT, InvalidNameError, queue_name
from lightrail.model.policy import Role
from lightrail.namespace.deleting import OWN_QUEUE
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name, Right

SCHEMES: Final = frozenset({"amqp", "amqps", "sb", "http", "https"})
"""Schemes of resources and audiences that are URIs; only their path counts."""
MANAGEMENT_SUFFIX: Final = "/$management"
"""Suffix of a resource that is the management node of a name: the signature is for the name."""
_TEMPORARY: Final = f"{TEMPORARY_SEGMENT}/"


class Resource(NamedTuple):
    """What a signature opens, by its signed text alone: nothing that its holder sends decides about it.

    A resource with a scheme is a URI, and its path counts: a broker has many hosts and ports. A resource
    without one is a path, and never begins with a host: who may choose the host would decide how much of the
    path is left (ADR 50).
    """

    path: str
    """A name, decoded, or another path of HTTP; empty for everything."""
    exact: bool = False
    """Whether it is the URI of one request, with its query: it opens its path, and nothing below."""

    @property
    def is_name(self) -> bool:
        """Whether it bounds names; False for everything, and for paths of the broker's own (`!status`)."""
        return bool(self.path) and (not self.path.startswith(("!", "$")) or self.path.startswith(_TEMPORARY))

    def opens(self, path: str) -> bool:
        """Whether it opens a name or another path, byte by byte."""
        if self.exact:
            return self.path == path
        return not self.path or f"{path}/".startswith(f"{self.path}/")


EVERYTHING: Final = Resource("")


def resource_of(text: str) -> Resource:
    """The resource that a signature is for."""
    scheme, separator, rest = text.partition("://")
    query = ""
    if separator and scheme.lower() in SCHEMES:
        rest, _, query = rest.partition("?")
        path = rest.partition("/")[2]
    else:
        path = text
    path = path.strip("/").removesuffix(MANAGEMENT_SUFFIX)
    try:
        path = queue_name(f"/{path}")
    except InvalidNameError:
        path = unquote(path)
    return Resource(path, bool(query))


class RuleKey(NamedTuple):
    """The key of an authorization rule that a caller has proved to have."""

    rule: str
    digest: bytes
    """Of the key: whatever becomes of the rule, the caller has its rights while it has this key."""
    entity: str
    """Where the key was found."""

    @property
    def user(self) -> str:
        """What stands in the place of a user's name."""
        return f"key {self.rule} of {self.entity}"


class ForbiddenError(Exception):
    """The caller lacks a right; the message has the right and how a manager grants it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller: a user, and the scope of its token."""

    user: str
    everything: bool = False
    """All rights: no user is defined, and the caller is on this machine (or insecure_no_users is set)."""
    scope: tuple[tuple[str, frozenset[Right]], ...] | None = None
    """(prefix, rights) pairs that a token is limited to; None for all rights of the user."""
    tls: bool = False
    """Whether the request or connection uses TLS."""
    resource: Resource | None = None
    """The resource of a shared access signature, which bounds the rights of its user; None for no bound."""
    entities: tuple[str, ...] = ()
    """Names for which the signed path stands, opened beside it: the queue of a subscription, or a request's
    own name."""
    supplements: "tuple[Caller, ...]" = ()
    """Callers by further signatures, each for a name to which this request forwards messages."""
    by_rule: RuleKey | None = None
    """The key of an authorization rule: the caller has the rights of the rule, and none of a user."""
    unproven: bool = False
    """No right at all, not even at names that are open to all: its connection has to put a token first."""

    def at(self, *entities: str) -> "Caller":
        """The caller in a request whose path was signed, and stands for these names."""
        return self if self.resource is None else replace(self, entities=(*self.entities, *entities))

    @property
    def reaches_below(self) -> bool:
        """Whether a right at a name is one at all names below it."""
        return self.resource is None and self.by_rule is None


ShownKey = Callable[[bytes, str, str], Caller | None]
"""The caller who shows a name and a key, by the coordinator's secret; None if no rule of the name has it.

Raises CoordinatorError."""
LISTENING: Final = frozenset({Right.LISTEN})
EVERY_RIGHT: Final = frozenset(Right)
ANYBODY = Caller("anonymous", everything=True)


ONLY_ITS_CONNECTION: Final = (
    "{name} is a temporary name: only the AMQP connection that created it may receive from it; managers may "
    "peek into it"
)


def entity_of(directory: Directory, name: str) -> Name | None:
    """The queue or router to which a name belongs: itself, or the one whose dead letters, scheduled messages
    or subscriptions are there. None for other names: an entity below another one is an entity of its own."""
    name = names.transferring(names.owner(name))
    name = names.scheduled_router(name) or names.router_of(name) or name
    router, _, id = name.rpartition(f"/{OWN_QUEUE}/")
    if router and "/" not in id and directory.get(router).role is Role.ROUTER:
        name = router
    found = directory.find(name)
    return found if found is not None and found.role in (Role.QUEUE, Role.ROUTER) else None


def rights_by_rule(directory: Directory, key: RuleKey, name: str) -> frozenset[Right]:
    """Rights on a name by the key of an authorization rule, as its entity has it now.

    Without the right to manage they are those of Service Bus: nobody sends to dead letters or to
    subscriptions, and other names of the system than these are the broker's.
    """
    entity = entity_of(directory, name)
    rule = None if entity is None else entity.authorization_rule(key.rule)
    if entity is None or rule is None or not rule.has_key(key.digest):
        return frozenset()
    if name == entity.name or Right.MANAGE in rule.rights:
        return rule.rights
    queue = names.owner(name)
    is_dead_letter = names.is_dead_letter(name) and names.scheduled_router(queue) is None
    if is_dead_letter or names.router_of(queue) or not names.is_system(queue):
        return rule.rights & LISTENING
    return frozenset()


def rights_of(directory: Directory, caller: Caller, name: str) -> frozenset[Right]:
    """Rights of the caller on a name."""
    if caller.unproven:
        return frozenset()
    if caller.by_rule is not None:
        rights = rights_by_rule(directory, caller.by_rule, name)
    else:
        rights = EVERY_RIGHT if caller.everything else directory.rights(caller.user, name)
    if caller.scope is not None:
        scoped: set[Right] = set()
        for prefix, granted in caller.scope:
            if not prefix or name == prefix or name.startswith(prefix + "/"):
                scoped |= granted
        rights &= scoped
    signed = caller.resource
    if signed is not None and not signed.opens(name) and names.owner(name) not in caller.entities:
        return frozenset()
    return rights


def may(directory: Directory, caller: Caller, right: Right, record: Name) -> bool:
    """Whether the caller has a right on a name.

    No caller has the right to listen at a dynamic node; the connection that created it may listen without the
    right (frontend/guard.py).
    """
    if caller.unproven or (right is Right.LISTEN and names.is_temporary(record.name)):
        return False
    if right is not Right.MANAGE:
        open_to_all = {"none": (Right.SEND, Right.LISTEN), "send": (Right.LISTEN,), "listen": (Right.SEND,)}
        if right in open_to_all.get(record.policy["authorization"], ()):
            return True
    return right in rights_of(directory, caller, record.name)


def demand(directory: Directory, caller: Caller, right: Right, record: Name) -> None:
    """Raise ForbiddenError unless the caller has the right."""
    what, prefix = (record.name, names.owner(record.name)) if record.name else ("all names", "/")
    if record.policy["transport_protection"] == "tls" and not caller.tls:
        raise ForbiddenError(f"{record.name} asks for TLS, and this connection has none; use the TLS address")
    if not may(directory, caller, right, record):
        if caller.unproven:
            raise ForbiddenError(f"this connection has put no token for {what}: put one at $cbs first")
        signed = caller.resource
        if signed is not None and may(directory, replace(caller, resource=None), right, record):
            raise ForbiddenError(
                f"the signature is for {signed.path!a:.200} and names below, and not for {what}; sign "
                "another one for it"
            )
        if right is Right.LISTEN and names.is_temporary(record.name):
            raise ForbiddenError(ONLY_ITS_CONNECTION.format(name=record.name))
        if (key := caller.by_rule) is not None:
            raise ForbiddenError(
                f"the authorization rule {key.rule} of {key.entity} gives no right to {_doing(right)} "
                f"{what}; its rights end at the entity that has the rule"
            )
        raise ForbiddenError(
            f"user {caller.user} has no right to {_doing(right)} {what}; a manager grants it with: "
            f"lightrail-admin permission set {caller.user} {prefix} {right}"
        )


def may_grant(directory: Directory, caller: Caller, prefix: str) -> bool:
    """Whether the caller may see and grant rights at and below a prefix.

    The key of a rule may not: a right at its entity would be one at the entities below.
    """
    return caller.by_rule is None and Right.MANAGE in rights_of(directory, caller, prefix)


def demand_look(directory: Directory, caller: Caller, record: Name) -> None:
    """Raise ForbiddenError unless the caller may peek into a queue: it may listen there, or manage it.

    The name's transport_protection applies to managers, too.
    """
    right = Right.MANAGE if may(directory, caller, Right.MANAGE, record) else Right.LISTEN
    demand(directory, caller, right, record)


def _doing(right: Right) -> str:
    return {Right.MANAGE: "manage", Right.SEND: "send to", Right.LISTEN: "listen at"}[right]
