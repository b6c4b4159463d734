"""A receiver at a router: it gets a subscription, and the queue `ROUTER/$subscriptions/KEY` to receive from.

- A durable source, or one with expiry-policy never (messaging 3.5.3), means the subscription of the
  container-id and the link's name; it survives its client and goes at a detach with closed.
- With capability `shared` all links of that name, cut at `|`, share one, and with `global` those of all
  container-ids; where it is not durable it goes with the last of them.
- Any other receiver has a subscription of its own, which goes with the link.

The source's filters are the subscription's: what does not match is not stored. A receiver without a source
finds the durable subscription of its name again, which is how Qpid JMS unsubscribes.
"""

import contextlib
import hashlib
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.performatives import Source
from lightrail.amqp.types import Symbol
from lightrail.frontend.deliveries import ConsumerLink
from lightrail.frontend.filters import source_filter
from lightrail.frontend.routes import Refused, consumer_options, label_of
from lightrail.model import conditions, names
from lightrail.model.policy import Policy, Role
from lightrail.namespace.records import Name
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Missing, Taken
from lightrail.wire.shards import ShardAway, ShardRefused

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
    capabilities = _symbols(source.capabilities)
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


def _symbols(value: Any) -> frozenset[str]:
    """A field that may be one symbol or several."""
    if value is None:
        return frozenset()
    return frozenset(map(str, value)) if isinstance(value, list | tuple) else frozenset({str(value)})


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
            frontend.spawn(unsubscribe(frontend, record, True))


async def _ensure(attach: "Attach", asked: Wanted, spec: dict[str, Any] | None) -> Name:
    """The queue of the subscription, with the subscription that feeds it; both are there for everybody."""
    service, directory = attach.frontend.service, attach.frontend.directory
    router = attach.record.name
    queue = names.subscription_name(router, asked.key)
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


def _policy(link: "Link", asked: Wanted) -> Policy:
    given = {"role": "queue", "description": f"subscription of {label_of(link)}"}
    if asked.of_link:
        given |= {"lifetime": "link", "durable": "never"}
    elif not asked.durable:
        given |= {"lifetime": "last_consumer", "durable": "never"}
    return Policy.parse(given)


async def _open(attach: "Attach", asked: Wanted, record: Name) -> bool:
    """Opens the link at the queue; False when the client has gone meanwhile."""
    link, frontend, terms = attach.link, attach.frontend, attach.terms
    home = await frontend.place(record.name)
    if not attach.open:
        return False
    options = consumer_options(link, record.name)
    options.exclusive = asked.durable and not asked.shared
    if asked.shared:
        terms.offered.append(SHARED_SUBSCRIPTIONS)
    if asked.durable:
        terms.outlives = True
        terms.at_close = lambda: unsubscribe(frontend, record, asked.shared)
        link.source.durable = KEPT
        link.source.expiry_policy = NEVER
    consumer = ConsumerLink(attach.connection, link, home, number=attach.number, options=options)
    attach.bind(consumer)
    consumer.start(link.limit, link.drain)
    home.open_consumer(consumer)
    return True


async def unsubscribe(frontend: "Frontend", record: Name, shared: bool) -> None:
    """A durable subscription ends; a shared one when no other link receives from it."""
    if shared:
        try:
            answer = await frontend.ask_shard(record.name, "queue", {})
        except (ShardAway, ShardRefused) as error:
            log.warning("%s stays: whether others receive from it can't be known now: %s", record.name, error)
            return
        if answer.fields["consumer_count"]:
            return
    with contextlib.suppress(Missing):
        await frontend.service.drop(ANYBODY, record.name, record.revision)


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
    capabilities = _symbols(link.attach.desired_capabilities if link.attach is not None else None)
    shared = SHARED in capabilities
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


def look_up(attach: "Attach", queue: Name, shared: bool) -> None:
    """Answers with the source of a durable subscription; a detach with closed ends it."""
    attach.link.source = Source(address=attach.record.name, durable=KEPT, expiry_policy=NEVER)
    attach.terms.outlives = True
    attach.terms.at_close = lambda: unsubscribe(attach.frontend, queue, shared)
    attach.bind(LookUp())
    attach.connection.accept_outgoing(attach.link)
