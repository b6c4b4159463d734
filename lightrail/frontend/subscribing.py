"""A receiver at a router: it gets a subscription, and the queue `ROUTER/$subscriptions/KEY` to receive from.

- A durable source, or one with expiry-policy never (messaging 3.5.3), means the subscription of the
  container-id and the link's name; it survives its client and goes at a detach with closed.
- With capability `shared` all links of that name, cut at `|`, share one, and with `global` those of all
  container-ids; where it is not durable it goes with the last of them.
- Any other receiver has a subscription of its own, which goes with the link.

The source's filters are the subscription's: what does not match is not stored. Distribution-mode copy, with
which Qpid JMS asks for a durable one, says that others get the messages, too: at a router it does not mean
browsing. A receiver without a source finds the durable subscription of its name again, which is how Qpid JMS
unsubscribes.

A closing detach that ends a subscription is answered when the subscription has ended: whoever subscribes
again by the same name after the answer gets a new one.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.performatives import Source
from lightrail.amqp.types import Symbol
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.frontend.deliveries import ConsumerLink
from lightrail.frontend.filters import source_filter
from lightrail.frontend.jms import node_of, symbols
from lightrail.frontend.routes import Refused, consumer_options, label_of
from lightrail.model import conditions, limits, names
from lightrail.model.policy import Policy, Role
from lightrail.namespace.records import Name
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Changed, Missing, Taken
from lightrail.wire.bodies import Refusal
from lightrail.wire.requests import ShardDownError, ShardRefusedError

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.attaching import Attach
    from lightrail.frontend.engine import Frontend

log = logging.getLogger("lightrail.frontend.subscribing")

SHARED: Final = "shared"
GLOBAL: Final = "global"
SHARED_SUBSCRIPTIONS: Final = Symbol("SHARED-SUBS")
"""Qpid JMS makes shared consumers only where this is offered."""
NEVER: Final = Symbol("never")
LAST_CONSUMER: Final = "last_consumer"
KEPT: Final = 2
"""terminus-durability unsettled-state (messaging 3.5.5): the messages of the subscription are kept, too."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a source asks for."""

    key: str
    durable: bool
    shared: bool

    @property
    def of_link(self) -> bool:
        """Whether it is for this link alone and goes with it."""
        return not self.durable and not self.shared


def wanted(link: "Link", source: Source) -> Wanted:
    """Which subscription a link means."""
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


async def subscribe(attach: "Attach") -> None:
    """Makes or finds the subscription of a receiver, and opens the link at its queue."""
    link, frontend = attach.link, attach.frontend
    source = link.source
    assert isinstance(source, Source)
    asked = wanted(link, source)
    spec, attach.terms.filter = source_filter(source)
    record = await _ensure(attach, asked, spec)
    opened = False
    try:
        opened = await _open(attach, asked, record)
    finally:
        if not opened and asked.of_link:
            frontend.lifetimes.expire(record)
        elif not opened and not asked.durable:
            # It goes with its last link, and this may have been the first.
            frontend.spawn(_forget_unused(frontend, record))


async def _ensure(attach: "Attach", asked: Wanted, spec: dict[str, Any] | None) -> Name:
    """The queue of the subscription, with the subscription that feeds it; both are there for everybody."""
    service, directory = attach.frontend.service, attach.frontend.directory
    router = attach.record.name
    queue = names.subscription_name(router, asked.key)
    if asked.durable and node_of(attach.link.source) is Role.ROUTER:
        await _leave_other_topics(attach, asked)
    found = directory.subscription(router, asked.key)
    if found is not None and found.filter != spec:
        if asked.shared:
            raise Refused(
                conditions.NOT_ALLOWED,
                f"the shared subscription has the filter {found.filter}; its links can't have another one",
            )
        # Another selector is another subscription (JMS 2.0, 8.3.3): what waits in the former one is gone.
        with contextlib.suppress(Missing):
            await service.drop(ANYBODY, queue)
        found = None
    owner = attach.terms.owner if asked.of_link else ""
    with contextlib.suppress(Taken):
        await service.give(ANYBODY, queue, _policy(attach.link, asked), owner=owner)
    record = directory.get(queue)
    if found is None:
        try:
            await service.subscribe(
                ANYBODY, router, queue, filter=spec, id=asked.key, owner=owner, replace_it=not asked.of_link
            )
        except BaseException:
            if asked.of_link:
                attach.frontend.lifetimes.expire(record)
            raise
    return record


async def _leave_other_topics(attach: "Attach", asked: Wanted) -> None:
    """A durable subscription that comes with another topic ends at the former one (JMS 2.0, 8.3.3).

    Only for who says "topic": others may have subscriptions of one name at several routers. Raises Refused.
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


async def _open(attach: "Attach", asked: Wanted, record: Name) -> bool:
    """Opens the link at the queue; False when the client has gone meanwhile."""
    link, frontend, terms = attach.link, attach.frontend, attach.terms
    owner = await frontend.place(record.name)
    if not _is_there(frontend, record):
        frontend.forget_route(record.name)
        raise Refused(conditions.RESOURCE_DELETED, "the subscription was ended a moment ago; attach again")
    if not attach.open:
        return False
    options = consumer_options(link, record.name)
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
    """Ends a subscription; a shared one only when no other link receives from it.

    None when this is done, or left to the links that stay; else why the subscription is still there. With
    `by_name` it was looked up to be ended, and is not left to others.
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
            conditions.INTERNAL_ERROR, f"expected to end the subscription, which is still there: {error}"
        )
    return None


async def _forget_unused(frontend: "Frontend", record: Name) -> None:
    """A shared subscription may have been made for a link that did not come about."""
    await unsubscribe(frontend, record, True)


async def _links(frontend: "Frontend", record: Name) -> int:
    """How many links receive from a subscription.

    Raises CoordinatorError, ShardDownError, ShardRefusedError.
    """
    # A queue that is not there any more would get a place by being asked for.
    if not _is_there(frontend, record):
        return 0
    answer = await frontend.ask_shard(record.name, "queue", {})
    return int(answer.fields["consumer_count"])


async def _remove(frontend: "Frontend", record: Name) -> None:
    """Deletes this very subscription: one that was made since under the same name is another one's.

    Raises CoordinatorError.
    """
    while _is_there(frontend, record):
        # Where somebody changes its policy meanwhile, it is looked at again.
        with contextlib.suppress(Missing, Changed):
            revision = frontend.directory.get(record.name).revision
            await frontend.service.drop(ANYBODY, record.name, revision)


def _is_there(frontend: "Frontend", record: Name) -> bool:
    """Whether this very subscription still is. Raises CoordinatorError."""
    frontend.directory.refresh()
    return frontend.directory.get(record.name).created == record.created


# --- a receiver without a source ------------------------------------------------------------------------


class LookUp:
    """Behind a link that only asked whether a durable subscription is there; no message passes."""

    __slots__ = ()

    def close(self) -> None:
        """The client's link is gone."""

    def credit(self, event: object) -> None:
        """There is nothing to send."""

    def outcome(self, event: object) -> None:
        """There is nothing to settle."""

    def writable(self) -> None:
        """There is nothing to write."""


def find(link: "Link", frontend: "Frontend") -> tuple[Name, Name, bool]:
    """(router, queue, shared) of the durable subscription that a link without a source means.

    Raises Refused.
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
    raise Refused(
        conditions.NOT_FOUND,
        f"expected a source, or the name of a durable subscription; there is none of {label_of(link)}",
    )


async def _demand_unused(frontend: "Frontend", queue: Name, shared: bool) -> None:
    """Raises Refused where others receive from a shared subscription that is about to end."""
    try:
        links = await _links(frontend, queue) if shared else 0
        for _ in range(limits.UNUSED_TRIES):
            if not links:
                return
            # A link that was detached at another frontend a moment ago: its shard may not have heard of it.
            await asyncio.sleep(limits.UNUSED_AGAIN_MS / 1000)
            links = await _links(frontend, queue)
    except (ShardDownError, ShardRefusedError) as error:
        raise Refused(
            conditions.INTERNAL_ERROR, f"who receives from the subscription can't be known now: {error}"
        ) from None
    if links:
        raise Refused(conditions.RESOURCE_LOCKED, _in_use(queue, links))


def _in_use(queue: Name, links: int) -> str:
    where = f"{links} links at that of {names.router_of(queue.name)}"
    return f"expected a subscription without receivers, found {where}; close them first"


async def look_up(attach: "Attach", queue: Name, shared: bool) -> None:
    """Answers with the source of a durable subscription; a detach with closed ends it.

    Raises Refused when others receive from it: they would lose it (JMS 2.0, 8.3.3 forbids it, too).
    """
    frontend = attach.frontend
    await _demand_unused(frontend, queue, shared)
    if not attach.open:
        return
    attach.link.source = Source(address=attach.record.name, durable=KEPT, expiry_policy=NEVER)
    attach.terms.outlives = True
    attach.terms.at_close = lambda: unsubscribe(frontend, queue, shared, by_name=True)
    attach.bind(LookUp())
    attach.connection.accept_outgoing(attach.link)
