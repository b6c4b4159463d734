"""Reserved: deliveries that are reserved for a transaction over several shards until it is decided.

They are in flight at a consumer without a link, the reservation. It knows the consumer that the messages were
delivered to, where the order of the queue counts them.

A lock under a key outlives its link (timed/locks.py), and so does that of a deferred message, whose consumer
is detached from the beginning (locking.py). A transaction settles or reserves such deliveries by the key.
While they are reserved, the end of the lock does not matter; after a rollback they are locked as before, and
fail if that end is over. So they are if the process ended meanwhile (lock_changes.py).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from lightrail.model.attempts import of_journal
from lightrail.model.links import LockEnding
from lightrail.shard.queue.changes.contents import Contents
from lightrail.shard.queue.changes.copying import holders_of
from lightrail.shard.queue.lines.consumers import Consumer, Consumers
from lightrail.shard.queue.lines.ends import Blame
from lightrail.shard.queue.lines.line import InFlight
from lightrail.shard.queue.timed.lock_changes import KeyedLock
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.runs import Run

ReservedCommand = commands.Reserve | commands.Conclude | commands.Return | commands.SettleDetached
"""Commands of transactions."""
Settled = tuple[Consumer, list[Run], commands.Outcome]
"""Deliveries that get an outcome, and the consumer that received them."""
Locked = Sequence[tuple[int, int, int, int]]
"""As in commands.Open."""


class Reservation(Consumer):
    """Has deliveries of one consumer in flight for a transaction."""

    __slots__ = ("counting", "locked_until", "receiver")

    def __init__(self, identity: int, receiver: Consumer | None) -> None:
        super().__init__(identity, commands.ConsumerOptions(), None)
        self.departed = True
        self.locked_until: dict[int, int] = {}
        """The ends of their locks, if these have a key, by delivery number."""
        self.counting: list[int] = []
        """Delivery numbers whose ends count after the end of the link; see Blame."""
        self.receiver: Consumer = self if receiver is None else receiver
        """The consumer that received the messages; itself after a restart, when that one is unknown."""


def apply(contents: Contents, command: ReservedCommand, now_ms: int) -> Settled | None:
    """Applies a command; returns the deliveries that the caller settles, or None."""
    settled: Settled | None = None
    match command:
        case commands.Reserve():
            _reserve(contents, command)
        case commands.Conclude():
            settled = _conclude(contents.consumers, command)
        case commands.Return():
            settled = _return(contents, command, now_ms)
        case commands.SettleDetached():
            consumer = contents.locks.find(command.key)
            if consumer is not None:
                settled = consumer, consumer.in_flight.take(command.first, command.last), command.outcome
                # The key of a lock ends with its last delivery.
                contents.locks.settled(consumer)
    contents.locks.pack()
    return settled


def _reserve(contents: Contents, command: commands.Reserve) -> None:
    """Reserves deliveries of a consumer, which can then no longer settle them."""
    consumers = contents.consumers
    consumer = contents.locks.find(command.key) if command.key else consumers.by_id.get(command.consumer)
    runs = [] if consumer is None else consumer.in_flight.take(command.first, command.last)
    if consumer is None or not runs:
        return
    reservation = Reservation(command.holder, consumer)
    if consumer.ends is not None:
        locks = contents.locks
        for number in range(command.first, command.last):
            reservation.locked_until[number] = locks.end_of(consumer, number)
            if consumer.blame is not None and consumer.blame.counts(number):
                reservation.counting.append(number)
        locks.settled(consumer)
    reservation.next = command.first
    for run in runs:
        reservation.in_flight.append(reservation.next, run)
        reservation.next += run.count
    consumers.departed[command.holder] = reservation


def _conclude(consumers: Consumers, command: commands.Conclude) -> Settled | None:
    """Ends a reservation; returns its deliveries with their receiver, or None."""
    found = consumers.departed.pop(command.holder, None)
    if not isinstance(found, Reservation):
        return None
    return found.receiver, found.in_flight.everything(), command.outcome


def _return(contents: Contents, command: commands.Return, now_ms: int) -> Settled | None:
    """Gives deliveries back to their receiver, under their numbers; those of a detached one have failed."""
    consumers, locks = contents.consumers, contents.locks
    found = consumers.departed.get(command.holder)
    receiver = _receiver_now(contents, command.holder, locks.find)
    if receiver is None or not isinstance(found, Reservation):
        return _conclude(consumers, commands.Conclude(command.holder, commands.FAILED))
    line = found.in_flight
    del consumers.departed[command.holder]
    if receiver.departed:
        if locks.by_key.get(receiver.options.lock_key) is not receiver:
            # What it had beside the reserved deliveries, when it was packed, has left it since.
            receiver.in_flight = InFlight()
            lock_ms = receiver.options.lock_ms or contents.policy.lock_ms
            if lock_ms and receiver.session_of is None:
                # Changes of the policy have not reached it.
                receiver.locks(lock_ms)
        locks.restored(receiver)
    first = line.keys[line.head]
    into = receiver.in_flight
    at = into.index(first)
    into.replace(at, at, line.keys[line.head :], line.runs[line.head :])
    into.evicted_to = min(into.evicted_to, first)
    if receiver.ends is not None:
        # Locks without an end would have ended with the link, or have got one with a lock time of the policy.
        lock_ms = max(receiver.lock_ms, receiver.lock_ms_before * receiver.departed)
        endless_ms = now_ms + lock_ms if lock_ms else 0
        if receiver.blame is not None:
            for number in found.counting:
                receiver.blame.renew(number)
        for number, until_ms in found.locked_until.items():
            # While it was reserved, those beside it may have got an end.
            locks.lock_again(receiver, number, until_ms or endless_ms or locks.end_of(receiver, number))
        if receiver.departed and receiver.blame is None and receiver.options.lock_ends is LockEnding.BY_TIME:
            # Nothing else was locked when its link ended.
            receiver.blame = Blame()
    elif receiver.lock_ms:
        locks.add(receiver, first, found.next, now_ms + receiver.lock_ms)
    return None


def _receiver_now(contents: Contents, holder: int, find: Callable[[str], Consumer | None]) -> Consumer | None:
    """Who can have reserved deliveries again: their receiver, while it is attached, or who has its key.

    Args:
        find: `find` or `seen` of the locks.
    """
    found = contents.consumers.departed.get(holder)
    if not isinstance(found, Reservation):
        return None
    receiver = found.receiver
    if (attached := contents.consumers.by_id.get(receiver.id)) is receiver:
        return attached
    in_session = receiver.session_of in contents.consumers.by_id
    if not (receiver.departed and (receiver.keeps_locks or in_session)):
        return None
    # Its link may have opened again.
    return find(receiver.options.lock_key) or receiver


def may_return(contents: Contents, holder: int) -> bool:
    """Whether the receiver of reserved deliveries is attached, or has its key, and can have them again."""
    return _receiver_now(contents, holder, contents.locks.seen) is not None


def outlives_link(contents: Contents, holder: int) -> bool:
    """Whether reserved deliveries are locked under a key: they are again after a rollback."""
    receiver = _receiver_now(contents, holder, contents.locks.seen)
    if receiver is None or not receiver.options.lock_key:
        return False
    return receiver.departed or receiver.options.lock_ends is not LockEnding.ALWAYS_BY_TIME


def runs_of(consumers: Consumers, holder: int) -> Sequence[Run]:
    """The deliveries of a reservation."""
    found = consumers.departed.get(holder)
    return found.in_flight.runs[found.in_flight.head :] if isinstance(found, Reservation) else ()


def restore(contents: Contents, reserved: Mapping[int, Sequence[tuple[int, int]]]) -> None:
    """Reserves messages of transactions after a restart.

    Recovery made them ready, like all others, or set them aside, if they are deferred, or waited once.
    """
    holders = []
    for identity, ranges in reserved.items():
        deliveries, number = [], 0
        for first, last in ranges:
            deliveries.append((number, first, last - first))
            number += last - first
        holders.append(commands.Holder(identity, commands.ConsumerOptions(), number, deliveries))
    for holder, found in holders_of(holders, contents.ready):
        reservation = Reservation(holder.consumer, None)
        reservation.in_flight = found.in_flight
        reservation.next = reservation.limit = holder.next
        for run in found.in_flight.runs:
            contents.deliveries.take_over(run)
        # The others are in flight already, at an internal consumer.
        _reserve_aside(contents, holder, reservation)
        if len(reservation.in_flight):
            contents.consumers.departed[holder.consumer] = reservation


def _reserve_aside(contents: Contents, holder: commands.Holder, reservation: Reservation) -> None:
    """Reserves those messages of a holder that are set aside."""
    found_aside = [
        (number + run.sequence - first, run.until(0) if run.waits else run)
        for number, first, count in holder.deliveries
        for apart in contents.set_apart
        for run in apart.take_between(first, first + count)
    ]
    if not found_aside:
        return
    line = reservation.in_flight
    found = [*zip(line.keys[line.head :], line.runs[line.head :], strict=True), *found_aside]
    reservation.in_flight = InFlight()
    for number, run in sorted(found, key=_number):
        reservation.in_flight.append(number, run)


def _number(delivery: tuple[int, Run]) -> int:
    return delivery[0]


def own_again(contents: Contents, holders: Sequence[tuple[commands.Holder, Consumer]], locks: Locked) -> None:
    """Gives reservations that a start has restored their receivers, if the locks of all of their deliveries
    outlived the process.

    Args:
        holders: detached consumers; their deliveries include the reserved ones, which are not in flight.
        locks: as in commands.Open.
    """
    deliveries = sorted(
        (
            (sequence, number, count, consumer)
            for holder, consumer in holders
            for number, sequence, count in holder.deliveries
        ),
        key=_sequence,
    )
    ends_of: defaultdict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for lock in locks:
        ends_of[lock[1]].append(lock)
    for each in _reservations(contents):
        found = [*_deliveries_of(each, deliveries)]
        receivers = {consumer.id: consumer for _, _, consumer in found}
        if len(receivers) != 1 or sum(run.count for _, run, _ in found) != _count(each):
            continue
        (each.receiver,) = receivers.values()
        each.in_flight = InFlight()
        for number, run, _ in found:
            each.in_flight.append(number, run)
            each.next = number + run.count
        first, blame = each.in_flight.keys[0], each.receiver.blame
        if blame is not None:
            each.counting = [number for number in range(first, each.next) if blame.counts(number)]
        for until_ms, _, start, stop in ends_of[each.receiver.id]:
            span = range(max(first, start), min(each.next, stop))
            each.locked_until.update(dict.fromkeys(span, until_ms))


def _reservations(contents: Contents) -> list[Reservation]:
    return [each for each in contents.consumers.departed.values() if isinstance(each, Reservation)]


def _count(reservation: Reservation) -> int:
    return sum(run.count for run in reservation.in_flight.runs)


def _deliveries_of(
    reservation: Reservation, deliveries: Sequence[tuple[int, int, int, Consumer]]
) -> Iterator[tuple[int, Run, Consumer]]:
    """Delivery numbers and receivers of reserved runs, as far as they are among some deliveries."""
    for run in reservation.in_flight.runs:
        at = max(0, bisect_right(deliveries, run.sequence, key=_sequence) - 1)
        while at < len(deliveries) and deliveries[at][0] < run.end:
            sequence, number, count, consumer = deliveries[at]
            at += 1
            low, high = max(sequence, run.sequence), min(sequence + count, run.end)
            if low < high:
                yield number + low - sequence, run.cut(low - run.sequence, high - run.sequence), consumer


def _sequence(delivery: tuple[int, int, int, Consumer]) -> int:
    return delivery[0]


def locks_of(contents: Contents) -> Iterator[Sequence[KeyedLock]]:
    """The locks of reserved durable messages that outlive the process, by reservation; these may change in
    between."""
    for each in _reservations(contents):
        if contents.consumers.departed.get(each.id) is each:
            yield [*_locks_of(each)]


def _locks_of(each: Reservation) -> Iterator[KeyedLock]:
    receiver = each.receiver
    if receiver.keeps_locks:
        line, counting = each.in_flight, set(each.counting)
        for number, run in zip(line.keys[line.head :], line.runs[line.head :], strict=True):
            attempts = of_journal(run.attempts)
            for index in range(run.count if run.batch.durable else 0):
                if until_ms := each.locked_until.get(number + index):
                    sequence, counts = run.sequence + index, number + index in counting
                    yield KeyedLock(receiver, number + index, sequence, 1, attempts, until_ms, counts)


def disown(contents: Contents) -> None:
    """Removes the receivers of reserved messages, because the queue is arranged by groups.

    Those of ended links with a key stay: such a link owns no group, nor does the next one while it has them.
    """
    attached, by_key = contents.consumers.by_id, contents.locks.by_key
    for each in _reservations(contents):
        receiver = each.receiver
        now = by_key.get(receiver.options.lock_key, receiver)
        if now.id in attached or not (receiver.departed and receiver.keeps_locks):
            _disown(contents, each)


def disown_unsent(contents: Contents, options: commands.ConsumerOptions) -> None:
    """Removes the receivers of reserved messages whose numbers a link gives again that opens under their key,
    as it does not know them."""
    for each in _reservations(contents):
        if each.receiver.options.lock_key == options.lock_key and each.next > options.first:
            _disown(contents, each)


def _disown(contents: Contents, reservation: Reservation) -> None:
    contents.locks.freed(reservation.receiver, list(runs_of(contents.consumers, reservation.id)))
    reservation.receiver = reservation
