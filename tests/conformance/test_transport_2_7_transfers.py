"""Transfers and dispositions (transport 2.6.12 to 2.6.14, 2.7.5, 2.7.6): frames, ranges, settlement."""

from typing import Any

import pytest

from lightrail.amqp.encoder import encode
from lightrail.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Rejected,
    Released,
    Source,
    TransactionalState,
    Transfer,
)
from lightrail.amqp.values import Symbol
from tests.support.amqp.frame_peer import WINDOW, Peer, frame, sender, transfers, value


def settled(peer: Peer, count: int) -> list[int]:
    """Delivery-ids that the broker has accepted and settled, as they come; flows between them are its own."""
    found: list[int] = []
    while len(found) < count:
        body = peer.read().body
        if type(body) is Flow:
            continue
        assert type(body) is Disposition, body
        assert (body.role, body.settled, body.state) == (True, True, Accepted())
        found += range(body.first, (body.first if body.last is None else body.last) + 1)
    return found


def contents(peer: Peer, queue: str, count: int, handle: int = 9) -> list[bytes]:
    """So many messages out of a queue, and proof that there are no more."""
    peer.attach_receiver(queue, handle=handle)
    peer.flow(count + 1, handle=handle, drain=True)
    found = [peer.delivery()[1] for _ in range(count)]
    assert peer.expect(Flow).link_credit == 0
    return found


# --- deliveries of one frame and of several --------------------------------------------------------------


def test_2_7_5_one_frame_one_delivery(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue)
    begun.send(transfers(0, [value(1)], message_format=0))
    assert settled(begun, 1) == [0]
    assert contents(begun, queue, 1) == [value(1)]


def test_2_6_14_a_delivery_of_many_frames(begun: Peer, queue: str) -> None:
    message = value("x" * 1_000)
    begun.attach_sender(queue)
    begun.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True), message[:10])
    for start in range(10, 1_000, 10):
        begun.write(Transfer(handle=0, more=True), message[start : start + 10])
    begun.write(Transfer(handle=0), message[1_000:])
    assert settled(begun, 1) == [0]
    assert contents(begun, queue, 1) == [message]


def test_2_6_14_continuations_may_repeat_what_they_continue(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue)
    same: dict[str, Any] = {"handle": 0, "delivery_id": 0, "delivery_tag": b"t", "message_format": 0}
    begun.write(Transfer(**same, more=True), value("ab")[:4])
    begun.write(Transfer(**same, more=False), value("ab")[4:])
    assert settled(begun, 1) == [0]
    assert contents(begun, queue, 1) == [value("ab")]


def test_2_6_14_frames_without_payload(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue)
    begun.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True))
    begun.write(Transfer(handle=0, more=True), value(1))
    begun.write(Transfer(handle=0))
    assert settled(begun, 1) == [0]
    assert contents(begun, queue, 1) == [value(1)]


def test_2_6_14_deliveries_of_links_may_be_interleaved(begun: Peer, queue: str) -> None:
    for handle in range(3):
        begun.attach_sender(f"{queue}/{handle}", handle=handle)
    messages = [value(f"{handle}" * 30) for handle in range(3)]
    for handle, message in enumerate(messages):
        begun.write(Transfer(handle=handle, delivery_id=handle, delivery_tag=b"t", more=True), message[:7])
    for handle in (2, 0, 1):
        begun.write(Transfer(handle=handle, more=True), messages[handle][7:20])
    for handle in (1, 2, 0):
        begun.write(Transfer(handle=handle), messages[handle][20:])
    assert sorted(settled(begun, 3)) == [0, 1, 2]
    for handle, message in enumerate(messages):
        assert contents(begun, f"{queue}/{handle}", 1, handle + 10) == [message]


@pytest.mark.parametrize(
    "change",
    [{"delivery_id": 7}, {"delivery_tag": b"other"}, {"message_format": 5}],
    ids=lambda change: next(iter(change)),
)
def test_2_7_5_a_continuation_may_not_contradict(begun: Peer, queue: str, change: dict[str, Any]) -> None:
    begun.attach_sender(queue)
    begun.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True), value("ab")[:4])
    begun.write(Transfer(handle=0, **change), value("ab")[4:])
    begun.error_of(Detach, "amqp:not-allowed")
    begun.write(Detach(handle=0, closed=True))
    assert contents(begun, queue, 0) == []


@pytest.mark.parametrize("missing", ["delivery_id", "delivery_tag"])
def test_2_7_5_the_first_frame_names_its_delivery(begun: Peer, queue: str, missing: str) -> None:
    begun.attach_sender(queue)
    fields: dict[str, Any] = {"delivery_id": 0, "delivery_tag": b"t", missing: None}
    begun.write(Transfer(handle=0, **fields), value(1))
    begun.error_of(Detach, "amqp:invalid-field")


def test_2_7_5_a_delivery_tag_has_at_most_32_bytes(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue)
    begun.send(transfers(0, [value(1)]))
    long = Transfer(handle=0, delivery_id=1, delivery_tag=b"t" * 32)
    begun.write(long, value(2))
    assert settled(begun, 2) == [0, 1]
    body = b"\x00\x53\x14\xc0\x27\x03\x43\x52\x02\xa0\x21" + b"t" * 33
    begun.send(frame(body[:4] + bytes([len(body) - 5]) + body[5:], value(3)))
    begun.expect_close("amqp:decode-error")


def test_2_7_5_aborted_deliveries_vanish(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue)
    begun.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"a", more=True), value("half")[:4])
    begun.write(Transfer(handle=0, aborted=True))
    begun.write(Transfer(handle=0, delivery_id=1, delivery_tag=b"b", aborted=True, more=True))
    begun.send(transfers(0, [value("whole")], 2))
    assert settled(begun, 1) == [2]
    assert contents(begun, queue, 1) == [value("whole")]


def test_2_7_5_an_unfinished_delivery_vanishes_with_its_link(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue)
    begun.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"a", more=True), value("half")[:4])
    begun.write(Detach(handle=0, closed=True))
    begun.expect(Detach)
    assert contents(begun, queue, 0) == []


def test_2_7_5_message_format_is_kept(begun: Peer, queue: str) -> None:
    """A format that is not AMQP's is passed on as bytes that mean nothing here."""
    begun.attach_sender(queue)
    begun.send(transfers(0, [b"not AMQP at all"], message_format=0x00012345), transfers(0, [value(1)], 1))
    assert settled(begun, 2) == [0, 1]
    begun.attach_receiver(queue, handle=1)
    begun.flow(2, handle=1)
    first, message = begun.delivery()
    assert (first.message_format, message) == (0x00012345, b"not AMQP at all")
    second, message = begun.delivery()
    assert (second.message_format, message) == (0, value(1))


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\xff",
        encode("no section"),
        b"\x00\x53\x70\xc0\x03\x01\x50\x07" + value(1),
        b"\x00\x53\x70\xc0\x7f\x01\x41" + value(1),
        b"\x00\x53\x70\xa1\x01x" + value(1),
        b"\x00\x53\x99\x45" + value(1),
    ],
    ids=[
        "garbage",
        "no-section",
        "durable-is-a-number",
        "header-beyond-the-end",
        "no-list",
        "unknown-section",
    ],
)
def test_3_2_what_the_broker_has_to_read_is_checked(begun: Peer, queue: str, message: bytes) -> None:
    begun.attach_sender(queue)
    begun.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), message)
    begun.expect_detach_after_transfer("amqp:decode-error")
    assert contents(begun, queue, 0) == []


@pytest.mark.parametrize(
    "message",
    [b"", b"\x00\x53\x77", value(1) + b"\x00\x53\x70\x45"],
    ids=["nothing", "cut-body", "header-behind-the-body"],
)
def test_3_2_the_bare_message_is_the_clients(begun: Peer, queue: str, message: bytes) -> None:
    """An intermediary does not look into the body: it passes on what it was given."""
    begun.attach_sender(queue)
    begun.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), message)
    assert settled(begun, 1) == [0]
    assert contents(begun, queue, 1) == [message]


def test_2_7_3_max_message_size(begun: Peer, queue: str) -> None:
    """The broker of these tests takes 100 kB: exactly that is taken, one byte more is not."""
    begun.attach_sender(queue)
    largest = b"\x00\x53\x75\xb0" + (100_000 - 8).to_bytes(4, "big") + bytes(100_000 - 8)
    assert len(largest) == 100_000
    begun.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"0", more=True), largest[:60_000])
    begun.write(Transfer(handle=0), largest[60_000:])
    assert settled(begun, 1) == [0]
    begun.write(Transfer(handle=0, delivery_id=1, delivery_tag=b"1", more=True), largest[:60_000])
    begun.write(Transfer(handle=0, more=True), largest[60_000:] + b"\x00")
    begun.error_of(Detach, "amqp:link:message-size-exceeded")


@pytest.mark.parametrize("settled_by_us", [False, True], ids=["unsettled", "presettled"])
@pytest.mark.parametrize("place", range(4))
def test_2_7_3_a_message_above_our_max_message_size_stays_for_others_and_its_neighbours_arrive(
    begun: Peer, queue: str, place: int, settled_by_us: bool
) -> None:
    small = [value(number) for number in range(3)]
    large = value("x" * 200)
    begun.put(queue, *small[:place], large, *small[place:])
    begun.attach_receiver(queue, max_message_size=100, snd_settle_mode=1 if settled_by_us else 0)
    begun.flow(3)
    # It uses no credit, and the deliveries beside it have the numbers that the client counts.
    assert [begun.delivery()[1] for _ in small] == small
    if not settled_by_us:
        begun.write(Disposition(role=True, first=0, last=2, settled=True, state=Accepted()))
    begun.flow(10, 3, drain=True)
    drained = begun.expect(Flow)
    assert (drained.delivery_count, drained.link_credit) == (13, 0)
    begun.write(Detach(handle=0, closed=True))
    begun.expect(Detach)
    assert contents(begun, queue, 1) == [large]


def test_2_7_3_a_receiver_that_attaches_again_and_again_makes_no_dead_letters(
    begun: Peer, queue: str
) -> None:
    large = value("x" * 200)
    begun.put(queue, large, value(1))
    for _ in range(12):
        begun.attach_receiver(queue, max_message_size=100)
        begun.flow(10)
        assert begun.delivery()[1] == value(1)
        begun.write(Detach(handle=0, closed=True))
        begun.expect(Detach)
    assert contents(begun, queue, 2) == [large, value(1)]


def test_2_7_3_a_browser_passes_over_what_is_too_large(begun: Peer, queue: str) -> None:
    begun.put(queue, value("x" * 200), value(1))
    source = Source(address=queue, distribution_mode=Symbol("copy"))
    begun.attach_receiver(queue, max_message_size=100, source=source)
    begun.flow(10)
    assert begun.delivery()[1] == value(1)
    begun.nothing_before_echo()


def test_2_7_5_a_transfer_against_the_direction_of_the_link(begun: Peer, queue: str) -> None:
    begun.attach_receiver(queue)
    begun.send(transfers(0, [value(1)]))
    begun.error_of(Detach, "amqp:not-allowed")


def test_4_4_a_transfer_of_an_unknown_transaction(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue)
    state = TransactionalState(txn_id=b"none")
    begun.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"t", state=state), value(1))
    begun.expect_detach_after_transfer("amqp:transaction:unknown-id")


# --- settlement ------------------------------------------------------------------------------------------


def test_2_6_12_a_batch_is_settled_in_ranges(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue)
    begun.send(transfers(0, [value(number) for number in range(100)]))
    assert settled(begun, 100) == list(range(100))
    assert contents(begun, queue, 100) == [value(number) for number in range(100)]


def test_2_6_12_presettled_deliveries_are_not_answered(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue, snd_settle_mode=1)
    begun.send(transfers(0, [value(number) for number in range(5)], settled=True))
    assert contents(begun, queue, 5) == [value(number) for number in range(5)]


def test_2_6_12_settled_and_unsettled_may_be_mixed(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue)
    for number in range(6):
        begun.send(transfers(0, [value(number)], number, settled=number % 2 == 0))
    assert settled(begun, 3) == [1, 3, 5]
    assert contents(begun, queue, 6) == [value(number) for number in range(6)]


@pytest.mark.parametrize(("mode", "sent"), [(0, True), (1, False)])
def test_2_7_5_a_sender_keeps_to_its_settle_mode(begun: Peer, queue: str, mode: int, sent: bool) -> None:
    begun.attach_sender(queue, snd_settle_mode=mode)
    begun.send(transfers(0, [value(1)], settled=sent))
    begun.expect_detach_after_transfer("amqp:not-allowed")


def test_2_7_5_settled_by_a_continuation_counts(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue)
    begun.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True), value("ab")[:4])
    begun.write(Transfer(handle=0, settled=True), value("ab")[4:])
    begun.send(transfers(0, [value("c")], 1))
    assert settled(begun, 1) == [1]
    assert contents(begun, queue, 2) == [value("ab"), value("c")]


def test_2_6_12_receiver_settle_mode_second_as_receiver(begun: Peer, queue: str) -> None:
    """It is a wish of the sender's (2.7.3). The broker answers with first, and settles with its outcome."""
    begun.write(sender(queue, rcv_settle_mode=1))
    assert begun.expect(Attach).rcv_settle_mode == 0
    begun.expect(Flow)
    begun.send(transfers(0, [value(1), value(2)]))
    seen: list[int] = []
    while len(seen) < 2:
        found = begun.expect(Disposition)
        assert (found.role, found.settled, found.state) == (True, True, Accepted())
        seen += range(found.first, (found.first if found.last is None else found.last) + 1)
    assert contents(begun, queue, 2) == [value(1), value(2)]


def test_2_6_12_receiver_settle_mode_second_as_sender(begun: Peer, queue: str) -> None:
    """The receiver says its outcome unsettled; the broker settles, and the message is gone."""
    begun.put(queue, value(1), value(2))
    answer = begun.attach_receiver(queue, rcv_settle_mode=1)
    assert answer.rcv_settle_mode == 1
    begun.flow(2)
    begun.delivery()
    begun.delivery()
    begun.write(Disposition(role=True, first=0, last=1, settled=False, state=Accepted()))
    found = begun.expect(Disposition)
    assert (found.role, found.first, found.last, found.settled) == (False, 0, 1, True)
    begun.write(Detach(handle=0, closed=True))
    begun.expect(Detach)
    assert contents(begun, queue, 0) == []


# --- dispositions from the peer --------------------------------------------------------------------------


def test_2_7_6_one_disposition_settles_a_range_over_links(begun: Peer, queue: str) -> None:
    for handle in (0, 1):
        name = f"{queue}/{handle}"
        begun.put(name, value(1), value(2))
        begun.attach_receiver(name, handle=handle)
        begun.flow(2, handle=handle)
        begun.delivery()
        begun.delivery()
    begun.write(Disposition(role=True, first=0, last=3, settled=True, state=Accepted()))
    for handle in (0, 1):
        begun.write(Detach(handle=handle, closed=True))
        begun.expect(Detach)
        assert contents(begun, f"{queue}/{handle}", 0, handle + 5) == []


def test_2_7_6_holes_and_unknown_ids_are_passed_over(begun: Peer, queue: str) -> None:
    begun.put(queue, *(value(number) for number in range(6)))
    begun.attach_receiver(queue)
    begun.flow(6)
    for _ in range(6):
        begun.delivery()
    begun.write(Disposition(role=True, first=2, last=3, settled=True, state=Accepted()))
    begun.write(Disposition(role=True, first=1, last=4, settled=True, state=Released()))
    begun.write(Disposition(role=True, first=0, last=400, settled=True, state=Accepted()))
    begun.write(Disposition(role=True, first=70_000, settled=True, state=Accepted()))
    begun.flow(8, 6, drain=True)
    assert [begun.delivery()[1] for _ in range(2)] == [value(1), value(4)]


def test_2_7_6_settling_twice_changes_nothing(begun: Peer, queue: str) -> None:
    begun.put(queue, value(1))
    begun.attach_receiver(queue)
    begun.flow(1)
    begun.delivery()
    begun.write(Disposition(role=True, first=0, settled=True, state=Accepted()))
    begun.write(Disposition(role=True, first=0, settled=True, state=Rejected()))
    begun.nothing_before_echo()
    begun.flow(1, 1, drain=True)
    assert begun.expect(Flow).link_credit == 0
    assert contents(begun, f"{queue}/$dlq", 0) == []


def test_2_7_6_last_before_first_ends_the_session(begun: Peer, queue: str) -> None:
    begun.put(queue, value(1), value(2))
    begun.attach_receiver(queue)
    begun.flow(2)
    begun.delivery()
    begun.delivery()
    begun.write(Disposition(role=True, first=1, last=0, settled=True, state=Accepted()))
    begun.error_of(End, "amqp:invalid-field")


def test_2_7_6_a_long_form_disposition_means_the_same(begun: Peer, queue: str) -> None:
    """list32, uint in four bytes, symbolic descriptor of the outcome."""
    begun.put(queue, value(1), value(2))
    begun.attach_receiver(queue)
    begun.flow(2)
    begun.delivery()
    begun.delivery()
    fields = b"\x56\x01" + b"\x70" + bytes(4) + b"\x70\x00\x00\x00\x01" + b"\x56\x01"
    state = b"\x00\xa3\x12amqp:accepted:list\xd0\x00\x00\x00\x04\x00\x00\x00\x00"
    body = fields + state
    size = (len(body) + 4).to_bytes(4, "big")
    begun.send(frame(b"\x00\x53\x15\xd0" + size + b"\x00\x00\x00\x05" + body))
    begun.write(Detach(handle=0, closed=True))
    begun.expect(Detach)
    assert contents(begun, queue, 0) == []


def test_2_6_12_settlement_of_other_sessions_is_not_touched(opened: Peer, queue: str) -> None:
    """Delivery-ids count per session: the same id on another one means another delivery."""
    opened.put(queue, value(1), value(2))
    channels = {}
    for channel in (0, 1):
        begin = Begin(next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=WINDOW)
        opened.write(begin, channel=channel)
        channels[channel] = opened.read().channel
        opened.attach_receiver(queue, channel=channel, name=f"r{channel}")
        opened.flow(1, channel=channel)
        transfer, message = opened.delivery()
        assert (transfer.delivery_id, message) == (0, value(channel + 1))
    opened.write(Disposition(role=True, first=0, settled=True, state=Accepted()), channel=1)
    opened.write(End(), channel=1)
    opened.expect(End, channels[1])
    opened.write(End(), channel=0)
    opened.expect(End, channels[0])
    opened.begin()
    (left,) = contents(opened, queue, 1)
    assert left.endswith(value(1))
