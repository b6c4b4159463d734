"""Reserved: deliveries that are reserved for a transaction over several shards until it is decided.

They are in flight at a consumer without a link, the reservation. It knows the consumer that the messages were
delivered to, where the order of the queue counts them.
"""

from collections.abc import Mapping, Sequence

from lightrail.shard.queue.commands import Conclude, ConsumerOptions, Holder, Reserve
from lightrail.shard.queue.consumers import Consumer, Consumers
from lightrail.shard.queue.contents import Contents
from lightrail.shard.queue.copying import holders_of
from lightrail.shard.queue.runs import Run


class Reservation(Consumer):
    """Has deliveries of one consumer in flight for a transaction."""

    __slots__ = ("receiver",)

    def __init__(self, identity: int, receiver: Consumer | None) -> None:
        super().__init__(identity, ConsumerOptions(), None)
        self.departed = True
        self.receiver: Consumer = self if receiver is None else receiver
        """The consumer that received the messages; itself after a restart, when that one is unknown."""


def reserve(consumers: Consumers, command: Reserve) -> None:
    """Reserves deliveries of a consumer, which can then no longer settle them."""
    consumer = consumers.by_id.get(command.consumer)
    runs = [] if consumer is None else consumer.in_flight.take(command.first, command.last)
    if not runs:
        return
    reservation = Reservation(command.holder, consumer)
    for run in runs:
        reservation.in_flight.append(reservation.next, run)
        reservation.next += run.count
    consumers.departed[command.holder] = reservation


def conclude(consumers: Consumers, command: Conclude) -> tuple[Consumer, list[Run]] | None:
    """Ends a reservation; returns its deliveries with their receiver, or None."""
    found = consumers.departed.pop(command.holder, None)
    if not isinstance(found, Reservation):
        return None
    return found.receiver, found.in_flight.everything()


def runs_of(consumers: Consumers, holder: int) -> Sequence[Run]:
    """The deliveries of a reservation."""
    found = consumers.departed.get(holder)
    return found.in_flight.runs[found.in_flight.head :] if isinstance(found, Reservation) else ()


def restore(contents: Contents, reserved: Mapping[int, Sequence[tuple[int, int]]]) -> None:
    """Reserves messages of transactions after a restart; recovery made them ready like all others."""
    holders = []
    for identity, ranges in reserved.items():
        deliveries, number = [], 0
        for first, last in ranges:
            deliveries.append((number, first, last - first))
            number += last - first
        holders.append(Holder(identity, ConsumerOptions(), number, deliveries))
    for holder, found in holders_of(holders, contents.ready):
        reservation = Reservation(holder.consumer, None)
        reservation.in_flight = found.in_flight
        reservation.next = reservation.limit = holder.next
        if len(found.in_flight):
            contents.consumers.departed[holder.consumer] = reservation
            for run in found.in_flight.runs:
                contents.deliveries.take_over(run)


def disown(consumers: Consumers) -> None:
    """Removes the receivers of reserved messages, because the queue is arranged by another policy."""
    for each in consumers.departed.values():
        if isinstance(each, Reservation):
            each.receiver = each
