"""A receiver at a router: it has a subscription, and receives from the queue `ROUTER/$subscriptions/KEY`.

- A durable source, or one with expiry-policy never (messaging 3.5.3), has the subscription of the
  container-id and the link's name; it outlives the client and ends at a detach with closed.
- With capability `shared` all links of that name, cut at `|`, share one subscription, and with `global` those
  of all container-ids; unless it is durable it ends with the last of these links.
- Any other receiver has a separate subscription, which ends with the link.

The source's filters are the subscription's: messages that don't match are not stored, nor with a no-local
filter those of the client's container. Distribution-mode copy, with which Qpid JMS requests a durable
subscription, means that other subscriptions receive the messages, too: at a router it does not mean browsing.
A receiver without a source finds the durable subscription of its name again, which is how Qpid JMS
unsubscribes.

A closing detach that ends a subscription is answered when the subscription has ended: a client that
subscribes again by the same name after the answer gets a new subscription.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.performatives import Source
from lightrail.amqp.values import Symbol
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.bound import Attach, Bound
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.links.terminus import (
    consumer_options,
    container_of,
    label_of,
    no_local,
    node_of,
    source_filter,
    symbols,
)
from lightrail.model import conditions, names
from lightrail.model.policy import Policy, Role
from lightrail.namespace.records import Name
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.statuses import ChangedError, MissingError, TakenError
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.engine import Frontend

UNUSED_TRIES: Final[int] = 10
"""How often a shard is asked again whether a subscription to be deleted has no consumers."""
UNUSED_AGAIN_MS: Final[int] = 50
"""Pause before each of these requests: a detach at another frontend takes milliseconds to reach the shard."""

log = logging.getLogger("lightrail.frontend.links.subscribing")

SHARED: Final = "shared"
GLOBAL: Final = "global"
SHARED_SUBSCRIPTIONS: Final = Symbol("SHARED-SUBS")
"""Qpid JMS creates shared consumers only if this capability is offered."""
NEVER: Final = Symbol("never")
LAST_CONSUMER: Final = "last_consumer"
KEPT: Final = 2
"""terminus-durability unsettled-state (messaging 3.5.5): the messages of the subscription are kept, too."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The subscription that a source requests."""

    key: str
    durable: bool
    shared: bool

    @property
    def of_link(self) -> bool:
        """Whether the subscription is only for this link and ends with it."""
        return not self.durable and not self.shared


def wanted(link: "Link", source: Source) -> Wanted:
    """The subscription that a link requests."""
    durable = bool(source.durable) or source.expiry_policy == NEVER
    capabilities = symbols(source.capabilities)
    shared = SHARED in capabilities
    if not durable and not shared:
        return Wanted(secrets.token_hex(12), False, False)
    return Wanted(_key(link, durable, shared, GLOBAL in capabilities), durable, shared)


def _key(link: "Link", durable: bool, shared: bool, everywhere: bool) -> str:
    peer = link.session.connection.peer_open
    container = "" if peer is None or everywhere else peer.container_id
    name = link.name.partition("|")[0] if shared else link.name
    kind = f"{'durable' if durable else 'volatile'} {'shared' if shared else 'exclusive'}"
    return hashlib.sha256("\0".join((kind, container, name)).encode()).hexdigest()[:32]


async def subscribe(attach: Attach) -> None:
    """Creates or finds the subscription of a receiver, and opens the link at its queue."""
    link, frontend = attach.link, attach.frontend
    source = link.source
    assert isinstance(source, Source)
    asked = wanted(link, source)
    spec, attach.terms.filter = source_filter(source, subscribes=True)
    local = _no_local(attach, source, asked)
    record = await _ensure(attach, asked, spec, local)
    opened = False
    try:
        opened = await _open(attach, asked, record)
    finally:
        if not opened and asked.of_link:
            frontend.lifetimes.expire(record)
        elif not opened and not asked.durable:
            # The subscription ends with its last link, and this may have been the first.
            frontend.spawn(_forget_unused(frontend, record))


def _no_local(attach: Attach, source: Source, asked: Wanted) -> str:
    """The container-id whose messages the subscription excludes, or "". Raises ConditionError."""
    given = no_local(source)
    if not given:
        return ""
    if asked.shared:
        raise ConditionError(
            conditions.NOT_ALLOWED, "a shared subscription has several clients and no no-local filter"
        )
    if attach.record.policy["distribution"] == "one":
        raise ConditionError(
            conditions.NOT_IMPLEMENTED,
            f"{attach.record.name} sends each message to one subscription: a no-local filter would lose some",
        )
    container = container_of(attach.link)
    if not container:
        raise ConditionError(
            conditions.NOT_ALLOWED, "a no-local filter needs a container-id in the client's open, found none"
        )
    attach.terms.filter = (attach.terms.filter or {}) | given
    return container


async def _ensure(attach: Attach, asked: Wanted, spec: dict[str, Any] | None, local: str) -> Name:
    """Creates the queue of a subscription and the subscription that feeds it, unless they exist."""
    service, directory = attach.frontend.service, attach.frontend.directory
    router = attach.record.name
    queue = names.subscription_name(router, asked.key)
    if asked.durable and node_of(attach.link.source) is Role.ROUTER:
        await _leave_other_topics(attach, asked)
    found = directory.subscription(router, asked.key)
    if found is not None and (found.filter != spec or found.no_local != local):
        if asked.shared:
            raise ConditionError(
                conditions.NOT_ALLOWED,
                f"the shared subscription has the filter {found.filter}; its links can't have another one",
            )
        # A new selector makes a new subscription (JMS 2.0, 8.3.3): the former one is deleted.
        with contextlib.suppress(MissingError):
            await service.drop(ANYBODY, queue)
        found = None
    owner = attach.terms.owner if asked.of_link else ""
    with contextlib.suppress(TakenError):
        await service.give(ANYBODY, queue, _policy(attach.link, asked), owner=owner)
    record = directory.get(queue)
    if found is None:
        try:
            await service.subscribe(
                ANYBODY,
                router,
                queue,
                filter=spec,
                id=asked.key,
                owner=owner,
                replace_it=not asked.of_link,
                no_local=local,
            )
        except BaseException:
            if asked.of_link:
                attach.frontend.lifetimes.expire(record)
            raise
    return record


async def _leave_other_topics(attach: Attach, asked: Wanted) -> None:
    """Ends a durable subscription at its former topic if the attach has another one (JMS 2.0, 8.3.3).

    Only for clients that attach to a topic: others may have subscriptions of one name at several routers.
    Raises ConditionError.
    """
    frontend, router = attach.frontend, attach.record.name
    for each in list(frontend.directory.every_subscription()):
        if each.id == asked.key and each.router != router:
            queue = frontend.directory.get(each.target)
            await _demand_unused(frontend, queue, asked.shared)
            await _remove(frontend, queue)


def _policy(link: "Link", asked: Wanted) -> Policy:
    given = {"role": "queue", "description": f"subscription of {label_of(link)}"}
    if asked.of_link:
        given |= {"lifetime": "link", "durable": "never"}
    elif not asked.durable:
        given |= {"lifetime": LAST_CONSUMER, "durable": "never"}
    return Policy.parse(given)


async def _open(attach: Attach, asked: Wanted, record: Name) -> bool:
    """Opens the link at the queue; returns False if the client has disconnected in the meantime."""
    link, frontend, terms = attach.link, attach.frontend, attach.terms
    owner = await frontend.place(record.name)
    if not _is_there(frontend, record):
        frontend.forget_route(record.name)
        raise ConditionError(conditions.RESOURCE_DELETED, "the subscription was just ended; attach again")
    if not attach.open:
        return False
    options = consumer_options(link, record.name, attach.connection.client.user_at(attach.record.name))
    options.browse = False
    options.exclusive = asked.durable and not asked.shared
    if asked.shared:
        terms.offered.append(SHARED_SUBSCRIPTIONS)
    if not asked.of_link:
        terms.at_close = lambda: unsubscribe(frontend, record, asked.shared)
    if asked.durable:
        terms.outlives = True
        link.source.durable = KEPT
        link.source.expiry_policy = NEVER
    consumer = ConsumerLink(attach.connection, link, owner, number=attach.number, options=options)
    attach.bind(consumer)
    consumer.start(link.limit, link.drain)
    owner.open_consumer(consumer)
    return True


async def unsubscribe(
    frontend: "Frontend", record: Name, shared: bool, *, by_name: bool = False
) -> Refusal | None:
    """Ends a subscription; a shared one only if no other link receives from it.

    Returns None if the subscription has ended, or stays for other links; otherwise why it still exists. With
    `by_name`, for a subscription that was looked up to end it, other links are such a reason.
    """
    try:
        links = await _links(frontend, record) if shared else 0
        if not links:
            await _remove(frontend, record)
        elif by_name:
            return Refusal(conditions.RESOURCE_LOCKED, _in_use(record, links))
    except (CoordinatorError, ShardDownError, ShardRefusedError) as error:
        if record.policy["lifetime"] == LAST_CONSUMER:
            # Its shard ends it as soon as it can.
            return None
        log.warning("the subscription %s stays, though its receiver closed it: %s", record.name, error)
        return Refusal(
            conditions.INTERNAL_ERROR, f"expected to end the subscription, which still exists: {error}"
        )
    return None


async def _forget_unused(frontend: "Frontend", record: Name) -> None:
    """Ends a shared subscription that was created for a link that could not be opened."""
    await unsubscribe(frontend, record, True)


async def _links(frontend: "Frontend", record: Name) -> int:
    """Number of links that receive from a subscription. Raises CoordinatorError, ShardDownError,
    ShardRefusedError."""
    # A request for a queue that no longer exists would place it again.
    if not _is_there(frontend, record):
        return 0
    answer = await frontend.ask_shard(record.name, "queue", {})
    return int(answer.fields["consumer_count"])


async def _remove(frontend: "Frontend", record: Name) -> None:
    """Deletes this subscription, unless it was deleted and created again under the same name.

    Raises CoordinatorError.
    """
    while _is_there(frontend, record):
        # If its policy changes in the meantime, its revision is read again.
        with contextlib.suppress(MissingError, ChangedError):
            revision = frontend.directory.get(record.name).revision
            await frontend.service.drop(ANYBODY, record.name, revision)


def _is_there(frontend: "Frontend", record: Name) -> bool:
    """Whether this subscription exists, and was not created again since. Raises CoordinatorError."""
    frontend.directory.refresh()
    return frontend.directory.get(record.name).created == record.created


# --- a receiver without a source ------------------------------------------------------------------------


class LookUp(Bound):
    """The object of a link that only looks up a durable subscription; no messages are sent."""

    __slots__ = ()

    def close(self) -> None:
        """The client's link has ended."""

    def credit(self, event: object) -> None:
        """No action: there are no messages to send."""

    def outcome(self, event: object) -> None:
        """No action: there are no deliveries to settle."""


def find(link: "Link", frontend: "Frontend") -> tuple[Name, Name, bool]:
    """(router, queue, shared) of the durable subscription of a link without a source, by its name.

    Raises ConditionError.
    """
    frontend.directory.refresh()
    capabilities = symbols(link.attach.desired_capabilities if link.attach is not None else None)
    kinds = [True] if SHARED in capabilities else [False, True]
    for shared in kinds:
        key = _key(link, True, shared, GLOBAL in capabilities)
        for each in frontend.directory.every_subscription():
            if each.id == key:
                queue = frontend.directory.get(each.target)
                if queue.role is Role.QUEUE:
                    return frontend.directory.get(each.router), queue, shared
    raise ConditionError(
        conditions.NOT_FOUND,
        f"expected a source, or the name of a durable subscription; there is none of {label_of(link)}",
    )


async def _demand_unused(frontend: "Frontend", queue: Name, shared: bool) -> None:
    """Raises ConditionError if other links receive from a shared subscription that is to be ended."""
    try:
        links = await _links(frontend, queue) if shared else 0
        for _ in range(UNUSED_TRIES):
            if not links:
                return
            # A link may have been detached at another frontend, and the shard has not seen this yet.
            await asyncio.sleep(UNUSED_AGAIN_MS / 1000)
            links = await _links(frontend, queue)
    except (ShardDownError, ShardRefusedError) as error:
        raise ConditionError(
            conditions.INTERNAL_ERROR, f"the receivers of the subscription can't be determined now: {error}"
        ) from None
    if links:
        raise ConditionError(conditions.RESOURCE_LOCKED, _in_use(queue, links))


def _in_use(queue: Name, links: int) -> str:
    where = f"{links} links at that of {names.router_of(queue.name)}"
    return f"expected a subscription without receivers, found {where}; close them first"


async def look_up(attach: Attach, queue: Name, shared: bool) -> None:
    """Answers with the source of a durable subscription; a detach with closed ends it.

    Raises ConditionError if other links receive from it: they would lose it, which JMS 2.0, 8.3.3 forbids.
    """
    frontend = attach.frontend
    await _demand_unused(frontend, queue, shared)
    if not attach.open:
        return
    attach.link.source = Source(address=attach.record.name, durable=KEPT, expiry_policy=NEVER)
    attach.terms.outlives = True
    attach.terms.at_close = lambda: unsubscribe(frontend, queue, shared, by_name=True)
    attach.bind(LookUp())
    attach.connection.links.accept_outgoing(attach.link)
