"""Senders to routers; those to a dynamic topic whose lifetime depends on its links are counted by a shard.

A sender at a router has no link at a shard, only lanes to the queues of its messages. At such a topic
(messaging 3.5.11 and 3.5.13) it is also a producer of the queue `TOPIC/$subscriptions/senders`, and sends it
nothing. So its links are counted as those of a queue are: over all frontends, and until a frontend is lost.
"""

from typing import TYPE_CHECKING

from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.attach import Attach
from lightrail.frontend.links.routing import RouterLink
from lightrail.frontend.links.scheduling import SchedulingRouterLink
from lightrail.frontend.links.terminus import label_of
from lightrail.model import conditions, names
from lightrail.model.policy import Policy, Role
from lightrail.namespace.records import Name
from lightrail.namespace.rights import Caller
from lightrail.shard_client.sending.queue_producer import QueueProducer

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend
    from lightrail.shard_client.owners.owner import Owner


class CountedRouterLink(RouterLink):
    """One incoming link (the client sends) bound to a dynamic topic whose links are counted."""

    __slots__ = ("_presence",)

    def __init__(
        self,
        connection: "ClientConnection",
        link: "Link",
        owner: "Owner",
        *,
        number: int,
        router: str,
        label: str,
    ) -> None:
        super().__init__(connection, link, number=number, router=router, label=label)
        self._presence = QueueProducer(
            owner, self._frontend.next_link(), label=label, ready=self._attach, ended=self._lose
        )

    def start(self) -> None:
        """Opens the producer that is counted; the attach is answered when it is open."""
        self._presence.open()

    def close(self) -> None:
        """The client's link has ended."""
        self._presence.close()
        super().close()


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
