"""Links: the producers and consumers of all frontends, and the stored numbers of closed ones."""

import logging

from lightrail.model import conditions
from lightrail.shard.effects.peers import Consumer, Peer, Producer, RouteProducer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.effects.receiving_link import ReceivingLink
from lightrail.shard.journal.store import Recovered, Store
from lightrail.shard.links.client_links import STOLEN, ClientLinks, Opened
from lightrail.shard.links.closings import Closings
from lightrail.shard.links.ingress.admission import Admission
from lightrail.shard.links.last_consumers import LastConsumers
from lightrail.shard.links.receiving.consumer_options import admitted
from lightrail.shard.links.receiving.durable_receivers import DurableReceivers
from lightrail.shard.links.receiving.receiving_links import ReceivingLinks
from lightrail.shard.links.receiving.resuming import Recovery, Resending
from lightrail.shard.links.sending.attaches import Attaches
from lightrail.shard.links.sending.known import Known, KnownNumbers
from lightrail.shard.links.sending.termini import Termini
from lightrail.shard.links.sending.terminus import ResumableProducer
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue
from lightrail.shard.queues.waiting import CallWhenSynced
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import ConsumerOpen, ProducerOpen, Refusal
from lightrail.wire.frames import Kind, frame

log = logging.getLogger("lightrail.shard.links.links")


class Links(KnownNumbers):
    """Opens and closes links at the queues; a producer that opens again continues after its last number."""

    __slots__ = (
        "_admission",
        "_attaches",
        "_counts",
        "_memory",
        "_performer",
        "_producers",
        "_queues",
        "_when_synced",
        "client_links",
        "closings",
        "last_consumers",
        "receivers",
        "receiving",
        "resending",
        "termini",
    )

    def __init__(
        self,
        queues: Queues,
        performer: Performer,
        admission: Admission,
        recovered: Recovered,
        when_synced: CallWhenSynced,
        store: Store,
        counts: ShardCounts,
        memory: Memory,
    ) -> None:
        super().__init__(recovered.producers, recovered.parts)
        self._queues = queues
        self._performer = performer
        self._admission = admission
        self._memory = memory
        self._counts = counts
        self.closings = Closings(queues, performer)
        self.last_consumers = LastConsumers(self.closings)
        self._when_synced = when_synced
        self.termini = Termini(store, counts)
        self.receivers = DurableReceivers(performer.links, store, counts, when_synced)
        self.resending = Resending(performer)
        self._attaches = Attaches(self, store, counts)
        self.client_links = ClientLinks()
        self.receiving = ReceivingLinks(performer, self.client_links, self.receivers, self.last_consumers)
        self._producers: dict[Queue, dict[Producer, None]] = {}
        """Open producers, by queue."""

    def open_producer(
        self,
        peer: Peer,
        link: int,
        epoch: int,
        body: ProducerOpen,
        next_number: int,
        now_ms: int,
    ) -> None:
        """Opens a frontend's link that sends to a queue; `next_number` as in `Numbered`."""
        queue = self._queues.open(body.queue, now_ms, epoch)
        if isinstance(queue, Refusal):
            if queue.condition == conditions.MOVED:
                peer.send_away(link, body.queue, epoch, consumer=False)
            else:
                peer.end_link(link, queue)
            return
        earlier = peer.producers.pop(link, None)
        if earlier is not None:
            self._leave(earlier)
        attach = self._attaches.open(queue, body, now_ms)
        if attach is None:
            peer.end_link(link, Refusal(conditions.STOLEN, STOLEN))
            return
        if not self._claim(queue, peer, link, body, now_ms):
            return
        id = body.identity or peer.boot << 32 | link
        if body.identity:
            self._take_over(queue, id)
        number, part = self._numbers.pop(id, 0), self._parts.pop(id, 0)
        producer = self.termini.kind_of(body)(peer, link, queue, id, number, part)
        peer.producers[link] = producer
        producer.next_number = next_number
        producer.sent_below = body.sent_below
        if body.sequences:
            producer.stored = {} if producer.is_named else self._sequences.pop(id, {})
        self._producers.setdefault(queue, {})[producer] = None
        producer.client_link = body.client_link
        self.client_links.add(queue, body.client_link, producer)
        if isinstance(producer, ResumableProducer):
            self.termini.open(producer, body, attach, self._when_synced, now_ms)
        else:
            peer.out.append(frame(Kind.PRODUCER_READY, link=link))

    def _take_over(self, queue: Queue, id: int) -> None:
        """Closes the former link of a named producer that opens again.

        So its batches have one order. Batches that wait for room are dropped and sent again; batches in
        records that wait for a commit are still answered, and their number is stored.
        """
        for former in [each for each in self._producers.get(queue, ()) if each.id == id]:
            self._leave(former)
            former.peer.producers.pop(former.link, None)
            refusal = Refusal(conditions.STOLEN, "the same producer has sent another request")
            former.peer.end_link(former.link, refusal)

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
                self._leave(former)
                former.peer.producers.pop(former.link, None)
            else:
                # Its deliveries go on with the new link, or return, and none counts as failed.
                self.receiving.close(former, now_ms, for_good=not recovers, replaced=True)
            former.peer.end_link(former.link, stolen)
        if opening.steals and not recovers:
            waiting = self.client_links.get(queue, client_link)
            if isinstance(waiting, ReceivingLink) and waiting.is_waiting:
                self.receiving.release(waiting, now_ms, is_given_up=True)
        return True

    def open_router(self, peer: Peer, link: int, body: ProducerOpen, next_number: int) -> None:
        """Opens a frontend's link that sends to sets of queues; `next_number` as in `Numbered`."""
        earlier = peer.routers.get(link)
        if earlier is not None:
            self._keep_number(earlier)
        id = peer.boot << 32 | link
        number, part = self._numbers.pop(id, 0), self._parts.pop(id, 0)
        producer = peer.routers[link] = RouteProducer(peer, link, id, number, part)
        producer.next_number = next_number
        producer.sent_below = body.sent_below
        peer.out.append(frame(Kind.PRODUCER_READY, link=link))

    def close_producer(self, peer: Peer, link: int) -> None:
        """Closes a producer whose frontend has all answers and does not use the number of this link again.

        The last number of a producer that its client named is kept: the client may continue on another link.
        """
        producer = peer.producers.pop(link, None)
        if producer is not None:
            self._drop(producer)
            self._admission.drop(producer)
            if producer.is_named:
                self._keep_number(producer)
                self._forget_silent()
        peer.routers.pop(link, None)

    def abandon_producer(self, peer: Peer, link: int) -> None:
        """Ends the waits of a producer's batches, because its client has disconnected.

        `Routes.abandon` does it for a router's link.
        """
        producer = peer.producers.get(link)
        if producer is not None:
            self._admission.abandon(producer)

    def open_elsewhere(
        self, peer: Peer, link: int, body: ProducerOpen | ConsumerOpen
    ) -> Opened | ReceivingLink | None:
        """See ClientLinks."""
        queue = self._queues.find(body.queue)
        return None if queue is None else self.client_links.open_elsewhere(queue, peer, link, body)

    def open_consumer(self, peer: Peer, link: int, epoch: int, body: ConsumerOpen, now_ms: int) -> None:
        """Opens a frontend's link that receives messages."""
        queue = self._queues.open(body.queue, now_ms, epoch)
        if isinstance(queue, Refusal):
            if queue.condition == conditions.MOVED:
                peer.send_away(link, body.queue, epoch, consumer=True)
            else:
                peer.end_link(link, queue)
            return
        peer.moved.pop(link, None)
        earlier = peer.consumers.get(link)
        if earlier is not None:
            self.receiving.close(earlier, now_ms, replaced=True)
        awaited = self.receiving.awaited(peer, link, queue, body, now_ms)
        if awaited is not None:
            self._go_on(awaited, peer, link, body, now_ms)
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
        if body.suspended_ms is None:
            peer.out.append(frame(Kind.CONSUMER_READY, link=link))
        else:
            body.terminus = body.terminus or peer.boot << 32 | link
            self._recover(opened, now_ms)

    def _recover(self, consumer: Consumer, now_ms: int) -> None:
        """Answers the opening of a link that its client may resume, with its unsettled deliveries."""
        self.receivers.begin(consumer, now_ms)
        self._when_synced(Recovery(consumer, self.receivers), 0)

    def _go_on(self, awaited: ReceivingLink, peer: Peer, link: int, body: ConsumerOpen, now_ms: int) -> None:
        """Lets a link whose queue moved go on where it was."""
        queue = awaited.queue
        consumer = self.receiving.attach(awaited, peer, link, body, now_ms)
        if not self._claim(queue, peer, link, body, now_ms):
            self.receiving.close(consumer, now_ms, lost=True, for_good=True)
            return
        self.client_links.add(queue, body.client_link, awaited)
        self.receivers.begin(consumer, now_ms)
        peer.out.append(frame(Kind.CONSUMER_READY, link=link))
        if body.is_session:
            self.receiving.renew_session(consumer, now_ms)

    def send_away(self, queue: Queue) -> None:
        """Sends MOVED to all links of a queue.

        The shard keeps these links, and the machine keeps its consumers unchanged, until `forget_sent_away`.
        """
        for producer in self._producers.get(queue, ()):
            peer, link = producer.peer, producer.link
            self._admission.drop(producer)
            self._keep(producer)
            peer.producers.pop(link, None)
            peer.send_away(link, queue.name, queue.epoch, consumer=False)
        self.receiving.send_away(queue)

    def await_sent_away(self, queue: Queue, now_ms: int) -> None:
        """Lets links take their consumers over at a queue that is served again."""
        self._producers.pop(queue, None)
        self.termini.suspend_all(queue)
        self.client_links.forget(queue)
        self.receiving.serve(queue, now_ms)

    def forget_sent_away(self, queue: Queue, refusal: Refusal | None = None) -> None:
        """Removes the links of a queue that is at another shard; those that are left get the refusal."""
        self._producers.pop(queue, None)
        self.termini.forget(queue)
        self.receivers.forget(queue)
        self.receiving.end_all(queue, refusal)
        self.client_links.forget(queue)

    def end(self, queue: Queue, refusal: Refusal) -> None:
        """Ends all links of a queue that is deleted or at another shard; their deliveries leave with it."""
        if refusal.condition == conditions.MOVED:
            self.send_away(queue)
        for producer in self._producers.get(queue, ()):
            if producer.is_open:
                self._admission.drop(producer)
                del producer.peer.producers[producer.link]
                producer.peer.end_link(producer.link, refusal)
        self.forget_sent_away(queue, refusal)

    def end_link(self, peer: Peer, link: int, now_ms: int) -> None:
        """Closes a link, whether it is a producer or a consumer; its deliveries return to the queue."""
        self.close_producer(peer, link)
        consumer = peer.consumers.get(link)
        if consumer is not None:
            self.receiving.close(consumer, now_ms)

    def forget(self, peer: Peer, now_ms: int) -> None:
        """Closes all links of a lost frontend: deliveries return, and the numbers of producers are kept."""
        for consumer in list(peer.consumers.values()):
            # The broker failed, not the client, so the delivery counts of messages do not change.
            self.receiving.close(consumer, now_ms, lost=True)
        for producer in peer.producers.values():
            self._leave(producer)
        for router in peer.routers.values():
            self._keep_number(router)
        peer.producers.clear()
        peer.routers.clear()
        peer.acking.clear()
        self.closings.lost(peer, now_ms)
        self._forget_silent()

    # --- queues that move --------------------------------------------------------------------------------

    def numbers_of(self, queue: Queue) -> Known:
        """The numbers that the next owner of this queue needs: of its producers, and of all closed ones.

        It is not known to which queue a closed producer sent.
        """
        numbers = dict(self._numbers)
        parts = dict(self._parts)
        sequences = dict(self._sequences)
        for producer in self._producers.get(queue, ()):
            if producer.last_number:
                numbers[producer.id] = producer.last_number
                if producer.part:
                    parts[producer.id] = producer.part
                if producer.stored and not producer.is_named:
                    sequences[producer.id] = producer.stored
        return Known(numbers, parts, sequences)

    def producer_count(self, queue: Queue) -> int:
        """Sending links that are attached to a queue."""
        return len(self._producers.get(queue, ()))

    def _drop(self, producer: Producer) -> None:
        """Removes a link that is no longer attached to its queue."""
        self.client_links.drop(producer.queue, producer.client_link, producer)
        if isinstance(producer, ResumableProducer):
            self.termini.detach(producer)
        attached = self._producers.get(producer.queue)
        if attached is not None:
            attached.pop(producer, None)
            if not attached:
                del self._producers[producer.queue]

    def _leave(self, producer: Producer) -> None:
        """Removes a closed producer, which may open again after its frontend's HELLO."""
        self._drop(producer)
        self._admission.drop(producer)
        self._keep(producer)
