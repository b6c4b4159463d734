"""Protocols of the connection and the frontend for links. Both are in higher layers; links use only these.

A link binds the methods that it needs per batch once, when it is created.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from lightrail.amqp.values import Symbol
from lightrail.frontend.client import Client
from lightrail.frontend.guard import Guard, Hold
from lightrail.frontend.intake import Intake, Sender
from lightrail.frontend.lifetimes import Lifetimes
from lightrail.frontend.links.bound import Bound, Terms
from lightrail.frontend.links.routers import Routers
from lightrail.frontend.outflow import Outflow, Receiver
from lightrail.model.placement import Placement
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name
from lightrail.namespace.service import Service
from lightrail.telemetry.frontend import FrontendCounts
from lightrail.wire.bodies import Answer, Refusal

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.cluster.shard_connections import ShardConnections
    from lightrail.wire.owner import Owner
    from lightrail.wire.shards import ShardPeer


class Retiring(Protocol):
    """The consumer of a link that its client has closed: retiring.py."""

    def give_way(self) -> None: ...


class LinkFrontend(Protocol):
    """The frontend, which all links of the process share."""

    counts: FrontendCounts
    intake: Intake
    outflow: Outflow
    directory: Directory
    service: Service
    lifetimes: Lifetimes
    guard: Guard
    routers: Routers
    shard_connections: "ShardConnections"
    retiring: "dict[str, Retiring]"
    """Consumers of queues with one consumer only whose links have ended, by queue: see retiring.py."""
    boot: int
    """Random number, drawn when the process starts."""
    stopping: bool
    """Whether the process ends, and no more credit is granted."""

    def now_ms(self) -> int:
        """Wall clock, in milliseconds since 1970."""

    def later(self, wait_ms: int, call: Callable[[], None]) -> None:
        """Makes a call after `wait_ms`; 0: in the next turn of the loop."""

    def timer(self, wait_ms: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        """The same for a call that can be cancelled through the handle."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine in the background."""

    def next_link(self) -> int:
        """A number for a link, unique in the lifetime of the process."""

    def poll(self) -> None:
        """Applies changes of names, rights and placements."""

    async def first_use(self, name: str, client: str, role: Role) -> Name:
        """The record of a name that is used for the first time; see `Service.first_use`."""

    async def place(self, queue: str) -> "Owner":
        """The owner of a queue, for a link that is opened before the loop turns; a new queue is placed."""

    async def find(self, queue: str) -> Placement:
        """The placement of a queue; a new queue is placed by the coordinator."""

    def placed(self, queue: str) -> "ShardPeer | None":
        """The shard of a queue if both are known here, otherwise None."""

    def forget_route(self, name: str) -> None:
        """Discards the known placement of a name."""

    async def ask_shard(self, queue: str, op: str, fields: dict[str, Any]) -> Answer:
        """Sends a request to the shard of a queue. Raises ShardDownError, ShardRefusedError."""


class LinkTable(Protocol):
    """The links of one connection: attaches are answered and links are ended here."""

    def __iter__(self) -> Iterator[Bound]:
        """The objects of the links."""

    def bind(self, bound: Bound, terms: Terms) -> None:
        """A link is bound from now on, until it is detached or refused."""

    def hold_of(self, bound: Bound) -> Hold | None:
        """The use of a name by a link; None if it has ended, or uses no single name."""

    def accept_incoming(self, link: "Link") -> None:
        """Answers the attach of a link on which the client sends."""

    def accept_outgoing(self, link: "Link") -> None:
        """Answers the attach of a link on which the client receives."""

    def refuse(self, link: "Link", attached: bool, refusal: Refusal) -> None:
        """Ends a link with its shard's reason, without closing the object of the link."""

    def detach(
        self, link: "Link", condition: str, description: str, info: dict[Symbol, Any] | None = None
    ) -> None:
        """Ends a link with an error, and closes the object of the link."""


class LinkContext(Sender, Receiver, Protocol):
    """The connection of a link."""

    starved: dict[Bound, None]
    """Links that receive no messages until the client opens its session window or settles."""
    unsettled_bytes: int
    """Bytes of messages that the client received and has not settled, including those of their slices."""
    window_bytes: int
    """Bytes that shards may send before the client has read them, over all receiving links."""

    @property
    def frontend(self) -> LinkFrontend:
        """The frontend that accepted the connection."""

    @property
    def client(self) -> Client:
        """The client of the connection."""

    @property
    def links(self) -> LinkTable:
        """All links of the connection."""

    @property
    def is_open(self) -> bool:
        """Whether the socket is open."""

    def has_too_much_unsettled(self) -> bool:
        """Whether the client has to settle before it receives more."""

    def touch(self) -> None:
        """Schedules the output to be written at the end of this turn of the loop."""
