"""Destination types of JMS clients, queue or topic (AMQP Binding for JMS, 5.3).

The type is in the capabilities of a terminus; for a message that is sent without a terminus it is in the
annotation `x-opt-jms-dest`. Clients of ActiveMQ write it before the address, as `topic://prices`. A topic is
a router. ADR 26 has the consequences.
"""

from collections.abc import Mapping
from typing import Any, Final

from lightrail.amqp.decoder import Buffer
from lightrail.amqp.performatives import Source, Target
from lightrail.amqp.sections import decode_annotations
from lightrail.amqp.values import DecodeError
from lightrail.model.names import node_scheme
from lightrail.model.policy import Role
from lightrail.namespace.records import Name

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
