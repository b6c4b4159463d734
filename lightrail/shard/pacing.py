"""Pacing: a queue whose consumers keep up is handed out before it takes in more.

Theory. Taking a message in costs less than handing it out. On a machine that is busy, senders therefore win:
the queue grows, each message waits for all before it, and what is kept costs more than what passes through.
So credit to senders follows what consumers take. While more messages are ready than consumers take in
limits.PACE_AHEAD_MS, the answers to senders are marked HELD: the messages are stored, and the sender knows,
but its frontend gives no new credit for them. As consumers take, FREED gives it, to one sender after another.
A sender that waits for each answer has credit enough and notices nothing.

Only where consumers take at least one in limits.PACE_SLOWNESS of what comes: a queue that fills for slow
workers, or for none, is what queues are for, and takes in at full speed. Where consumers stop, nothing
happens here that could be compared. So the frontend frees a little each limits.CREDIT_HELD_MS by itself.
Where messages may be ready that nobody takes (selectors, groups, consumers that are barred) their number says
nothing of how far consumers are behind, and nothing is held.
"""

from typing import TYPE_CHECKING

from lightrail.model import limits

if TYPE_CHECKING:
    from lightrail.shard.peers import Producer
    from lightrail.shard.queue.machine import Machine


class Pace:
    """How fast one queue is emptied and filled, and whose credit is held for it."""

    __slots__ = (
        "_awaited",
        "_come",
        "_delivered",
        "_enqueued",
        "_entering",
        "_gone",
        "_leaving",
        "_since_ms",
        "_taken_ms",
        "depth",
        "held",
    )

    def __init__(self) -> None:
        self.depth: int | None = None
        """Messages that may be ready before credit is held; None: senders are not paced."""
        self.held: dict[Producer, int] = {}
        """For how many messages credit is held, about, by producer; the one whose turn it is first."""
        self._since_ms = 0
        self._enqueued = 0
        self._delivered = 0
        self._awaited = 0
        """Messages for which credit was freed, and that may come."""
        self._come = 0
        """What had been enqueued when those that were awaited were counted last."""
        self._gone = 0
        """What had been delivered when credit was freed last."""
        self._taken_ms = 0
        """When consumers were last seen to take something."""
        self._entering = 0.0
        """Messages in a millisecond that come, and that consumers take."""
        self._leaving = 0.0

    def is_full(self, machine: "Machine") -> bool:
        """Whether what is answered now is answered HELD."""
        return self.depth is not None and machine.ready.count > self.depth and bool(machine.consumers.by_id)

    def hold(self, producer: "Producer", count: int) -> None:
        """Credit for so many more messages of a producer is held."""
        self.held[producer] = self.held.get(producer, 0) + count

    def step(self, machine: "Machine", now_ms: int) -> list[tuple["Producer", int]]:
        """The queue has delivered what it could.

        Returns:
            Producers and for how many messages their credit is free now; 0: for all.
        """
        since_ms = now_ms - self._since_ms
        if since_ms >= limits.PACE_SAMPLE_MS:
            self._sample(machine, now_ms, since_ms)
        counters = machine.counters
        if not self.held:
            self._gone = counters.delivered
            return []
        if self.depth is None or not machine.consumers.by_id:
            freed = [(producer, 0) for producer in self.held]
            self.held.clear()
            return freed
        self._awaited = max(0, self._awaited - (counters.enqueued - self._come))
        self._come = counters.enqueued
        # In larger pieces than there is room: what goes through in small batches costs more.
        if machine.ready.count < self.depth:
            self._gone = counters.delivered
            room = self.depth - machine.ready.count - self._awaited
            return self._free(room) if room >= self.depth >> 1 else []
        # Half of what is taken: so the queue becomes short, and its senders go on meanwhile.
        room = (counters.delivered - self._gone) >> 1
        if room < limits.PACE_FREED_MIN:
            return []
        before = self._awaited
        freed = self._free(room)
        self._gone += 2 * (self._awaited - before)
        return freed

    def _free(self, room: int) -> list[tuple["Producer", int]]:
        """Frees credit for about so many messages, to one producer after another."""
        freed: list[tuple[Producer, int]] = []
        held = self.held
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
            self._awaited += count
        return freed

    def _sample(self, machine: "Machine", now_ms: int, since_ms: int) -> None:
        counters = machine.counters
        # A mean over some samples: consumers take in bursts, as they give credit.
        weight = min(1.0, since_ms / limits.PACE_MEAN_MS)
        entered = (counters.enqueued - self._enqueued) / since_ms
        taken = (counters.delivered - self._delivered) / since_ms
        self._entering += (entered - self._entering) * weight
        self._leaving += (taken - self._leaving) * weight
        self._since_ms, self._enqueued, self._delivered = now_ms, counters.enqueued, counters.delivered
        # What did not come within a sample is not waited for.
        self._awaited = 0
        if taken and since_ms < limits.PACE_MEAN_MS:
            # What was taken before a queue of some depth stood here says nothing of now.
            self._taken_ms = now_ms
        stands = now_ms - self._taken_ms >= limits.PACE_MEAN_MS
        if not (stands or machine.may_keep) and self._leaving * limits.PACE_SLOWNESS >= self._entering:
            self.depth = max(limits.PACE_DEPTH_MIN, int(self._leaving * limits.PACE_AHEAD_MS))
        else:
            self.depth = None
