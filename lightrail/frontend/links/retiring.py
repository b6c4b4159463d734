"""The consumer of a link that its client has closed while open transactions settle deliveries of it.

A settlement in a transaction stands until the discharge, whatever becomes of its link. So these deliveries
stay in flight: this object takes the place of the link at the owner of the queue, without credit, until the
last of these transactions has ended. All other deliveries return to the queue at once.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from lightrail.frontend.links.bound import Bound
from lightrail.frontend.links.settlements import Settlements
from lightrail.model.links import Ending
from lightrail.model.policy import Role
from lightrail.shard_client.links import Consumer
from lightrail.shard_client.receiving.queue_consumer import ReceiveWindow
from lightrail.wire.bodies import ConsumerOpen, Refusal
from lightrail.wire.frames import Kind, frame

if TYPE_CHECKING:
    from lightrail.frontend.engine import Frontend
    from lightrail.shard_client.owners.owner import Owner


class RetiringConsumer(Consumer):
    """Keeps the deliveries that transactions settle.

    Args:
        delivered: number of the next delivery.
        keeps_others: whether other deliveries stay in flight as well, because the client may resume the link.
    """

    __slots__ = ("_begun", "_next", "_options", "_owner", "_settlements", "_then", "keeps_others")

    def __init__(
        self,
        owner: "Owner",
        settlements: Settlements,
        *,
        number: int,
        options: ConsumerOpen,
        delivered: int,
        keeps_others: bool,
    ) -> None:
        self.number = number
        self._owner = owner
        self._settlements = settlements
        self._options = options
        self._next = delivered
        self.keeps_others = keeps_others
        self._begun = False
        self._then: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Takes the place of the link, and returns all other deliveries."""
        if self._begun:
            return
        self._begun = True
        self._owner.replace_consumer(self)
        self._owner.post(
            frame(Kind.CREDIT, link=self.number, epoch=self._owner.epoch, count=1, number=self._next)
        )
        if not self.keeps_others:
            self._settlements.return_others(self._next)
        self._settlements.when_discharged(self._end)

    def then(self, call: Callable[[], None]) -> None:
        """Calls it when the last transaction has ended."""
        self._then.append(call)

    def give_way(self) -> None:
        """The deliveries return to the queue, since the queue has one consumer only, and gets another one."""
        self._settlements.is_returned = True
        self._owner.close_consumer(self.number, Ending.BY_BROKER)

    def _end(self) -> None:
        self._settlements.is_returned = True
        # The client ended the link in order, so what it has not worked on is not marked either. It worked on
        # what a lost transaction had: an end by a failure marks it, though it is not in flight any more. With
        # other deliveries in flight, which must not count as failed, these are the reason to mark.
        ending = Ending.BY_CLIENT
        if self._settlements.is_abandoned:
            ending = Ending.BY_BROKER if self.keeps_others else Ending.FAILED
        self._owner.close_consumer(self.number, ending)
        for call in self._then:
            call()

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """See Consumer: if the queue has moved, the deliveries are in flight there; without credit."""
        self._options.first = self._next
        self._options.steals = False
        self._options.resume = self._owner.resumes(self.number)
        if not self._options.resume:
            self._settlements.is_returned = True
        self._owner.post(
            frame(Kind.CONSUMER_OPEN, link=self.number, epoch=self._owner.epoch, body=self._options.encode())
        )

    def ready(self) -> None:
        """No action: the client's attach was answered before."""

    def deliver(self, part: bytes | memoryview, number: int, count: int) -> None:
        """A slice that was in transit when the client closed the link: it returns to the queue."""
        self._next = number + count
        if not self.keeps_others:
            self._settlements.return_others(self._next, number)

    def drained(self, number: int) -> None:
        """No action: there is no credit."""

    def larger(self, number: int, size: int) -> None:
        """No action: there is no credit."""

    def settled(self, number: int, count: int, is_certain: bool) -> None:
        """No action: the link has ended."""

    def ended(self, refusal: Refusal) -> None:
        """The shard has closed this consumer: its deliveries are in their queue again."""
        self._settlements.is_returned = True


class RetirableConsumer(Bound, Consumer):
    """The object of a link that receives from a queue, as far as its consumer may outlive it."""

    __slots__ = ("_ending", "_frontend", "_owner", "_retiring", "_window", "options", "settlements")

    _ending: int
    """An Ending, with flags of CONSUMER_CLOSE."""
    _frontend: "Frontend"
    options: ConsumerOpen
    _owner: "Owner"
    _retiring: RetiringConsumer | None
    """Takes the place of this object if transactions settle deliveries when the client closes the link."""
    _window: ReceiveWindow
    settlements: Settlements

    def ends(self, ending: Ending) -> None:
        """See Bound: after an end in order, deliveries that a transaction settles stay in flight."""
        self._ending = ending
        if ending is Ending.BY_CLIENT and self.settlements.held:
            self._retiring = RetiringConsumer(
                self._owner,
                self.settlements,
                number=self.number,
                options=self.options,
                delivered=self._window.next,
                keeps_others=bool(self.options.suspended_ms),
            )

    def _make_way(self) -> None:
        """Called before the consumer is opened."""
        former = self._frontend.retiring.pop(self.options.queue, None)
        if former is not None:
            former.give_way()

    def _stop_waiting(self) -> None:
        """No other consumer has to make this one give way."""
        if self._frontend.retiring.get(self.options.queue) is self._retiring:
            del self._frontend.retiring[self.options.queue]

    def when_released(self, call: Callable[[], None]) -> None:
        """See Bound."""
        if self._retiring is None:
            call()
        else:
            self._retiring.then(call)

    def _close_at_shard(self) -> None:
        """The link has ended: its deliveries return to their queue, now or later."""
        if self._retiring is not None:
            record = self._frontend.directory.get(self.options.queue)
            if self.options.exclusive or (record.role is Role.QUEUE and record.policy["exclusive"]):
                self._frontend.retiring[record.name] = self._retiring
                self._retiring.then(self._stop_waiting)
            self._retiring.begin()
            return
        self.settlements.is_returned = True
        if not self._frontend.stopping:
            self._owner.close_consumer(self.number, self._ending)
        # Otherwise the end of the connection to the shard returns them, without counting a failed delivery.
