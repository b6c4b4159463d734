"""Admission: how batches come into queues whose policy has a say, and where they wait while there is no room.

What a policy may say of a batch: how long its messages live and whether they are durable, which of them came
before (duplicates), how many fit, and what becomes of the others. Batches that wait are parked per queue in
the order they came; nobody is answered meanwhile, so that senders run out of credit. Plain queues never
come here.

A batch that was taken in part is remembered with its producer (a Taken record where it is durable), so that
the rest of it is neither lost nor stored twice when it comes again after a crash.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from typing import Final, NamedTuple

from lightrail.journal.record import CONTINUED, SPILLED, Ids, Taken
from lightrail.model import conditions, limits
from lightrail.shard.journal.record import Append, Record
from lightrail.shard.journal.store import Store, StoreBroken, StoreBusy, StoreError
from lightrail.shard.memory import Memory
from lightrail.shard.peers import Producer
from lightrail.shard.performer import Performer
from lightrail.shard.queue import bounds, commands
from lightrail.shard.queue.machine import Policy
from lightrail.shard.queue.runs import Batch, Place, Run, joined
from lightrail.shard.queues import Parked, Queue
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import Refusal

log = logging.getLogger("lightrail.shard.admission")

ADMITTED: Final = 8
"""Units of work (queue/work.py) of a batch that is let in."""
EXAMINED: Final = 12
"""Units of each of its messages that is looked into, beyond that."""
Answer = Callable[[Producer, int, bool], None]
"""Accepts a batch (producer, number, durable): at once, or with the commit that holds its records."""
Refuse = Callable[[Producer, int, Refusal, bool], None]
"""The same for a refusal; `durable` if some of the batch is in records that wait for a commit."""


class Progress(Enum):
    """How far a batch came."""

    DONE = auto()
    """It is answered, or will be with the commit."""
    WAITS = auto()
    """The rest of it waits for room."""
    GOES_ON = auto()
    """The rest of it is for the next turn: more would take too long at once."""


class Chosen:
    """What of a batch is no duplicate: messages `first` to before `stop` of `source`."""

    __slots__ = ("digests", "first", "source", "stop", "where")

    def __init__(self, queue: Queue, batch: Batch, first: int, end: int, now_ms: int) -> None:
        self.source = batch
        self.first = first
        self.stop = end
        self.where: list[int] | None = None
        """Indexes in the batch, where they are others than those in `source`."""
        self.digests: list[bytes | None] | None = None
        """Of the messages' ids, from `first` on; None without a window of duplicates."""
        duplicates = queue.machine.duplicates
        if duplicates is None or queue.machine.policy.duplicate_window_ms is None:
            return
        fresh = duplicates.fresh(batch, first, end, now_ms)
        self.digests = [each.digest for each in fresh]
        if len(fresh) < end - first:
            self.where = [each.at for each in fresh]
            runs = [Run(batch, at, at + 1, 0) for at in self.where]
            self.source = joined(runs, None) if runs else batch
            self.first = 0
            self.stop = len(runs)

    def after(self, count: int, end: int) -> int:
        """How far the batch is done when `count` of these are: what comes next is no duplicate."""
        if count == self.stop - self.first:
            return end
        return self.first + count if self.where is None else self.where[count]

    def cut(self, count: int) -> Batch:
        """The first `count` of them as a batch of their own."""
        if not self.first and count == self.source.count:
            return self.source
        return joined([Run(self.source, self.first, self.first + count, 0)], None)


class Admission:
    """Lets batches into guarded queues."""

    __slots__ = ("_answer", "_counts", "_memory", "_performer", "_refuse", "_store", "unfinished")

    def __init__(
        self,
        store: Store,
        performer: Performer,
        memory: Memory,
        counts: ShardCounts,
        answer: Answer,
        refuse: Refuse,
    ) -> None:
        self._store = store
        self._memory = memory
        self._performer = performer
        self._counts = counts
        self._answer = answer
        self._refuse = refuse
        self.unfinished: dict[Queue, None] = {}
        """Queues that have room for what is parked, for which the work of the step was used up."""

    def enqueue(self, producer: Producer, number: int, batch: Batch, now_ms: int) -> bool:
        """A batch came; one that was taken in part before goes on where it stopped.

        Returns:
            Whether it has to come once more, in the next turn, for the rest of it.
        """
        queue = producer.queue
        policy = queue.machine.policy
        conform(policy, batch, now_ms)
        done = producer.part if number == producer.last_number else 0
        entry = Parked(producer, number, batch, done, waits_until(policy, now_ms))
        is_back = done and not (producer.goes_on or producer.is_named)
        if is_back and bounds.refuses(policy) and _acts_at_once(policy):
            # It was answered so before the connection went, or was about to be. Who comes again by name knows
            # that, and wants the rest stored.
            self._turn_away(queue, entry, done, _full(queue))
            return False
        progress = Progress.WAITS if queue.parked else self._admit(queue, entry, now_ms)
        if progress is Progress.WAITS:
            self._park(queue, entry)
        producer.goes_on = progress is Progress.GOES_ON
        return producer.goes_on

    def resume(self, queue: Queue, now_ms: int) -> None:
        """Something may have changed: lets in what was parked, in order, as far as there is room.

        What is looked into counts as work of the step; what that leaves over is for the next one.
        """
        machine = queue.machine
        while queue.parked:
            entry = queue.parked[0]
            if entry.waits(now_ms) and bounds.is_full(machine.policy, machine.held, machine.held_bytes):
                return
            if machine.work.left <= 0:
                self.unfinished[queue] = None
                return
            queue.parked.popleft()
            done = entry.done
            progress = self._admit(queue, entry, now_ms)
            machine.work.left -= ADMITTED
            if machine.policy.examines:
                machine.work.left -= EXAMINED * (entry.done - done)
            if progress is not Progress.DONE:
                queue.parked.appendleft(entry)
                if progress is Progress.WAITS:
                    return
                continue
            self._memory.park(-entry.batch.size)
        queue.parked = None

    def drop(self, producer: Producer) -> None:
        """The producer is gone, or says everything once more: what is parked of it goes unanswered."""
        if self._take_out(producer):
            # Those behind it may have room.
            self._performer.touched[producer.queue] = None

    def abandon(self, producer: Producer) -> None:
        """Who sent has gone: what is parked of it is refused, so that it is not stored hours later."""
        parked = self._take_out(producer)
        if not parked:
            return
        queue = producer.queue
        refusal = Refusal(
            conditions.RESOURCE_LIMIT_EXCEEDED,
            f"the sender's link to queue {queue.name} was closed while this waited for room",
        )
        self._turn_away(queue, parked[0], parked[0].done, refusal)
        self._turn_away_behind(queue, producer, parked[1:])
        # Those behind it may have room.
        self._performer.touched[queue] = None

    def _park(self, queue: Queue, entry: Parked) -> None:
        size = entry.batch.size
        if self._memory.parked + size > self._memory.parked_max:
            refusal = index_full(queue) if self._memory.index_is_full else _full(queue)
            refusal.description += f"; {self._memory.parked} bytes wait in this shard already"
            self._turn_away(queue, entry, entry.done, refusal)
            return
        self._memory.park(size)
        queue.park(entry)
        self._performer.touched[queue] = None

    def _take_out(self, producer: Producer) -> list[Parked]:
        """Takes what is parked of one producer, in order."""
        queue = producer.queue
        taken = [entry for entry in queue.parked or () if entry.producer is producer]
        for entry in taken:
            assert queue.parked is not None
            queue.parked.remove(entry)
            self._memory.park(-entry.batch.size)
        if not queue.parked:
            queue.parked = None
        return taken

    def _admit(self, queue: Queue, entry: Parked, now_ms: int) -> Progress:
        """Lets in what there is room for, so much as may be looked into at once."""
        machine = queue.machine
        if self._memory.index_is_full and machine.special is not None and machine.special.singles:
            self._memory.waiting[queue] = None
            return Progress.WAITS
        policy = machine.policy
        batch = entry.batch
        waits = entry.waits(now_ms)
        large = bounds.too_large(policy, batch, entry.done)
        end = batch.count if large is None else large
        if policy.examines:
            end = min(end, entry.done + limits.LOOKED_INTO_AT_ONCE)
        chosen = Chosen(queue, batch, entry.done, end, now_ms)
        wanted = fits = chosen.stop - chosen.first
        if bounds.refuses(policy) or (waits and policy.overflow == bounds.DISCARD_EXISTING):
            fits = bounds.room(policy, machine.held, machine.held_bytes, chosen.source, chosen.first)
            fits = min(fits, wanted)
        dropped = 0
        if fits < wanted and not waits and policy.overflow == bounds.DISCARD_INCOMING:
            dropped = wanted - fits
        done = end if dropped else chosen.after(fits, end)
        if fits or done > entry.done:
            error = self._take(queue, entry, chosen, fits, done, now_ms)
            if isinstance(error, StoreBroken):
                return Progress.WAITS
            if isinstance(error, StoreBusy):
                self.unfinished[queue] = None
                return Progress.WAITS
            if error is not None:
                self._counts.store_failures += 1
                refusal = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, str(error))
                self._turn_away(queue, entry, entry.done, refusal)
                return Progress.DONE
            machine.counters.dropped += dropped
            machine.counters.duplicates += done - entry.done - fits - dropped
            entry.done = done
        if done == batch.count:
            waits = not batch.durable and queue.captured and self._performer.capture_lags
            self._answer(entry.producer, entry.number, batch.durable or waits)
        elif done == large:
            self._turn_away(queue, entry, done, _too_large(queue, batch, large))
        elif done == end:
            # Also where all of these were duplicates, of which nothing is written.
            entry.producer.last_number = entry.number
            entry.producer.part = done
            return Progress.GOES_ON
        elif waits:
            return Progress.WAITS
        else:
            self._turn_away(queue, entry, done, _full(queue))
        return Progress.DONE

    def _take(
        self, queue: Queue, entry: Parked, chosen: Chosen, count: int, done: int, now_ms: int
    ) -> Exception | None:
        """Stores the first `count` of what was chosen; the batch is done up to `done` then."""
        machine = queue.machine
        policy = machine.policy
        producer, number = entry.producer, entry.number
        whole = done == entry.batch.count
        if count:
            batch = chosen.cut(count)
            digests = [digest for digest in (chosen.digests or ())[:count] if digest is not None]
            until_ms = now_ms + (policy.duplicate_window_ms or 0)
            if batch.durable:
                records: list[Record] = [
                    Append([(queue.id, machine.next_sequence)], producer.id, number, batch, 0, count)
                ]
                if digests:
                    records.append(Ids(queue.id, until_ms, b"".join(digests)))
                if not whole:
                    records.append(Taken(producer.id, number, done))
                try:
                    batch.place = self._append(records, now_ms)
                except (StoreError, ValueError) as error:
                    return error
                self._performer.messages_unsynced += count
            elif queue.captured:
                place = (queue.id, machine.next_sequence)
                try:
                    batch.place = self._store.append(
                        Append([place], producer.id, number, batch, 0, count, 0, SPILLED), now_ms
                    )
                except (StoreError, ValueError) as error:
                    return error
                self._performer.captured_bytes += batch.size
            if producer.stored is not None:
                producer.note(number, machine.next_sequence)
            if digests and machine.duplicates is not None:
                machine.duplicates.remember(digests, until_ms)
            self._performer.perform(queue, machine.apply(commands.Enqueue(batch), now_ms), now_ms)
            self._performer.touched[queue] = None
        if count or whole or producer.last_number == number:
            producer.last_number = number
            producer.part = 0 if whole else done
        return None

    def _append(self, records: list[Record], now_ms: int) -> Place | None:
        """One group, whole or not at all after a crash. Returns the place of its Append, the first."""
        for record in records[:-1]:
            record.flags |= CONTINUED
        place = self._store.append(records[0], now_ms)
        for record in records[1:]:
            try:
                self._store.append(record, now_ms)
            except StoreError as error:
                # The messages are stored; only a crash would make a difference.
                self._counts.store_failures += 1
                log.error("what was said of a batch could not be written: %s", error)
        return place

    def _turn_away(self, queue: Queue, entry: Parked, done: int, refusal: Refusal) -> None:
        """Refuses what is left of a batch, and with it whatever else came from its producer."""
        producer = entry.producer
        queue.machine.counters.refused += entry.batch.count - done
        refusal.accepted = done
        producer.refusing = True
        self._refuse(producer, entry.number, refusal, entry.batch.durable and done > 0)
        self._turn_away_behind(queue, producer, self._take_out(producer))

    def _turn_away_behind(self, queue: Queue, producer: Producer, parked: list[Parked]) -> None:
        """Refuses what was parked behind a batch that was refused."""
        for behind in parked:
            queue.machine.counters.refused += behind.batch.count
            refusal = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "a batch before this one was refused")
            self._refuse(producer, behind.number, refusal, False)


def index_full(queue: Queue) -> Refusal:
    """Why a queue that looks into its messages takes none now."""
    return Refusal(
        conditions.RESOURCE_LIMIT_EXCEEDED,
        f"queue {queue.name} looks into its messages, and what its shard keeps of such messages in memory "
        f"has reached its share, memory_mark divided by {limits.INDEX_SHARE}: send again when receivers have "
        "taken some, or give the shard a larger memory_mark",
    )


class Share(NamedTuple):
    """What one queue takes of a batch that goes to several."""

    queue: Queue
    batch: Batch
    """The batch itself where the policy changes nothing about it."""
    digests: list[bytes]
    duplicates: int
    dropped: int


def fitting(queue: Queue, batch: Batch, now_ms: int) -> tuple[int, Refusal | None]:
    """How many of the first messages of a routed batch a queue takes now, and why not all of them."""
    machine = queue.machine
    policy = machine.policy
    large = bounds.too_large(policy, batch, 0)
    end = batch.count if large is None else large
    if bounds.refuses(policy) and policy.overflow != bounds.DISCARD_INCOMING:
        chosen = Chosen(queue, batch, 0, end, now_ms)
        room = bounds.room(policy, machine.held, machine.held_bytes, chosen.source, chosen.first)
        if room < chosen.stop - chosen.first:
            return chosen.after(room, end), _full(queue)
    return end, None if large is None else _too_large(queue, batch, large)


def share(queue: Queue, batch: Batch, now_ms: int) -> Share:
    """What a queue takes of a routed batch that fits."""
    machine = queue.machine
    policy = machine.policy
    mine = replace(batch)
    conform(policy, mine, now_ms)
    chosen = Chosen(queue, mine, 0, mine.count, now_ms)
    wanted = fits = chosen.stop - chosen.first
    if bounds.refuses(policy):
        fits = bounds.room(policy, machine.held, machine.held_bytes, chosen.source, chosen.first)
        fits = min(fits, wanted)
    digests = [digest for digest in (chosen.digests or ())[:fits] if digest is not None]
    same = (mine.durable, mine.expires_at_ms) == (batch.durable, batch.expires_at_ms)
    if fits != batch.count:
        mine = chosen.cut(fits) if fits else replace(mine, count=0, size=0)
    elif same and batch.durable:
        mine = batch
    return Share(queue, mine, digests, batch.count - wanted, wanted - fits)


def conform(policy: Policy, batch: Batch, now_ms: int) -> None:
    """What the policy says of every message: when it expires at the latest, whether it is durable."""
    if policy.max_age_ms is not None:
        expires_at_ms = now_ms + policy.max_age_ms
        batch.expires_at_ms = min(batch.expires_at_ms or expires_at_ms, expires_at_ms)
    if policy.durable != "default":
        batch.durable = policy.durable == "always"


def waits_until(policy: Policy, now_ms: int) -> int | None:
    """Until when a batch that comes now waits for room; None for ever."""
    if policy.enqueue_timeout_ms is not None:
        return now_ms + policy.enqueue_timeout_ms
    return None if policy.overflow == bounds.FLOW_CONTROL else now_ms


def _acts_at_once(policy: Policy) -> bool:
    """Whether what does not fit is refused without waiting."""
    if policy.overflow == bounds.REJECT:
        return not policy.enqueue_timeout_ms
    return policy.overflow == bounds.FLOW_CONTROL and policy.enqueue_timeout_ms == 0


def _full(queue: Queue) -> Refusal:
    machine = queue.machine
    said = bounds.said(machine.policy, queue.name, machine.held, machine.held_bytes)
    return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, said)


def _too_large(queue: Queue, batch: Batch, index: int) -> Refusal:
    policy = queue.machine.policy
    largest = bounds.largest(policy)
    return Refusal(
        conditions.MESSAGE_SIZE_EXCEEDED,
        f"queue {queue.name} takes messages of at most {largest} bytes, this one has "
        f"{len(batch.message(index))}",
    )
