"""Runs: consecutive sequences of one queue with the same event in one record; each sequence is a row."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from lightrail.journal.layout import (
    APPEND,
    APPEND_BODY,
    DELIVERED,
    DELIVERED_FIXED,
    HEADER_SIZE,
    SETTLE,
    SETTLE_FIXED,
)
from lightrail.journal.record import MOVED, MOVED_REASON, REWRITTEN, Outcome
from lightrail.spark.columns import Event
from lightrail.spark.decoding.windows import Numbers, Window

EVENTS: Final = tuple(Event)
_ENQUEUED: Final = EVENTS.index(Event.ENQUEUED)
_MOVED: Final = EVENTS.index(Event.MOVED)
_DELIVERED: Final = EVENTS.index(Event.DELIVERED)
_OF_OUTCOME: Final = np.array([EVENTS.index(Event[outcome.name]) for outcome in Outcome], np.int8)
_MOVED_REASON: Final = MOVED_REASON.encode()
RETURNED: Final = (EVENTS.index(Event.RELEASED), EVENTS.index(Event.MODIFIED))
"""Events that have the number of failed deliveries."""

REASON_SIZE_AT: Final = 48
"""Offset in a Settle record of the length of the reason, a u16."""
_WAITS_AT: Final = 51
"""Offset in a Settle record of whether the time until which its messages wait follows the reason."""
_UNTIL_SIZE: Final = 8

Bad = Callable[[int, str], None]
"""Called with the index of a malformed record in the window, and a description of the error."""


@dataclass(slots=True)
class Runs:
    """Columns, one item per run, in the order of the journal."""

    record: Numbers
    """Index of the record in the window."""
    event: Numbers
    """Index in EVENTS."""
    queue: Numbers
    """Number of the queue; later its index in the tables' entries."""
    sequence: Numbers
    """Sequence of the first message."""
    rows: Numbers

    def take(self, which: Numbers) -> "Runs":
        """The runs of a mask or of indexes, in that order."""
        return Runs(
            self.record[which], self.event[which], self.queue[which], self.sequence[which], self.rows[which]
        )

    def __len__(self) -> int:
        return len(self.record)


def carries_messages(event: Numbers) -> Numbers:
    """Which runs are of Append records."""
    found: Numbers = (event == _ENQUEUED) | (event == _MOVED)
    return found


def runs_of(window: Window, records: Numbers, bad: Bad) -> Runs:
    """The runs of these records (a mask); a record with a bad body has none."""
    appends = _appends(window, np.flatnonzero(records & (window.codes == APPEND)), bad)
    others = [
        runs
        for code, read in ((SETTLE, _settles), (DELIVERED, _delivered))
        if len(chosen := np.flatnonzero(records & (window.codes == code)))
        for runs in (read(window, chosen, bad),)
    ]
    if not others:
        return appends
    every = [appends, *others]
    joined = Runs(
        np.concatenate([runs.record for runs in every]),
        np.concatenate([runs.event for runs in every]),
        np.concatenate([runs.queue for runs in every]),
        np.concatenate([runs.sequence for runs in every]),
        np.concatenate([runs.rows for runs in every]),
    )
    return joined.take(np.argsort(joined.record, kind="stable"))


def _checked(window: Window, chosen: Numbers, sizes: Numbers, what: str, bad: Bad) -> Numbers:
    """The records whose length matches their body."""
    right = sizes == window.lengths[chosen]
    if right.all():
        return chosen
    for index in chosen[~right].tolist():
        bad(index, f"{what} whose columns do not fill its {window.lengths[index]} bytes")
    kept: Numbers = chosen[right]
    return kept


def _tall(window: Window, chosen: Numbers, fixed: int, what: str, bad: Bad) -> Numbers:
    """The records that are long enough for their fixed part."""
    lengths = window.lengths[chosen]
    return _checked(window, chosen, np.where(lengths >= fixed, lengths, fixed), what, bad)


def _appends(window: Window, chosen: Numbers, bad: Bad) -> Runs:
    chosen = chosen[window.flags[chosen] & REWRITTEN == 0]
    chosen = _tall(window, chosen, APPEND_BODY, "an Append", bad)
    starts = window.starts[chosen]
    sizes = (
        APPEND_BODY
        + 16 * window.u16[starts + 80].astype(np.int64)
        + 4 * window.u32[starts + 68].astype(np.int64)
        + window.u32[starts + 72]
    )
    chosen = _checked(window, chosen, sizes, "an Append", bad)
    starts = window.starts[chosen]
    targets = window.u16[starts + 80]
    offsets = starts + APPEND_BODY
    if (targets != 1).any():
        chosen, offsets = _spread(chosen, offsets, targets)
    starts = window.starts[chosen]
    moved = (window.flags[chosen] & MOVED) != 0
    return Runs(
        chosen,
        np.where(moved, np.int8(_MOVED), np.int8(_ENQUEUED)),
        window.i64[offsets],
        window.i64[offsets + 8],
        window.u32[starts + 68].astype(np.int64),
    )


def _spread(chosen: Numbers, offsets: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
    """Each record once per pair of 16 bytes, and the offset of each pair."""
    counts = counts.astype(np.int64)
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(chosen, counts), np.repeat(offsets, counts) + 16 * within


def _settles(window: Window, chosen: Numbers, bad: Bad) -> Runs:
    fixed = HEADER_SIZE + SETTLE_FIXED.size
    chosen = _tall(window, chosen, fixed, "a Settle", bad)
    starts = window.starts[chosen]
    sizes = (
        fixed
        + 16 * window.u32[starts + 40].astype(np.int64)
        + window.u16[starts + REASON_SIZE_AT].astype(np.int64)
        + _UNTIL_SIZE * (window.octets[starts + _WAITS_AT] > 0)
    )
    chosen = _checked(window, chosen, sizes, "a Settle", bad)
    starts = window.starts[chosen]
    known = window.octets[starts + 50] < len(_OF_OUTCOME)
    if not known.all():
        for index in chosen[~known].tolist():
            bad(index, f"a Settle of the unknown outcome {window.octets[window.starts[index] + 50]}")
        chosen, starts = chosen[known], starts[known]
    maybe = np.flatnonzero(window.u16[starts + REASON_SIZE_AT] == len(_MOVED_REASON))
    follows = [at for at in maybe.tolist() if reason_of(window, int(chosen[at])) == _MOVED_REASON]
    if follows:
        chosen = np.delete(chosen, follows)
        starts = window.starts[chosen]
    record, offsets = _spread(chosen, starts + fixed, window.u32[starts + 40])
    return _ranges(window, record, offsets, _OF_OUTCOME[window.octets[window.starts[record] + 50]])


def reason_of(window: Window, index: int) -> bytes:
    """The reason of a Settle record."""
    start = int(window.starts[index])
    size = int(window.u16[start + REASON_SIZE_AT])
    after = start + int(window.lengths[index]) - _UNTIL_SIZE * (window.octets[start + _WAITS_AT] > 0)
    return bytes(window.data[after - size : after]) if size else b""


def _delivered(window: Window, chosen: Numbers, bad: Bad) -> Runs:
    fixed = HEADER_SIZE + DELIVERED_FIXED.size
    chosen = _tall(window, chosen, fixed, "a Delivered", bad)
    starts = window.starts[chosen]
    sizes = fixed + 16 * window.u32[starts + 48].astype(np.int64)
    chosen = _checked(window, chosen, sizes, "a Delivered", bad)
    starts = window.starts[chosen]
    record, offsets = _spread(chosen, starts + fixed, window.u32[starts + 48])
    return _ranges(window, record, offsets, np.full(len(record), _DELIVERED, np.int8))


def _ranges(window: Window, record: Numbers, offsets: Numbers, event: Numbers) -> Runs:
    first = window.i64[offsets]
    rows = np.maximum(window.i64[offsets + 8] - first, 0)
    return Runs(record, event, window.i64[window.starts[record] + HEADER_SIZE], first, rows)
