"""Dynamic nodes: names that the broker draws for a client, with the lifetime that it asked for (3.5.9 on)."""

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
from lightrail.amqp.types import Symbol
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.frontend.jms import node_of
from lightrail.frontend.routes import Refused
from lightrail.model import conditions, limits, names
from lightrail.model.policy import Policy, Role
from lightrail.namespace.records import Name
from lightrail.namespace.rights import Caller
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend

KEY_BYTES: Final = 16
"""Of a temporary name: whoever does not know it can't guess it."""
LIFETIME_POLICY: Final = Symbol("lifetime-policy")
BROKER: Final = Caller("broker", everything=True)
"""The broker itself makes and deletes these names: nobody needs a right for them."""


async def make(connection: "ClientConnection", link: "Link", terminus: Source | Target, owner: str) -> Name:
    """Makes the node that a link asks for, and says in its terminus what it is.

    Without a lifetime policy, and with delete-on-close, it goes with the link `owner`. Nobody but the
    connection can listen at it, so with the other policies it goes with the connection at the latest.
    Raises Refused.
    """
    frontend = connection.frontend
    if terminus.address not in (None, ""):
        raise Refused(conditions.INVALID_FIELD, "expected no address beside dynamic: the broker chooses it")
    lifetime = _lifetime(terminus)
    if frontend.lifetimes.temporary_count(connection.owner) >= limits.TEMPORARY_NAMES_MAX:
        raise Refused(
            conditions.RESOURCE_LIMIT_EXCEEDED,
            f"the connection has {limits.TEMPORARY_NAMES_MAX} dynamic nodes, which is the most",
        )
    with_link = isinstance(lifetime, DeleteOnClose)
    if node_of(terminus) is Role.ROUTER:
        policy = Policy(Role.ROUTER, {"unroutable": "drop"})
    else:
        policy = Policy(Role.QUEUE, {"lifetime": "link" if with_link else "connection"})
    name = names.temporary_name(secrets.token_urlsafe(KEY_BYTES).lstrip("-_").ljust(22, "0"))
    record = await frontend.service.give(BROKER, name, policy, owner=owner if with_link else connection.owner)
    frontend.lifetimes.follow(name, lifetime)
    terminus.address = name
    terminus.dynamic_node_properties = {LIFETIME_POLICY: lifetime}
    return record


async def finish(frontend: "Frontend", record: Name) -> Refusal | None:
    """The link that a node goes with is closed, which is answered when the node is deleted.

    Where it can't be deleted now the frontend goes on trying (lifetimes.py), and the client need not wait.
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
    raise Refused(
        conditions.INVALID_FIELD,
        "expected delete-on-close, delete-on-no-links, delete-on-no-messages or "
        "delete-on-no-links-or-messages as lifetime-policy, found another value",
    )
