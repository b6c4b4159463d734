"""A shard as the wire describes it, small enough to be believed: queues in memory that move between shards.

It speaks frames and keeps to docs/formats/wire.md and docs/adr/0010: what a test finds wrong with links
against it is wrong with the links, or with the protocol.
"""

import json
from array import array
from collections import Counter, deque
from typing import Any

from lightrail.model import conditions
from lightrail.wire.bodies import (
    ConsumerOpen,
    Hello,
    ProducerOpen,
    Refusal,
    Targets,
    Welcome,
    encode_request,
)
from lightrail.wire.frames import (
    AFRESH,
    DRAIN,
    ENQUEUE_ENDS,
    HEADER,
    HEADER_SIZE,
    VERSION,
    Kind,
    OutcomeCode,
    deliver,
    frame,
)


class ModelConsumer:
    """What a queue knows of a consumer; it goes with the queue."""

    def __init__(self, options: ConsumerOpen) -> None:
        self.options = options
        self.next = self.limit = options.first
        self.drain = False
        self.held: dict[int, bytes] = {}
        self.parked = False


class ModelQueue:
    """Messages, producers and consumers of one queue, wherever it is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 1
        self.ready: deque[bytes] = deque()
        self.stored: list[bytes] = []
        """Everything that ever came, in order."""
        self.last: dict[int, int] = {}
        """Last batch by producer."""
        self.consumers: dict[int, ModelConsumer] = {}
        self.accepted: Counter[bytes] = Counter()
        self.delivered: Counter[bytes] = Counter()
        self.returned: Counter[bytes] = Counter()

    def give_back(self, consumer: ModelConsumer) -> None:
        for _, body in sorted(consumer.held.items(), reverse=True):
            self.returned[body] += 1
            self.ready.appendleft(body)
        consumer.held.clear()


class ModelShard:
    """One shard; `turn` answers and delivers, `receive` takes one ZeroMQ message."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.boot = 1
        self.queues: dict[str, ModelQueue] = {}
        """That it serves."""
        self.out: list[bytes] = []
        self.up = True
        self.producers: dict[int, str] = {}
        self.consumers: dict[int, str] = {}
        self.lanes: dict[int, dict[int, list[str]]] = {}
        self.lane_last: dict[int, int] = {}
        self.refusing: set[int] = set()
        self.sent_away: dict[int, str] = {}
        """Consumers whose queue moved away, open or closed."""
        self.answers: list[tuple[str, bytes]] = []
        """That wait for the disk, with the queue they are about; of lanes: no queue."""
        self.greeted = False
        self.refuse_next = False
        self.given_back = 0
        """Consumers that could not go on with what they held."""

    # --- the life of a shard ---------------------------------------------------------------------------

    def restart(self) -> None:
        """It dies and comes back on its disk."""
        self.boot += 1
        self._forget()
        self.lanes.clear()

    def _forget(self) -> None:
        self.greeted = False
        self.out.clear()
        self.answers.clear()
        self.producers.clear()
        self.consumers.clear()
        self.sent_away.clear()
        self.refusing.clear()
        for queue in self.queues.values():
            for number, consumer in list(queue.consumers.items()):
                queue.give_back(consumer)
                del queue.consumers[number]

    def freeze(self, name: str) -> ModelQueue:
        """Everybody at a queue is sent away; gives what the destination gets."""
        queue = self.queues.pop(name)
        for table in (self.producers, self.consumers):
            for link, of in list(table.items()):
                if of == name:
                    del table[link]
                    self.out.append(frame(Kind.MOVED, link=link, epoch=queue.epoch))
                    if table is self.consumers:
                        self.sent_away[link] = name
        # What it took and has not answered is known to the destination by its number.
        self.answers = [answer for answer in self.answers if answer[0] != name]
        for consumer in queue.consumers.values():
            consumer.parked, consumer.limit, consumer.drain = True, consumer.next, False
        return queue

    def open(self, queue: ModelQueue, epoch: int) -> None:
        """The queue is here from now on."""
        queue.epoch = epoch
        self.queues[queue.name] = queue

    def release_parked(self) -> None:
        """Nobody has taken them over for long."""
        for queue in self.queues.values():
            for link, consumer in list(queue.consumers.items()):
                if consumer.parked:
                    queue.give_back(consumer)
                    del queue.consumers[link]

    # --- frames ----------------------------------------------------------------------------------------

    def receive(self, parts: list[bytes]) -> None:
        for part in parts:
            kind, flags, _, epoch, link, count, number = HEADER.unpack_from(part)
            body = part[HEADER_SIZE:]
            if kind == Kind.HELLO:
                hello = Hello.decode(body)
                self._forget()
                self.greeted = True
                welcome = Welcome(VERSION, self.shard, self.boot, hello.attempt)
                self.out.append(frame(Kind.WELCOME, body=welcome.encode()))
            elif not self.greeted:
                self.out.append(frame(Kind.ABSENT))
            elif kind == Kind.PING:
                self.out.append(frame(Kind.PONG, number=self.boot))
            elif kind == Kind.PRODUCER_OPEN:
                self._open_producer(link, epoch, ProducerOpen.decode(body))
            elif kind == Kind.PRODUCER_CLOSE:
                self.producers.pop(link, None)
                self.lanes.pop(link, None)
            elif kind == Kind.ENQUEUE:
                self._enqueue(link, number, flags, part, count)
            elif kind == Kind.TARGETS:
                self.lanes[link][number] = Targets.decode(body).queues
            elif kind == Kind.ROUTE:
                self._route(link, epoch, number, flags, part, count)
            elif kind == Kind.CONSUMER_OPEN:
                self._open_consumer(link, epoch, ConsumerOpen.decode(body))
            elif kind in (Kind.SETTLE, Kind.CONSUMER_CLOSE):
                self._late_or(kind, link, flags, number, count, part)
            elif kind == Kind.CREDIT:
                name = self.consumers.get(link)
                if name is not None:
                    consumer = self.queues[name].consumers[link]
                    consumer.limit, consumer.drain = number, bool(flags & DRAIN)
            elif kind == Kind.REQUEST:
                self._request(number, body)

    def _open_producer(self, link: int, epoch: int, opening: ProducerOpen) -> None:
        if not opening.queue:
            self.lanes[link] = {}
            self.refusing.discard(link)
            self.out.append(frame(Kind.PRODUCER_READY, link=link))
            return
        queue = self.queues.get(opening.queue)
        if queue is None or queue.epoch != epoch:
            self.out.append(frame(Kind.MOVED, link=link, epoch=epoch))
            return
        self.producers[link] = queue.name
        self.refusing.discard(link)
        self.out.append(frame(Kind.PRODUCER_READY, link=link))

    def _enqueue(self, link: int, number: int, flags: int, part: bytes, count: int) -> None:
        name = self.producers.get(link)
        if name is None:
            return
        queue = self.queues[name]
        if number <= queue.last.get(link, 0):
            self.answers.append((name, frame(Kind.ACCEPTED, link=link, number=number, count=1)))
            return
        if self._refuses(link, number, flags, name):
            return
        queue.last[link] = number
        self._store(queue, part, count)
        self.answers.append((name, frame(Kind.ACCEPTED, link=link, number=number, count=1)))

    def _refuses(self, link: int, number: int, flags: int, name: str) -> bool:
        if flags & AFRESH:
            self.refusing.discard(link)
        if self.refuse_next or link in self.refusing:
            self.refuse_next = False
            self.refusing.add(link)
            full = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "full").encode()
            self.answers.append((name, frame(Kind.REFUSED, link=link, number=number, body=full)))
            return True
        return False

    def _route(self, link: int, set: int, number: int, flags: int, part: bytes, count: int) -> None:
        if number <= self.lane_last.get(link, 0):
            self.answers.append(("", frame(Kind.ACCEPTED, link=link, number=number, count=1)))
            return
        if flags & AFRESH:
            self.refusing.discard(link)
        targets = self.lanes[link][set]
        if link in self.refusing or any(name not in self.queues for name in targets):
            self.refusing.add(link)
            moved = Refusal(conditions.MOVED, "look again").encode()
            self.answers.append(("", frame(Kind.REFUSED, link=link, number=number, body=moved)))
            return
        self.lane_last[link] = number
        for name in targets:
            self._store(self.queues[name], part, count)
        self.answers.append(("", frame(Kind.ACCEPTED, link=link, number=number, count=1)))

    def _store(self, queue: ModelQueue, part: bytes, count: int) -> None:
        at = ENQUEUE_ENDS + 4 * count
        start = 0
        for end in memoryview(part)[ENQUEUE_ENDS:at].cast("I"):
            queue.stored.append(part[at + start : at + end])
            queue.ready.append(part[at + start : at + end])
            start = end

    def _open_consumer(self, link: int, epoch: int, options: ConsumerOpen) -> None:
        queue = self.queues.get(options.queue)
        if queue is None or queue.epoch != epoch:
            self.out.append(frame(Kind.MOVED, link=link, epoch=epoch))
            # What it settles from here on is for whoever has the queue.
            self.sent_away[link] = options.queue
            return
        consumer = queue.consumers.get(link)
        if consumer is not None and options.resume and consumer.next == options.first:
            consumer.parked = False
        else:
            if consumer is not None:
                self.given_back += 1
                queue.give_back(consumer)
            consumer = queue.consumers[link] = ModelConsumer(options)
        consumer.limit = consumer.next
        consumer.drain = False
        self.sent_away.pop(link, None)
        self.consumers[link] = queue.name
        self.out.append(frame(Kind.CONSUMER_READY, link=link))

    def _late_or(self, kind: int, link: int, flags: int, number: int, count: int, part: bytes) -> None:
        for queue in self.queues.values():
            consumer = queue.consumers.get(link)
            if consumer is None:
                continue
            if kind == Kind.CONSUMER_CLOSE:
                queue.give_back(consumer)
                del queue.consumers[link]
                self.consumers.pop(link, None)
                return
            for each in range(number, number + count):
                body = consumer.held.pop(each, None)
                if body is None:
                    continue
                if flags == OutcomeCode.ACCEPTED:
                    queue.accepted[body] += 1
                else:
                    queue.returned[body] += 1
                    queue.ready.append(body)
            return
        name = self.sent_away.get(link)
        if name is not None:
            fields = {"queue": name, "epoch": 0}
            self.out.append(frame(Kind.BOUNCED, link=link, body=encode_request(fields, part)))

    def _request(self, number: int, body: bytes) -> None:
        fields: dict[str, Any] = json.loads(body[4 : 4 + int.from_bytes(body[:4], "little")])
        answer: dict[str, Any] = {"ready": 0}
        if fields["queue"] not in self.queues:
            answer = {"error": {"condition": conditions.MOVED, "description": "elsewhere"}}
        self.out.append(frame(Kind.RESPONSE, number=number, body=encode_request(answer)))

    # --- what it does by itself ------------------------------------------------------------------------

    def commit(self) -> None:
        """What it took is on disk."""
        self.out += [part for _, part in self.answers]
        self.answers.clear()

    def dispatch(self, most: int) -> None:
        """Delivers as much as there is credit for, at most so many to each."""
        for queue in self.queues.values():
            for link, consumer in queue.consumers.items():
                if self.consumers.get(link) != queue.name:
                    continue
                bodies: list[bytes] = []
                while queue.ready and consumer.next + len(bodies) < consumer.limit and len(bodies) < most:
                    bodies.append(queue.ready.popleft())
                if bodies:
                    self._deliver(queue, link, consumer, bodies)
                if consumer.drain and (not queue.ready or consumer.next >= consumer.limit):
                    consumer.drain = False
                    consumer.limit = consumer.next
                    self.out.append(frame(Kind.DRAINED, link=link, number=consumer.next))

    def _deliver(self, queue: ModelQueue, link: int, consumer: ModelConsumer, bodies: list[bytes]) -> None:
        ends = array("I")
        for body in bodies:
            ends.append(len(body) + (ends[-1] if ends else 0))
        self.out.append(
            deliver(
                link,
                queue.epoch,
                consumer.next,
                len(bodies),
                1_000,
                0,
                0,
                0,
                1_000,
                0,
                0,
                ends,
                b"".join(bodies),
            )
        )
        for body in bodies:
            queue.delivered[body] += 1
            if consumer.options.presettled:
                queue.accepted[body] += 1
            else:
                consumer.held[consumer.next] = body
            consumer.next += 1

    def take(self) -> list[bytes]:
        """What it says now."""
        out, self.out = self.out, []
        return out
