"""Links: the producers and consumers of all frontends, how they come and go, what is remembered of them."""

from collections.abc import Callable
from typing import Final

from lightrail.filters.errors import FilterError
from lightrail.model import conditions, limits
from lightrail.shard.admission import Admission
from lightrail.shard.looking import selector
from lightrail.shard.peers import Consumer, Peer, Producer, RouteProducer
from lightrail.shard.performer import Performer
from lightrail.shard.queue import commands
from lightrail.shard.queues import Queue, Queues
from lightrail.wire.frames import Kind, frame
from lightrail.wire.messages import ConsumerOpen, ProducerOpen, Refusal, SettleDetail

EVERYTHING: Final = 1 << 62
"""Beyond every delivery number."""


class Links:
    """Opens and closes links at the queues; a producer that comes back goes on with its last number."""

    __slots__ = (
        "_admission",
        "_next_consumer",
        "_numbers",
        "_parts",
        "_performer",
        "_queues",
        "_sequences",
        "consumer_left",
    )

    def __init__(
        self,
        queues: Queues,
        performer: Performer,
        admission: Admission,
        numbers: dict[int, int],
        parts: dict[int, int],
    ) -> None:
        self._queues = queues
        self._performer = performer
        self._admission = admission
        self._parts = parts
        """Of those of them whose last batch was taken in part: how many of its messages."""
        self._numbers = numbers
        """Last batch number of producers that are not open now, the longest silent first."""
        self._sequences: dict[int, dict[int, int]] = {}
        """What those of them knew that asked for sequences."""
        self._next_consumer = 1
        self.consumer_left: Callable[[Queue, bool], None] = lambda _queue, _lost: None
        """Told of each consumer that goes, and whether only its frontend lost its way."""

    def open_producer(self, peer: Peer, link: int, body: ProducerOpen, now_ms: int) -> None:
        """A frontend's link wants to enqueue."""
        queue = self._queues.open(body.queue, now_ms)
        if isinstance(queue, Refusal):
            _gone(peer, link, queue)
            return
        earlier = peer.producers.get(link)
        if earlier is not None:
            self._leave(earlier)
        id = peer.boot << 32 | link
        number, part = self._numbers.pop(id, 0), self._parts.pop(id, 0)
        producer = peer.producers[link] = Producer(peer, link, queue, id, number, part)
        if body.sequences:
            producer.stored = self._sequences.pop(id, {})
        queue.producers[producer] = None
        peer.out.append(frame(Kind.PRODUCER_READY, link=link))

    def open_router(self, peer: Peer, link: int) -> None:
        """A frontend's link wants to send to sets of queues."""
        earlier = peer.routers.get(link)
        if earlier is not None:
            self._keep_number(earlier)
        id = peer.boot << 32 | link
        number, part = self._numbers.pop(id, 0), self._parts.pop(id, 0)
        peer.routers[link] = RouteProducer(peer, link, id, number, part)
        peer.out.append(frame(Kind.PRODUCER_READY, link=link))

    def close_producer(self, peer: Peer, link: int) -> None:
        """Its frontend has all answers and will not use the number of this link again."""
        producer = peer.producers.pop(link, None)
        if producer is not None:
            producer.queue.producers.pop(producer, None)
            self._admission.drop(producer)
        peer.routers.pop(link, None)

    def abandon_producer(self, peer: Peer, link: int) -> None:
        """Its client has gone, and its frontend waits for the last answers: nothing waits any more.

        A router's link is for `Routes.abandon`.
        """
        producer = peer.producers.get(link)
        if producer is not None:
            self._admission.abandon(producer)

    def open_consumer(self, peer: Peer, link: int, body: ConsumerOpen, now_ms: int) -> None:
        """A frontend's link wants messages."""
        queue = self._queues.open(body.queue, now_ms)
        if isinstance(queue, Refusal):
            _gone(peer, link, queue)
            return
        earlier = peer.consumers.get(link)
        if earlier is not None:
            self.close_consumer(earlier, now_ms)
        try:
            selects = None if body.filter is None else selector(body.filter)
        except FilterError as error:
            _gone(peer, link, Refusal(conditions.INVALID_FIELD, f"the filter can't be used: {error}"))
            return
        id = self._next_consumer
        self._next_consumer += 1
        consumer = Consumer(peer, link, queue, id, body.label, now_ms)
        options = commands.ConsumerOptions(
            browse=body.browse,
            presettled=body.presettled,
            exclusive=body.exclusive,
            priority=body.priority,
            default_outcome=outcome_of(
                body.default_outcome, SettleDetail(delivery_failed=body.default_failed)
            ),
            first=body.first,
            selects=selects,
            lock_ms=body.lock_ms,
            lock_key=body.lock_key,
        )
        peer.consumers[link] = consumer
        self._performer.consumers[id] = consumer
        self._performer.perform(queue, queue.machine.apply(commands.Attach(id, options), now_ms), now_ms)
        if peer.consumers.get(link) is consumer:
            # The machine did not refuse it.
            peer.out.append(frame(Kind.CONSUMER_READY, link=link))

    def close_consumer(self, consumer: Consumer, now_ms: int, *, lost: bool = False) -> None:
        """What it holds gets its default outcome; `lost` says that its frontend may come back with it."""
        consumer.peer.consumers.pop(consumer.link, None)
        if self._performer.consumers.pop(consumer.id, None) is not None:
            queue = consumer.queue
            self._performer.perform(queue, queue.machine.apply(commands.Detach(consumer.id), now_ms), now_ms)
            self._performer.touched[queue] = None
            self.consumer_left(queue, lost)

    def end(self, queue: Queue, refusal: Refusal) -> None:
        """The queue is deleted: its links are told, and what they hold goes with it."""
        for producer in list(queue.producers):
            self._admission.drop(producer)
            del producer.peer.producers[producer.link]
            _gone(producer.peer, producer.link, refusal)
        queue.producers.clear()
        for id in list(queue.machine.consumers.by_id):
            consumer = self._performer.consumers.pop(id, None)
            if consumer is not None:
                consumer.peer.consumers.pop(consumer.link, None)
                _gone(consumer.peer, consumer.link, refusal)

    def forget(self, peer: Peer, now_ms: int) -> None:
        """The frontend is gone: what its consumers hold returns, its producers' numbers are kept."""
        for consumer in list(peer.consumers.values()):
            queue = consumer.queue
            if not queue.machine.consumers.by_id[consumer.id].options.lock_key:
                # It was us, not the client, who failed: the delivery-count of what it held stays as it is.
                everything = commands.Settle(consumer.id, 0, EVERYTHING, commands.RELEASED)
                self._performer.perform(queue, queue.machine.apply(everything, now_ms), now_ms)
            self.close_consumer(consumer, now_ms, lost=True)
        for producer in peer.producers.values():
            self._leave(producer)
        for router in peer.routers.values():
            self._keep_number(router)
        peer.producers.clear()
        peer.routers.clear()
        peer.acking.clear()
        numbers = self._numbers
        while len(numbers) > limits.PRODUCERS_MAX:
            silent = next(iter(numbers))
            del numbers[silent]
            self._parts.pop(silent, None)

    def _leave(self, producer: Producer) -> None:
        """It has left its queue, and may come back after a greeting."""
        producer.queue.producers.pop(producer, None)
        self._admission.drop(producer)
        self._keep_number(producer)
        if producer.stored:
            self._sequences[producer.id] = producer.stored
            if len(self._sequences) > limits.SEQUENCE_PRODUCERS_KEPT:
                del self._sequences[next(iter(self._sequences))]

    def _keep_number(self, producer: Producer | RouteProducer) -> None:
        """It may come back under the same number after a greeting."""
        if producer.last_number:
            self._numbers[producer.id] = producer.last_number
        if producer.part:
            self._parts[producer.id] = producer.part


def outcome_of(code: int, detail: SettleDetail) -> commands.Outcome:
    """What the wire says of an outcome, for the machine."""
    return commands.Outcome(
        commands.OutcomeKind(code),
        detail.condition,
        detail.description,
        detail.delivery_failed,
        detail.undeliverable_here,
        bytes.fromhex(detail.annotations) if detail.annotations else None,
    )


def _gone(peer: Peer, link: int, refusal: Refusal) -> None:
    peer.out.append(frame(Kind.GONE, link=link, body=refusal.encode()))
