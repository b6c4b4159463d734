"""A link that receives from a queue and that its client may resume (transport 2.6.13, messaging 3.4.6).

The shard numbers deliveries over all attaches of the link, and delivery-tags end with these numbers: a tag
stands for the same delivery at any frontend. When the link has ended the shard keeps its unsettled
deliveries; the next attach begins with them (`recovered`):

    the client has an outcome    the shard stores it, and a resumed, settled transfer is sent to the client
    both have the delivery       it is sent again, resumed
    only the shard has it        it is sent again as new: the client would ignore a resumed one (2.7.5)
    only the client has it       it is settled; nothing is sent

Deliveries that are missing in an incomplete map of the client wait for the next attach, and no new deliveries
are sent on this one (2.7.3). Otherwise new deliveries are sent after all of these.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, Final

from lightrail.amqp.events import ACCEPTED, RELEASED, Credit, Outcome
from lightrail.amqp.link import ATTACHED
from lightrail.amqp.performatives import Accepted, Received, Released
from lightrail.frontend.links.bound import Terms
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.links.headers import send_with_new_headers
from lightrail.frontend.links.outcomes import OUTCOMES, UNCONFIRMED
from lightrail.model import conditions, limits
from lightrail.model.links import Ending
from lightrail.wire.columns import Range, encode_ranges, joined
from lightrail.wire.frames import DELIVER_COLUMNS, DELIVER_ENDS, FOR_GOOD, HEADER_SIZE, Kind, frame

TERMINUS_BYTES: Final = 8
"""Length of the prefix of a delivery-tag, before the number."""
RESTARTED: Final = (
    "expected the queue's shard to run, found that it was restarted; attach again with your unsettled map: "
    "the deliveries of this link are in its store"
)
BEGINNING: Final = Received(section_number=0, section_offset=0)
"""State of a resumed delivery whose message is sent whole, whatever part the client has of it."""


@dataclass(slots=True, eq=False, repr=False)
class Messages:
    """Collects messages instead of sending them."""

    found: list[bytes | memoryview] = field(default_factory=list)

    def send(
        self,
        count: int,
        ends: "Sequence[int]",
        blob: bytes | bytearray | memoryview,
        base: int = 0,
        settled: bool = False,
        message_format: int = 0,
    ) -> None:
        """See Link."""
        view, start = memoryview(blob), 0
        for end in ends:
            self.found.append(view[start : end - base])
            start = end - base

    def send_one(self, payload: bytes, message_format: int = 0, settled: bool = False) -> None:
        """See Link."""
        self.found.append(payload)


@dataclass(slots=True, eq=False, repr=False)
class ResumableConsumer(ConsumerLink):
    """One outgoing link bound to a queue, whose consumer outlives it at the queue's shard.

    Args:
        seconds: how long unsettled deliveries are kept after the end of the link.
        durability: how much of them the client wants in the store (model/links.py).
        terms: of the attach, to which the shard's unsettled deliveries are added.
    """

    _: KW_ONLY
    seconds: InitVar[int]
    durability: InitVar[int]
    terms: Terms
    _is_restricted: bool = field(init=False)
    """Whether no new deliveries may be sent."""
    _first: int = 0
    """Number of the first new delivery of this attach."""
    _left: deque[int] = field(default_factory=deque)
    """Deliveries that are to be sent again, in their order."""
    _asked: bool = False
    """Whether they were requested from the shard, and not all have arrived."""
    _known: set[int] = field(default_factory=set)
    """Deliveries that the client has as well."""
    _outcomes: list[tuple[int, Any]] = field(default_factory=list)
    """Deliveries with an outcome of the client, until the attach is answered."""
    _concluding: dict[int, Any] = field(default_factory=dict)
    """The same deliveries, until the shard has stored the outcome."""

    def __post_init__(self, seconds: int, durability: int) -> None:
        ConsumerLink.__post_init__(self)
        attach, options = self._link.attach, self.options
        assert attach is not None
        options.suspended_ms = seconds * 1_000
        options.durability = durability if seconds else 0
        options.recovers = attach.unsettled is not None
        self.terms.suspended_s = seconds
        self._is_restricted = attach.incomplete_unsettled

    # --- the attach ------------------------------------------------------------------------------------

    def recovered(self, terminus: int, number: int, ranges: list[Range], durability: int) -> None:
        """See Consumer: compares the client's deliveries with those of the shard."""
        if self._closed or self._attached:
            return
        link, attach = self._link, self._link.attach
        assert attach is not None
        self.options.terminus = terminus
        self.terms.durability = durability
        link.number_tags(terminus.to_bytes(TERMINUS_BYTES, "big"), number)
        self._window.next = self._window.limit = self._first = number
        self._left, self._known, self._outcomes = deque(), set(), []
        theirs: dict[bytes, Any] = attach.unsettled or {}
        mine: dict[bytes, Any] = {}
        for first, count in ranges:
            for each in range(first, first + count):
                tag = link.tag_of(each)
                mine[tag] = None
                if tag not in theirs:
                    if not self._is_restricted:
                        self._left.append(each)
                elif isinstance(state := theirs[tag], OUTCOMES):
                    self._outcomes.append((each, _shared(state)))
                else:
                    self._known.add(each)
                    self._left.append(each)
        if attach.unsettled is not None:
            self.terms.unsettled = mine

    def ready(self) -> None:
        """See Consumer: answers the client's attach, and sends unsettled deliveries again."""
        if self._closed or self._attached:
            return
        ConsumerLink.ready(self)
        self._conclude()
        self._request_next()

    def _conclude(self) -> None:
        """Sends the client's outcomes to the shard, consecutive ones together."""
        outcomes, self._outcomes = self._outcomes, []
        if self._closed or not outcomes:
            return
        self._concluding.update(outcomes)
        self.settlements.add(len(outcomes), 0)
        found: Outcome | None = None
        for number, state in outcomes:
            if found is not None and number == found.last + 1 and state is found.state:
                found.last = number
                continue
            if found is not None:
                self.settlements.outcome(found)
            found = Outcome(self._link, number, number, state, False)
        if found is not None:
            self.settlements.outcome(found)

    def _request_next(self) -> None:
        """Requests the next deliveries to send again, or new deliveries if none is left."""
        if self._closed or self._asked:
            return
        if self._left:
            if self._link.waiting_again or self.connection.paused:
                self.connection.starved[self] = None
                return
            self._asked = True
            body = encode_ranges(joined(self._left))
            self._owner.post(frame(Kind.RESEND, link=self.number, epoch=self._owner.epoch, body=body))
        elif not self._concluding:
            self._limit = max(self._link.limit, self._window.next)
            self._send_credit(force=True)

    # --- from the client -------------------------------------------------------------------------------

    def credit(self, event: Credit) -> None:
        """See ConsumerLink; deliveries that are sent again come first."""
        if not self._attached or self._is_busy:
            self._drain = event.drain
            return
        ConsumerLink.credit(self, event)

    @property
    def _is_busy(self) -> bool:
        return bool(self._left or self._concluding) or self._asked

    def closed_for_good(self) -> None:
        """See Bound."""
        if self._retiring is not None:
            self._retiring.keeps_others = False
        elif self._ending == Ending.FAILED:
            self._ending |= FOR_GOOD
        else:
            # Shards of former versions would suspend the link.
            self.settlements.give_up(self._window.next)

    # --- from the shard --------------------------------------------------------------------------------

    @property
    def _has_ended(self) -> bool:
        """Whether nothing can be sent; a link that has ended in this turn is closed at the end of it."""
        return self._closed or self._link.state > ATTACHED

    def reopen(self) -> None:
        """See Consumer: requests the deliveries that were not sent again yet once more, or aborts them.

        If the shard was restarted and has the deliveries, the client has to resume the link: its map has the
        outcomes that were on their way, and no delivery that was not.
        """
        if self._closed:
            return
        if self._attached and self.terms.durability and not self._owner.resumes(self.number):
            self._frontend.later(0, self._resume)
            return
        ConsumerLink.reopen(self)
        if not self._attached:
            return
        self._asked = False
        if not self.options.resume:
            # The shard was restarted: these deliveries are in their queue again.
            self._abort(self._left)
            self._left = deque()
            if self._concluding:
                self._frontend.later(0, self._can_not_conclude)
        self._request_next()

    def deliver(self, part: bytes | memoryview, number: int, count: int) -> None:
        """See ConsumerLink; deliveries below the first new number are repeated ones."""
        if number >= self._window.next:
            ConsumerLink.deliver(self, part, number, count)
        elif not self._has_ended:
            self._deliver_again(part, number, count)

    def _deliver_again(self, part: bytes | memoryview, number: int, count: int) -> None:
        _sequence, expires, _enqueued, attempts, message_format, base, size = DELIVER_COLUMNS.unpack_from(
            part, HEADER_SIZE
        )
        blob_at = DELIVER_ENDS + 4 * count
        ends = memoryview(part)[DELIVER_ENDS:blob_at].cast("I")
        messages = Messages()
        if message_format or not (attempts or expires):
            messages.send(count, ends, part[blob_at:], base)
        else:
            now_ms = self._frontend.now_ms()
            send_with_new_headers(
                messages,
                part,
                blob_at,
                ends,
                base,
                attempts=attempts,
                expires=expires,
                now_ms=now_ms,
                presettled=False,
            )
        self._pass_over(number)
        for _ in range(count):
            self._left.popleft()
        self.settlements.add(count, size)
        self._counts.messages_redelivered += count
        for each, message in enumerate(messages.found, number):
            known = each in self._known
            state = BEGINNING if known else None
            self._link.send_again(each, message, message_format, resume=known, state=state)
        self.connection.touch()

    def resent(self, number: int) -> None:
        """See Consumer."""
        if self._closed:
            return
        self._asked = False
        self._pass_over(number)
        self._request_next()

    def _pass_over(self, number: int) -> None:
        """Aborts deliveries below `number` that were not sent again: the shard no longer has the messages."""
        lost: list[int] = []
        while self._left and self._left[0] < number:
            lost.append(self._left.popleft())
        if lost:
            self._abort(lost)

    def _abort(self, numbers: Iterable[int]) -> None:
        """Aborts deliveries that the client expects, but that are no longer delivered to this link."""
        for each in () if self._has_ended else numbers:
            if each in self._known:
                self._link.send_again(each, resume=True, aborted=True)
        self.connection.touch()

    def settled(self, number: int, count: int, is_certain: bool) -> None:
        """See Consumer; confirms outcomes that the client had before this attach."""
        if self._has_ended:
            return
        if self._concluding:
            for each in range(number, number + count):
                if each in self._concluding:
                    if not is_certain:
                        self._frontend.later(0, self._can_not_conclude)
                        return
                    state = self._concluding.pop(each)
                    self._link.send_again(each, resume=True, settled=True, state=state)
            self.connection.touch()
            if not self._concluding:
                self._request_next()
        ConsumerLink.settled(self, number, count, is_certain)

    def _resume(self) -> None:
        if not self._closed:
            self.connection.links.detach(self._link, conditions.DETACH_FORCED, RESTARTED)

    def _can_not_conclude(self) -> None:
        if not self._closed:
            self.connection.links.detach(self._link, conditions.DETACH_FORCED, UNCONFIRMED)

    # --- credit towards the shard ----------------------------------------------------------------------

    def writable(self) -> None:
        """See ConsumerLink."""
        if self._left:
            self._request_next()
        else:
            ConsumerLink.writable(self)

    def delivered(self) -> int:
        """See ConsumerLink."""
        return self._window.next - self._first

    def _messages_ahead(self) -> int:
        room = limits.SUSPENDED_DELIVERIES_MAX - self.settlements.count
        return max(0, min(ConsumerLink._messages_ahead(self), room))

    def _send_credit(self, *, force: bool = False) -> None:
        if not self._attached or self._is_busy:
            return
        if self._is_restricted:
            if self._drain:
                self._drain = False
                self._link.drained()
                self.connection.touch()
            return
        if self.settlements.count >= limits.SUSPENDED_DELIVERIES_MAX:
            # Credit follows when the client has settled some deliveries.
            self.connection.starved[self] = None
            if not force:
                return
        ConsumerLink._send_credit(self, force=force)


def _shared(state: Any) -> Any:
    """The same object for equal states, so that consecutive equal outcomes are sent as one frame."""
    if isinstance(state, Accepted):
        return ACCEPTED
    return RELEASED if isinstance(state, Released) else state
