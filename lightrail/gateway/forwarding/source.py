"""Source: a consumer of one queue for forwarding, with credit in windows and an outcome per delivery."""

from collections.abc import Iterable
from typing import Protocol

from lightrail.gateway.forwarding.delivery import Delivery
from lightrail.wire.bodies import Answer, ConsumerOpen, Refusal, SettleDetail
from lightrail.wire.frames import DELIVER_COLUMNS, DELIVER_ENDS, DRAIN, HEADER_SIZE, Kind, OutcomeCode, frame
from lightrail.wire.links import Consumer, MissingDeliveriesError
from lightrail.wire.owner import Owner


class Links(Protocol):
    """What forwarding needs of the gateway's links to shards."""

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


class Listener(Protocol):
    """Gets what a source delivers."""

    def opened(self, generation: int) -> None:
        """The consumer is open: grant credit. Deliveries of earlier generations are back in the queue."""
        ...

    def arrived(self, deliveries: list[Delivery]) -> None:
        """Messages in the order of the queue; each is locked until it is settled or the source is closed."""
        ...

    def drained(self, is_empty: bool) -> None:
        """Answers a grant with drain: the queue is empty, or the whole grant was delivered."""
        ...

    def gone(self, refusal: Refusal) -> None:
        """The shard refused or closed this consumer; its unsettled deliveries are back in the queue."""
        ...


class Source(Consumer):
    """A consumer; closing it releases its unsettled deliveries as if they had never been delivered.

    Args:
        options: of the consumer; its queue, browsing, filter, label.
    """

    __slots__ = ("_drains", "_is_closed", "_limit", "_listener", "_next", "_options", "_owner", "generation")

    def __init__(self, number: int, owner: Owner, options: ConsumerOpen, listener: Listener) -> None:
        self.number = number
        self.generation = 0
        self._owner = owner
        self._options = options
        self._options.default_outcome = OutcomeCode.RELEASED
        self._options.default_failed = False
        self._listener = listener
        self._next = 0
        self._limit = 0
        self._drains = False
        """The last grant had the drain flag and is not answered."""
        self._is_closed = False

    def open(self) -> None:
        """Opens now, or once the shard is connected."""
        self._owner.open_consumer(self)

    def grant(self, count: int, *, drain: bool = False) -> None:
        """Grants credit for so many messages beyond those that have arrived; credit is never withdrawn."""
        limit = max(self._next + count, self._limit)
        if self._is_closed or (limit == self._limit and not drain):
            return
        self._limit = limit
        self._drains = drain
        self._post_credit()

    def _post_credit(self) -> None:
        flags = DRAIN if self._drains else 0
        self._owner.post(
            frame(Kind.CREDIT, flags=flags, link=self.number, epoch=self._owner.epoch, number=self._limit)
        )

    @property
    def granted(self) -> int:
        """Messages that may still arrive."""
        return self._limit - self._next

    def settle(
        self, deliveries: Iterable[Delivery], code: OutcomeCode, detail: SettleDetail | None = None
    ) -> None:
        """Settles deliveries, in rising order, with one outcome; those of earlier generations are skipped."""
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
        """Ends deliveries; unsettled ones go back to the queue."""
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
        """Opens the consumer. Its unsettled deliveries are in the queue again, unless the queue has moved."""
        resumes = self._options.resume = self._owner.resumes(self.number) and self.generation > 0
        self._options.first = self._next
        self._owner.post(
            frame(Kind.CONSUMER_OPEN, link=self.number, epoch=self._owner.epoch, body=self._options.encode())
        )
        if resumes:
            if self._drains or self._limit > self._next:
                self._post_credit()
            return
        self.generation += 1
        self._limit = self._next
        self._drains = False
        self._listener.opened(self.generation)

    def ready(self) -> None:
        """Nothing waits for this: credit was granted with the opening."""

    def deliver(self, part: bytes | memoryview, number: int, count: int) -> None:
        """A slice of messages."""
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
        self._listener.arrived(arrived)

    def drained(self, number: int) -> None:
        """The shard has used or dropped all credit."""
        if not self._is_closed:
            self._drains = False
            is_empty = self._next < self._limit
            self._limit = self._next
            self._listener.drained(is_empty)

    def gone(self, refusal: Refusal) -> None:
        """The shard refused or closed this consumer."""
        if not self._is_closed:
            self._is_closed = True
            self._listener.gone(refusal)
