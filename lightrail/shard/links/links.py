"""Links: those of all frontends at the queues of a shard; sending and receiving ones have a room each."""

import logging
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING

from lightrail.model import conditions
from lightrail.namespace.topic_uses import idle_s
from lightrail.shard.effects.peers import Consumer, Peer, Producer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.effects.receiving_link import ReceivingLink
from lightrail.shard.journal.store import Recovered, Store
from lightrail.shard.links.client_links import STOLEN, ClientLinks, Opened
from lightrail.shard.links.closings import Closings, LastConsumers
from lightrail.shard.links.idle import IdleQueues
from lightrail.shard.links.ingress.admission import Admission
from lightrail.shard.links.receiving.consumer_options import admitted
from lightrail.shard.links.receiving.durable_receivers import DurableReceivers
from lightrail.shard.links.receiving.receiving_links import ReceivingLinks
from lightrail.shard.links.receiving.resuming import Recovery, Resending
from lightrail.shard.links.retiring import RetiringQueues
from lightrail.shard.links.sending.sending_links import SendingLinks
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import CallWhenSynced, Queue
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import ConsumerOpen, ProducerOpen, Refusal
from lightrail.wire.frames import Kind, frame

if TYPE_CHECKING:
    from lightrail.namespace.directory import Changes

log = logging.getLogger("lightrail.shard.links.links")


@dataclass(slots=True, eq=False, repr=False)
class Links:
    """The door of this room: opens and closes links at the queues."""

    _queues: Queues
    _performer: Performer
    admission: InitVar[Admission]
    recovered: InitVar[Recovered]
    _when_synced: CallWhenSynced
    store: InitVar[Store]
    _counts: ShardCounts
    _memory: Memory
    client_links: ClientLinks = field(default_factory=ClientLinks)
    closings: Closings = field(init=False)
    last_consumers: LastConsumers = field(init=False)
    retiring: RetiringQueues = field(init=False)
    idle: IdleQueues = field(init=False)
    durable: DurableReceivers = field(init=False)
    resending: Resending = field(init=False)
    receiving: ReceivingLinks = field(init=False)
    sending: SendingLinks = field(init=False)

    def __post_init__(self, admission: Admission, recovered: Recovered, store: Store) -> None:
        self.closings = Closings(self._queues, self._performer)
        self.retiring = RetiringQueues(self._queues, self._performer, self, self._when_synced)
        self.last_consumers = LastConsumers(self.retiring)
        self.idle = IdleQueues(self._queues, self._performer, self._when_synced, self.retiring)
        self.retiring.when_returned = self._returned
        self.durable = DurableReceivers(
            self._performer.links, store, self._counts, self._when_synced, self._performer.apply
        )
        self.resending = Resending(self._performer)
        self.receiving = ReceivingLinks(self._performer, self.client_links, self.durable, self.last_consumers)
        self.sending = SendingLinks(
            self.client_links, admission, recovered, self._when_synced, store, self._counts
        )

    def open_producer(
        self, peer: Peer, link: int, epoch: int, body: ProducerOpen, next_number: int, now_ms: int
    ) -> None:
        """Opens a frontend's link that sends to a queue; `next_number` as in `NumberedLink`."""
        if self.last_consumers.left_queues:
            # What the link sends is for the queue that is made after the deletion.
            self.last_consumers.retire(now_ms)
        queue = self._queue(peer, link, epoch, body, now_ms)
        if queue is None:
            return
        attach = self.sending.attach(queue, peer, link, body, now_ms)
        if attach is None:
            peer.end_link(link, Refusal(conditions.STOLEN, STOLEN))
        elif self._claim(queue, peer, link, body, now_ms):
            self.sending.open(queue, peer, link, body, next_number, attach, now_ms)

    def _queue(
        self, peer: Peer, link: int, epoch: int, body: ProducerOpen | ConsumerOpen, now_ms: int
    ) -> Queue | None:
        """The queue of a link that is opened; without one here the frontend knows why when this returns."""
        queue = self._queues.open(body.queue, now_ms, epoch)
        if not isinstance(queue, Refusal):
            return queue
        if queue.condition == conditions.MOVED:
            peer.send_away(link, body.queue, epoch, consumer=isinstance(body, ConsumerOpen))
        else:
            peer.end_link(link, queue)
        return None

    def _claim(
        self, queue: Queue, peer: Peer, link: int, opening: ProducerOpen | ConsumerOpen, now_ms: int
    ) -> bool:
        """Ends the open link of the same client's link, if the client has attached it again.

        Returns:
            False if the link that is being opened must end instead: it is the older attach, and is opened
            again only because its shard was lost or its queue moved.
        """
        client_link = opening.client_link
        if not client_link:
            return True
        recovers = isinstance(opening, ConsumerOpen) and opening.recovers
        former = self.client_links.opened(queue, client_link)
        if former is not None and (former.peer is not peer or former.link != link):
            self._counts.links_stolen += 1
            log.info(
                "link %s at queue %s was attached on another connection of its container",
                opening.label or "without a label",
                queue.name,
            )
            stolen = Refusal(conditions.STOLEN, STOLEN)
            if not opening.steals:
                peer.end_link(link, stolen)
                return False
            if isinstance(former, Producer):
                self.sending.leave(former)
            else:
                # Its deliveries go on with the new link, or return, and none counts as failed.
                self.receiving.close(former, now_ms, for_good=not recovers)
            former.peer.end_link(former.link, stolen)
        if opening.steals and not recovers:
            waiting = self.client_links.get(queue, client_link)
            if isinstance(waiting, ReceivingLink) and waiting.is_waiting:
                self.receiving.release(waiting, now_ms, is_given_up=True)
        return True

    def open_elsewhere(
        self, peer: Peer, link: int, body: ProducerOpen | ConsumerOpen
    ) -> Opened | ReceivingLink | None:
        """See ClientLinks."""
        queue = self._queues.find(body.queue)
        return None if queue is None else self.client_links.open_elsewhere(queue, peer, link, body)

    def open_consumer(self, peer: Peer, link: int, epoch: int, body: ConsumerOpen, now_ms: int) -> None:
        """Opens a frontend's link that receives messages."""
        queue = self._queue(peer, link, epoch, body, now_ms)
        if queue is None:
            return
        peer.moved.pop(link, None)
        earlier = peer.consumers.get(link)
        if earlier is not None:
            self.receiving.close(earlier, now_ms)
        awaited = self.receiving.awaited(peer, link, queue, body, now_ms)
        if awaited is not None:
            self._continue_moved(awaited, peer, link, body, now_ms)
            return
        if not self._claim(queue, peer, link, body, now_ms):
            return
        resumed = self.receiving.resumed(queue, body, now_ms) if body.client_link else None
        if resumed is not None:
            consumer = self.receiving.attach(resumed, peer, link, body, now_ms)
            self.client_links.add(queue, body.client_link, resumed)
            self._recover(consumer, now_ms)
            return
        options = admitted(body, self._queues.looks, self._memory)
        if isinstance(options, Refusal):
            peer.end_link(link, options)
            return
        opened = self.receiving.open(peer, link, queue, body, options, now_ms)
        self._memory.update(queue)
        if opened is None:
            return
        if body.removes_first:
            self.durable.begin_removing(opened)
        if body.suspended_ms is None:
            peer.out.append(frame(Kind.CONSUMER_READY, link=link))
        else:
            body.terminus = body.terminus or peer.boot << 32 | link
            self._recover(opened, now_ms)

    def _recover(self, consumer: Consumer, now_ms: int) -> None:
        """Answers the opening of a link that its client may resume, with its unsettled deliveries."""
        self.durable.begin(consumer, now_ms)
        self._when_synced(Recovery(consumer, self.durable), 0)

    def _continue_moved(
        self, awaited: ReceivingLink, peer: Peer, link: int, body: ConsumerOpen, now_ms: int
    ) -> None:
        """Lets a link whose queue moved go on where it was."""
        queue = awaited.queue
        consumer = self.receiving.attach(awaited, peer, link, body, now_ms)
        if not self._claim(queue, peer, link, body, now_ms):
            self.receiving.close(consumer, now_ms, lost=True, for_good=True)
            return
        self.client_links.add(queue, body.client_link, awaited)
        self.durable.begin(consumer, now_ms)
        if body.removes_first:
            self.durable.begin_removing(consumer)
        peer.out.append(frame(Kind.CONSUMER_READY, link=link))
        if body.is_session:
            self.receiving.renew_session(consumer, now_ms)

    # --- queues ------------------------------------------------------------------------------------------

    def send_away(self, queue: Queue) -> None:
        """Sends MOVED to all links of a queue.

        The shard keeps these links, and the machine keeps its consumers unchanged, until `forget_sent_away`.
        """
        self.sending.send_away(queue)
        self.receiving.send_away(queue)

    def await_sent_away(self, queue: Queue, now_ms: int) -> None:
        """Lets links take their consumers over at a queue that is served again."""
        self.sending.serve(queue)
        self.client_links.forget(queue)
        self.receiving.serve(queue, now_ms)

    def _returned(self, queue: Queue, now_ms: int) -> None:
        """A queue that was LEAVING is served again."""
        self.idle.returned(queue, now_ms)
        self.last_consumers.left(queue, now_ms, lost=True)

    def routers_changed(self, changes: "Changes", now_ms: int) -> None:
        """Some routers, or their subscriptions, may have changed."""
        self.retiring.routers_changed(changes.routers.union(changes.names), now_ms)
        self.idle.routers_changed(changes.routers, now_ms)
        topics = {
            name
            for name, before in changes.names.items()
            if (idle_s(self._queues.names.get(name)) is None) != (before is None or idle_s(before) is None)
        }
        if topics:
            self.idle.watch_families(topics, now_ms)

    def forget_sent_away(self, queue: Queue, refusal: Refusal | None = None) -> None:
        """Removes the links of a queue that is at another shard; those that are left get the refusal."""
        self.sending.end_all(queue, refusal)
        self.durable.forget(queue)
        self.receiving.end_all(queue, refusal)
        self.client_links.forget(queue)

    def end(self, queue: Queue, refusal: Refusal) -> None:
        """Ends all links of a queue that is deleted or at another shard; their deliveries leave with it."""
        if refusal.condition == conditions.MOVED:
            self.send_away(queue)
        self.forget_sent_away(queue, refusal)
        self.retiring.forget(queue)
        self.idle.forget(queue)

    def end_kept(self, queue: Queue, refusal: Refusal, now_ms: int) -> None:
        """Ends all links of a queue that is kept here and not served; a restart locks no message for them."""
        self.durable.end_all(queue, now_ms)
        self.end(queue, refusal)

    # --- frontends ---------------------------------------------------------------------------------------

    def end_link(self, peer: Peer, link: int, now_ms: int) -> None:
        """Closes a link of a frontend, a sending or a receiving one; see ReceivingLinks.close."""
        self.sending.close(peer, link)
        consumer = peer.consumers.get(link)
        if consumer is not None:
            self.receiving.close(consumer, now_ms)

    def forget(self, peer: Peer, now_ms: int) -> None:
        """Closes all links of a lost frontend; their deliveries return or are suspended, numbers are kept."""
        for consumer in list(peer.consumers.values()):
            # The broker failed, not the client, so the delivery counts of messages do not change.
            self.receiving.close(consumer, now_ms, lost=True)
        self.sending.forget_peer(peer)
        self.closings.lost(peer, now_ms)
