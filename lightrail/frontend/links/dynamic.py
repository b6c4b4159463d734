"""Dynamic nodes: names that the broker generates for a client, with the requested lifetime (3.5.9 on)."""

import contextlib
import secrets
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.performatives import (
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
    Source,
    Target,
)
from lightrail.amqp.values import Array, Described, Symbol
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links import counted
from lightrail.frontend.links.bound import Terms
from lightrail.frontend.links.terminus import node_of
from lightrail.model import conditions, names
from lightrail.model.policy import Policy, Role
from lightrail.namespace.records import Name
from lightrail.namespace.rights import Caller
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend

TEMPORARY_NAMES_MAX: Final[int] = 256
"""Dynamic nodes that a connection may have."""
KEY_BYTES: Final = 16
"""Random bytes of a temporary name, so that it can't be guessed."""
LIFETIME_POLICY: Final = Symbol("lifetime-policy")
SUPPORTED_DIST_MODES: Final = Symbol("supported-dist-modes")
BROKER: Final = Caller("broker", everything=True)
"""The caller that creates and deletes these names: the broker, so that clients need no right for them."""


async def make(connection: "ClientConnection", link: "Link", terminus: Source | Target, owner: str) -> Name:
    """Creates the node that a link requests, and enters its name and lifetime into the link's terminus.

    Without a lifetime policy, and with delete-on-close, the node is deleted with the link `owner`, and only
    the connection can receive from it. With the other policies every client with its name can receive from
    it, and it may outlive the connection. Raises ConditionError.
    """
    frontend = connection.frontend
    if terminus.address not in (None, ""):
        description = "expected no address beside dynamic: the broker chooses it"
        raise ConditionError(conditions.INVALID_FIELD, description)
    lifetime = _lifetime(terminus)
    _check_distribution_modes(terminus)
    if frontend.lifetimes.temporary_count(connection.client.owner) >= TEMPORARY_NAMES_MAX:
        raise ConditionError(
            conditions.RESOURCE_LIMIT_EXCEEDED,
            f"the connection has {TEMPORARY_NAMES_MAX} dynamic nodes, the maximum",
        )
    with_link = isinstance(lifetime, DeleteOnClose)
    if node_of(terminus) is Role.ROUTER:
        policy = Policy(Role.ROUTER, {"unroutable": "drop"})
    else:
        policy = Policy(Role.QUEUE, {"lifetime": "link" if with_link else "connection"})
    name = names.temporary_name(secrets.token_urlsafe(KEY_BYTES).lstrip("-_").ljust(22, "0"))
    node_owner = owner if with_link else connection.client.owner
    record = await frontend.service.give(BROKER, name, policy, owner=node_owner)
    frontend.lifetimes.follow(name, lifetime, owner)
    if policy.role is Role.ROUTER and not with_link:
        await counted.prepare(frontend, BROKER, record)
    terminus.address = name
    terminus.dynamic_node_properties = {LIFETIME_POLICY: lifetime}
    return record


def finish_at_close(frontend: "Frontend", record: Name, terms: Terms) -> None:
    """Answers the close of a link when the name that is deleted with this link is deleted."""
    if record.owner == terms.owner:
        terms.at_close = lambda: finish(frontend, record)


async def finish(frontend: "Frontend", record: Name) -> Refusal | None:
    """Deletes a node whose link is closed, before the close is answered.

    If it can't be deleted now, the frontend tries again (lifetimes.py), and the client need not wait.
    """
    with contextlib.suppress(CoordinatorError):
        frontend.directory.refresh()
        if frontend.directory.get(record.name).created == record.created:
            await frontend.service.expire(record)
    return None


def _lifetime(
    terminus: Source | Target,
) -> DeleteOnClose | DeleteOnNoLinks | DeleteOnNoMessages | DeleteOnNoLinksOrMessages:
    properties: dict[Symbol, Any] = terminus.dynamic_node_properties or {}
    asked = properties.get(LIFETIME_POLICY)
    if asked is None:
        return DeleteOnClose()
    if isinstance(asked, DeleteOnClose | DeleteOnNoLinks | DeleteOnNoMessages | DeleteOnNoLinksOrMessages):
        return asked
    # A described value may be a policy of a later specification; the field has no values of other types.
    raise ConditionError(
        conditions.INVALID_FIELD if isinstance(asked, Described) else conditions.DECODE_ERROR,
        "expected delete-on-close, delete-on-no-links, delete-on-no-messages or "
        "delete-on-no-links-or-messages as lifetime-policy, found another value",
    )


def _check_distribution_modes(terminus: Source | Target) -> None:
    """Checks for one or more symbols (messaging 3.5.9). Every node can move its messages and copy them."""
    properties: dict[Symbol, Any] = terminus.dynamic_node_properties or {}
    modes = properties.get(SUPPORTED_DIST_MODES)
    several = list(modes) if isinstance(modes, Array) else [modes]
    if modes is not None and not all(isinstance(mode, Symbol) for mode in several):
        raise ConditionError(
            conditions.DECODE_ERROR,
            f"expected one or more symbols as supported-dist-modes, found {modes!r:.100}",
        )
