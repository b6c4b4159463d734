"""What an attach becomes: by the role of the name that it means, and by what the caller may do there.

One function per role, in ROLES; each is given an Attach whose rights have been checked and opens the link at
a shard, or raises Refused.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from lightrail.amqp.decoder import Buffer
from lightrail.amqp.link import ATTACHING, Link
from lightrail.amqp.types import Symbol, UInt
from lightrail.amqp.windows import MAPPED
from lightrail.cluster.coordinator import CoordinatorError, CoordinatorFullError
from lightrail.frontend import dynamic, subscribing
from lightrail.frontend.anonymous import AddressProducer, AddressRouter, AnonymousLink, ToAddress
from lightrail.frontend.deliveries import ConsumerLink
from lightrail.frontend.filters import source_filter
from lightrail.frontend.guard import Hold
from lightrail.frontend.jms import NODES, another_node, node_of, node_of_message
from lightrail.frontend.relays import RelayLink
from lightrail.frontend.routes import Refused, consumer_options, label_of, name_of, terminus_of
from lightrail.frontend.routing import RouterLink
from lightrail.frontend.transfers import ProducerLink
from lightrail.model import conditions, names
from lightrail.model.policy import InvalidPolicy, Role
from lightrail.namespace import service
from lightrail.namespace.records import Name, Right
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend
    from lightrail.wire.owner import Owner

log = logging.getLogger("lightrail.frontend.attaching")

DELAYED_DELIVERY: Final = Symbol("DELAYED_DELIVERY")
"""Qpid JMS sends with a delivery delay only where this capability is offered."""


class Bound(Protocol):
    """What is behind a link of a client, and is the link's `context`."""

    def close(self) -> None:
        """The client's link is gone."""


@dataclass(slots=True)
class Terms:
    """What a connection keeps of each link that is bound: what is said in its attach, what ends with it."""

    owner: str
    """Names that were made with it go when it ends."""
    offered: list[Symbol] = field(default_factory=list)
    """Capabilities that the answer offers."""
    filter: dict[Symbol, Any] | None = None
    """The part of the source's filter that is applied; the answer says this one (messaging 3.5.3)."""
    hold: Hold | None = None
    outlives: bool = False
    """The terminus is there when the link is gone: a durable subscription."""
    at_close: Callable[[], Awaitable[Refusal | None]] | None = None
    """Done when the client closes the link for good (detach with closed), which is answered after it: with an
    error where it gives one. Has to be set before the link is bound."""


@dataclass(slots=True)
class Attach:
    """A link that waits for its answer, and the name that it means."""

    connection: "ClientConnection"
    link: Link
    record: Name
    number: int
    """Of the link, unique over the life of this process."""
    terms: Terms

    @property
    def frontend(self) -> "Frontend":
        return self.connection.frontend

    @property
    def open(self) -> bool:
        """Whether the client still waits."""
        return self.connection.amqp is not None and self.link.state == ATTACHING

    def bind(self, bound: Bound) -> None:
        """This is behind the link from now on; the guard watches its name."""
        link = self.link
        link.context = bound
        link.answers_close = self.terms.at_close is not None
        self.terms.hold = self.frontend.guard.hold(
            self.connection,
            right_of(link),
            self.record,
            lambda condition, description: self.connection.lose(link, condition, description),
        )
        self.connection.bound(bound, self.terms)

    async def place(self) -> "Owner | None":
        """Where the name is, for a link that is opened before the loop turns.

        None when the client has gone meanwhile.

        Raises Refused when the name was deleted while we looked.
        """
        name = self.record.name
        found = await self.frontend.place(name)
        current = self.frontend.directory.get(name)
        if current.created != self.record.created or current.role is not self.record.role:
            self.frontend.forget_route(name)
            raise Refused(conditions.RESOURCE_DELETED, f"{name} was deleted a moment ago; attach again")
        return found if self.open else None


async def attach(connection: "ClientConnection", link: Link) -> None:
    """Answers the attach of a client, at the latest when the shard has answered."""
    try:
        await _attach(connection, link)
        return
    except Refused as refusal:
        condition, description, info = refusal.condition, refusal.description, refusal.info
    except (service.Refused, InvalidPolicy) as refusal:
        condition, description, info = _condition_of(refusal), str(refusal), None
    except CoordinatorError as error:
        refused = _undecided("this name", error)
        condition, description, info = refused.condition, refused.description, refused.info
    except Exception:
        log.exception("an attach could not be decided on")
        condition, info = conditions.INTERNAL_ERROR, None
        description = "what is at this name can't be known now; try again"
    if connection.amqp is not None:
        connection.frontend.counts.links_refused += 1
        link.refuse(condition, description, info)
        connection.touch()


def _condition_of(refusal: service.Refused | InvalidPolicy) -> str:
    if isinstance(refusal, service.LimitExceeded):
        return conditions.RESOURCE_LIMIT_EXCEEDED
    return conditions.PRECONDITION_FAILED


def _undecided(what: str, error: CoordinatorError) -> Refused:
    """Why nobody knows what is at a name; the log has it with addresses, which a client need not know."""
    log.warning("what is at %s can't be decided on: %s", what, error)
    if isinstance(error, CoordinatorFullError):
        return Refused(
            conditions.RESOURCE_LIMIT_EXCEEDED,
            f"{what} can't become anything now: etcd has no space left and takes no writes; an operator of "
            "the broker has to make room there. Names that are in use go on",
        )
    return Refused(
        conditions.INTERNAL_ERROR,
        f"what is at {what} can't be known now: the coordinator can't be asked; try again",
    )


async def _attach(connection: "ClientConnection", link: Link) -> None:
    frontend = connection.frontend
    number = frontend.next_link()
    terms = Terms(f"{connection.session_owner(link.session)}/{number}")
    if link.is_sender and link.source is None:
        router, queue, shared = subscribing.find(link, frontend)
        frontend.guard.demand(connection, Right.LISTEN, router)
        await subscribing.look_up(Attach(connection, link, router, number, terms), queue, shared)
        return
    terminus = terminus_of(link)
    if terminus.dynamic:
        record = await dynamic.make(connection, link, terminus, terms.owner)
        if record.owner == terms.owner:
            terms.at_close = lambda: dynamic.finish(frontend, record)
        made = Attach(connection, link, record, number, terms)
        try:
            if made.open:
                await ROLES[record.role](made)
        finally:
            if link.context is None:
                frontend.lifetimes.expire(record)
        return
    if terminus.address in (None, "") and not link.is_sender:
        anonymous = AnonymousLink(connection, link, open_address)
        link.context = anonymous
        connection.bound(anonymous, terms)
        anonymous.start()
        return
    asked = node_of(terminus)
    try:
        record = await resolve(connection, name_of(terminus.address), right_of(link), terms.owner, asked)
        if asked is not None and record.role in NODES and record.role is not asked:
            raise Refused(conditions.NOT_ALLOWED, another_node(record))
        made = Attach(connection, link, record, number, terms)
        if made.open:
            await ROLES[record.role](made)
    finally:
        if link.context is None:
            # A name was perhaps made by this first use that goes with the link, or with what has ended since.
            frontend.lifetimes.ended(terms.owner if connection.amqp is not None else connection.owner)


def right_of(link: Link) -> Right:
    """What a link does with the name that it means; our own role is the other one."""
    return Right.LISTEN if link.is_sender else Right.SEND


async def resolve(
    connection: "ClientConnection", name: str, right: Right, owner: str, asked: Role | None = None
) -> Name:
    """What a name is, which a caller may use so; one that is free becomes a queue where that is allowed.

    Args:
        owner: a link, or as much of one as there is: what the lifetime of a new queue may be goes with it.
        asked: the role that the client says the name has; a free name becomes a router only where it is one.

    Rights come first: who has none learns nothing about the name and makes nothing of it. Raises Refused.
    """
    frontend = connection.frontend
    directory = frontend.directory
    directory.refresh()
    record = directory.get(name)
    if record.role is Role.NONE and not names.is_temporary(name):
        template = directory.template(names.owner(name))
        role = Role.ROUTER if asked is Role.ROUTER else Role.QUEUE
        given = service.policy_at_first_use(role, template, record) if template else record.policy
        frontend.guard.demand(connection, right, Name(name, given))
        if template is not None:
            record = await frontend.first_use(name, owner, role)
    frontend.guard.demand(connection, right, record)
    return record


async def _to_nothing(attach: Attach) -> None:
    name = attach.record.name
    if names.is_temporary(name):
        raise Refused(conditions.NOT_FOUND, f"the temporary name {name} is not there (any more)")
    try:
        names.check_spelling(name)
    except names.InvalidName as error:
        raise Refused(conditions.NOT_FOUND, f"{name} has no role, and {error}") from None
    raise Refused(
        conditions.NOT_FOUND,
        f"{name} has no role, and names here get none by being used: give it one by posting a policy such as "
        f'{{"role": "queue"}} to /{name} over HTTP',
    )


async def _to_metadata(attach: Attach) -> None:
    """A reference to somewhere else: the client is sent there (transport 2.8.18)."""
    reference = attach.record.policy["reference"]
    info: dict[Symbol, Any] = {Symbol("address"): reference}
    try:
        parts = urlsplit(reference)
        port = parts.port
    except ValueError:
        pass
    else:
        if parts.scheme in ("amqp", "amqps") and parts.hostname:
            info[Symbol("hostname")] = info[Symbol("network-host")] = parts.hostname
            info[Symbol("port")] = UInt(port or (5671 if parts.scheme == "amqps" else 5672))
    raise Refused(conditions.LINK_REDIRECT, f"{attach.record.name} is at {reference}", info)


async def _to_queue(attach: Attach) -> None:
    link, policy = attach.link, attach.record.policy
    if link.is_sender:
        await _consume(attach)
        return
    if policy["delay"]:
        attach.terms.offered.append(DELAYED_DELIVERY)
    queue_owner = await _to_send(attach)
    if queue_owner is None:
        return
    producer = ProducerLink(
        attach.connection,
        link,
        queue_owner,
        number=attach.number,
        queue=attach.record.name,
        label=label_of(link),
    )
    link.mix_headers()
    link.take_pieces()
    attach.bind(producer)
    queue_owner.open_producer(producer)


async def _to_connection_point(attach: Attach) -> None:
    if attach.link.is_sender:
        await _consume(attach, relay=True)
        return
    queue_owner = await _to_send(attach)
    if queue_owner is None:
        return
    relay = RelayLink(
        attach.connection,
        attach.link,
        queue_owner,
        number=attach.number,
        name=attach.record.name,
        label=label_of(attach.link),
    )
    attach.bind(relay)
    queue_owner.open_producer(relay)


async def _to_router(attach: Attach) -> None:
    if attach.link.is_sender:
        await subscribing.subscribe(attach)
        return
    _bound_size(attach)
    router = RouterLink(
        attach.connection,
        attach.link,
        number=attach.number,
        router=attach.record.name,
        label=label_of(attach.link),
    )
    attach.bind(router)
    router.start()


async def _to_send(attach: Attach) -> "Owner | None":
    """The place of what the client sends to."""
    _bound_size(attach)
    return await attach.place()


def _bound_size(attach: Attach) -> None:
    """The link takes messages up to the policy's size."""
    most = attach.record.policy["max_message_bytes"]
    if most is not None:
        attach.link.max_message_size = min(most, attach.link.max_message_size)


async def _consume(attach: Attach, *, relay: bool = False) -> None:
    link = attach.link
    options = consumer_options(link, attach.record.name)
    options.relay = relay
    options.filter, attach.terms.filter = source_filter(link.source)
    queue_owner = await attach.place()
    if queue_owner is None:
        return
    consumer = ConsumerLink(attach.connection, link, queue_owner, number=attach.number, options=options)
    attach.bind(consumer)
    # Credit often comes with the attach, before we know where the queue is.
    consumer.start(link.limit, link.drain)
    queue_owner.open_consumer(consumer)


async def open_address(sender: AnonymousLink, address: str, message: Buffer) -> ToAddress:
    """Opens what a message of a link without a target is addressed to, also when the link has ended.

    What a free name becomes is as the first `message` for it says. Raises Refused.
    """
    connection, link = sender.connection, sender.link
    frontend = connection.frontend
    ended = link.session.state != MAPPED
    owner = connection.owner if ended else connection.session_owner(link.session)
    try:
        asked = node_of_message(message)
        record = await resolve(connection, name_of(address), Right.SEND, owner, asked)
        queue_owner = await frontend.place(record.name) if record.role is Role.QUEUE else None
    except (service.Refused, InvalidPolicy) as refusal:
        raise Refused(_condition_of(refusal), str(refusal)) from None
    except CoordinatorError as error:
        raise _undecided(address, error) from None
    finally:
        if connection.amqp is None:
            # A name with the lifetime of the connection was perhaps made after its end.
            frontend.lifetimes.ended(connection.owner)
    name, number, label = record.name, frontend.next_link(), label_of(link)
    made: AddressProducer | AddressRouter
    if queue_owner is not None:
        made = AddressProducer(connection, link, queue_owner, number=number, queue=name, label=label)
    elif record.role is Role.ROUTER:
        made = AddressRouter(connection, link, number=number, router=name, label=label)
    else:
        condition = conditions.NOT_FOUND if record.role is Role.NONE else conditions.NOT_ALLOWED
        raise Refused(
            condition, f"{name} has role {record.role}; messages without a target go to queues and routers"
        )
    most = record.policy["max_message_bytes"]
    hold = frontend.guard.hold(connection, Right.SEND, record, lambda *_: sender.lose(address))
    made.belongs(sender, hold, link.max_message_size if most is None else min(most, link.max_message_size))
    if isinstance(made, AddressRouter):
        made.start()
    elif queue_owner is not None:
        queue_owner.open_producer(made)
    return made


ROLES: Final[Mapping[Role, Callable[[Attach], Awaitable[None]]]] = {
    Role.NONE: _to_nothing,
    Role.METADATA: _to_metadata,
    Role.CONNECTION_POINT: _to_connection_point,
    Role.QUEUE: _to_queue,
    Role.ROUTER: _to_router,
}
