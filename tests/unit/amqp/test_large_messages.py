"""Messages of many frames: put together wherever reads cut them, with few copies and in bounded memory."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.amqp import events
from lightrail.amqp.composite import write_composite
from lightrail.amqp.performatives import Transfer
from lightrail.amqp.sections import Header, Properties, encode_header
from lightrail.model import limits
from tests.support.now import now
from tests.unit.amqp.peer import Peer, amqp, data, opened, transfer

LARGE = limits.LARGE_PIECE_BYTES
MESSAGE = encode_header(Header(durable=True)) + data(bytes(range(256)) * 1024)


def stream(message: bytes, part: int, number: int = 0, handle: int = 0) -> list[bytes]:
    """A delivery in frames with `part` bytes of the message each; all but the first and last begin alike."""
    starts = range(0, len(message), part)
    frames = []
    for start in starts:
        more = start + part < len(message)
        body = transfer(number, handle, more=more) if not start else Transfer(handle=handle, more=more)
        frames.append(amqp(body, message[start : start + part]))
    return frames


def received(peer: Peer, reads: list[bytes]) -> list[tuple[bytes, bool]]:
    """Each message that came, and whether it came in pieces."""
    found = []
    for read in reads:
        for event in peer.engine.feed(read, 0):
            assert isinstance(event, events.Transfers), event
            if event.pieces is None:
                found += [(bytes(payload), False) for payload in event.payloads]
            else:
                assert event.count == 1
                assert not event.payloads
                found.append((b"".join(event.pieces), True))
    return found


@given(
    part=st.sampled_from([300, 5_000, LARGE, 40_000, 65_000]),
    cuts=st.lists(st.integers(1, 300_000), max_size=12),
    takes=st.booleans(),
)
def test_reads_may_be_cut_anywhere(part: int, cuts: list[int], takes: bool) -> None:
    peer = opened()
    link = peer.sender(credit=100)
    if takes:
        link.take_pieces()
    whole = b"".join(
        (*stream(MESSAGE, part, 0), amqp(transfer(1), data(b"small")), *stream(MESSAGE, part, 2))
    )
    offsets = sorted({0, len(whole), *(cut % len(whole) for cut in cuts)})
    reads = [whole[start:stop] for start, stop in pairwise(offsets)]
    found = received(peer, reads)
    assert [message for message, _ in found] == [MESSAGE, data(b"small"), MESSAGE]
    assert [in_pieces for _, in_pieces in found] == [takes, False, takes]
    assert peer.engine.unfinished_bytes == 0


def test_a_link_that_does_not_ask_for_pieces_gets_none() -> None:
    peer = opened()
    peer.sender()
    assert received(peer, stream(MESSAGE, 65_000)) == [(MESSAGE, False)]


def beginnings() -> dict[str, bytes]:
    body = data(bytes(LARGE * 4))
    expiring = Properties(absolute_expiry_time=1_700_000_000_000)
    return {
        "expiry": encode_header(Header(durable=True)) + write_composite(expiring) + body,
        "annotations that the first part cuts": b"\x00Sr\xd1\x00\x00\x13\x8f\x00\x00\x00\x02\xa3\x01k"
        + b"\xb1\x00\x00\x13\x83"
        + bytes(0x1383)
        + body,
        "only annotations at first": b"\x00Sr\xc1\x01\x00" + body,
    }


@pytest.mark.parametrize("name", list(beginnings()))
def test_what_an_event_tells_of_a_message_is_the_same_in_pieces(name: str) -> None:
    message = beginnings()[name]
    told: list[Any] = []
    for takes in (False, True):
        peer = opened()
        link = peer.sender()
        if takes:
            link.take_pieces()
        for frame in stream(message, LARGE):
            for event in peer.engine.feed(frame, 0):
                assert isinstance(event, events.Transfers)
                payload = event.payloads[0] if event.pieces is None else b"".join(event.pieces)
                told.append((payload, event.head, event.absolute_expiry_ms, event.settled, event.count))
    assert len(told) == 2
    assert told[0] == told[1]
    assert told[0][0] == message


def test_a_malformed_message_in_pieces_detaches_its_link_as_one_that_is_joined() -> None:
    for takes in (False, True):
        peer = opened()
        link = peer.sender()
        if takes:
            link.take_pieces()
        found = [event for frame in stream(b"\x01" + bytes(5 * LARGE), LARGE) for event in peer.feed(frame)]
        assert [type(event) for event in found] == [events.Detached]


def test_an_unfinished_message_keeps_reads_in_memory_only_where_they_are_mostly_its_own() -> None:
    peer = opened()
    link: Any = peer.sender("a", 0)
    other: Any = peer.sender("b", 1)
    message = data(bytes(10 * LARGE))
    own, others = stream(message, LARGE, 0, 0), stream(message, LARGE, 1, 1)
    peer.engine.feed(b"".join(own[:4]), 0)
    assert all(type(part) is memoryview for part in link.assembly.parts)
    peer.engine.feed(own[4] + others[0], 0)
    assert [type(part) for part in link.assembly.parts[4:]] == [bytes]
    assert [type(part) for part in other.assembly.parts] == [bytes]
    peer.engine.feed(own[5] + b"".join(own[6:9]) + others[1], 0)
    assert all(type(part) is memoryview for part in link.assembly.parts[5:])
    assert type(other.assembly.parts[1]) is bytes
    views = [part for part in link.assembly.parts if type(part) is memoryview]
    kept = {id(part.obj): memoryview(part.obj).nbytes for part in views}
    assert sum(kept.values()) <= link.assembly.size * 4 / 3


def test_a_continuation_that_is_encoded_otherwise_is_read_anew() -> None:
    peer = opened()
    peer.sender()
    peer.feed(amqp(transfer(0, more=True), b"\x00Su\xb0\x00\x00\x00\x06"))
    peer.feed(amqp(Transfer(handle=0, more=True), b"ab"))
    peer.feed(amqp(Transfer(handle=0, more=True), b"cd"))
    (event,) = peer.feed(amqp(Transfer(handle=0, settled=True), b"ef"))
    assert event.payloads == [data(b"abcdef").replace(b"\xa0\x06", b"\xb0\x00\x00\x00\x06")]
    assert event.settled


def test_a_transfer_that_continues_nothing_is_refused_though_it_is_encoded_like_one_that_did() -> None:
    peer = opened()
    peer.sender()
    for frame in stream(MESSAGE, 65_000):
        peer.feed(frame)
    peer.hear()
    (event,) = peer.feed(amqp(Transfer(handle=0, more=True), b"more"))
    assert isinstance(event, events.Detached)


def test_frames_of_a_large_message_leave_alike_whoever_attaches_by_which_handle() -> None:
    peer = opened()
    outputs = []
    for handle, name in enumerate(("first", "second")):
        link = peer.receiver(name, handle)
        assert not now(peer.engine.has_large_output)
        link.send_one(MESSAGE)
        assert now(peer.engine.has_large_output)
        outputs.append(peer.hear())
        peer.engine.has_large_output = False
        link.send_one(b"\x00Su\xa0\x00")
        assert not peer.engine.has_large_output
        peer.hear()
        assert b"".join(payload for _, payload in outputs[-1]) == MESSAGE
        assert {body.handle for body, _ in outputs[-1]} == {link.output_handle}
        assert [body.more for body, _ in outputs[-1]] == [True] * (len(outputs[-1]) - 1) + [False]
