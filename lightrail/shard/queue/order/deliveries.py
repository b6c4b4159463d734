"""Deliveries: assigns ready runs to consumers in each step, and counts messages in flight."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.model import limits
from lightrail.shard.queue.lines.consumers import Consumer, Consumers
from lightrail.shard.queue.lines.ready import Ready, fitting
from lightrail.shard.queue.memory.eviction import Eviction
from lightrail.shard.queue.order.order import Order
from lightrail.shard.queue.order.unoffered import RunCount
from lightrail.shard.queue.timed.locks import Locks
from lightrail.shard.queue.values.counters import Counters, TurnWork
from lightrail.shard.queue.values.effects import Deliver, Drained, Effect, Fetch, Larger, Reason, Removed
from lightrail.shard.queue.values.runs import Run

if TYPE_CHECKING:
    from lightrail.shard.queue.order.message_keys import MessageKeys

_SPARE_BYTES_MIN: Final = limits.SPARE_BYTES_MIN


@dataclass(slots=True, eq=False, repr=False)
class Deliveries:
    """Delivers the ready runs of one queue to its consumers."""

    ready: Ready
    _consumers: Consumers
    _eviction: Eviction
    _counters: Counters
    _locks: Locks
    _work: TurnWork
    _now_ms: int = 0
    order: Order | None = None
    """Decides the next message of each consumer, unless it is the head for all."""
    seen_to: int = 0
    """Messages with lower sequences were delivered before; another delivery is a redelivery."""
    count: int = 0
    """Number of messages in flight."""
    bytes: int = 0
    """Bytes of the messages in flight."""
    evicted_count: int = 0
    """Number of messages in flight that are only on disk."""
    evicted_bytes: int = 0
    unfinished: bool = False
    """Whether this turn's budget for deliveries was used up: the next step continues."""
    paused: bool = False
    """Whether a consumer with credit got nothing because it has too many unsettled runs."""
    spare_bytes: int = 0
    """Bytes, at most, of batches beyond the deliveries that are parts of them."""
    _parted: dict[Consumer, None] = field(default_factory=dict)
    """Consumers with these deliveries."""
    run_count: RunCount = field(init=False)

    def __post_init__(self) -> None:
        self.run_count = RunCount(self._consumers, self._counters)

    # --- memory and disk --------------------------------------------------------------------------------

    @property
    def runs(self) -> int:
        """Number of runs in flight, about."""
        return self.run_count.of(self.count)

    def evict(self, bytes_wanted: int, memory: "MessageKeys | None") -> int:
        """Drops messages in flight that are on disk from memory; returns the bytes that were freed.

        An accepted message is never read again. A returned message is ready and on disk; a message whose
        outcome needs its bytes is fetched before it (`outcomes.py`).
        """
        freed = 0
        left = limits.LOADING_LOOKS
        for consumer in self._consumers:
            line = consumer.in_flight
            if line.is_evicted:
                continue
            for run in line.evict(bytes_wanted - freed, left, memory):
                freed += run.size + limits.RUN_EVICTED_BYTES
                left -= 1 if memory is None else run.count
                self.evicted_count += run.count
                self.evicted_bytes += run.size
            if freed >= bytes_wanted or left <= 0:
                break
        self.run_count.outdate()
        return freed

    def spill_candidates(self, bytes_wanted: int) -> list[Run]:
        """Runs in flight that can be evicted once they have a location; the caller writes and sets it."""
        found: list[Run] = []
        left = limits.LOADING_LOOKS
        for consumer in self._consumers:
            if bytes_wanted <= 0 or left <= 0:
                break
            if not consumer.in_flight.is_evicted:
                mine = consumer.in_flight.spill_candidates(bytes_wanted, left)
                found += mine
                left -= len(mine)
                bytes_wanted -= sum(run.size + limits.RUN_EVICTED_BYTES for run in mine)
        return found

    def slim(self) -> None:
        """Copies deliveries that are a small part of their batch, each once."""
        for consumer in self._parted:
            consumer.in_flight.slim()
        if (packed := self._consumers.packed) is not None:
            packed.in_flight.slim()
        self._parted.clear()
        self.spare_bytes = 0

    def take_over(self, run: Run) -> None:
        """Counts a run in flight that was delivered at another shard."""
        self.count += run.count
        self.bytes += run.size
        self.run_count.came_otherwise(run.count)
        if run.batch.data is None:
            self.evicted_count += run.count
            self.evicted_bytes += run.size

    def leave(self, run: Run) -> None:
        """Subtracts a run that an internal consumer loses, or that can't be read back from disk."""
        if run.batch.data is None:
            self.returns(run)
        self.count -= run.count
        self.bytes -= run.size

    def returns(self, run: Run) -> None:
        """Subtracts a run from the sums of deliveries that are only on disk."""
        self.evicted_count -= run.count
        self.evicted_bytes -= run.size

    def resized(self, before: Run, after: Run) -> None:
        """Corrects the sums after a run on disk was read and its true size is known."""
        self.bytes += after.size - before.size
        self.evicted_bytes += after.size - before.size

    # --- delivering -------------------------------------------------------------------------------------

    def hand_out(self, effects: list[Effect], now_ms: int) -> bool:
        """Delivers to all consumers with credit in turns, until no credit or no ready message is left.

        Returns:
            Whether a consumer waits for a head that is only on disk.
        """
        self._now_ms = now_ms
        consumers = self._consumers
        order = self.order
        self.unfinished = self.paused = False
        if not (order.begin() if order is not None else self.ready.count or consumers.browsers):
            return False
        before = len(effects)
        stop = before + self._work.deliveries
        if consumers.browsers:
            self._show_all(effects, stop)
        blocked = False
        is_bounded = self._work.is_bounded
        for ring in consumers.rings:
            turn = ring.turn
            idle: list[Consumer] = []
            round_left = share = 0
            while turn and self.ready.count and not blocked:
                if len(effects) >= stop:
                    self.unfinished = True
                    break
                consumer = turn[0]
                if not round_left:
                    round_left = len(turn)
                    share = -(-self.ready.count // round_left)
                round_left -= 1
                if is_bounded and self._has_too_many(consumer):
                    self.paused = True
                    idle.append(turn.popleft())
                    continue
                if order is not None:
                    got, blocked = order.turn(consumer, share, effects)
                elif self.ready.barred_runs:
                    got, blocked = self.deliver_around(consumer, share, effects)
                else:
                    got, blocked = self.deliver(consumer, share, effects)
                if consumer.larger:
                    self.report_larger(consumer, effects)
                elif consumer.room <= 0:
                    consumer.limit = consumer.next
                if consumer.next == consumer.limit:
                    consumer.waits = False
                    turn.popleft()
                elif not got and not blocked:
                    idle.append(turn.popleft())
                elif len(turn) > 1:
                    turn.rotate(-1)
            turn.extend(idle)
            if order is not None and order.unfinished:
                # A consumer whose selector read messages in this step is last in the next one.
                turn.rotate(-1)
        self._work.deliveries -= len(effects) - before
        return blocked

    def _has_too_many(self, consumer: Consumer) -> bool:
        """Whether a consumer gets no more before it has settled some, as memory is short (ADR 54).

        Deferred and waiting messages count for all consumers: who has deferred or failed them is not known.
        """
        if consumer.options.presettled:
            return False
        runs = len(consumer.in_flight)
        for apart in (self._consumers.aside, self._consumers.retries):
            runs += 0 if apart is None else len(apart.in_flight)
        return runs >= self._work.unsettled_runs_max

    def deliver(self, consumer: Consumer, share: int, effects: list[Effect]) -> tuple[bool, bool]:
        """Delivers one turn of a consumer from the head.

        Returns:
            Whether the consumer got messages, and whether the head is only on disk.
        """
        ready = self.ready
        wanted = min(share, consumer.limit - consumer.next, limits.DELIVERY_SLICE_MESSAGES)
        room = consumer.turn_bytes
        got = False
        while wanted > 0 and room > 0 and ready.count:
            head = ready.runs[ready.head]
            if consumer.exact and not consumer.fits(head):
                return got, False
            if head.batch.data is None:
                return got, True
            run, size = ready.take_first(wanted, room)
            wanted -= run.last - run.first
            room -= size
            got = True
            self.hand_over(consumer, run, size, effects)
        return got, False

    def deliver_around(self, consumer: Consumer, share: int, effects: list[Effect]) -> tuple[bool, bool]:
        """Like `deliver`, but skips runs that are barred for the consumer."""
        ready = self.ready
        wanted = min(share, consumer.limit - consumer.next, limits.DELIVERY_SLICE_MESSAGES)
        room = consumer.turn_bytes
        got = False
        index = ready.index(consumer.cursor)
        while wanted > 0 and room > 0 and index < len(ready.runs):
            run = ready.runs[index]
            if consumer.id in run.barred:
                consumer.cursor = run.end
                self._consumers.passed_over = True
                index += 1
                continue
            if run.last == run.first:
                # This is a hole of a sparse line.
                index += 1
                continue
            if consumer.exact and not consumer.fits(run):
                break
            if run.batch.data is None:
                size = 1 if self._eviction.joins else limits.DELIVERY_SLICE_BYTES
                effects.extend(Fetch(each) for each in self._eviction.want(index, size))
                break
            run, size = ready.take_at(index, wanted, room)
            wanted -= run.last - run.first
            room -= size
            got = True
            self.hand_over(consumer, run, size, effects)
            index = ready.index(run.end)
        return got, False

    def hand_over(self, consumer: Consumer, run: Run, size: int, effects: list[Effect]) -> None:
        """Sends a run that was removed from the ready line."""
        number = consumer.next
        count = run.last - run.first
        end = run.sequence + count
        consumer.next = number + count
        consumer.room -= size
        effects.append(Deliver(consumer.id, number, run))
        counters = self._counters
        counters.delivered += count
        self._eviction.unseen_bytes += size
        if run.sequence < self.seen_to:
            counters.redelivered += min(end, self.seen_to) - run.sequence
        if end > self.seen_to:
            self.seen_to = end
        plain = consumer.plain
        if not plain and consumer.options.presettled:
            counters.accepted += count
            effects.append(Removed(run.batch, run.sequence, end, size, Reason.ACCEPTED))
            return
        consumer.in_flight.append(number, run)
        self.count += count
        self.bytes += size
        spare = run.batch.size - size
        if spare > _SPARE_BYTES_MIN:
            self.spare_bytes += spare
            self._parted[consumer] = None
        if not plain:
            self._locks.add(consumer, number, number + count, self._now_ms + consumer.lock_ms)

    def _show_all(self, effects: list[Effect], stop: int) -> None:
        """Sends copies to browsers with credit, in turns, until there are `stop` effects."""
        order, browsers = self.order, self._consumers.browsers
        for index, browser in enumerate(browsers):
            if browser.next >= browser.limit:
                continue
            if len(effects) >= stop:
                self.unfinished = True
                browsers[:] = browsers[index:] + browsers[:index]
                return
            if order is None:
                self._show(browser, effects)
            else:
                order.show(browser, effects)

    def _show(self, browser: Consumer, effects: list[Effect]) -> None:
        """Sends copies of ready messages from the browser's cursor on."""
        ready = self.ready
        index = ready.index(browser.cursor)
        while browser.next < browser.limit and index < len(ready.runs):
            run = ready.runs[index]
            index += 1
            skipped = max(browser.cursor - run.sequence, 0)
            rest = run.cut(skipped, run.count)
            if run.batch.data is None:
                if rest.count and not browser.fits(rest):
                    self.report_larger(browser, effects)
                elif self._eviction.ask(run):
                    effects.append(Fetch(run))
                return
            while rest.count and browser.next < browser.limit:
                if not browser.fits(rest):
                    self.report_larger(browser, effects)
                    return
                wanted = min(rest.count, browser.limit - browser.next, limits.DELIVERY_SLICE_MESSAGES)
                piece, rest = rest.split(fitting(rest, wanted, browser.turn_bytes))
                browser.cursor = piece.end
                self.show_copy(browser, piece, effects)

    def show_copy(self, browser: Consumer, run: Run, effects: list[Effect]) -> None:
        """Sends a copy of a run that stays ready."""
        effects.append(Deliver(browser.id, browser.next, run))
        browser.next += run.count
        browser.room -= run.size
        if browser.room <= 0:
            browser.limit = browser.next
        self._counters.browsed += run.count

    def report_larger(self, consumer: Consumer, effects: list[Effect]) -> None:
        """Uses up the credit of a consumer whose next message is too large for it, and reports that message.

        A consumer that was sent half of the bytes gets new credit without a report; one that drains needs
        the reason.
        """
        consumer.limit = consumer.next
        if consumer.room > consumer.exact or consumer.draining:
            effects.append(Larger(consumer.id, consumer.next, consumer.larger))
        consumer.larger = 0

    def drain(self, effects: list[Effect]) -> None:
        """Uses up the credit of draining consumers; a consumer whose next run is being fetched waits."""
        waiting: list[Consumer] = []
        for consumer in self._consumers.draining:
            may_get = consumer.next < consumer.limit and not consumer.standby
            if may_get and not self._has_too_many(consumer) and self._expects(consumer):
                waiting.append(consumer)
                continue
            consumer.draining = False
            consumer.limit = consumer.next
            if consumer.waits and consumer.ring is not None:
                consumer.ring.turn.remove(consumer)
                consumer.waits = False
            effects.append(Drained(consumer.id, consumer.next))
        self._consumers.draining = waiting

    def _expects(self, consumer: Consumer) -> bool:
        """Whether a message for this consumer is ready: after a dispatch, only one on disk."""
        if self.order is not None:
            return self.order.expects(consumer)
        runs = self.ready.runs
        following = range(self.ready.index(consumer.cursor), len(runs))
        return any(consumer.id not in runs[index].barred for index in following)
