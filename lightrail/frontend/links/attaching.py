"""Attaching: opens a link by the role of the name that it addresses and the client's rights on it.

ROLES has one function per role; each is called with an Attach whose rights have been checked and opens the
link at a shard, or raises ConditionError.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lightrail.amqp.decoder import Buffer
from lightrail.amqp.link import ATTACHING, Link
from lightrail.amqp.values import Symbol, UInt
from lightrail.amqp.windows import MAPPED
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.frontend.errors import ConditionError, unknown_name
from lightrail.frontend.links import dynamic, subscribing
from lightrail.frontend.links.anonymous import AnonymousLink, OpenAddress
from lightrail.frontend.links.bound import Attach, Terms, right_of
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.links.dynamic import open_sender
from lightrail.frontend.links.relays import RelayLink
from lightrail.frontend.links.resolving import names_entities, no_target, resolve
from lightrail.frontend.links.resumable import ResumableLink
from lightrail.frontend.links.resumable_consumer import ResumableConsumer
from lightrail.frontend.links.routing import RouterLink
from lightrail.frontend.links.scheduling import DELAYED_DELIVERY, DelayingProducer, may_delay
from lightrail.frontend.links.terminus import (
    NODES,
    another_node,
    client_link_of,
    consumer_options,
    consumer_suspended_s,
    durability_of,
    label_of,
    name_of,
    node_of,
    node_of_message,
    refuse_incomplete,
    source_filter,
    suspended_s,
    terminus_of,
)
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.model import conditions, limits, names
from lightrail.model.policy import InvalidPolicyError, Role
from lightrail.namespace.records import Right
from lightrail.namespace.statuses import LimitExceededError, ServiceError

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.shard_client.owners.owner import Owner
    from lightrail.wire.bodies import ConsumerOpen

log = logging.getLogger("lightrail.frontend.links.attaching")


async def attach(connection: "ClientConnection", link: Link, until_ms: int = 0) -> None:
    """Answers the attach of a client, at the latest after the answer of the shard.

    Args:
        until_ms: until when it is repeated if its name is deleted meanwhile; 0 for the first attempt.
    """
    frontend = connection.frontend
    link.fills_info = not link.is_sender and frontend.hooks.reads_info(link)
    if until_ms:
        await asyncio.sleep(limits.ATTACH_AGAIN_MS / 1000)
        if not connection.is_open or link.state != ATTACHING:
            return
    until_ms = until_ms or frontend.now_ms() + limits.ATTACH_REPEATED_MS
    repeats = frontend.now_ms() < until_ms
    again = (lambda: frontend.spawn(attach(connection, link, until_ms))) if repeats else None
    try:
        await _attach(connection, link, again)
        return
    except ConditionError as error:
        if error.condition == conditions.RESOURCE_DELETED and again is not None:
            again()
            return
        condition, description, info = error.condition, error.description, error.info
    except (ServiceError, InvalidPolicyError) as refusal:
        condition, description, info = _condition_of(refusal), str(refusal), None
    except CoordinatorError as unreachable:
        unknown = unknown_name("this name", unreachable)
        condition, description, info = unknown.condition, unknown.description, unknown.info
    except Exception:
        log.exception("an attach could not be processed")
        condition, info = conditions.INTERNAL_ERROR, None
        description = "this name can't be looked up now; try again"
    if connection.is_open:
        connection.frontend.counts.links_refused += 1
        connection.log_refused(condition, description)
        link.refuse(condition, description, info)
        connection.touch()


def _condition_of(refusal: ServiceError | InvalidPolicyError) -> str:
    if isinstance(refusal, LimitExceededError):
        return conditions.RESOURCE_LIMIT_EXCEEDED
    return conditions.PRECONDITION_FAILED


async def _attach(connection: "ClientConnection", link: Link, again: Callable[[], None] | None) -> None:
    frontend = connection.frontend
    number = frontend.next_link()
    terms = Terms(f"{connection.client.session_owner(link.session)}/{number}")
    if link.is_sender and link.source is None:
        router, queue, shared = subscribing.find(link, frontend)
        frontend.guard.demand(connection.client, Right.LISTEN, router)
        await subscribing.look_up(Attach(connection, link, router, number, terms), queue, shared)
        return
    terminus = terminus_of(link)
    terms.again = None if terminus.dynamic else again
    if terminus.dynamic:
        record = await dynamic.make(connection, link, terminus, terms.owner)
        dynamic.finish_at_close(frontend, record, terms)
        made = Attach(connection, link, record, number, terms)
        try:
            if made.open:
                await ROLES[record.role](made)
        finally:
            if link.context is None:
                frontend.lifetimes.expire(record)
        return
    if terminus.address in (None, "") and not link.is_sender:
        if may_delay(link):
            terms.offered.append(DELAYED_DELIVERY)
        anonymous = AnonymousLink(connection, link, open_address)
        link.context = anonymous
        connection.links.bind(anonymous, terms)
        anonymous.start()
        return
    role = node_of(terminus)
    try:
        name, right, entity = name_of(terminus.address), right_of(link), names_entities(link, frontend)
        record = await resolve(connection, name, right, terms.owner, role, entity=entity)
        if role is not None and record.role in NODES and record.role is not role:
            raise ConditionError(conditions.NOT_ALLOWED, another_node(record))
        dynamic.finish_at_close(frontend, record, terms)
        made = Attach(connection, link, record, number, terms)
        frontend.hooks.admit(made)
        if made.open:
            await ROLES[record.role](made)
    finally:
        if link.context is None:
            # This first use may have created a name that is deleted with the link, session or connection.
            client = connection.client
            owner = terms.owner if link.session.state == MAPPED else client.session_owner(link.session)
            frontend.lifetimes.ended(owner if connection.is_open else client.owner)


async def _to_nothing(attach: Attach) -> None:
    name = attach.record.name
    if names.is_temporary(name):
        raise ConditionError(conditions.NOT_FOUND, f"the temporary name {name} does not exist (any more)")
    try:
        names.check_spelling(name)
    except names.InvalidNameError as error:
        raise ConditionError(conditions.NOT_FOUND, f"{name} has no role, and {error}") from None
    raise ConditionError(
        conditions.NOT_FOUND,
        f"{name} has no role, and its first use gives it none: give it one by posting a policy such as "
        f'{{"role": "queue"}} to /{name} over HTTP',
    )


async def _to_metadata(attach: Attach) -> None:
    """A reference to another address: the client is redirected (transport 2.8.18)."""
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
    raise ConditionError(conditions.LINK_REDIRECT, f"{attach.record.name} is at {reference}", info)


async def _to_queue(attach: Attach) -> None:
    link, policy = attach.link, attach.record.policy
    if link.is_sender:
        await _consume(attach)
        return
    # A link that may be resumed does not delay messages.
    delays = may_delay(link) and suspended_s(link) is None
    if policy["delay"] or delays:
        attach.terms.offered.append(DELAYED_DELIVERY)
    if (queue_owner := await _to_send(attach)) is None:
        return
    producer = _producer(attach, queue_owner, delays=delays)
    link.take_pieces()
    attach.bind(producer)
    queue_owner.open_producer(producer)


def _producer(attach: Attach, queue_owner: "Owner", *, delays: bool) -> ProducerLink:
    """The object of a link that sends to a queue."""
    link, connection = attach.link, attach.connection
    client_link = client_link_of(link, connection.client.user)
    seconds = suspended_s(link) if client_link else None
    if seconds is not None:
        return ResumableLink(
            connection,
            link,
            queue_owner,
            number=attach.number,
            queue=attach.record.name,
            label=label_of(link),
            client_link=client_link,
            seconds=seconds,
            durability=durability_of(link),
            terms=attach.terms,
        )
    link.mix_headers()
    kind = attach.frontend.hooks.producer_link(attach) or (DelayingProducer if delays else ProducerLink)
    return kind(
        connection,
        link,
        queue_owner,
        number=attach.number,
        queue=attach.record.name,
        label=label_of(link),
        client_link=client_link,
    )


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
        refuse_incomplete(attach.link)
        await subscribing.subscribe(attach)
        return
    _bound_size(attach)
    await open_sender(attach)


async def _to_send(attach: Attach) -> "Owner | None":
    """The owner of the name to which the client sends."""
    _bound_size(attach)
    return await attach.place()


def _bound_size(attach: Attach) -> None:
    """The link accepts messages up to the policy's size."""
    most = attach.record.policy["max_message_bytes"]
    if most is not None:
        attach.link.max_message_size = min(most, attach.link.max_message_size)


async def _consume(attach: Attach, *, relay: bool = False) -> None:
    link, client = attach.link, attach.connection.client
    options = consumer_options(link, attach.record.name, client.user_at(attach.record.name))
    options.relay = relay
    if not relay:
        options.client_link = client_link_of(link, client.user)
    kind = attach.frontend.hooks.consumer_link(attach, options)
    assert kind is not None or not options.is_session, "expected a class for the link of a session"
    if not options.is_session:
        options.filter, attach.terms.filter = source_filter(link.source)
    if (queue_owner := await attach.place()) is None:
        return
    consumer = _consumer(attach, queue_owner, options, kind)
    attach.bind(consumer)
    # Credit often arrives with the attach, before the queue's shard is known.
    consumer.start(link.limit, link.drain)
    queue_owner.open_consumer(consumer)


def _consumer(
    attach: Attach, queue_owner: "Owner", options: "ConsumerOpen", kind: Callable[..., ConsumerLink] | None
) -> ConsumerLink:
    """The object of a link that receives from a queue or a connection point.

    Args:
        kind: its class, if a hook has chosen one.
    """
    link, connection = attach.link, attach.connection
    seconds = consumer_suspended_s(link, options) if kind is None else None
    if seconds is not None:
        return ResumableConsumer(
            connection,
            link,
            queue_owner,
            number=attach.number,
            options=options,
            seconds=seconds,
            durability=durability_of(link),
            terms=attach.terms,
        )
    refuse_incomplete(link)
    return (kind or ConsumerLink)(connection, link, queue_owner, number=attach.number, options=options)


async def open_address(sender: AnonymousLink, address: str, message: Buffer) -> OpenAddress:
    """Opens the producer of an address of a link without a target, even if the link has ended.

    The first `message` for a name without a role decides its role. Raises ConditionError.
    """
    connection, link = sender.connection, sender.link
    frontend = connection.frontend
    ended = link.session.state != MAPPED
    owner = connection.client.owner if ended else connection.client.session_owner(link.session)
    try:
        role = node_of_message(message, address)
        name, entity = name_of(address), sender.names_entities
        record = await resolve(connection, name, Right.SEND, owner, role, entity=entity)
        if entity:
            frontend.hooks.admit_address(frontend.directory, record, name)
        queue_owner = None
        if record.role is Role.QUEUE:
            queue_owner = await frontend.place(record.name)
            # Nobody has watched the right meanwhile.
            record = frontend.guard.check(connection.client, Right.SEND, record)
            frontend.guard.demand_open(Right.SEND, record)
    except (ServiceError, InvalidPolicyError) as refusal:
        raise ConditionError(_condition_of(refusal), str(refusal)) from None
    except CoordinatorError as error:
        raise unknown_name(address, error) from None
    finally:
        if not connection.is_open:
            # A name with the lifetime of the connection may have been created after its end.
            frontend.lifetimes.ended(connection.client.owner)
    name, number, label = record.name, frontend.next_link(), label_of(link)
    if queue_owner is None and record.role is not Role.ROUTER:
        raise no_target(name, record.role)
    most = record.policy["max_message_bytes"]
    found = OpenAddress(
        sender,
        link.max_message_size if most is None else min(most, link.max_message_size),
        frontend.guard.hold(connection.client, Right.SEND, record, lambda _1, _2: sender.retire(address)),
    )
    if queue_owner is not None:
        kind = DelayingProducer if sender.may_delay else ProducerLink
        made = found.producer = kind(
            connection, link, queue_owner, number=number, queue=name, label=label, shared=found
        )
        queue_owner.open_producer(made)
    else:
        router = found.producer = RouterLink(
            connection, link, number=number, router=name, label=label, shared=found
        )
        router.start()
    return found


ROLES: Final[Mapping[Role, Callable[[Attach], Awaitable[None]]]] = {
    Role.NONE: _to_nothing,
    Role.METADATA: _to_metadata,
    Role.CONNECTION_POINT: _to_connection_point,
    Role.QUEUE: _to_queue,
    Role.ROUTER: _to_router,
}
