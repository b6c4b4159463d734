"""Deliveries of one and many frames, in both directions."""

from dataclasses import replace
from typing import Any

import pytest
from proton import Message

from lightrail.amqp import events
from lightrail.amqp.errors import EndedError
from lightrail.amqp.performatives import Accepted, Detach, Disposition, End, TransactionalState, Transfer
from tests.unit.amqp.peer import Peer, amqp, conditions_of, data, opened, session_of, split, transfer

# --- deliveries in (2.6.14) -----------------------------------------------------------------------------


def test_a_delivery_of_many_frames_comes_as_one_payload() -> None:
    peer = opened()
    link = peer.sender()
    assert peer.say(transfer(0, more=True), data(b"a" * 10)[:6]) == []
    assert peer.say(Transfer(handle=0, more=True), data(b"a" * 10)[6:9]) == []
    assert peer.say(Transfer(handle=0, delivery_id=0, delivery_tag=b"\0\0\0\0"), data(b"a" * 10)[9:]) == [
        events.Transfers(link, 0, [data(b"a" * 10)], False)
    ]


def test_interleaved_deliveries_complete_each_on_its_own() -> None:
    peer = opened()
    left = peer.sender("l", 0)
    right = peer.sender("r", 1)
    peer.say(transfer(0, handle=0, more=True), b"\x00Su\xa0\x02")
    peer.say(transfer(1, handle=1, more=True), b"\x00Su\xa0\x02")
    peer.say(Transfer(handle=0, more=True), b"l")
    assert peer.say(Transfer(handle=1), b"rr") == [events.Transfers(right, 1, [data(b"rr")], False)]
    assert peer.say(Transfer(handle=0), b"l") == [events.Transfers(left, 0, [data(b"ll")], False)]
    assert session_of(left).incoming.count() == 2
    right.settle(1, 1)
    left.settle(0, 0)
    assert [body.first for body in peer.hear()] == [1, 0]


def test_an_aborted_delivery_vanishes() -> None:
    peer = opened()
    link = peer.sender(credit=5)
    peer.say(transfer(0, more=True), b"half")
    assert peer.say(Transfer(handle=0, aborted=True), b"ignored") == []
    assert peer.say(transfer(1, aborted=True, more=True), b"at once") == []
    (event,) = peer.say(transfer(2), data(b"x"))
    assert event.payloads == [data(b"x")]
    assert session_of(link).incoming.count() == 1, "an aborted delivery is settled"
    assert link.credit == 2


@pytest.mark.parametrize(
    "fields",
    [{"delivery_id": 4}, {"delivery_tag": b"other"}, {"message_format": 3}],
)
def test_a_continuation_that_contradicts_the_first_frame_is_refused(fields: dict[str, Any]) -> None:
    peer = opened()
    peer.sender()
    peer.say(transfer(0, more=True), b"\x00S")
    peer.say(Transfer(handle=0, **fields), b"u\x40")
    assert conditions_of(peer.hear()) == [("detach", "amqp:not-allowed")]


@pytest.mark.parametrize("field", ["delivery_id", "delivery_tag"])
def test_the_first_transfer_must_name_its_delivery(field: str) -> None:
    peer = opened()
    peer.sender()
    body = transfer(0)
    setattr(body, field, None)
    peer.say(body, data(b"x"))
    assert conditions_of(peer.hear()) == [("detach", "amqp:invalid-field")]


def test_a_message_larger_than_the_link_takes_is_message_size_exceeded() -> None:
    peer = opened(max_message_size=50)
    peer.sender()
    (event,) = peer.say(transfer(0), data(b"x" * 45))
    assert event.payloads == [data(b"x" * 45)]
    *_, detached = peer.say(transfer(1), data(b"x" * 46))
    assert isinstance(detached, events.Detached)
    assert conditions_of(peer.hear()) == [("detach", "amqp:link:message-size-exceeded")]


def test_a_message_too_large_is_refused_before_it_is_whole() -> None:
    peer = opened(max_message_size=50)
    peer.sender()
    peer.say(transfer(0, more=True), b"x" * 40)
    peer.say(Transfer(handle=0, more=True), b"x" * 11)
    assert conditions_of(peer.hear()) == [("detach", "amqp:link:message-size-exceeded")]


def test_settled_on_any_frame_settles_the_delivery() -> None:
    peer = opened()
    peer.sender()
    peer.say(transfer(0, more=True, settled=True), b"\x00Su\xa0")
    (event,) = peer.say(Transfer(handle=0), b"\0")
    assert event.settled is True
    peer.say(transfer(1, more=True), b"\x00Su\xa0")
    (event,) = peer.say(Transfer(handle=0, settled=True), b"\0")
    assert event.settled is True


@pytest.mark.parametrize(("mode", "settled"), [(0, True), (1, False)])
def test_a_sender_keeps_to_its_settle_mode(mode: int, settled: bool) -> None:
    peer = opened()
    peer.sender(snd_settle_mode=mode)
    peer.say(transfer(0, settled=settled), data(b"x"))
    assert conditions_of(peer.hear()) == [("detach", "amqp:not-allowed")]


def test_message_format_settled_and_head_make_separate_batches() -> None:
    peer = opened()
    link = peer.sender()
    head = b"\x00Sp\xc0\x02\x01A"
    chunk = [
        amqp(transfer(0), data(b"a")),
        amqp(transfer(1), data(b"b")),
        amqp(transfer(2, settled=True), data(b"c")),
        amqp(transfer(3, message_format=7), b"anything"),
        amqp(transfer(4), head + data(b"d")),
        amqp(transfer(5), head + data(b"e")),
        amqp(transfer(6), data(b"f")),
    ]
    assert peer.feed(b"".join(chunk)) == [
        events.Transfers(link, 0, [data(b"a"), data(b"b")], False),
        events.Transfers(link, 2, [data(b"c")], True),
        events.Transfers(link, 3, [b"anything"], False, 7),
        events.Transfers(link, 4, [head + data(b"d"), head + data(b"e")], False, 0, head),
        events.Transfers(link, 6, [data(b"f")], False),
    ]


def test_absolute_expiry_time_is_told() -> None:
    peer = opened()
    peer.sender()
    message = (
        b"\x00Ss\xc0\x12\x09\x40\x40\x40\x40\x40\x40\x40\x40\x83" + (1234).to_bytes(8, "big") + data(b"x")
    )
    (event,) = peer.say(transfer(0), message)
    assert event.absolute_expiry_ms == 1234
    assert event.payloads == [message]


@pytest.mark.parametrize(
    "payload", [b"\x00Sp\xc0\x7f\x01A", b"\x00Sp\xa1\x01A", b"\x01", b"\x00S\x99\x45", b"\x00S"]
)
def test_sections_that_can_not_be_read_detach_with_decode_error(payload: bytes) -> None:
    peer = opened()
    peer.sender()
    peer.say(transfer(0), payload)
    assert conditions_of(peer.hear()) == [("detach", "amqp:decode-error")]


HEADER = b"\x00Sp\xc0\x02\x01\x41"
FOR_THE_NEXT_HOP = b"\x00Sq\xc1\x08\x02\xa3\x01k\xa1\x02v1"
ANNOTATIONS = b"\x00Sr\xc1\x08\x02\xa3\x01k\xa1\x02v2"


@pytest.mark.parametrize("head", [b"", HEADER, ANNOTATIONS, HEADER + ANNOTATIONS])
@pytest.mark.parametrize("readers", [{}, {"learn_shapes": True}, {"scans": False}])
def test_delivery_annotations_are_for_us_and_not_for_receivers(head: bytes, readers: dict[str, Any]) -> None:
    """Messaging 3.2.2; every other message stays as it is, whichever reader reads it."""
    peer = opened(**readers)
    peer.sender(credit=100)
    header, annotations = (HEADER, head[len(HEADER) :]) if head.startswith(HEADER) else (b"", head)
    plain = [header + annotations + data(b"%d" % number) for number in range(12)]
    sent = [
        header + FOR_THE_NEXT_HOP + annotations + data(b"%d" % number) if number % 4 == 3 else message
        for number, message in enumerate(plain)
    ]
    frames = b"".join(amqp(transfer(number), message) for number, message in enumerate(sent))
    found = [
        payload
        for event in peer.feed(frames)
        if isinstance(event, events.Transfers)
        for payload in event.payloads
    ]
    assert found == plain
    # In several frames.
    whole = header + FOR_THE_NEXT_HOP + annotations + data(b"x" * 300)
    peer.say(transfer(12, more=True), whole[:9])
    (event,) = peer.say(Transfer(handle=0), whole[9:])
    assert event.payloads == [header + annotations + data(b"x" * 300)]


def test_a_client_sees_the_delivery_annotations_of_its_broker() -> None:
    peer = opened()
    peer.sender()
    peer.engine.settings = replace(peer.engine.settings, is_server=False)
    message = FOR_THE_NEXT_HOP + data(b"x")
    (event,) = peer.say(transfer(0), message)
    assert event.payloads == [message]


@pytest.mark.parametrize("count", [1, 50])
def test_a_message_without_a_body_is_taken_as_it_is(count: int) -> None:
    """python-qpid-proton encodes none where none was set (ADR 25); 3.2 would have one."""
    message: bytes = Message(subject="signal").encode()
    assert message.endswith(b"signal")
    peer = opened()
    peer.sender()
    found = peer.feed(b"".join(amqp(transfer(number), message) for number in range(count)))
    assert [payload for event in found for payload in event.payloads] == [message] * count


def test_a_resumed_delivery_that_is_not_known_is_ignored() -> None:
    peer = opened()
    link = peer.sender(credit=5)
    assert peer.say(transfer(0, resume=True), data(b"x")) == []
    assert link.credit == 4
    assert len(peer.say(transfer(1), data(b"x"))) == 1


def test_a_transfer_in_a_transaction_nobody_declared_is_an_unknown_id() -> None:
    peer = opened()
    peer.sender()
    peer.say(transfer(0, state=TransactionalState(txn_id=b"t")), data(b"x"))
    assert conditions_of(peer.hear()) == [("detach", "amqp:transaction:unknown-id")]


# --- deliveries out -------------------------------------------------------------------------------------


def test_send_cuts_the_blob_by_its_ends() -> None:
    peer = opened()
    link = peer.receiver()
    messages = [data(b"a"), data(b"bb"), data(b"")]
    blob = b"".join(messages)
    base = 1000
    ends = [base + 6, base + 13, base + 18]
    assert len(blob) == 18
    link.send(3, ends, blob, base)
    sent = peer.hear()
    assert [payload for _, payload in sent] == messages
    assert [(body.delivery_id, body.settled, body.message_format) for body, _ in sent] == [
        (0, False, 0),
        (1, False, 0),
        (2, False, 0),
    ]
    assert len({body.delivery_tag for body, _ in sent}) == 3


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_may_be_sent(kind: type) -> None:
    peer = opened()
    link = peer.receiver()
    link.send(2, memoryview(b"\x05\0\0\0\x0a\0\0\0").cast("I"), kind(b"x" * 12), 0, True, 5)
    (first, payload), _ = peer.hear()
    assert (payload, first.settled, first.message_format) == (b"x" * 5, True, 5)


def test_a_large_message_is_cut_to_the_peers_max_frame_size() -> None:
    peer = Peer()
    peer.open(max_frame_size=512)
    peer.begin()
    link = peer.receiver()
    message = data(bytes(range(256)) * 20)
    link.send_one(data(b"before"))
    link.send_one(message)
    link.send_one(data(b"after"))
    assert all(len(piece) <= 512 for piece in peer.engine.output)
    sent = peer.hear()
    assert sent[0][1] == data(b"before")
    assert sent[-1][1] == data(b"after")
    middle = sent[1:-1]
    assert len(middle) > 10
    assert b"".join(payload for _, payload in middle) == message
    assert [body.more for body, _ in middle] == [True] * (len(middle) - 1) + [False]
    assert (middle[0][0].delivery_id, sent[-1][0].delivery_id) == (1, 2)
    assert link.transmitted == 3


def test_a_large_message_is_not_copied_before_all_output_is_joined() -> None:
    peer = Peer()
    peer.open(max_frame_size=512)
    peer.begin()
    link = peer.receiver()
    message = data(bytes(5_000))
    part = b"head" + message
    link.send_one(message)
    link.send(1, [len(message)], memoryview(part)[4:])
    changing = bytearray(message)
    link.send(1, [len(message)], changing)
    changing[:] = bytes(len(changing))
    views = [piece for piece in peer.engine.output if isinstance(piece, memoryview)]
    assert {id(view.obj) for view in views} >= {id(message), id(part)}
    sent = peer.hear()
    assert b"".join(payload for _, payload in sent) == 3 * message


@pytest.mark.parametrize("size", range(470, 520))
def test_messages_about_the_size_of_a_frame(size: int) -> None:
    peer = Peer()
    peer.open(max_frame_size=512)
    peer.begin()
    link = peer.receiver()
    message = bytes(index % 251 for index in range(size))
    link.send(3, [size, size + 3, size * 2 + 3], message + b"mid" + message)
    data = peer.hear_bytes()
    position = 0
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        assert length <= 512
        position += length
    payloads: list[bytes] = [b""]
    for body, payload in split(data):
        payloads[-1] += payload
        if not body.more:
            payloads.append(b"")
    assert payloads[:-1] == [message, b"mid", message]


@pytest.mark.parametrize(("window", "unsent"), [(1, 2), (2, 2), (5, 2), (6, 1), (7, 0)])
def test_a_message_of_which_a_part_was_sent_when_the_link_ends_was_not_sent(window: int, unsent: int) -> None:
    peer = Peer()
    peer.open(max_frame_size=512)
    peer.begin(incoming_window=window)
    link = peer.receiver("large", 0, credit=0)
    peer.credit(link, 5, incoming_window=window)
    link.send_one(data(b"x" * 2_900))
    link.send_one(data(b"s"))
    whole = sum(not body.more for body, _ in peer.hear())
    assert whole == 2 - unsent
    peer.say(Detach(handle=0, closed=True))
    assert link.backlog == unsent


def test_a_large_message_goes_on_when_the_window_opens_and_others_may_go_between() -> None:
    peer = Peer()
    peer.open(max_frame_size=512)
    session = peer.begin(incoming_window=2)
    large = peer.receiver("large", 0, credit=0)
    small = peer.receiver("small", 1, credit=0)
    peer.credit(large, 5, incoming_window=2)
    peer.credit(small, 5, incoming_window=2)
    message = data(b"x" * 3000)
    large.send_one(message)
    small.send_one(data(b"s"))
    parts: dict[int, bytes] = {0: b"", 1: b""}
    order = []
    for _ in range(12):
        for body, payload in peer.hear():
            parts[body.handle] += payload
            order.append((body.handle, body.more))
        peer.window(session, 1)
    assert parts == {0: message, 1: data(b"s")}
    assert (1, False) in order[:-1], "the small one did not wait for the end of the large one"
    (outcome,) = peer.say(Disposition(role=True, first=0, settled=True, state=Accepted()))
    assert outcome == events.Outcome(large, 0, 0, events.ACCEPTED, True)


def test_a_message_of_twenty_megabytes() -> None:
    peer = Peer()
    peer.open(max_frame_size=65_536)
    peer.begin()
    link = peer.receiver()
    message = data(b"x" * 20_000_000)
    link.send_one(message)
    assert b"".join(payload for _, payload in peer.hear()) == message


def test_ending_the_session_ends_what_waits() -> None:
    peer = opened()
    link = peer.receiver(credit=0)
    peer.credit(link, 5, incoming_window=0)
    link.send_one(data(b"x"))
    peer.say(End())
    peer.hear()
    with pytest.raises(EndedError):
        link.send_one(data(b"x"))
    assert peer.hear() == []


def test_a_message_larger_than_the_peer_takes_detaches_and_is_told_with_the_next_feed() -> None:
    peer = opened()
    link = peer.receiver(max_message_size=20)
    message = data(b"x" * 15)
    link.send(2, [len(message), 2 * len(message)], message * 2)
    assert len(peer.hear()) == 2
    link.send_one(message + b"x")
    assert conditions_of(peer.hear()) == [("detach", "amqp:link:message-size-exceeded")]
    (event,) = peer.feed(b"")
    assert (event.link, event.by_peer) == (link, False)
    assert peer.credit(link, 5) == []


@pytest.mark.parametrize("window", [0, 100])
def test_messages_larger_than_the_peer_takes_are_passed_over_where_the_caller_looks(window: int) -> None:
    peer = opened()
    link = peer.receiver(max_message_size=20, credit=0)
    peer.credit(link, 3, incoming_window=window)
    link.passed_over = []
    small, large = data(b"x" * 15), data(b"x" * 16)
    ends, blob = [], b""
    for message in (large, small, large, large, small):
        blob += message
        ends.append(len(blob) + 7)
    link.send(3, ends[:3], blob[: ends[2] - 7], 7)
    assert link.limit == 5
    link.send(2, ends[3:], blob[ends[2] - 7 :], ends[2])
    assert link.passed_over == [(0, len(large)), (2, len(large)), (3, len(large))]
    assert link.limit == 6
    # They use neither credit nor delivery-ids, and their numbers are those of no delivery.
    if not window:
        peer.credit(link, 3, incoming_window=100)
    assert [payload for _, payload in peer.hear()] == [small, small]
    assert (link.backlog, link.credit, link.delivery_count) == (0, 1, 2)
    outcomes = peer.say(Disposition(role=True, first=0, last=1, settled=True, state=Accepted()))
    assert [(each.first, each.last) for each in outcomes] == [(1, 1), (4, 4)]


def test_the_rest_of_a_delivery_that_was_refused_is_dropped() -> None:
    peer = opened(max_message_size=50)
    peer.sender()
    peer.say(transfer(0, more=True), b"x" * 51)
    assert conditions_of(peer.hear()) == [("detach", "amqp:link:message-size-exceeded")]
    peer.say(Transfer(handle=0, more=True), b"x" * 51)
    peer.say(Transfer(handle=0, delivery_id=0), b"x" * 51)
    assert peer.hear() == []
    peer.say(transfer(1), data(b"x"))
    assert conditions_of(peer.hear()) == [("end", "amqp:session:errant-link")]
