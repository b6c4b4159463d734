"""Source: one consumer of a queue for a courier, with credit in windows and outcomes by delivery."""

from collections.abc import Iterable
from typing import Protocol

from lightrail.gateway.couriers.letters import Delivery
from lightrail.wire.bodies import Answer, ConsumerOpen, Refusal, SettleDetail
from lightrail.wire.frames import DELIVER_COLUMNS, DELIVER_ENDS, DRAIN, HEADER_SIZE, Kind, OutcomeCode, frame
from lightrail.wire.links import Consumer, MissingDeliveriesError
from lightrail.wire.owner import Owner


class Links(Protocol):
    """What couriers need of the gateway's links to the shards."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    def next_link(self) -> int:
        """A number for a link, unique over the life of this process."""
        ...

    async def route(self, name: str) -> Owner:
        """The owner of a queue, for a link that is opened before the loop turns. Raises CoordinatorError."""
        ...

    async def request(self, name: str, op: str, fields: dict[str, object]) -> Answer:
        """Asks the shard of a queue. Raises ShardDownError, ShardRefusedError."""
        ...


class Taker(Protocol):
    """Who gets what a source delivers."""

    def opened(self, generation: int) -> None:
        """The shard is there: say how much may come. What came under earlier generations is in the queue."""
        ...

    def arrived(self, deliveries: list[Delivery]) -> None:
        """Messages, in the order of the queue; each is held until it is settled or the source closed."""
        ...

    def drained(self, is_empty: bool) -> None:
        """The answer to a grant with drain: all that is there has arrived, or else all that was granted."""
        ...

    def gone(self, refusal: Refusal) -> None:
        """The shard will not have this consumer (any more); what was held is in the queue."""
        ...


class Source(Consumer):
    """A consumer; closing it gives back what it holds as if it had never been delivered.

    Args:
        options: of the consumer; its queue, browsing, filter, label.
    """

    __slots__ = ("_drains", "_is_closed", "_next", "_options", "_owner", "_said", "_taker", "generation")

    def __init__(self, number: int, owner: Owner, options: ConsumerOpen, taker: Taker) -> None:
        self.number = number
        self.generation = 0
        self._owner = owner
        self._options = options
        self._options.default_outcome = OutcomeCode.RELEASED
        self._options.default_failed = False
        self._taker = taker
        self._next = 0
        self._said = 0
        self._drains = False
        """The last grant was one with drain and has no answer."""
        self._is_closed = False

    def open(self) -> None:
        """Opens now, or when the shard comes."""
        self._owner.open_consumer(self)

    def grant(self, count: int, *, drain: bool = False) -> None:
        """Lets so many more messages come, beyond those that have arrived; credit is never taken back."""
        limit = max(self._next + count, self._said)
        if self._is_closed or (limit == self._said and not drain):
            return
        self._said = limit
        self._drains = drain
        self._say()

    def _say(self) -> None:
        flags = DRAIN if self._drains else 0
        self._owner.post(
            frame(Kind.CREDIT, flags=flags, link=self.number, epoch=self._owner.epoch, number=self._said)
        )

    @property
    def granted(self) -> int:
        """Messages that may still come."""
        return self._said - self._next

    def settle(
        self, deliveries: Iterable[Delivery], code: OutcomeCode, detail: SettleDetail | None = None
    ) -> None:
        """One outcome for deliveries in rising order. Those of earlier generations are in the queue again."""
        if self._is_closed:
            return
        body = detail.encode() if detail is not None else b""
        first = count = 0
        for delivery in deliveries:
            if delivery.generation != self.generation:
                continue
            if count and delivery.number == first + count:
                count += 1
                continue
            if count:
                self._post_settle(first, count, code, body)
            first, count = delivery.number, 1
        if count:
            self._post_settle(first, count, code, body)

    def close(self) -> None:
        """Nothing more comes; what was not settled goes back."""
        if not self._is_closed:
            self._is_closed = True
            self._owner.close_consumer(self.number)

    def _post_settle(self, first: int, count: int, code: OutcomeCode, body: bytes) -> None:
        self._owner.post(
            frame(
                Kind.SETTLE,
                flags=code,
                link=self.number,
                epoch=self._owner.epoch,
                count=count,
                number=first,
                body=body,
            )
        )

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Opens the consumer; what was held is in the queue again, but where the queue has moved."""
        resumes = self._options.resume = self._owner.resumes(self.number) and self.generation > 0
        self._options.first = self._next
        self._owner.post(
            frame(Kind.CONSUMER_OPEN, link=self.number, epoch=self._owner.epoch, body=self._options.encode())
        )
        if resumes:
            if self._drains or self._said > self._next:
                self._say()
            return
        self.generation += 1
        self._said = self._next
        self._drains = False
        self._taker.opened(self.generation)

    def ready(self) -> None:
        """Nothing waits for it: credit was said with the opening."""

    def deliver(self, part: bytes | memoryview, number: int, count: int) -> None:
        """A slice of the queue."""
        if self._is_closed:
            return
        if number != self._next:
            raise MissingDeliveriesError(f"expected delivery {self._next}, found {number}")
        sequence, expires, enqueued, attempts, message_format, base, _ = DELIVER_COLUMNS.unpack_from(
            part, HEADER_SIZE
        )
        blob_at = start = DELIVER_ENDS + 4 * count
        self._next = number + count
        arrived = []
        for index, end in enumerate(memoryview(part)[DELIVER_ENDS:blob_at].cast("I")):
            stop = blob_at + end - base
            arrived.append(
                Delivery(
                    self.generation,
                    number + index,
                    sequence + index,
                    attempts,
                    expires,
                    enqueued,
                    message_format,
                    bytes(part[start:stop]),
                )
            )
            start = stop
        self._taker.arrived(arrived)

    def drained(self, number: int) -> None:
        """No credit is left at the shard."""
        if not self._is_closed:
            self._drains = False
            is_empty = self._next < self._said
            self._said = self._next
            self._taker.drained(is_empty)

    def gone(self, refusal: Refusal) -> None:
        """The shard will not have this consumer (any more)."""
        if not self._is_closed:
            self._is_closed = True
            self._taker.gone(refusal)
