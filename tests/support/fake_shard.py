"""A shard of plain queues in memory that couriers speak to by frames, and a sink that takes or refuses."""

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from lightrail.filters.filter import compile_filter
from lightrail.filters.message import MessageView
from lightrail.gateway.couriers.letters import Letter
from lightrail.gateway.couriers.sinks import NotSent
from lightrail.model import conditions
from lightrail.wire.bodies import Answer, ConsumerOpen, Refusal, SettleDetail
from lightrail.wire.frames import DRAIN, HEADER, HEADER_SIZE, Kind, OutcomeCode, deliver
from lightrail.wire.links import Consumer
from lightrail.wire.requests import ShardRefusedError

Outcome = tuple[OutcomeCode, SettleDetail]


class FakeQueue:
    """Messages by sequence; what was accepted or rejected is gone."""

    def __init__(self) -> None:
        self.ready: dict[int, bytes] = {}
        self.next_sequence = 1
        self.outcomes: dict[int, Outcome] = {}
        """By sequence: the last outcome."""
        self.delivered: Counter[int] = Counter()

    def add(self, *messages: bytes) -> None:
        for message in messages:
            self.ready[self.next_sequence] = message
            self.next_sequence += 1

    def bodies(self) -> list[bytes]:
        return [self.ready[sequence] for sequence in sorted(self.ready)]


class _Open:
    """A consumer that is open."""

    def __init__(self, consumer: Consumer, options: ConsumerOpen) -> None:
        self.consumer = consumer
        self.options = options
        self.next = self.limit = options.first
        self.drain = False
        self.held: dict[int, tuple[int, bytes]] = {}
        self.cursor = 0


class FakePeer:
    """The link to the shard, and the shard."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.queues: dict[str, FakeQueue] = {}
        self.consumers: dict[int, Consumer] = {}
        self.open: dict[int, _Open] = {}
        self.opened_ever = 0
        self.epoch = 1
        self.resuming = False
        self.slice_max = 500
        self._loop = loop

    def queue(self, name: str) -> FakeQueue:
        return self.queues.setdefault(name, FakeQueue())

    def open_consumer(self, consumer: Consumer) -> None:
        self.consumers[consumer.number] = consumer
        self.opened_ever += 1
        consumer.reopen()

    def close_consumer(self, number: int) -> None:
        self.consumers.pop(number, None)
        left = self.open.pop(number, None)
        if left is not None:
            self._give_back(left)
            self._turn()

    def restart(self) -> None:
        """The shard dies and comes back: what consumers held is in the queues again."""
        for left in self.open.values():
            self._give_back(left)
        self.open.clear()
        for consumer in list(self.consumers.values()):
            consumer.reopen()

    def drop(self, queue: str) -> None:
        """The queue is deleted."""
        del self.queues[queue]
        for number, each in list(self.open.items()):
            if each.options.queue == queue:
                del self.open[number], self.consumers[number]
                each.consumer.gone(Refusal(conditions.RESOURCE_DELETED, f"{queue} was deleted"))

    def resumes(self, number: int) -> bool:
        return self.resuming

    def post(self, part: bytes) -> None:
        kind, flags, _, _, link, count, number = HEADER.unpack_from(part)
        body = part[HEADER_SIZE:]
        if kind == Kind.CONSUMER_OPEN:
            options = ConsumerOpen.decode(body)
            if options.queue not in self.queues:
                refusal = Refusal(conditions.NOT_FOUND, f"{options.queue} is nowhere")
                self.consumers.pop(link).gone(refusal)
                return
            self.open[link] = _Open(self.consumers[link], options)
        elif kind == Kind.CREDIT and link in self.open:
            self.open[link].limit = number
            self.open[link].drain = bool(flags & DRAIN)
            self._turn()
        elif kind == Kind.SETTLE and link in self.open:
            detail = SettleDetail.decode(body) if body else SettleDetail()
            for each in range(number, number + count):
                self._settle(self.open[link], each, OutcomeCode(flags), detail)
            self._turn()

    def _settle(self, consumer: _Open, number: int, code: OutcomeCode, detail: SettleDetail) -> None:
        sequence, message = consumer.held.pop(number)
        queue = self.queues[consumer.options.queue]
        queue.outcomes[sequence] = (code, detail)
        if code in (OutcomeCode.RELEASED, OutcomeCode.MODIFIED):
            queue.ready[sequence] = message

    def _give_back(self, consumer: _Open) -> None:
        queue = self.queues.get(consumer.options.queue)
        if queue is not None and not consumer.options.browse:
            queue.ready.update(consumer.held.values())

    def _turn(self) -> None:
        self._loop.call_soon(self.dispatch)

    def dispatch(self) -> None:
        """Delivers what there is to whoever has credit."""
        for consumer in list(self.open.values()):
            queue = self.queues[consumer.options.queue]
            spec = consumer.options.filter
            matches = compile_filter(spec).matches if spec is not None else None
            for sequence in sorted(queue.ready):
                if consumer.next >= consumer.limit:
                    break
                if consumer.options.browse and sequence <= consumer.cursor:
                    continue
                message = queue.ready[sequence]
                if matches is not None and not matches(MessageView(message)):
                    continue
                if consumer.options.browse:
                    consumer.cursor = sequence
                else:
                    del queue.ready[sequence]
                    consumer.held[consumer.next] = (sequence, message)
                queue.delivered[sequence] += 1
                part = deliver(
                    consumer.consumer.number,
                    1,
                    consumer.next,
                    1,
                    1_000,
                    sequence,
                    0,
                    0,
                    1_000,
                    0,
                    7,
                    array("I", (len(message) + 7,)).tobytes(),
                    message,
                )
                consumer.next += 1
                consumer.consumer.deliver(part, consumer.next - 1, 1)
            if consumer.drain:
                consumer.drain = False
                consumer.limit = consumer.next
                consumer.consumer.drained(consumer.next)


class FakeLinks:
    """Links to one fake shard."""

    def __init__(self) -> None:
        self.peer = FakePeer(asyncio.get_running_loop())
        self.now = 1_000_000
        self._link = 0

    def now_ms(self) -> int:
        return self.now

    def next_link(self) -> int:
        self._link += 1
        return self._link

    async def route(self, name: str) -> Any:
        return self.peer

    async def request(self, name: str, op: str, fields: dict[str, Any]) -> Answer:
        queue = self.peer.queues.get(name)
        if queue is None:
            raise ShardRefusedError(conditions.NOT_FOUND, f"{name} is nowhere")
        return Answer({"ready": len(queue.ready), "next_sequence": queue.next_sequence}, memoryview(b""))


class FakeSink:
    """Keeps what it is sent, by name; `refuse` says why a letter is not taken."""

    def __init__(self) -> None:
        self.letters: dict[str, list[Letter]] = {}
        self.refuse: Callable[[str, Letter], NotSent | None] = lambda _name, _letter: None
        self.gate: asyncio.Event | None = None
        """While it is there and not set, answers wait; the letters are stored all the same."""
        self.waiting = 0

    async def send(self, name: str, letters: Sequence[Letter]) -> list[NotSent | None]:
        answers = [self.refuse(name, letter) for letter in letters]
        taken = [letter for letter, problem in zip(letters, answers, strict=True) if problem is None]
        self.letters.setdefault(name, []).extend(taken)
        if self.gate is not None:
            self.waiting += 1
            await self.gate.wait()
        return answers

    def messages(self, name: str) -> list[bytes]:
        return [letter.message for letter in self.letters.get(name, [])]
