"""The fields of a link's terminus: the name that it addresses, and options of a consumer.

Destination types of JMS clients, queue or topic (AMQP Binding for JMS, 5.3).

The type is in the capabilities of a terminus; for a message that is sent without a terminus it is in the
annotation `x-opt-jms-dest`. Clients of ActiveMQ write it before the address, as `topic://prices`. A topic is
a router. ADR 26 has the consequences.

The no-local filter of subscriptions, which excludes messages of the subscriber's container.

A subscription with this filter receives no messages from links of the container that created it (JMS 2.0,
8.3.3: of its client identifier, which is the container-id). The plan has the queues of such subscriptions and
their containers.

The applied filters of a source, for the shard and for the answer (messaging 3.5.3).
"""

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.decoder import Buffer
from lightrail.amqp.performatives import Modified, Open, Source, Target
from lightrail.amqp.sections import decode_annotations
from lightrail.amqp.values import DecodeError, Described, Symbol
from lightrail.filters.errors import FilterError
from lightrail.filters.source import from_amqp
from lightrail.frontend import sole_connections
from lightrail.frontend.errors import ConditionError
from lightrail.model import conditions
from lightrail.model.names import InvalidNameError, SystemNameError, node_scheme, queue_name
from lightrail.model.policy import Role
from lightrail.namespace.records import Name
from lightrail.namespace.router_plan import CopyGroup, Plan, Routed
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import OutcomeCode

if TYPE_CHECKING:
    from lightrail.amqp.link import Link

NODES: Final[Mapping[Role, str]] = {Role.QUEUE: "queue", Role.ROUTER: "topic"}
"""The roles that have a word in JMS, and the word for each."""
_BY_CAPABILITY: Final[Mapping[str, Role]] = {
    "queue": Role.QUEUE,
    "temporary-queue": Role.QUEUE,
    "topic": Role.ROUTER,
    "temporary-topic": Role.ROUTER,
}
_ANNOTATION: Final = "x-opt-jms-dest"
_BY_ANNOTATION: Final[Mapping[int, Role]] = {
    0: Role.QUEUE,
    1: Role.ROUTER,
    2: Role.QUEUE,
    3: Role.ROUTER,
}
"""A queue, a topic, and temporary ones of both."""


def symbols(value: Any) -> frozenset[str]:
    """The symbols of a field that may be one symbol or several."""
    if value is None:
        return frozenset()
    return frozenset(map(str, value)) if isinstance(value, list | tuple) else frozenset({str(value)})


def node_of(terminus: Source | Target) -> Role | None:
    """The role that the capabilities of a terminus or its address request; None if none, or both."""
    asked = {_BY_CAPABILITY[each] for each in symbols(terminus.capabilities) if each in _BY_CAPABILITY}
    return asked.pop() if len(asked) == 1 else _of_address(terminus.address)


def node_of_message(message: Buffer, address: str) -> Role | None:
    """The role that a message's annotation or its address requests; None if they request none."""
    try:
        found = decode_annotations(message).get(_ANNOTATION)
    except DecodeError:
        found = None
    role = _BY_ANNOTATION.get(found) if isinstance(found, int) else None
    return role or _of_address(address)


def _of_address(address: object) -> Role | None:
    scheme = node_scheme(address)
    return None if scheme is None else _BY_CAPABILITY[scheme]


def another_node(record: Name) -> str:
    """Why a client can't use a name in the role that it expects, and the remedy."""
    name, role = record.name, record.role
    other = Role.ROUTER if role is Role.QUEUE else Role.QUEUE
    return (
        f"{name} is a {role}, and a {NODES[other]} was asked for (capability {NODES[other]}): "
        f"use it as a {NODES[role]}, or delete {name} and give it the role {other}"
    )


def container_of(link: "Link") -> str:
    """The container-id of a link's client."""
    peer = link.session.connection.peer_open
    return "" if peer is None else peer.container_id


def left_out(routed: Routed, plan: Plan, container: str) -> Routed:
    """The groups of a batch without the queues that exclude messages of a container.

    A message that only such queues would receive is not stored, and not unroutable: it is accepted.
    """
    own = {queue for queue, unwanted in plan.no_local.items() if unwanted == container}
    if not own:
        return routed
    groups = [CopyGroup(group.queues - own, group.indices, group.payloads) for group in routed.groups]
    return Routed([group for group in groups if group.queues], routed.unroutable)


NO_LOCAL: Final = frozenset({"apache.org:no-local-filter:list", 0x0000468C00000003})
"""Only subscriptions apply this filter. If it were ignored elsewhere, as 3.5.8 allows, JMS clients would
receive their own messages, because they do not check the answer."""

Applied = tuple[dict[str, Any] | None, dict[Symbol, Any] | None]


def no_local(source: Source) -> dict[Symbol, Any]:
    """The filters of a source that exclude messages of its container, by name."""
    given = source.filter or {}
    return {
        name: value
        for name, value in given.items()
        if isinstance(value, Described) and value.descriptor in NO_LOCAL
    }


def source_filter(source: Source, *, subscribes: bool = False) -> Applied:
    """(the filter for the shard, the filter set of the answer) of a source; None for no filter.

    Filters that are not supported are left out of both, and no-local filters if it `subscribes`: see
    `no_local`. Raises ConditionError for a supported filter with an error.
    """
    if not source.filter:
        return None, None
    if not subscribes and no_local(source):
        raise ConditionError(
            conditions.NOT_IMPLEMENTED,
            "a no-local filter is for receivers at routers (topics): receive from a queue without one",
        )
    try:
        found = from_amqp(source.filter)
    except FilterError as error:
        raise ConditionError(conditions.INVALID_FIELD, str(error)) from None
    return (found.filter.spec if found.filter is not None else None), (found.accepted or None)


TERMINUS_TIMEOUT_S_MAX: Final[int] = 3_600
"""Longest time for which a link is suspended, whatever the client requests; the attach answer has this
time."""
LABEL_CHARACTERS_MAX: Final[int] = 256
"""Characters of a link's name that are shown to people."""


def terminus_of(link: "Link") -> Source | Target:
    """The terminus at the broker: the source of a link that receives, the target of a link that sends.

    Raises:
        ConditionError: there is none.
    """
    terminus = link.source if link.is_sender else link.target
    if not isinstance(terminus, (Source, Target)):
        side = "source" if link.is_sender else "target"
        raise ConditionError(conditions.INVALID_FIELD, f"expected a {side} with an address, found none")
    return terminus


def suspended_s(link: "Link") -> int | None:
    """How long a link is suspended after its end; None if it is not resumable.

    The client requests this by the timeout of the broker's terminus or an expiry-policy of never, or resumes
    the link now.
    """
    terminus, attach = link.source if link.is_sender else link.target, link.attach
    assert isinstance(terminus, Source | Target)
    most = TERMINUS_TIMEOUT_S_MAX
    wanted = most if str(terminus.expiry_policy) == "never" else min(terminus.timeout, most)
    return wanted if wanted or (attach is not None and attach.unsettled is not None) else None


def durability_of(link: "Link") -> int:
    """The durability that the client requests for the broker's terminus."""
    terminus = link.source if link.is_sender else link.target
    assert isinstance(terminus, Source | Target)
    return int(terminus.durable or 0)


def consumer_suspended_s(link: "Link", options: ConsumerOpen) -> int | None:
    """The same of a link that receives from a queue: what is never in flight can't be resumed."""
    source = link.source
    assert isinstance(source, Source)
    if not options.client_link or options.relay or options.browse or options.presettled or source.dynamic:
        return None
    return suspended_s(link)


def refuse_incomplete(link: "Link") -> None:
    """Refuses the incomplete map of a receiver whose link can't be resumed. Raises ConditionError."""
    if link.attach is not None and link.attach.incomplete_unsettled:
        raise ConditionError(
            conditions.NOT_IMPLEMENTED,
            "expected a link that may be resumed, found an incomplete unsettled map on another one, to which"
            " nothing new may be sent; attach with a complete map",
        )


def name_of(address: object) -> str:
    """The name in an address. Raises ConditionError."""
    if address is None or address == "":
        raise ConditionError(conditions.INVALID_FIELD, "expected an address, found none")
    if not isinstance(address, str):
        raise ConditionError(
            conditions.INVALID_FIELD, f"expected a string as address, got {type(address).__name__}"
        )
    try:
        return queue_name(address)
    except SystemNameError as reserved:
        raise ConditionError(conditions.NOT_FOUND, str(reserved)) from None
    except InvalidNameError as error:
        raise ConditionError(conditions.INVALID_FIELD, str(error)) from None


def label_of(link: "Link") -> str:
    """A readable name of a link: container and link name, each cut to half of the length."""
    peer = link.session.connection.peer_open
    half = LABEL_CHARACTERS_MAX // 2
    container = peer.container_id if peer is not None else ""
    return f"{container[: half - 1]}/{link.name[:half]}"


def client_link_of(link: "Link", user: str | None) -> str:
    """Identity of a client's link at the shard of its queue (2.6.1): a digest of its names.

    It is the same for each attach of the link, on any connection of its container and user. It is empty for a
    container without an id, and for a link that does not ask to outlive its connection: many clients name all
    containers of a process, or of all copies of a service, alike, and their links by their purpose.
    """
    peer = link.session.connection.peer_open
    if peer is None or not peer.container_id or not _outlives_connection(link, peer):
        return ""
    named = json.dumps([peer.container_id, link.name, link.is_sender, user])
    return hashlib.blake2b(named.encode(), digest_size=16).hexdigest()


def _outlives_connection(link: "Link", peer: Open) -> bool:
    """Whether the client asks that the link is kept, or that its container has one connection only."""
    is_sole = sole_connections.CAPABILITY in (peer.desired_capabilities or ())
    return is_sole or suspended_s(link) is not None or durability_of(link) > 0


def consumer_options(link: "Link", queue: str, user: str) -> ConsumerOpen:
    """The options of a consumer of a user in the source of a receiving link (messaging 3.5.3)."""
    source = link.source
    assert isinstance(source, Source)
    options = ConsumerOpen(queue, label=label_of(link), user=user)
    options.browse = source.distribution_mode is not None and str(source.distribution_mode) == "copy"
    options.presettled = link.snd_settle_mode == 1
    default = source.default_outcome
    name = type(default).__name__.lower() if default is not None else "modified"
    codes = {
        "accepted": OutcomeCode.ACCEPTED,
        "rejected": OutcomeCode.REJECTED,
        "released": OutcomeCode.RELEASED,
        "modified": OutcomeCode.MODIFIED,
    }
    options.default_outcome = int(codes.get(name, OutcomeCode.MODIFIED))
    options.default_failed = bool(default.delivery_failed) if isinstance(default, Modified) else True
    options.default_undeliverable = isinstance(default, Modified) and bool(default.undeliverable_here)
    return options
