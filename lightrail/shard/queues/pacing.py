"""Pacing: holds back the credit of senders to a queue, so that its consumers keep up.

Theory. To enqueue a message costs less than to deliver it. On a busy machine the queue therefore grows, each
message waits for all before it, and a stored message costs more than one that is delivered at once. So the
credit of senders follows deliveries. While more messages are ready than consumers get in
PACE_AHEAD_MS, the answers to senders are marked HELD: the messages are stored, and the sender gets its
outcomes, but its frontend grants no new credit for them. As messages are delivered, FREED grants this credit,
to one sender after another. A sender that waits for each outcome always has enough credit and is not
affected.

Senders are paced only if at least one message is delivered for PACE_SLOWNESS that are enqueued: a
queue that fills because its consumers are slow or absent does its job, and its senders keep their full speed.
If consumers stop, the shard has no event at which to compare the rates, so the frontend frees some credit
itself each CREDIT_HELD_MS. If ready messages may match no consumer (selectors, groups, barred
consumers), their number does not show how far consumers are behind, and no credit is held.
"""

from dataclasses import dataclass, field
from typing import Final, Protocol

from lightrail.model import limits
from lightrail.shard.queue.view import View

PACE_SAMPLE_MS: Final[int] = 10
"""How often a queue of at least PACE_DEPTH_MIN messages compares its rates of deliveries and of enqueued
ones."""
PACE_MEAN_MS: Final[int] = 1_000
"""Time over which both rates are averaged."""
PACE_AHEAD_MS: Final[int] = 12
"""Senders get no credit while more messages are ready than consumers get in this time."""
PACE_SLOWNESS: Final[int] = 8
"""Consumers that get less than one message per so many enqueued ones do not slow senders: the queue fills."""


class Paced(Protocol):
    """The link of a sender whose credit may be held; `lightrail.shard.effects.peers.Producer` is one."""

    @property
    def is_open(self) -> bool: ...

    def free_credit(self, count: int) -> None:
        """Gives the sender credit that was held for `count` messages; 0 for all of it."""


@dataclass(slots=True, eq=False, repr=False)
class Pace:
    """The rates at which one queue is filled and emptied, and the credit that is held for it."""

    depth: int | None = None
    """Number of messages that may be ready before credit is held; None if senders are not paced."""
    held_credit: dict[Paced, int] = field(default_factory=dict)
    """Approximate number of messages whose credit is held, by producer; the next producer first."""
    _since_ms: int = 0
    _enqueued: int = 0
    _delivered: int = 0
    _expected: int = 0
    """Number of messages for which credit was freed, and that were not enqueued since."""
    _enqueued_before: int = 0
    """Number of enqueued messages at the last count of the expected ones."""
    _delivered_before: int = 0
    """Number of delivered messages when credit was last freed."""
    _delivered_ms: int = 0
    """Time of the last deliveries, according to samples."""
    _enqueue_rate: float = 0.0
    """Mean number of messages enqueued, and delivered, in a millisecond."""
    _delivery_rate: float = 0.0

    def is_full(self, view: View) -> bool:
        """Whether answers to batches are marked HELD now."""
        return self.depth is not None and view.ready.count > self.depth and view.consumers.are_served

    def hold(self, producer: Paced, count: int) -> None:
        """Holds a producer's credit for `count` more messages."""
        self.held_credit[producer] = self.held_credit.get(producer, 0) + count

    def step(self, view: View, now_ms: int) -> list[tuple[Paced, int]]:
        """Frees held credit, after a dispatch of the queue.

        Returns:
            Producers, and the number of messages for which each gets credit; 0 for all.
        """
        since_ms = now_ms - self._since_ms
        if since_ms >= PACE_SAMPLE_MS:
            self._sample(view, now_ms, since_ms)
        counters = view.counters
        if not self.held_credit:
            self._delivered_before = counters.delivered
            return []
        if self.depth is None or not view.consumers.are_served:
            freed = [(producer, 0) for producer in self.held_credit]
            self.held_credit.clear()
            return freed
        self._expected = max(0, self._expected - (counters.enqueued - self._enqueued_before))
        self._enqueued_before = counters.enqueued
        # Credit is freed in larger pieces than there is room, because small batches cost more per message.
        if view.ready.count < self.depth:
            self._delivered_before = counters.delivered
            room = self.depth - view.ready.count - self._expected
            return self._free(room) if room >= self.depth >> 1 else []
        # Half of the delivered messages, so that the queue becomes shorter while its senders continue.
        room = (counters.delivered - self._delivered_before) >> 1
        if room < limits.PACE_FREED_MIN:
            return []
        before = self._expected
        freed = self._free(room)
        self._delivered_before += 2 * (self._expected - before)
        return freed

    def _free(self, room: int) -> list[tuple[Paced, int]]:
        """Frees credit for about `room` messages, for one producer after another."""
        freed: list[tuple[Paced, int]] = []
        held = self.held_credit
        share = max(limits.PACE_FREED_MIN, room // max(1, len(held)))
        while room > 0 and held:
            producer = next(iter(held))
            count = held.pop(producer)
            if count > share:
                held[producer] = count - share
                count = share
                freed.append((producer, share))
            else:
                freed.append((producer, 0))
            room -= count
            self._expected += count
        return freed

    def _sample(self, view: View, now_ms: int, since_ms: int) -> None:
        counters = view.counters
        # A mean over many samples, because consumers grant credit in bursts.
        weight = min(1.0, since_ms / PACE_MEAN_MS)
        enqueued = (counters.enqueued - self._enqueued) / since_ms
        delivered = (counters.delivered - self._delivered) / since_ms
        self._enqueue_rate += (enqueued - self._enqueue_rate) * weight
        self._delivery_rate += (delivered - self._delivery_rate) * weight
        self._since_ms, self._enqueued, self._delivered = now_ms, counters.enqueued, counters.delivered
        # Senders that did not use their credit within a sample may never use it.
        self._expected = 0
        if delivered and since_ms < PACE_MEAN_MS:
            # Deliveries before the queue had this depth do not show the current rate of consumers.
            self._delivered_ms = now_ms
        is_idle = now_ms - self._delivered_ms >= PACE_MEAN_MS
        keeps_up = self._delivery_rate * PACE_SLOWNESS >= self._enqueue_rate
        if keeps_up and not is_idle and not view.may_keep:
            self.depth = max(limits.PACE_DEPTH_MIN, int(self._delivery_rate * PACE_AHEAD_MS))
        else:
            self.depth = None
