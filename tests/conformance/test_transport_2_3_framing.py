"""Framing (transport 2.3): sizes, data offsets, types, and bodies that are none."""

import struct

import pytest

from lightrail.amqp.encoder import encode
from lightrail.amqp.performatives import Begin, Close, Open, encode_performative
from lightrail.amqp.values import Described, ULong
from tests.support.amqp.frame_peer import AMQP, EMPTY, Peer, frame

BEGIN = encode_performative(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))


def raw(size: int, offset: int, kind: int, channel: int, rest: bytes = b"") -> bytes:
    return struct.pack(">IBBH", size, offset, kind, channel) + rest


@pytest.mark.parametrize(
    "bad",
    [
        raw(0, 2, 0, 0),
        raw(7, 2, 0, 0),
        raw(8 + len(BEGIN), 0, 0, 0, BEGIN),
        raw(8 + len(BEGIN), 1, 0, 0, BEGIN),
        raw(8 + len(BEGIN), 255, 0, 0, BEGIN),
        raw(8 + len(BEGIN), 2, 1, 0, BEGIN),
        raw(8 + len(BEGIN), 2, 77, 0, BEGIN),
        raw(65_537, 2, 0, 0),
        raw(0xFFFFFFFF, 2, 0, 0),
    ],
    ids=[
        "size-0",
        "size-7",
        "doff-0",
        "doff-1",
        "doff-behind-the-end",
        "sasl",
        "type-77",
        "too-large",
        "4-GB",
    ],
)
def test_2_3_1_a_malformed_frame_closes_with_framing_error(opened: Peer, bad: bytes) -> None:
    opened.send(bad)
    opened.error_of(Close, "amqp:connection:framing-error")
    opened.expect_end()


def test_2_3_1_a_malformed_frame_before_open(peer: Peer) -> None:
    """2.4.3: the close must follow an open, also where the error came first."""
    peer.send(AMQP, raw(3, 2, 0, 0))
    assert peer.header() == AMQP
    peer.expect(Open)
    peer.error_of(Close, "amqp:connection:framing-error")
    peer.expect_end()


def test_2_3_1_the_extended_header_is_ignored(opened: Peer) -> None:
    opened.send(raw(8 + 8 + len(BEGIN), 4, 0, 0, b"ignored!" + BEGIN))
    assert opened.expect(Begin).remote_channel == 0


def test_2_3_1_bytes_6_and_7_are_the_channel(opened: Peer) -> None:
    opened.send(raw(8 + len(BEGIN), 2, 0, 0x00FF, BEGIN))
    assert opened.expect(Begin).remote_channel == 255


def test_2_3_2_an_empty_frame_says_nothing(opened: Peer) -> None:
    opened.send(EMPTY, EMPTY, raw(8, 2, 0, 9), frame(BEGIN))
    assert opened.expect(Begin).remote_channel == 0


@pytest.mark.parametrize(
    "body",
    [
        b"\xff" * 10,
        b"\x40",
        encode("text"),
        encode([1, 2]),
        encode(Described(ULong(0x19), [])),
        encode(Described(ULong(0x70), [])),
        b"\x00\x53\x11",
        b"\x00\x53\x11\xc0\x05\x04\x40\x43\x43",
        b"\x00\x53\x11\xc1\x01\x00",
        BEGIN + b"\x40",
        b"\x00\x53\x11\xd0\x7f\xff\xff\xff\x7f\xff\xff\xff",
    ],
    ids=[
        "garbage",
        "null",
        "string",
        "list",
        "unknown-descriptor",
        "a-section",
        "no-value",
        "list-beyond-the-frame",
        "a-map",
        "more-than-one-value",
        "2-GB-list",
    ],
)
def test_2_3_2_a_body_that_is_no_performative_closes_with_decode_error(opened: Peer, body: bytes) -> None:
    opened.send(frame(body))
    opened.expect_close("amqp:decode-error")


@pytest.mark.parametrize(
    "body",
    [
        b"\x00\x53\x10\x45",
        b"\x00\x53\x10\xc0\x02\x01\x40",
        b"\x00\x53\x10\xc0\x03\x01\x50\x07",
        b"\x00\x53\x10\xc0\x05\x01\xa1\x02\xc3\x28",
    ],
    ids=["no-container-id", "null-container-id", "a-number-as-container-id", "no-utf-8"],
)
def test_2_3_2_mandatory_fields_and_types_are_checked(peer: Peer, body: bytes) -> None:
    peer.send(AMQP, frame(body))
    assert peer.header() == AMQP
    peer.expect(Open)
    peer.expect_close("amqp:decode-error")


@pytest.mark.parametrize(
    "body",
    [
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x10\xd0\x00\x00\x00\x0a\x00\x00\x00\x01\xa1\x04test",
        b"\x00\xa3\x0eamqp:open:list\xc0\x07\x01\xa1\x04test",
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x10\xc0\x0a\x01\xb1\x00\x00\x00\x04test",
    ],
    ids=["long-forms", "symbolic-descriptor", "string-32"],
)
def test_2_3_2_every_encoding_of_a_performative_is_understood(peer: Peer, body: bytes) -> None:
    peer.send(AMQP, frame(body))
    assert peer.header() == AMQP
    peer.expect(Open)
    peer.begin()


def test_2_3_1_nothing_but_open_may_come_first(peer: Peer) -> None:
    peer.send(AMQP, frame(BEGIN))
    assert peer.header() == AMQP
    peer.expect(Open)
    peer.expect_close("amqp:not-allowed")


def test_2_3_a_garbage_stream_ends_only_its_own_connection(opened: Peer, peer: Peer) -> None:
    with Peer("{}:{}".format(*opened.socket.getpeername())) as other:
        other.open()
        other.send(bytes(range(256)) * 40)
        other.error_of(Close, "amqp:connection:framing-error")
        other.expect_end()
    opened.begin()
