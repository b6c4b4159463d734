"""The receivers that a store keeps: links of clients with their unsettled deliveries, as records have them.

A receiver is in its records from the oldest one on, as a terminus is (kept_termini.py).
"""

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from lightrail.journal.receiver import (
    DELIVERY_RUN,
    RECEIVER_FIXED,
    DeliveryRun,
    Receiver,
    ReceiverEvent,
)
from lightrail.journal.record import REWRITTEN


class RecoveredReceiver(NamedTuple):
    """A receiver of a queue as it was when the store was last written."""

    link: bytes
    """16 bytes: the digits of the client's link."""
    next: int
    """Its next delivery number."""
    opening: bytes
    """The body of its CONSUMER_OPEN."""
    runs: list[DeliveryRun]
    """Its unsettled deliveries, by number. Some of the messages may have left the queue."""


class KeptReceiver:
    """One receiver."""

    __slots__ = ("next", "opening", "runs", "segment")

    def __init__(self, segment: int) -> None:
        self.segment = segment
        """The segment with its oldest record that is still needed: all of its bytes count as live there."""
        self.next = 0
        self.opening = b""
        self.runs: list[DeliveryRun] = []

    @property
    def size(self) -> int:
        """Bytes of one record with all of it."""
        return RECEIVER_FIXED.size + len(self.opening) + DELIVERY_RUN.size * len(self.runs)


class KeptReceivers:
    """The receivers of all queues, by queue."""

    __slots__ = ("_by_queue",)

    def __init__(self) -> None:
        self._by_queue: dict[int, dict[bytes, KeptReceiver]] = {}

    def apply(self, record: Receiver, segment: int) -> list[tuple[int, int]]:
        """Applies a record, which is in this segment.

        Returns:
            (segment, bytes): by how much the live bytes of segments change.
        """
        known = self._by_queue.get(record.queue, {})
        kept = known.get(record.link)
        live = [] if kept is None else [(kept.segment, -kept.size)]
        if record.event == ReceiverEvent.ENDED:
            known.pop(record.link, None)
            if not known:
                self._by_queue.pop(record.queue, None)
            return live
        if kept is None:
            if record.event != ReceiverEvent.BEGUN:
                # Its beginning is lost.
                return []
            kept = self._by_queue.setdefault(record.queue, {})[record.link] = KeptReceiver(segment)
        elif record.flags & REWRITTEN:
            kept.segment = segment
        if record.event == ReceiverEvent.BEGUN:
            kept.opening = record.opening
        kept.next = max(kept.next, record.next)
        kept.runs = without(kept.runs, record.runs)
        if record.event != ReceiverEvent.SETTLED:
            kept.runs = joined([*kept.runs, *record.runs])
        live.append((kept.segment, kept.size))
        return live

    def forget(self, queue: int) -> list[tuple[int, int]]:
        """Removes the receivers of a deleted queue; returns (segment, bytes) as `apply`."""
        return [(kept.segment, -kept.size) for kept in self._by_queue.pop(queue, {}).values()]

    def keep_only(self, queues: Container[int]) -> None:
        """Removes the receivers of all other queues."""
        self._by_queue = {queue: known for queue, known in self._by_queue.items() if queue in queues}

    @property
    def live(self) -> Iterator[tuple[int, int]]:
        """(segment, bytes) of each receiver."""
        for known in self._by_queue.values():
            for kept in known.values():
                yield kept.segment, kept.size

    def in_segment(self, segment: int) -> Iterator[Receiver]:
        """Receivers with their oldest record in this segment, each as the record to append in its place."""
        for queue, known in self._by_queue.items():
            for link, kept in known.items():
                if kept.segment == segment:
                    yield _whole(queue, link, kept)

    def whole(self, queue: int, link: bytes) -> Receiver | None:
        """A receiver as one record; None if there is none."""
        kept = self._by_queue.get(queue, {}).get(link)
        return None if kept is None else _whole(queue, link, kept)

    def of(self, queue: int) -> list[RecoveredReceiver]:
        """The receivers of a queue."""
        return [
            RecoveredReceiver(link, kept.next, kept.opening, kept.runs)
            for link, kept in self._by_queue.get(queue, {}).items()
        ]


def joined(runs: list[DeliveryRun]) -> list[DeliveryRun]:
    """Runs in the order of their numbers; neighbours that are consecutive in both become one."""
    found: list[DeliveryRun] = []
    for number, sequence, count in sorted(runs):
        if found:
            before, at, length = found[-1]
            if (before + length, at + length) == (number, sequence):
                found[-1] = (before, at, length + count)
                continue
        found.append((number, sequence, count))
    return found


def _whole(queue: int, link: bytes, kept: KeptReceiver) -> Receiver:
    return Receiver(queue, link, ReceiverEvent.BEGUN, kept.next, kept.opening, kept.runs, REWRITTEN)


def without(runs: list[DeliveryRun], removed: Sequence[DeliveryRun]) -> list[DeliveryRun]:
    """The parts of runs whose delivery numbers are in none of `removed`; both are in order."""
    if not removed:
        return runs
    left: list[DeliveryRun] = []
    index = 0
    for number, sequence, count in runs:
        first, end = number, number + count
        while index < len(removed) and removed[index][0] + removed[index][2] <= first:
            index += 1
        at = index
        while first < end:
            if at == len(removed) or removed[at][0] >= end:
                left.append((first, sequence + first - number, end - first))
                break
            start, stop = removed[at][0], removed[at][0] + removed[at][2]
            if start > first:
                left.append((first, sequence + first - number, start - first))
            first = max(first, stop)
            at += 1
    return left
