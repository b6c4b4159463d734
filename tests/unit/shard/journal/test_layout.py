"""The bytes on disk: a golden file that must be read, and written byte for byte (docs/formats/journal.md)."""

from pathlib import Path

import pytest

from lightrail.journal.layout import (
    APPEND,
    MARK,
    REST,
    LayoutError,
    decode_append_head,
    decode_small,
    encode_small,
    finished,
)
from lightrail.journal.record import (
    CONTINUED,
    MOVED,
    REWRITTEN,
    SPILLED,
    Close,
    Delivered,
    Epoch,
    Gap,
    Ids,
    Numbers,
    Outcome,
    Queue,
    QueueEntry,
    QueueEvent,
    ReceiverChange,
    ReceiverEvent,
    Seal,
    Settle,
    Snapshot,
    Taken,
    Terminus,
    TerminusEvent,
    TransactionState,
    TransactionStep,
)
from lightrail.journal.scan import Scan
from lightrail.journal.segment_header import decode_segment_header
from lightrail.model.attempts import waiting
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.segment import name_of
from lightrail.shard.queue.values.runs import batch_of
from tests.support.shard.fake_files import FakeFiles

GOLDEN = Path(__file__).parents[3] / "golden" / "journal" / "segment-v9.bin"
OLDER = [GOLDEN.with_name(f"segment-v{version}.bin") for version in range(1, 9)]
LINK = bytes(range(16))


def written() -> bytes:
    """One segment with every type of record that the engine can append."""
    files = FakeFiles()
    journal = Journal(files, "cluster", 2, segment_bytes=16_384)
    journal.recover(0, 1_000, epoch=7)
    orders = batch_of([b"first", b"", b"third"], durable=True, priority=7, enqueued_at_ms=1_001)
    expiring = batch_of(
        [b"x" * 1_500], durable=True, expires_at_ms=9_000, enqueued_at_ms=1_002, message_format=3
    )
    journal.append(Epoch(4), 1_000)
    journal.append(Queue(QueueEvent.DECLARED, 1, "orders", '{"max_delivery_count":3}'), 1_000)
    journal.append(Queue(QueueEvent.DECLARED, 2, "r\u00e9sum\u00e9", "{}"), 1_000)
    journal.append(Queue(QueueEvent.POLICY, 2, "r\u00e9sum\u00e9", '{"a":1}'), 1_000)
    journal.append(Append([(1, 0)], 0xFFFF_FFFF_FFFF_FFFE, 17, orders, 0, 3), 1_001)
    journal.append(Append([(1, 3), (2, 0)], 5, 1, expiring, 0, 1), 1_002)
    journal.flush()
    journal.append(Append([(1, 1)], 0, 0, orders, 1, 3, 2, REWRITTEN), 1_003)
    journal.append(Append([(2, 1)], 0, 0, batch_of([b"spilled"]), 0, 1, 0, SPILLED), 1_004)
    journal.append(Settle(1, [(0, 1), (2, 3)], Outcome.ACCEPTED), 1_005)
    journal.append(Settle(1, [(1, 2)], Outcome.MODIFIED, attempts=3), 1_006)
    journal.append(Settle(1, [(1, 2)], Outcome.MODIFIED, "", waiting(4, 70_000)), 1_006)
    journal.append(Append([(1, 1)], 0, 0, orders, 1, 2, waiting(4, 70_000), REWRITTEN), 1_006)
    journal.append(Append([(2, 2)], 0, 0, orders, 0, 1, 0, CONTINUED), 1_007)
    journal.append(Settle(1, [(1, 2)], Outcome.DEAD_LETTERED, "rejected"), 1_007)
    journal.append(Append([(2, 3)], 6, 8, orders, 0, 1, 0, CONTINUED), 1_007)
    journal.append(Ids(1, 61_007, bytes(range(32)), CONTINUED), 1_007)
    journal.append(Taken(6, 8, 1), 1_007)
    journal.append(Numbers(1, 9, [(7, 3, 0), (8, 5, 2)]), 1_008)
    journal.append(Delivered(1, 7 << 32 | 9, [(4, 6), (8, 9)]), 1_008)
    journal.append(Append([(2, 4)], 0, 0, orders, 0, 1, 0, MOVED), 1_008)
    journal.append(
        TransactionStep(bytes(range(16)), TransactionState.PREPARED, 3, '{"posts":[]}', b"\1\0\0\0x"), 1_008
    )
    journal.append(
        TransactionStep(bytes(16), TransactionState.COMMITTED, 0, '{"others":[1,2]}', flags=CONTINUED), 1_008
    )
    journal.append(TransactionStep(bytes(range(16)), TransactionState.ENDED), 1_008)
    journal.append(Terminus(1, LINK, TerminusEvent.BEGUN, 2, 60_000, user="zo\u00eb"), 1_008)
    journal.append(Terminus(1, LINK, TerminusEvent.STORED, 2, 60_000, [b"a", bytes(32)], CONTINUED), 1_008)
    journal.append(Terminus(1, LINK, TerminusEvent.SETTLED, 2, 60_000, [b"a"]), 1_008)
    journal.append(Terminus(2, LINK, TerminusEvent.ENDED, 1, 60_000), 1_008)
    journal.append(ReceiverChange(1, LINK, ReceiverEvent.BEGUN, 0, b'{"queue":"orders"}'), 1_008)
    journal.append(ReceiverChange(1, LINK, ReceiverEvent.DELIVERED, 9, b"", [(0, 4, 3), (3, 8, 6)]), 1_008)
    journal.append(ReceiverChange(1, LINK, ReceiverEvent.SETTLED, 9, b"", [(1, 5, 1)]), 1_008)
    journal.append(ReceiverChange(1, bytes(16), ReceiverEvent.ENDED), 1_008)
    journal.append(Queue(QueueEvent.DELETED, 2, ""), 1_008)
    journal.append(Seal(5), 1_009)
    journal.close(1_010)
    return bytes(files.inodes[name_of(1)].live[: journal.current.end])


def test_the_golden_file_is_written_byte_for_byte() -> None:
    assert written() == GOLDEN.read_bytes()


def test_the_golden_file_is_read() -> None:
    files = FakeFiles()
    file = files.create(name_of(1))
    file.write(0, [GOLDEN.read_bytes()])
    header = decode_segment_header(file.read(0, 40))
    assert header == (9, 1, 1, 0x03020100, 7)
    scan = Scan(file, header.salt, 40, file.size(), 1)
    found = list(scan)
    assert [record.lsn for record in found] == list(range(1, 36))
    assert [record.timestamp for record in found][-1] == 1_010
    assert [record.unsynced for record in found] == [0, 0, 1, 2, 3, 4, 5, *range(28)]
    small = [
        decode_small(record.view, record.start, record.length) for record in found if record.code != APPEND
    ]
    assert small == [
        Snapshot(0, [], {}),
        Epoch(4),
        Queue(1, 1, "orders", '{"max_delivery_count":3}'),
        Queue(1, 2, "r\u00e9sum\u00e9", "{}"),
        Queue(2, 2, "r\u00e9sum\u00e9", '{"a":1}'),
        Settle(1, [(0, 1), (2, 3)], 0),
        Settle(1, [(1, 2)], 3, "", 3),
        Settle(1, [(1, 2)], 3, "", waiting(4, 70_000)),
        Settle(1, [(1, 2)], 5, "rejected"),
        Ids(1, 61_007, bytes(range(32)), CONTINUED),
        Taken(6, 8, 1),
        Numbers(1, 9, [(7, 3, 0), (8, 5, 2)]),
        Delivered(1, 7 << 32 | 9, [(4, 6), (8, 9)]),
        TransactionStep(bytes(range(16)), 1, 3, '{"posts":[]}', b"\1\0\0\0x"),
        TransactionStep(bytes(16), 2, 0, '{"others":[1,2]}', b"", CONTINUED),
        TransactionStep(bytes(range(16)), 4),
        Terminus(1, LINK, 1, 2, 60_000, [], user="zo\u00eb"),
        Terminus(1, LINK, 2, 2, 60_000, [b"a", bytes(32)], CONTINUED),
        Terminus(1, LINK, 3, 2, 60_000, [b"a"]),
        Terminus(2, LINK, 4, 1, 60_000, []),
        ReceiverChange(1, LINK, 1, 0, b'{"queue":"orders"}', []),
        ReceiverChange(1, LINK, 2, 9, b"", [(0, 4, 3), (3, 8, 6)]),
        ReceiverChange(1, LINK, 3, 9, b"", [(1, 5, 1)]),
        ReceiverChange(1, bytes(16), 4, 0, b"", []),
        Queue(3, 2, "", "{}"),
        Seal(5),
        Close(),
    ]
    appends = [record for record in found if record.code == APPEND]
    flags = [0, 0, REWRITTEN, SPILLED, REWRITTEN, CONTINUED, CONTINUED, MOVED]
    assert [record.flags for record in appends] == flags
    head, targets, column = decode_append_head(appends[0].view, appends[0].start, appends[0].length)
    assert head == (0xFFFF_FFFF_FFFF_FFFE, 17, 1_001, 0, 0, 3, 10, 0, 1, 7, 1)
    assert targets == [(1, 0)]
    end = appends[0].start + appends[0].length
    assert bytes(appends[0].view[column:end]) == bytes([5, 0, 0, 0, 5, 0, 0, 0, 10, 0, 0, 0]) + b"firstthird"
    head, targets, _ = decode_append_head(appends[1].view, appends[1].start, appends[1].length)
    assert head == (5, 1, 1_002, 9_000, 3, 1, 1_500, 0, 2, 4, 1)
    assert targets == [(1, 3), (2, 0)]
    head, targets, _ = decode_append_head(appends[4].view, appends[4].start, appends[4].length)
    assert head == (0, 70_000, 1_001, 0, 0, 1, 0, waiting(4, 70_000), 1, 7, 1)
    assert targets == [(1, 1)]


@pytest.mark.parametrize("older", OLDER)
def test_a_segment_of_an_older_version_is_read_and_gone_on_with(older: Path) -> None:
    """Nothing of it reads differently; what is written from then on is of the version of today."""
    files = FakeFiles()
    files.create(name_of(1)).write(0, [older.read_bytes()])
    journal = Journal(files, "cluster", 2, segment_bytes=16_384)
    recovered = journal.recover(1 << 20, 2_000)
    (queue,) = recovered.queues
    later = OLDER.index(older) > 1
    assert (queue.name, queue.next_sequence) == ("orders", 9 if later else 4)
    assert [message for run in queue.runs for message in run.messages()] == [b"x" * 1_500]
    second = older is not OLDER[0]
    assert queue.ids == ([(61_007, bytes(range(32)))] if second else [])
    assert recovered.producers == {
        0xFFFF_FFFF_FFFF_FFFE: 17,
        5: 1,
        **({6: 8} if second else {}),
        **({7: 3, 8: 5} if later else {}),
    }
    parts = ({}, {6: 1}, *[{6: 1, 8: 2}] * 6)[OLDER.index(older)]
    assert (recovered.parts, recovered.sealed, recovered.epoch) == (parts, True, 5)
    header = decode_segment_header(bytes(files.inodes[name_of(2)].live[:40]))
    assert header is not None
    assert header.version == 9
    journal.close(2_001)


@pytest.mark.parametrize(
    "record",
    [
        Settle(9, [(1, 2), (5, 9)], Outcome.REJECTED, "because \u00e9", 7, CONTINUED),
        Settle(9, [], Outcome.PURGED),
        Settle(9, [(1, 2), (5, 9)], Outcome.MODIFIED, "because \u00e9", waiting(7, 1 << 41), CONTINUED),
        Settle(9, [(5, 9)], Outcome.MODIFIED, "", waiting(1, 1)),
        Queue(QueueEvent.DECLARED, 3, "n\u00e4me", "{}", CONTINUED),
        Snapshot(
            9,
            [QueueEntry(1, "a", "{}", 5), QueueEntry(1 << 40, "b\u00e9", '{"x":[]}', 1 << 50)],
            {1: 2, 1 << 63: 4},
        ),
        Snapshot(1, [], {1: 2}, {1: 7}),
        Ids(1 << 40, 1 << 41, bytes(range(160)), CONTINUED),
        Delivered(1 << 40, 1 << 63, [(1, 2), (5, 9)], CONTINUED),
        Delivered(1, 2, []),
        Taken(1 << 63, 1 << 40, 9),
        Numbers(1 << 40, 1 << 50, [(1 << 63, 1 << 62, 0), (1, 2, 3)], CONTINUED),
        Numbers(1, 0, []),
        TransactionStep(bytes(16), TransactionState.PREPARED, 9, '{"\u00e9":1}', bytes(300), CONTINUED),
        TransactionStep(bytes(range(16)), TransactionState.ABORTED),
        Terminus(1 << 40, LINK, TerminusEvent.BEGUN, 2, 1 << 40, [bytes(32), b"", b"a"], CONTINUED),
        Terminus(1, LINK, TerminusEvent.ENDED, 1, 0, []),
        ReceiverChange(
            1 << 40, LINK, ReceiverEvent.BEGUN, 1 << 40, b"{}", [(1 << 40, 1 << 50, 1)], CONTINUED
        ),
        ReceiverChange(1, LINK, ReceiverEvent.ENDED, 0, b"", []),
        Seal(3),
        Epoch(1 << 40),
        Close(),
        Gap(77),
    ],
)
def test_records_come_back_as_they_went(
    record: Settle
    | Delivered
    | Queue
    | Snapshot
    | Ids
    | Taken
    | Numbers
    | TransactionStep
    | Terminus
    | ReceiverChange
    | Seal
    | Epoch
    | Close
    | Gap,
) -> None:
    data = finished(encode_small(record, 5, 1, 1_000), 3)
    assert len(data) >= 40
    assert decode_small(data, 0, len(data)) == record


@pytest.mark.parametrize("code", [0, 16, 255])
def test_unknown_types_are_named(code: int) -> None:
    data = finished(REST.pack(code, 0, MARK, 0, 1, 0) + bytes(8), 0)
    with pytest.raises(LayoutError, match=f"type {code}"):
        decode_small(data, 0, len(data))


@pytest.mark.parametrize("length", range(40, 110))
def test_a_body_that_is_not_as_drawn_is_a_layout_error(length: int) -> None:
    for code in (1, 2, 3, 4, 9, 10, 11, 12, 14, 15):
        for fill in (0, 1, 255):
            rest = REST.pack(code, 0, MARK, 0, 1, 0)
            data = finished(rest + bytes([fill]) * (length - 32), 0)
            try:
                if code == APPEND:
                    decode_append_head(data, 0, len(data))
                else:
                    decode_small(data, 0, len(data))
            except LayoutError:
                pass
