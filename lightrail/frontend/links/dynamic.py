"""Dynamic nodes: names that the broker generates for a client, with the requested lifetime (3.5.9 on).

Senders to routers; those to a dynamic topic whose lifetime depends on its links are counted by a shard.

A sender at a router has no link at a shard, only lanes to the queues of its messages. At such a topic
(messaging 3.5.11 and 3.5.13) it is also a producer of the queue `TOPIC/$subscriptions/senders`, and sends it
nothing. So its links are counted as those of a queue are: over all frontends, and until a frontend is lost.
"""

import contextlib
import secrets
from dataclasses import dataclass, field
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
from lightrail.frontend.links.bound import Attach, Terms
from lightrail.frontend.links.routing import RouterLink
from lightrail.frontend.links.scheduling import SchedulingRouterLink
from lightrail.frontend.links.terminus import label_of, node_of
from lightrail.model import conditions, names
from lightrail.model.policy import Policy, Role
from lightrail.namespace.records import Name
from lightrail.namespace.rights import Caller
from lightrail.shard_client.sending.queue_producer import QueueProducer
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend
    from lightrail.shard_client.owners.owner import Owner


@dataclass(slots=True, eq=False, repr=False)
class CountedRouterLink(RouterLink):
    """One incoming link (the client sends) bound to a dynamic topic whose links are counted."""

    _owner: "Owner"
    _presence: QueueProducer = field(init=False)

    def __post_init__(self) -> None:
        RouterLink.__post_init__(self)
        number = self._frontend.next_link()
        self._presence = QueueProducer(
            self._owner, number, label=self.label, on_ready=self._attach, on_end=self._lose
        )

    def start(self) -> None:
        """Opens the producer that is counted; the attach is answered when it is open."""
        self._presence.open()

    def close(self) -> None:
        """The client's link has ended."""
        self._presence.close()
        RouterLink.close(self)


async def prepare(frontend: "Frontend", broker: Caller, topic: Name) -> None:
    """Creates the queue that counts the senders of a new topic. The topic is deleted if that fails.

    Raises ConditionError, CoordinatorError, ServiceError.
    """
    policy = Policy(
        Role.QUEUE,
        {"durable": "never", "max_length": 0, "description": "counts the senders of a dynamic topic"},
    )
    try:
        made = await frontend.service.give(broker, names.senders_name(topic.name), policy)
    except BaseException:
        frontend.lifetimes.expire(topic)
        raise
    if frontend.directory.get(topic.name).created != topic.created:
        # The connection has ended, and the queues below the topic were deleted before this one was created.
        frontend.lifetimes.expire(made)
        raise ConditionError(conditions.RESOURCE_DELETED, f"{topic.name} was just deleted; attach again")


async def open_sender(attach: Attach) -> None:
    """Opens a sender to a router, and counts it if the router is a topic whose lifetime depends on its links.

    Raises ConditionError, CoordinatorError.
    """
    frontend, topic, link = attach.frontend, attach.record, attach.link
    senders = names.senders_name(topic.name)
    router: RouterLink
    if frontend.directory.find(senders) is None:
        kind = SchedulingRouterLink if frontend.hooks.schedules(link) else RouterLink
        router = kind(attach.connection, link, number=attach.number, router=topic.name, label=label_of(link))
    else:
        owner = await frontend.place(senders)
        if frontend.directory.get(topic.name).created != topic.created:
            frontend.forget_route(senders)
            raise ConditionError(conditions.RESOURCE_DELETED, f"{topic.name} was just deleted; attach again")
        if not attach.open:
            return
        router = CountedRouterLink(
            attach.connection, link, owner, number=attach.number, router=topic.name, label=label_of(link)
        )
    attach.bind(router)
    router.start()


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
        await prepare(frontend, BROKER, record)
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
