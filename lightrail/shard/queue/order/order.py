"""Order: which ready message a consumer gets next, if that is not the head for all of them.

The base class is the order by sequence with consumers that select: each of them has a separate view and reads
every message once. Ranked and grouped orders are built on it (ranked.py, groups.py).
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.model import limits
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.lines.ready import Ready, fitting, one_run
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.memory.eviction import Eviction
from lightrail.shard.queue.order.unoffered import Unoffered
from lightrail.shard.queue.values.effects import Effect, Fetch
from lightrail.shard.queue.values.runs import Run

if TYPE_CHECKING:
    from lightrail.shard.queue.order.deliveries import Deliveries

SELECTOR_LOOKS: Final[int] = 2_000
"""Messages that the selectors of a queue's consumers examine in one step; the next step continues there."""


@dataclass(slots=True, eq=False, repr=False)
class Order:
    """The order by sequence."""

    _ready: Ready
    _eviction: Eviction
    _deliveries: "Deliveries"
    _fed: int = 0
    """The views have all messages with lower sequences."""
    _views: dict[int, Unoffered] = field(default_factory=dict)
    """Views by consumer, for consumers that select or are barred from messages."""
    _gathered: Run | None = None
    """A run that was removed in this turn and not delivered yet, because the next one may continue it."""
    _gathered_bytes: int = 0
    _looks: int = 0
    """Number of messages that selectors may still examine in this step."""
    loading: bool = False
    """Whether messages have to be read from disk before the next one is known."""
    unfinished: bool = False
    """Whether the selectors had to stop before they had read all messages: the next step continues."""
    _next: int = field(init=False)

    def __post_init__(self) -> None:
        self._next = self._fed

    # --- memory -----------------------------------------------------------------------------------------

    @property
    def keys(self) -> int:
        """Number of keys that the order keeps."""
        return 0

    @property
    def index_bytes(self) -> int:
        """Bytes of memory beyond these keys and the line."""
        return sum(limits.RANGE_BYTES * len(view.heap) for view in self._views.values())

    # --- changes of the queue -------------------------------------------------------------------------

    def attach(self, consumer: Consumer) -> None:
        """Adds a consumer."""
        if consumer.options.selects is not None and consumer.ring is not None:
            self._views[consumer.id] = self._whole_view()

    def detach(self, consumer: Consumer) -> None:
        """Removes a consumer; its deliveries are settled already."""
        self._views.pop(consumer.id, None)

    @property
    def idle(self) -> bool:
        """Whether no consumer selects."""
        return not self._views

    def enqueued(self, next_sequence: int) -> None:
        """Notes that messages with sequences below `next_sequence` were enqueued."""
        self._next = next_sequence

    def arrived(self, run: Run) -> None:
        """Adds a run that is ready for the first time."""

    def begin_with(self, runs: list[Run]) -> None:
        """Adds all ready runs, by sequence, to an empty order."""
        for run in runs:
            self.arrived(run)

    def returned(self, run: Run) -> None:
        """Adds a run that is ready again, or for the first time: all consumers may get it."""
        for view in self._views.values():
            view.push(0, run.sequence, run.end)
            view.thin(self._ready)

    def removed(self, run: Run) -> None:
        """Notes that a run is no longer ready, without a delivery."""

    def settling(self, consumer: Consumer, runs: list[Run]) -> None:
        """Notes that runs are no longer in flight; `returned` is called for those that are ready again."""

    def cleared(self) -> None:
        """Notes that no message is ready."""
        for view in self._views.values():
            view.heap.clear()

    # --- one step -------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Called before deliveries; False if none may be made yet."""
        self._looks = SELECTOR_LOOKS
        self.unfinished = False
        if self._fed < self._next:
            self._feed()
            self._fed = self._next
        return not self.loading

    def turn(self, consumer: Consumer, share: int, effects: list[Effect]) -> tuple[bool, bool]:
        """One turn of one consumer; the result is that of `Deliveries.deliver`."""
        view = self._views.get(consumer.id)
        if view is not None:
            return self._choose(consumer, view, share, effects), False
        if self._ready.barred_runs:
            return self._deliveries.deliver_around(consumer, share, effects)
        if not isinstance(self._ready, Sparse):
            return self._deliveries.deliver(consumer, share, effects)
        return self._take_singles(consumer, self._ready, share, effects)

    def show(self, browser: Consumer, effects: list[Effect]) -> None:
        """Sends a browser copies of the ready messages that it selects, from its cursor on."""
        ready = self._ready
        index = ready.index(browser.cursor)
        while browser.next < browser.limit and index < len(ready.runs):
            run = ready.runs[index]
            position = max(run.sequence, browser.cursor)
            if position >= run.end:
                index += 1
                continue
            if run.batch.data is None:
                self._fetch_from(index, effects)
                return
            wanted = min(browser.limit - browser.next, limits.DELIVERY_SLICE_MESSAGES)
            low, high, browser.cursor = self._stretch(
                browser, run, position, run.end, wanted, browser.turn_bytes
            )
            if high > low:
                chosen = run.cut(low - run.sequence, high - run.sequence)
                if not browser.fits(chosen):
                    browser.cursor = low
                    self._deliveries.report_larger(browser, effects)
                    return
                self._deliveries.show_copy(browser, chosen, effects)
            if self.unfinished:
                return

    def expects(self, consumer: Consumer) -> bool:
        """Whether this consumer may get more messages without a change of the queue."""
        if self.loading:
            return True
        ready = self._ready
        view = self._views.get(consumer.id)
        if view is not None:
            return view.top(ready) >= 0
        index = ready.index(consumer.cursor)
        while index < len(ready.runs):
            run = ready.runs[index]
            if run.last > run.first and consumer.id not in run.barred:
                return True
            index += 1
        return False

    # --- messages in separate runs --------------------------------------------------------------------

    def look_ahead(self) -> list[Run]:
        """Runs on disk of the messages that are next, for which no fetch is under way."""
        return self._eviction.look_ahead()

    def _fetch_from(self, index: int, effects: list[Effect]) -> None:
        """Fetches the run at an index; if each run is one message, also those behind it."""
        size = 1 if self._eviction.joins else limits.DELIVERY_SLICE_BYTES
        effects.extend(Fetch(run) for run in self._eviction.want(index, size))

    def _take_singles(
        self, consumer: Consumer, ready: Sparse, share: int, effects: list[Effect]
    ) -> tuple[bool, bool]:
        """One turn from the head of a line of single messages."""
        wanted = min(share, consumer.limit - consumer.next, limits.DELIVERY_SLICE_MESSAGES)
        room = consumer.turn_bytes
        got = blocked = False
        while wanted > 0 and room > 0 and ready.count:
            head = ready.runs[ready.head]
            if consumer.exact and not consumer.fits(head, self._gathered_bytes):
                break
            if head.batch.data is None:
                blocked = True
                break
            run, size = ready.take_single(ready.head)
            wanted -= 1
            room -= size
            got = True
            self._gather(consumer, run, size, effects)
        self._hand_over(consumer, effects)
        return got, blocked

    def _gather(self, consumer: Consumer, run: Run, size: int, effects: list[Effect]) -> None:
        """Sends a run, in one slice with those before it if they are neighbours in their batch."""
        before = self._gathered
        if before is not None:
            if one_run(before, run):
                self._gathered = Run(
                    run.batch, before.first, run.last, before.sequence, run.attempts, run.barred
                )
                self._gathered_bytes += size
                return
            self._deliveries.hand_over(consumer, before, self._gathered_bytes, effects)
        self._gathered = run
        self._gathered_bytes = size

    def _hand_over(self, consumer: Consumer, effects: list[Effect]) -> None:
        """Ends a turn: sends the gathered slice."""
        if self._gathered is not None:
            self._deliveries.hand_over(consumer, self._gathered, self._gathered_bytes, effects)
            self._gathered = None
            self._gathered_bytes = 0

    # --- choosing -------------------------------------------------------------------------------------

    def _whole_view(self) -> Unoffered:
        return Unoffered([(0, 0, self._fed)] if self._fed else None)

    def _feed(self) -> None:
        for view in self._views.values():
            view.push(0, self._fed, self._next)
            view.thin(self._ready)

    def _choose(self, consumer: Consumer, view: Unoffered, share: int, effects: list[Effect]) -> bool:
        """Delivers the messages of its view that a consumer selects; True if there were any."""
        ready = self._ready
        wanted = min(share, consumer.limit - consumer.next, limits.DELIVERY_SLICE_MESSAGES)
        room = consumer.turn_bytes
        got = False
        while wanted > 0 and room > 0:
            index = view.top(ready)
            if index < 0:
                break
            run = ready.runs[index]
            _, first, last = view.heap[0]
            start, stop = max(first, run.sequence), min(last, run.end)
            if consumer.id in run.barred:
                if self._looks <= 0:
                    self.unfinished = True
                    break
                self._looks -= 1
                view.advance(stop)
                continue
            if run.batch.data is None:
                self._fetch_from(index, effects)
                break
            low, high, position = self._stretch(consumer, run, start, stop, wanted, room)
            if high > low and consumer.exact:
                chosen = run.cut(low - run.sequence, high - run.sequence)
                if not consumer.fits(chosen, self._gathered_bytes):
                    view.advance(low)
                    break
            view.advance(position)
            if high > low:
                part, size = ready.take_part(index, low, high)
                wanted -= high - low
                room -= size
                got = True
                self._gather(consumer, part, size, effects)
            if self.unfinished:
                break
        self._hand_over(consumer, effects)
        return got

    def _stretch(
        self, consumer: Consumer, run: Run, start: int, stop: int, wanted: int, room: int
    ) -> tuple[int, int, int]:
        """The first messages in a row that a consumer selects, of those of a run in memory.

        Returns:
            The sequences of the first and after the last one, and the end of the messages that were read.
        """
        selects = consumer.options.selects
        if selects is None:
            rest = run.cut(start - run.sequence, stop - run.sequence)
            high = start + fitting(rest, min(wanted, rest.count), room)
            return start, high, high
        batch = run.batch
        ends = batch.loaded().ends
        shift = run.first - run.sequence
        low = high = position = start
        while position < stop and high - low < wanted:
            if self._looks <= 0:
                self.unfinished = True
                break
            index = position + shift
            room -= ends[index] - (ends[index - 1] if index else 0)
            if high > low and room < 0:
                break
            self._looks -= 1
            chosen = selects(batch.message(index))
            if chosen is None:
                self.unfinished = True
                break
            position += 1
            if chosen:
                if high == low:
                    low = position - 1
                high = position
            elif high > low:
                break
            else:
                low = high = position
                room += ends[index] - (ends[index - 1] if index else 0)
        return low, high, position
