"""Receivers whose link is resumed over the loss of a connection: no message is received twice (2.6.13).

Each delivery is kept by its delivery-tag until the broker has settled it, which it does when the outcome is
stored (rcv-settle-mode second). After a loss the attach has the tags with these outcomes, and the map of the
broker decides:

    the broker has no delivery,
        the client has an outcome     the outcome is stored
        the client has none           the lock has expired: the delivery is lost, as `Delivery.lost` tells
    both have it,
        the client has an outcome     the broker stores it, and sends a resumed transfer that is settled
        the client has none           the broker sends the message again, resumed: the application has it
                                      already, and settles it by its new delivery-id
    only the broker has it            it is a new delivery
"""

import asyncio
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp import events
from lightrail.amqp.errors import EndedError
from lightrail.amqp.events import RELEASED
from lightrail.amqp.link import SETTLE_SECOND
from lightrail.amqp.link import Link as EngineLink
from lightrail.amqp.performatives import AmqpError, Source, TransactionalState
from lightrail.amqp.session import Session
from lightrail.client.delivery import Delivery
from lightrail.client.errors import ClientError, ClosedError, LostError
from lightrail.client.incoming import Incoming
from lightrail.client.receiver import CLOSE_S, Receiver
from lightrail.client.resuming import Resume, deliveries_max, goes_on_after, kept_s

if TYPE_CHECKING:
    from lightrail.client.connection import Connection
    from lightrail.client.wire import Wire

STATES_SHARE: Final = 4
"""An outcome may have one part in so many of a frame: a map has at least one, and the tags of the others."""
WAS_LOST: Final = (
    "the message is delivered again: its lock has expired, or the connection was lost for longer than the "
    "broker keeps the state of the link"
)


class ResumingDelivery(Delivery):
    """A delivery that outlives the connection by which it arrived."""

    __slots__ = ("state",)

    _receiver: "ResumingReceiver"
    state: Any
    """Its outcome, until the broker has stored it."""

    def is_of(self, link: EngineLink | None) -> bool:
        """Whether it can still be settled."""
        return not self.lost

    def settle(self, state: Any) -> None:
        if self.settled:
            raise ClosedError("the message has an outcome already")
        if self.lost:
            raise LostError(WAS_LOST)
        self._receiver.settle_resumable(self, state)
        self.settled = True
        if self._receiver.keeper is not None:
            self._receiver.keeper.settled(self)

    def lose(self) -> None:
        """Marks a delivery that the broker delivers again."""
        self._receiver.forget(self)

    def _state_bytes_max(self) -> int:
        return super()._state_bytes_max() // STATES_SHARE


class ResumingIncoming(Incoming):
    """A buffer that stays over a loss, with credit for resumed deliveries as well."""

    __slots__ = ("awaited", "most", "unsettled")

    awaited: set[bytes]
    """Delivery-tags of deliveries that the broker will resume."""
    unsettled: dict[bytes, ResumingDelivery]
    """Deliveries that the broker has not settled, by delivery-tag in the order of arrival."""
    most: int
    """Unsettled deliveries that fit into a map."""

    @property
    def credit(self) -> int:
        room = max(0, self.most - len(self.unsettled))
        return min(super().credit, room) + len(self.awaited)


class ResumingReceiver(Receiver):
    """A receiver whose deliveries stay valid over a loss."""

    def __init__(
        self,
        connection: "Connection",
        address: str | None,
        *,
        credit: int,
        name: str,
        source: Source,
        renew_for: float,
        resume: Resume,
    ) -> None:
        resume.ask(source)
        super().__init__(
            connection,
            address,
            credit=credit,
            name=name,
            source=source,
            presettled=False,
            renew_for=renew_for,
        )
        self._unsettled: dict[bytes, ResumingDelivery] = {}
        self._awaited: set[bytes] = set()
        incoming = self._incoming = ResumingIncoming(connection.loop, credit, self._touch)
        incoming.unsettled, incoming.awaited, incoming.most = self._unsettled, self._awaited, 1
        self._numbers: dict[int, ResumingDelivery] = {}
        """Unsettled deliveries of this attach, by delivery-id."""
        self._kept_s = 0
        """Seconds for which the broker keeps the state of the link; 0 if it does not."""
        self._was_attached = False
        """Whether the broker has the state of a former attach."""
        self._repeats = self._has_less = False
        """Whether our map was incomplete, and whether fewer deliveries are unsettled since: the link is
        attached again when the outcomes in the map are stored."""
        self._timer: asyncio.TimerHandle | None = None
        self._stored: asyncio.Future[None] | None = None
        """Done when the broker has stored all outcomes, for a receiver that closes."""

    # --- for the application -----------------------------------------------------------------------------

    @property
    def resumes(self) -> bool:
        """Whether the broker keeps the state of the link over a loss."""
        return self._kept_s > 0

    async def renew(self, deliveries: Any) -> list[float | None]:
        """See Receiver. Raises ClientError while the link is not attached."""
        if any(each.lost for each in deliveries):
            raise LostError(WAS_LOST)
        if any(self._numbers.get(each._number) is not each for each in deliveries):
            raise ClientError(f"{self.address}: expected a connection, found that it was lost: try again")
        return await super().renew(deliveries)

    async def close(self) -> None:
        """Waits until the broker has stored all outcomes, CLOSE_S at most; then as Receiver."""
        if self._closed is not None:
            return
        self._connection.check_loop()
        if self._has_outcomes and self._stored is None:
            self._stored = self._connection.loop.create_future()
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._stored
            except TimeoutError:
                pass
            except asyncio.CancelledError:
                self.end(ClosedError(f"{self.what} is closed"))
                raise
            finally:
                self._stored = None
        await super().close()

    # --- inside ------------------------------------------------------------------------------------------

    @property
    def _has_outcomes(self) -> bool:
        return any(each.state is not None for each in self._unsettled.values())

    def settle_resumable(self, delivery: ResumingDelivery, state: Any) -> None:
        """Settles a delivery: on this attach, or on the next."""
        if isinstance(state, TransactionalState):
            raise ClientError(
                f"{self.address}: expected a receiver without `resume` in a transaction, which ends with its "
                "connection, found one with it: open another receiver"
            )
        link = self._link
        if link is not None and self._numbers.get(delivery._number) is delivery:
            self.settle(link, delivery._number, state)
            if link.rcv_settle_mode != SETTLE_SECOND:
                # The broker confirms nothing, and resumes nothing.
                self._remove(delivery)
        else:
            self._connection.check_loop()
        delivery.state = state

    def forget(self, delivery: ResumingDelivery) -> None:
        """Marks a delivery as lost."""
        delivery.lost = True
        self._remove(delivery)
        self._incoming.remove(delivery)
        if self.keeper is not None:
            self.keeper.settled(delivery)

    def _remove(self, delivery: ResumingDelivery) -> None:
        self._unsettled.pop(delivery._tag, None)
        self._awaited.discard(delivery._tag)
        if self._numbers.get(delivery._number) is delivery:
            del self._numbers[delivery._number]

    def _forget_all(self) -> None:
        self._timer = None
        for each in [*self._unsettled.values()]:
            if each.state is None:
                self.forget(each)
        unknown = len(self._unsettled)
        self._unsettled.clear()
        if unknown and self._closed is None:
            text = f"the broker has stored {unknown} outcomes or not: those messages are delivered again"
            self._connection.report("lock-lost", self.address or "", text)

    def _release(self, link: EngineLink) -> None:
        if not self._has_outcomes:
            super()._release(link)
            return
        for number, each in self._numbers.items():
            if each.state is None:
                link.settle(number, number, RELEASED)

    def _leave(self) -> None:
        super()._leave()
        if self._timer is not None:
            self._timer.cancel()
        self._forget_all()

    def _drop(self) -> None:
        """Keeps deliveries, if the broker keeps the link."""
        self._numbers.clear()
        self._awaited.clear()
        self._repeats = self._has_less = False
        if not self._kept_s:
            self._forget_all()
            super()._drop()
            return
        self._attached = False
        self._outcome = None
        if self.keeper is not None:
            self.keeper.stop()
        if self._timer is None and self._unsettled:
            self._timer = self._connection.loop.call_later(self._kept_s, self._forget_all)

    # --- from the connection -----------------------------------------------------------------------------

    def attach(self, wire: "Wire", session: Session) -> None:
        """Attaches with the tags of unsettled deliveries: first those without an outcome."""
        self._wire = wire
        unsettled: dict[bytes, Any] | None = None
        if self._was_attached:
            unsettled = {tag: None for tag, each in self._unsettled.items() if each.state is None}
            unsettled |= {tag: each.state for tag, each in self._unsettled.items() if each.state is not None}
        link = self._link = session.attach(
            self.name,
            False,
            source=self._source,
            target=self._target,
            snd_settle_mode=0,
            rcv_settle_mode=1,
            unsettled=unsettled,
        )
        link.context = self
        link.keep_tags()
        wire.touch()

    # --- from the engine ---------------------------------------------------------------------------------

    def attached(self) -> None:
        link = self._link
        if link is None or link.attach is None or link.attach.source is None:
            # The broker's detach follows at once, with the reason (2.6.3).
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._kept_s = kept_s(link, link.attach.source)
        self._incoming.most = deliveries_max(link)  # type: ignore[attr-defined]
        self._compare(link)
        self._was_attached = True
        super().attached()
        self._after_settling()

    def _compare(self, link: EngineLink) -> None:
        """Decides which deliveries the broker will resume, by the maps of both sides."""
        assert link.attach is not None
        theirs = link.attach.unsettled
        if theirs is None or not self._kept_s:
            self._forget_all()
            return
        announced = link.resumable or {}  # type: ignore[attr-defined]
        self._repeats = link.incomplete_unsettled
        for tag, delivery in [*self._unsettled.items()]:
            if tag in theirs or link.attach.incomplete_unsettled:
                if tag in announced:
                    self._awaited.add(tag)
            elif delivery.state is None:
                self.forget(delivery)
            else:
                self._remove(delivery)
                self._has_less = True

    def _after_settling(self, *, was_full: bool = False) -> None:
        """Some deliveries are settled: grants credit that the room in a map did not allow."""
        if self._stored is not None and not self._stored.done() and not self._has_outcomes:
            self._stored.set_result(None)
        link = self._link
        if link is None or not self._attached or self._wire is None:
            return
        unsettled, wanted = self._unsettled, self._incoming.credit
        if was_full and link.credit < wanted:
            link.grant(wanted)
            self._wire.touch()
        if (
            self._repeats
            and self._has_less
            and not link.awaits_answer
            and not any(unsettled[tag].state is not None for tag in self._awaited)
        ):
            link.awaits_answer = True
            link.detach(closed=False)
            self._wire.touch()

    def detached(self, error: AmqpError | None) -> None:
        repeats, wire, link = self._repeats, self._wire, self._link
        if repeats and error is None and wire is not None and link is not None:
            self._drop()
            # After an end of the connection that is handled in this turn, the next one attaches it.
            with suppress(EndedError):
                self.attach(wire, link.session)
            return
        if not goes_on_after(error) and self._attached:
            self._kept_s = 0
        super().detached(error)

    def handle(self, event: events.Event) -> None:
        if isinstance(event, events.Transfers) and self._closed is None:
            self._received(event)
        elif isinstance(event, events.Resumed):
            self._resumed(event)
        elif isinstance(event, events.SenderSettled):
            was_full = 2 * len(self._unsettled) >= self._incoming.most  # type: ignore[attr-defined]
            for number in range(event.first_delivery_id, event.last_delivery_id + 1):
                delivery = self._numbers.get(number)
                if delivery is not None:
                    self._settled(delivery)
            self._after_settling(was_full=was_full)
        else:
            super().handle(event)

    def _received(self, event: events.Transfers) -> None:
        link, first, settled = event.link, event.first_delivery_id, event.settled
        deliveries = []
        tags = event.tags or repeat(b"", len(event.payloads))
        for number, (payload, tag) in enumerate(zip(event.payloads, tags, strict=True), first):
            delivery = ResumingDelivery(self, link, number, payload, settled, tag)
            delivery.state = None
            deliveries.append(delivery)
            if not settled:
                self._unsettled[tag] = self._numbers[number] = delivery
        if self.keeper is not None and not settled:
            self.keeper.add(deliveries)
        self._incoming.add(deliveries)

    def _resumed(self, event: events.Resumed) -> None:
        delivery = self._unsettled.get(event.tag)
        self._awaited.discard(event.tag)
        if delivery is None:
            return
        if event.settled:
            self._settled(delivery)
            self._after_settling()
            return
        delivery._link, delivery._number = event.link, event.delivery_id
        self._numbers[event.delivery_id] = delivery
        if delivery.state is not None:
            self.settle(event.link, event.delivery_id, delivery.state)
        elif self.keeper is not None:
            self.keeper.add([delivery])

    def _settled(self, delivery: ResumingDelivery) -> None:
        """The broker has settled a delivery: it has stored the outcome, or the lock has expired."""
        if delivery.state is None:
            self.forget(delivery)
        else:
            self._remove(delivery)
        self._has_less = True
