"""The live messages of a queue and their locations, which recovery collects from appends and settlements.

It stores runs of sequences, not messages, and joins neighbours, so that ten million messages need a few
thousand spans.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightrail.model import limits

if TYPE_CHECKING:
    from lightrail.shard.journal.store import RecoveredQueue

Attributes = tuple[int, int, int, int]
"""durable, priority, expires_at_ms (0: never), message_format."""


@dataclass(slots=True, eq=False, repr=False)
class Span:
    """Live messages `first` to before `last`, in records that lie within `offset` to `end` of a segment."""

    first: int
    last: int
    segment: int
    offset: int
    end: int
    size: int
    """Bytes of the messages: exact for whole records, in proportion for a part of a record."""
    attempts: int
    attributes: Attributes
    enqueued_at_ms: int

    def cut(self, first: int, last: int) -> "Span":
        """The part with sequences `first` to before `last`."""
        size = self.size * (last - first) // (self.last - self.first)
        return Span(
            first,
            last,
            self.segment,
            self.offset,
            self.end,
            size,
            self.attempts,
            self.attributes,
            self.enqueued_at_ms,
        )


@dataclass(slots=True, eq=False, repr=False)
class LiveSpans:
    """The spans of one queue, in order, without overlap."""

    _starts: list[int] = field(default_factory=list)
    _spans: list[Span] = field(default_factory=list)
    _head: int = 0

    # Spans before this index are removed: settlements begin at the head, and deleting from a list there
    # is slow.

    made: "RecoveredQueue | None" = None
    """What was made of these spans ahead of a take-over; None after a change."""

    def spans(self) -> list[Span]:
        """All spans, in order."""
        return self._spans[self._head :]

    def overlapping(self, first: int, last: int) -> list[Span]:
        """Spans that have a message with a sequence from `first` to before `last`."""
        low, high = self._bounds(first, last)
        return self._spans[low:high]

    def _bounds(self, first: int, last: int) -> tuple[int, int]:
        head, starts, spans = self._head, self._starts, self._spans
        low = bisect_right(starts, first, head) - 1
        if low < head or spans[low].last <= first:
            low += 1
        high = low
        count = len(starts)
        if high < count and starts[high] < last:
            high += 1
            if high < count and starts[high] < last:
                high = bisect_right(starts, last - 1, high)
        return low, high

    def add(
        self,
        first: int,
        last: int,
        segment: int,
        offset: int,
        end: int,
        size: int,
        attempts: int,
        attributes: Attributes,
        enqueued_at_ms: int,
    ) -> None:
        """Adds appended messages, which replace those with the same sequences."""
        self.made = None
        spans = self._spans
        if len(spans) > self._head:
            tail = spans[-1]
            if first < tail.last:
                self.remove(first, last)
                if len(spans) > self._head and first < spans[-1].last:
                    at = bisect_right(self._starts, first, self._head)
                    spans.insert(
                        at,
                        Span(first, last, segment, offset, end, size, attempts, attributes, enqueued_at_ms),
                    )
                    self._starts.insert(at, first)
                    return
            elif (
                first == tail.last
                and segment == tail.segment
                and end - tail.offset <= limits.SPAN_BYTES_MAX
                and attempts == tail.attempts
                and attributes == tail.attributes
            ):
                tail.last = last
                tail.end = end
                tail.size += size
                return
        self._starts.append(first)
        spans.append(Span(first, last, segment, offset, end, size, attempts, attributes, enqueued_at_ms))

    def remove(self, first: int, last: int) -> None:
        """Removes the messages of this range that are in the spans."""
        self.made = None
        head = self._head
        if head < len(self._spans):
            # Most settlements are of the oldest messages.
            span = self._spans[head]
            if span.first >= first and first < last <= span.last:
                if last == span.last:
                    self._drop_before(head + 1)
                elif last > span.first:
                    span.size -= span.size * (last - span.first) // (span.last - span.first)
                    span.first = self._starts[head] = last
                return
        low, high = self._bounds(first, last)
        if low == high:
            return
        starts, spans = self._starts, self._spans
        kept: list[Span] = []
        span = spans[low]
        if span.first < first:
            kept.append(span.cut(span.first, first))
        span = spans[high - 1]
        if span.last > last:
            kept.append(span.cut(last, span.last))
        if low == self._head and not kept:
            self._drop_before(high)
            return
        spans[low:high] = kept
        starts[low:high] = [span.first for span in kept]

    def _drop_before(self, index: int) -> None:
        self._head = index
        if index > limits.STALE_RANGES_MIN and index * 2 > len(self._spans):
            del self._spans[:index], self._starts[:index]
            self._head = 0

    def forget_before(self, segment: int) -> None:
        """Removes the messages in lower segments."""
        spans = self.spans()
        if any(span.segment < segment for span in spans):
            self.made = None
            self._spans = [span for span in spans if span.segment >= segment]
            self._starts = [span.first for span in self._spans]
            self._head = 0

    def set_attempts(self, first: int, last: int, attempts: int) -> None:
        """Sets the number of failed deliveries of returned messages."""
        self.made = None
        low, high = self._bounds(first, last)
        if low == high:
            return
        changed: list[Span] = []
        for span in self._spans[low:high]:
            start, stop = max(first, span.first), min(last, span.last)
            if span.first < start:
                changed.append(span.cut(span.first, start))
            middle = span.cut(start, stop)
            middle.attempts = attempts
            changed.append(middle)
            if stop < span.last:
                changed.append(span.cut(stop, span.last))
        self._spans[low:high] = changed
        self._starts[low:high] = [span.first for span in changed]
