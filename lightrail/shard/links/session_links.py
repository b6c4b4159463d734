"""Session links: the frontends' links whose consumers have a session: locks are renewed, and end."""

from lightrail.model import conditions
from lightrail.shard.effects.peers import Consumer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.links.client_links import ClientLinks
from lightrail.shard.links.last_consumers import LastConsumers
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.effects import SessionRenewed
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.bodies import Refusal


class SessionLinks:
    """Notifies frontends of the sessions of their links; the performer calls it when one is lost."""

    __slots__ = ("_client_links", "_last_consumers", "_performer")

    def __init__(
        self, performer: Performer, client_links: ClientLinks, last_consumers: LastConsumers
    ) -> None:
        self._performer = performer
        self._client_links = client_links
        self._last_consumers = last_consumers
        performer.on_lost_session = self._lost

    def renew(self, consumer: Consumer, now_ms: int) -> int | None:
        """Renews the lock of a consumer's session, and notifies its frontend; see SessionRenewed."""
        found = self._performer.apply(consumer.queue, commands.RenewSession(consumer.id), now_ms)
        (answer,) = [effect for effect in found if isinstance(effect, SessionRenewed)]
        attached = consumer.queue.view.consumer(consumer.id)
        if answer.locked_ms is not None and attached is not None and attached.options.session is not None:
            consumer.accept_session(attached.options.session, answer.locked_ms)
        return answer.locked_ms

    def _lost(self, queue: Queue, id: int, now_ms: int) -> None:
        """Ends the link of a consumer whose session's lock has ended; its deliveries have returned."""
        consumer = self._performer.consumers.pop(id, None)
        self._performer.touch(queue)
        if consumer is None:
            return
        consumer.peer.consumers.pop(consumer.link, None)
        if consumer.opened is not None:
            self._client_links.drop(queue, consumer.opened.client_link, consumer)
        self._last_consumers.left(queue, now_ms, lost=False)
        consumer.peer.end_link(
            consumer.link,
            Refusal(conditions.SESSION_LOCK_LOST, "the lock of the session has ended: accept it again"),
        )
