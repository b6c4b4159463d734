"""Settlements of one receiving link: its unsettled messages, and the client's outcomes for the shard.

For a client that waits for the broker to settle (receiver-settle-mode second), the broker settles when the
shard has the outcome on disk: a confirmed delivery is never delivered again.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lightrail.amqp.events import ACCEPTED, RELEASED, Outcome
from lightrail.amqp.link import SETTLE_SECOND
from lightrail.amqp.performatives import Modified, Released
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.frontend.links.outcomes import (
    ELSEWHERE,
    FAILED,
    GROWTH_BYTES_MAX,
    LOST,
    OUTCOMES,
    UNANSWERED,
    UNCONFIRMED,
    TooLarge,
    Unconfirmed,
    confirmed,
    encode_outcome,
)
from lightrail.frontend.unsettled_bytes import UnsettledBytes
from lightrail.model import conditions, limits
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.telemetry.frontend import FrontendCounts
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import ASKED, COUNT_MASK, REPEATED, Kind, OutcomeCode, frame

if TYPE_CHECKING:
    from lightrail.frontend.transactions.transaction import Retirement
    from lightrail.shard_client.owners.owner import Owner


@dataclass(slots=True, eq=False, repr=False)
class Settlements(UnsettledBytes):
    """The settlements of a link, whose deliveries are numbered from 0 over its lifetime."""

    _owner: "Owner"
    _number: int
    _options: ConsumerOpen
    is_closed: bool = False
    """Whether the link has ended."""
    is_returned: bool = False
    """Whether its consumer is closed as well, so that all deliveries are in their queue again."""
    has_key: bool = False
    """Whether the shard knows the deliveries under a key of the link, by which they are settled, also in
    transactions; then a delivery from before a loss of the shard may be locked still."""
    locks_lapse: Callable[[], bool] | None = None
    """Whether locks under the key end without the client, by time or with a session; given with the key."""
    is_abandoned: bool = False
    """Whether the connection has ended by a failure, or by the broker, while a transaction had outcomes:
    the client may have sent a discharge that was lost."""
    held: "dict[Retirement, None] | None" = None
    """Deliveries with an outcome in an open transaction; None before the first one."""
    _discharged: Callable[[], None] | None = None
    """Called when no transaction holds deliveries any more."""
    _unconfirmed: Unconfirmed | None = None
    """Created when the client first waits for the broker to settle."""
    _doubtful: set[int] = field(default_factory=set)
    """Deliveries of which the shard is asked whether they are locked."""
    confirms_plainly: bool = False
    """Whether a confirmed rejected outcome is settled without the error that the client sent."""
    removed_bytes_max: int = 0
    """Messages up to this size, as they are stored, are removed before they leave the shard."""
    _counts: FrontendCounts = field(init=False)
    _presettled: bool = field(init=False)
    _too_large: TooLarge = field(init=False)

    def __post_init__(self) -> None:
        self._counts = self._connection.frontend.counts
        self._presettled = self._options.presettled
        if self._options.removes_first:
            self.removed_bytes_max = max(0, self._link.peer_max_message_size - GROWTH_BYTES_MAX)
        self._too_large = TooLarge(self._link, self._options, self._counts)

    def opening(self) -> bytes:
        """The body of the frame that opens the consumer.

        The shard accepts no messages but those that certainly fit the client; `sent` settles the others.
        """
        options = self._options
        if self._presettled and self._link.peer_max_message_size:
            removed = self.removed_bytes_max
            options = replace(options, presettled=False, removes_first=removed > 0, removed_bytes_max=removed)
        return options.encode()

    def sent(self, number: int, count: int, size: int) -> int:
        """Counts a slice that was passed to the link; returns how many of its messages were too large."""
        if not self._presettled:
            self.add(count, size)
        large = self._too_large.take()
        for each in large:
            if not self._presettled:
                self._remove(1)
            self._post(each, each, ELSEWHERE, 0)
        if self._presettled and self._link.peer_max_message_size:
            self._post(number, number + count - 1, ACCEPTED, 0)
        return len(large)

    def outcome(self, event: Outcome) -> None:
        """Sends the client's outcome for a range of deliveries to the shard."""
        first = event.first
        last = event.last
        if not event.settled and not isinstance(event.state, OUTCOMES):
            # Not an outcome: the received part (3.4.1), or no state at all.
            return
        if self._presettled:
            return
        if first < self._base:
            # Delivered by a shard process that has ended since: the message is in its queue again.
            if not event.settled:
                self._can_not_confirm()
            first = self._base
            if first > last:
                return
        if not event.settled:
            # The receiver waits for the settlement (receiver-settle-mode second, or it only sent its state).
            if self._unconfirmed is None:
                self._unconfirmed = Unconfirmed()
            for each in self._unconfirmed.add(first, last, event.state):
                self.settle(*each, ASKED)
        elif self._unconfirmed:
            for each in self._unconfirmed.drop(first, last, event.state):
                self.settle(*each)
        else:
            self.settle(first, last, event.state)

    def settle(self, first: int, last: int, state: object, asked: int = 0) -> None:
        """Settles a range of deliveries at the shard, which confirms it if `asked`."""
        self._remove(last - first + 1)
        code = self._post(first, last, state, asked)
        self._counts.outcomes[code] += last - first + 1

    def _post(self, first: int, last: int, state: object, asked: int) -> OutcomeCode:
        code, body = encode_outcome(state, self._options)
        self._owner.post(
            frame(
                Kind.SETTLE,
                flags=code,
                link=self._number,
                epoch=self._owner.epoch,
                count=last - first + 1,
                number=first,
                body=body,
                asked=asked,
            )
        )
        return code

    def give_up(self, before: int) -> None:
        """The client has closed the link in order and for good: returns its deliveries as not worked on."""
        first = max(0, before - COUNT_MASK)  # A SETTLE has a count of 32 bits.
        if first < before:
            self._post(first, before - 1, self._left, 0)

    def return_unsent(self, first: int) -> None:
        """The link has ended: returns deliveries from number `first` on, also those on their way from the
        shard, of which the client has got none."""
        self._post(first, first + COUNT_MASK - 1, RELEASED, 0)

    @property
    def _left(self) -> Released | None:
        """The outcome of what the client did not work on; None for the default outcome, if that decides."""
        return None if self._options.default_outcome <= OutcomeCode.REJECTED else RELEASED

    @property
    def is_lost(self) -> bool:
        """Whether no transaction can settle deliveries any more: they are in their queue again."""
        return self.is_returned and not self.has_key

    # --- in transactions -------------------------------------------------------------------------------

    def retire(self, first: int, last: int, *, settled: bool) -> int:
        """Passes a range of deliveries to a transaction; the client may have `settled` them.

        Returns the first valid one: those before are from a shard process that has ended since.
        """
        if settled:
            self._remove_range(first, last)
        return max(first, self._base)

    def retire_one(self, number: int) -> None:
        """A delivery is settled by a request, which is answered instead.

        Azure's client for Python relates any disposition to its messages, such as that request.
        """
        if not self.is_closed and self._link.forget_sent(number, number):
            self._remove_range(number, number)

    def retired(self, first: int, last: int, state: object, *, settled: bool) -> None:
        """The transaction is committed: settles the deliveries if the client waits for that."""
        code, _ = encode_outcome(state, self._options)
        self._counts.outcomes[code] += last - first + 1
        if not settled and not self.is_closed:
            self._remove_range(first, last)
            self._link.settle_sent(first, last, state)
            self._connection.touch()

    def hold(self, held: "Retirement") -> None:
        """A transaction has an outcome of deliveries."""
        if self.held is None:
            self.held = {}
        self.held[held] = None

    def release(self, held: "Retirement") -> None:
        """That transaction has ended."""
        if self.held is not None:
            self.held.pop(held, None)
        if not self.held and self._discharged is not None:
            discharged, self._discharged = self._discharged, None
            discharged()

    def when_discharged(self, call: Callable[[], None]) -> None:
        """Calls it when no transaction holds deliveries any more, which may be now."""
        if self.held:
            self._discharged = call
        else:
            call()

    def return_others(self, before: int, first: int = 0) -> None:
        """Deliveries that no transaction holds, from `first` to before `before`, return to their queue."""
        at = max(first, self._base, before - COUNT_MASK)
        held = sorted((each.first, each.last + 1) for each in self.held or ())
        for start, end in [*held, (before, before)]:
            if at < min(start, before):
                self._post(at, min(start, before) - 1, self._left, 0)
            at = max(at, end)

    def give_back(self, first: int, last: int, state: Modified | Released = FAILED) -> None:
        """The transaction is rolled back: returns deliveries that the client settled in it.

        They are released if its end was none in order (ADR 5).
        """
        if state is RELEASED:
            self.is_abandoned = True
        if self.locks_lapse is not None and self.locks_lapse():
            # A rollback changes no lock: the client may settle the messages again, by their tokens.
            return
        first = max(first, self._base)
        if first <= last and not self.is_returned:
            self._post(first, last, state, 0)

    def take_back(self, first: int, last: int, state: Modified | Released) -> None:
        """The acquisition of deliveries is rolled back: they return to their queue with this outcome."""
        if self.is_closed or first > last:
            return
        if first < self._base:
            # Delivered by a shard process that has ended since: the messages are in their queue again.
            self._link.settle_sent(first, min(last, self._base - 1), state)
            first = self._base
        if first <= last:
            self._remove(self._link.settle_sent(first, last, state))
            self._post(first, last, state, 0)
        self._connection.touch()

    async def renew_locks(self, tags: Sequence[bytes]) -> list[int | None]:
        """Renews the locks of deliveries with these delivery-tags, if the shard ends locks by time.

        Returns for each tag: milliseconds for which it is locked from now on; 0 if its lock expired or it has
        an outcome, None if its lock does not expire. Raises ShardDownError, ShardRefusedError.
        """
        numbers = [self._link.unsettled_number(tag) for tag in tags]
        options = self._options
        if options.relay or options.browse:
            return [0 if number is None else None for number in numbers]
        unsettled = [number for number in numbers if number is not None and number >= self._base]
        locked: dict[int, int | None] = {}
        if unsettled:
            fields = {"link": self._number, "numbers": unsettled}
            answer = await self._connection.frontend.ask_shard(options.queue, "renew_deliveries", fields)
            locked = dict(zip(unsettled, answer.fields["locked_ms"], strict=True))
        return [0 if number is None else locked.get(number, 0) for number in numbers]

    def settle_doubtful(self, first: int, last: int, state: object, *, is_counted: bool = True) -> None:
        """Settles deliveries whose locks may have ended, for a client that waits for the broker to settle.

        Those whose locks have ended are rejected towards the client: their messages are in the queue again.

        Args:
            is_counted: whether they count as unsettled still, as those without an outcome so far do.
        """
        if first < self._base:
            self._can_not_confirm()
            first = self._base
        numbers = [
            each
            for each in range(first, last + 1)
            if each not in self._doubtful and not (self._unconfirmed and each in self._unconfirmed)
        ]
        if numbers:
            self._doubtful.update(numbers)
            self._connection.frontend.spawn(self._settle_doubtful(numbers, state, is_counted))

    async def _settle_doubtful(self, numbers: list[int], state: object, is_counted: bool) -> None:
        at = 0
        try:
            for at in range(0, len(numbers), limits.LOCKS_RENEWED_MAX):
                part = numbers[at : at + limits.LOCKS_RENEWED_MAX]
                settled = await self._settle_numbers(part, state)
                for number in part:
                    answer = confirmed(state, plainly=self.confirms_plainly) if number in settled else LOST
                    self._answered(number, number, answer, is_counted)
        except (ShardDownError, ShardRefusedError, CoordinatorError):
            for number in numbers[at:]:
                self._answered(number, number, UNANSWERED, is_counted)
        finally:
            self._doubtful.difference_update(numbers)

    def _answered(self, first: int, last: int, answer: object, is_counted: bool) -> None:
        """Settles deliveries towards the client, which may have settled them meanwhile."""
        if not self.is_closed:
            settled = self._link.settle_sent(first, last, answer)
            if is_counted:
                self._remove(min(settled, max(0, last + 1 - max(first, self._lapsed))))
            self._connection.touch()

    async def _settle_numbers(self, numbers: list[int], state: object) -> set[int]:
        """Settles deliveries by a request; returns those that were locked, whose outcomes are on disk now.

        It names their locks, as the link may have ended when the request is at the shard.
        """
        options = self._options
        code, detail = encode_outcome(state, options)
        outcome = {"outcome": code.name.lower(), **(json.loads(detail) if detail else {})}
        fields = {"locks": [f"{options.lock_key}-{number}" for number in numbers], **outcome}
        answer = await self._connection.frontend.ask_shard(options.queue, "settle_locks", fields)
        settled = {each for each, done in zip(numbers, answer.fields["found"], strict=True) if done}
        self._counts.outcomes[code] += len(settled)
        return settled

    # --- from the shard --------------------------------------------------------------------------------

    def forget(self, sent: int) -> None:
        """The shard was restarted: the deliveries numbered below `sent` are in their queue again."""
        if not self.has_key:
            self._base = self._lapsed = sent
            self._remove(self.count)
        if self._unconfirmed:
            # The shard may have stored these outcomes.
            unconfirmed = list(self._unconfirmed.all())
            self._unconfirmed.clear()
            if not self.has_key:
                self._can_not_confirm()
                return
            # The locks of others may have outlived the shard. The client expects the loss of a lock, not of
            # a link, which would end its session, too.
            for first, last, state in unconfirmed:
                self.settle_doubtful(first, last, state, is_counted=False)

    def repeat(self) -> None:
        """Sends outcomes that the former shard has not confirmed to the new shard of the queue.

        Sending an outcome twice has no effect.
        """
        if self._unconfirmed:
            for each in self._unconfirmed.all():
                self._post(*each, ASKED | REPEATED)

    def confirmed(self, number: int, count: int, is_certain: bool) -> None:
        """See Consumer.settled: settles the deliveries for which the client waits."""
        if not self._unconfirmed:
            return
        found = self._unconfirmed.take(number, count)
        if found and not is_certain:
            if self.has_key:
                for first, last, _ in found:
                    self._answered(first, last, UNANSWERED, False)
            else:
                self._can_not_confirm()
            return
        for first, last, state in found:
            self._link.settle_sent(first, last, confirmed(state, plainly=self.confirms_plainly))
            self._connection.touch()

    def not_locked(self, number: int, count: int) -> None:
        """See Consumer: the client has lost the locks of these deliveries."""
        for first, last, _ in self._unconfirmed.take(number, count) if self._unconfirmed else ():
            self._answered(first, last, LOST, False)

    def close(self) -> None:
        """The link has ended."""
        self.is_closed = True
        self._remove(self.count)

    def _can_not_confirm(self) -> None:
        """Ends the link of a client that waits for settlements, which will not arrive."""
        if self._link.rcv_settle_mode == SETTLE_SECOND:
            self._connection.frontend.later(0, self._detach)

    def _detach(self) -> None:
        if not self.is_closed:
            self._connection.links.detach(self._link, conditions.DETACH_FORCED, UNCONFIRMED)
