"""Requests of readers to a shard's journals, answered by a separate thread.

The operations `journals`, `segment` and `journal` are drawn in docs/formats/wire.md. No queue is touched, and
the loop only sends the answers. The thread is not the one that reads messages back for consumers, because
readers of old segments must not delay consumers.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from lightrail.model import conditions, limits
from lightrail.shard.archiving.archive import BeyondCommittedError, Journals, NoSegmentError
from lightrail.shard.effects.answers import (
    Fields,
    Operation,
    RequestError,
    check_waiting,
    error_fields,
    unexpected,
    whole,
)
from lightrail.shard.effects.peers import Peer
from lightrail.shard.journal.commit import Worker
from lightrail.wire.bodies import encode_request
from lightrail.wire.frames import BLOB_FOLLOWS, Kind, frame
from lightrail.wire.sockets.zeromq import WITHOUT_COPY_BYTES

JOURNAL_READS_MAX: Final[int] = 16
"""Such answers of one shard that wait for its disk; further requests are refused and have to be repeated."""
SEGMENTS_SHOWN_MAX: Final[int] = 2_000
"""Segments of journals in one answer of a shard."""

log = logging.getLogger("lightrail.shard.requests.journal_requests")

OFFSET_MAX: Final = (1 << 63) - 1
SEGMENT_MAX: Final = 10**12 - 1
PLAIN: Final = ("segment", "first_lsn", "next_lsn", "end", "messages", "last_ms", "sealed")
"""The fields of a segment in a list."""


class JournalRequests:
    """Answers requests of readers.

    Args:
        turn: sends the answers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, journals: Journals, turn: Callable[[], None]) -> None:
        self._loop = loop
        self._journals = journals
        self._turn = turn
        self._worker: Worker | None = None
        """The thread; the first request starts it, because most shards have no readers."""
        self._waiting = 0
        self.operations: dict[str, Operation] = {
            "journals": self._list,
            "segment": self._segment,
            "journal": self._read,
        }

    def close(self) -> None:
        """Waits until all requests are answered."""
        if self._worker is not None:
            self._worker.close()

    # --- operations ------------------------------------------------------------------------------------

    def _list(self, peer: Peer, number: int, fields: Fields, _now_ms: int) -> None:
        """Answers with a page of journals and short forms of their segments."""
        after = fields.get("after")
        if after is not None and not (
            isinstance(after, list)
            and len(after) == 2
            and isinstance(after[0], str)
            and type(after[1]) is int
        ):
            raise unexpected("after", after, "[disk, segment]")
        most = whole(fields, "limit", 1, SEGMENTS_SHOWN_MAX, SEGMENTS_SHOWN_MAX)
        disk, lsn = fields.get("disk"), whole(fields, "from", 0, OFFSET_MAX, 0)
        self._submit(peer, number, lambda: (self._page(disk, lsn, after, most), b""))

    def _segment(self, peer: Peer, number: int, fields: Fields, _now_ms: int) -> None:
        """Answers with one segment and its index."""
        disk, segment = _segment_id(fields)
        self._submit(peer, number, lambda: self._whole(disk, segment))

    def _read(self, peer: Peer, number: int, fields: Fields, _now_ms: int) -> None:
        """Answers with a range of bytes."""
        disk, segment = _segment_id(fields)
        start = whole(fields, "from", 0, OFFSET_MAX, None)
        end = whole(fields, "to", start, start + limits.JOURNAL_READ_BYTES, None)
        self._submit(peer, number, lambda: ({}, self._journals.read(disk, segment, start, end)))

    # --- in the thread ---------------------------------------------------------------------------------

    def _page(self, only: object, lsn: int, after: list[Any] | None, most: int) -> Fields:
        rows: list[Fields] = []
        for incarnation, segments in sorted(self._journals.journals(), key=lambda each: each[0].disk):
            disk = incarnation.disk
            if only is not None and disk != only:
                continue
            if lsn:
                segments = [each for each in segments if each.next_lsn > lsn]
            if after is not None:
                if disk < after[0]:
                    continue
                if disk == after[0]:
                    segments = [each for each in segments if each.segment > after[1]]
                    if not segments:
                        continue
            page = segments[:most]
            rows.append(
                {
                    "journal": disk,
                    "shard": incarnation.shard,
                    "cluster": incarnation.cluster,
                    "segments": [[getattr(each, name) for name in PLAIN] for each in page],
                }
            )
            most -= max(1, len(page))
            if not most:
                return {"columns": PLAIN, "journals": rows, "next": [disk, page[-1].segment if page else -1]}
        return {"columns": PLAIN, "journals": rows, "next": None}

    def _whole(self, disk: str, number: int) -> tuple[Fields, bytes]:
        found = self._journals.segment(disk, number)
        return {name: getattr(found, name) for name in PLAIN}, found.encode().encode()

    # --- answers ---------------------------------------------------------------------------------------

    def _submit(self, peer: Peer, number: int, read: Callable[[], tuple[Fields, bytes]]) -> None:
        """Calls `read` in the thread, and answers with its result."""
        check_waiting(self._waiting, JOURNAL_READS_MAX, "the shard's journals")
        if not self._journals.is_known:
            raise RequestError(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                "the shard was taken over, and waits until other members have what it has; try again",
            )
        self._waiting += 1
        if self._worker is None:
            self._worker = Worker(self._loop, "journals")
        answers: list[bytes] = []

        def work() -> None:
            fields, blob = read()
            if len(blob) < WITHOUT_COPY_BYTES:
                answers.append(frame(Kind.RESPONSE, number=number, body=encode_request(fields, blob)))
            else:
                head = frame(Kind.RESPONSE, flags=BLOB_FOLLOWS, number=number, body=encode_request(fields))
                answers.extend((head, blob))

        def done(error: BaseException | None) -> None:
            self._waiting -= 1
            if error is not None:
                answers.append(_refusal(number, error))
            peer.out.extend(answers)
            self._turn()

        self._worker.submit(work, done)


def _segment_id(fields: Fields) -> tuple[str, int]:
    disk = fields.get("disk")
    if not isinstance(disk, str) or not disk:
        raise unexpected("disk", disk, "the id of a journal")
    return disk, whole(fields, "segment", 0, SEGMENT_MAX, None)


def _refusal(number: int, error: BaseException) -> bytes:
    """The answer to a failed request."""
    match error:
        case NoSegmentError():
            condition, description = conditions.NOT_FOUND, str(error)
        case BeyondCommittedError():
            condition, description = conditions.ILLEGAL_STATE, str(error)
        case OSError():
            log.error("a reader's request failed, because the journal could not be read: %s", error)
            condition, description = conditions.INTERNAL_ERROR, f"the shard's disk could not be read: {error}"
        case _:
            log.error("a reader could not be answered", exc_info=error)
            condition, description = conditions.INTERNAL_ERROR, "internal error; see the shard's log"
    return frame(Kind.RESPONSE, number=number, body=encode_request(error_fields(condition, description)))
