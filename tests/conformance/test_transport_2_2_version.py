"""Version negotiation (transport 2.2): protocol headers, good and bad."""

import pytest

from lightrail.amqp.performatives import Begin, Close, Open
from tests.support.amqp.frame_peer import AMQP, SASL, TLS, Peer, frame


def test_2_2_the_header_is_echoed_before_open(peer: Peer) -> None:
    peer.send(AMQP)
    assert peer.header() == AMQP


def test_2_2_a_header_byte_by_byte(peer: Peer) -> None:
    for byte in AMQP:
        peer.send(bytes([byte]))
    assert peer.header() == AMQP


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x00\x02\x00\x00",
        b"AMQP\x00\x01\x01\x00",
        b"AMQP\x00\x01\x00\x01",
        b"AMQP\x01\x01\x00\x00",
        b"AMQP\x04\x01\x00\x00",
        b"AMQP\x03\x02\x00\x00",
        b"amqp\x00\x01\x00\x00",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03",
        b"\x00",
        b"AMXX",
    ],
)
def test_2_2_an_unacceptable_header_is_answered_by_an_acceptable_one(peer: Peer, header: bytes) -> None:
    """And the socket is closed: a peer that speaks another protocol learns what is spoken here."""
    peer.send(header)
    assert peer.header() in (AMQP, SASL)
    peer.expect_end()


def test_2_2_tls_is_not_negotiated_on_a_plain_port(peer: Peer) -> None:
    """5.2.1: without TLS the server answers with what it would accept."""
    peer.send(TLS)
    assert peer.header() in (AMQP, SASL)
    peer.expect_end()


def test_2_2_everything_pipelined(peer: Peer) -> None:
    """2.4.1: a client may send its header, open, begin and close before it has read anything."""
    begin = Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    peer.send(AMQP, frame(Open(container_id="pipelined")), frame(begin), frame(Close()))
    assert peer.header() == AMQP
    assert peer.expect(Open).container_id
    assert peer.expect(Begin).remote_channel == 0
    assert peer.expect(Close).error is None
    peer.expect_end()


def test_2_2_everything_byte_by_byte(peer: Peer) -> None:
    for byte in AMQP + frame(Open(container_id="slow")) + frame(Close()):
        peer.send(bytes([byte]))
    assert peer.header() == AMQP
    peer.expect(Open)
    peer.expect(Close)
    peer.expect_end()
