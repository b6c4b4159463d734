"""Idle time-outs of connections (transport 2.4.5), with the shortest that the broker can be set to."""

import socket
import time
from collections.abc import Iterator

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, Request

from lightrail.amqp.performatives import Attach, Close, Flow, Open
from lightrail.model import limits
from tests.support.amqp.frame_peer import AMQP, EMPTY, Peer, frame
from tests.support.broker import Broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("idle") / "data", "--idle-timeout", "1s") as started:
        yield started


def test_2_4_5_half_of_the_time_out_is_announced(peer: Peer) -> None:
    assert peer.open().idle_time_out == 500


def test_2_4_5_the_broker_sends_empty_frames_in_time(peer: Peer) -> None:
    peer.open(idle_time_out=600)
    peer.socket.settimeout(0.6)
    for _ in range(4):
        found = peer.next()
        assert found is not None
        assert found.body is None
        peer.send(EMPTY)


def test_2_4_5_an_idle_time_out_that_cannot_be_kept_is_refused(peer: Peer) -> None:
    peer.send(AMQP, frame(Open(container_id="test", idle_time_out=1)))
    assert peer.header() == AMQP
    peer.expect(Open)
    peer.expect_close("amqp:invalid-field")


def test_2_4_5_a_silent_peer_is_closed_with_a_condition(begun: Peer) -> None:
    begun.expect_close("amqp:resource-limit-exceeded")


def test_2_4_5_empty_frames_keep_a_connection(opened: Peer) -> None:
    """Three times the time-out, by frames that come at half of it."""
    opened.begin()
    opened.socket.settimeout(0.25)
    for _ in range(12):
        with pytest.raises(TimeoutError):
            opened.next()
        opened.send(EMPTY)
    opened.socket.settimeout(20)
    opened.write(Attach(name="x", handle=0, role=True))
    opened.expect(Attach)


def test_2_4_5_empty_frames_on_any_channel_keep_a_connection(begun: Peer) -> None:
    """The channel of an empty frame is ignored, up to channel-max."""
    begun.socket.settimeout(0.25)
    for number in range(12):
        with pytest.raises(TimeoutError):
            begun.next()
        begun.send(frame(b"", channel=(0, 1, 255)[number % 3]))
    begun.socket.settimeout(20)
    begun.write(Attach(name="x", handle=0, role=True))
    begun.expect(Attach)


def test_2_4_5_flows_keep_a_connection(begun: Peer) -> None:
    """A flow for a session may stand for an empty frame."""
    begun.socket.settimeout(0.25)
    for _ in range(12):
        with pytest.raises(TimeoutError):
            begun.next()
        begun.write(Flow(next_incoming_id=0, incoming_window=1, next_outgoing_id=0, outgoing_window=1))
    begun.socket.settimeout(20)
    begun.write(Attach(name="x", handle=0, role=True))
    begun.expect(Attach)


def test_2_4_5_bytes_that_end_no_frame_keep_nothing(begun: Peer) -> None:
    """The time-out starts from the last frame, not from the last byte."""
    begun.socket.settimeout(0.25)
    message = frame(Attach(name="x" * 200, handle=0, role=True))
    closed = None
    for at in range(12):
        begun.send(message[10 * at : 10 * at + 10])
        try:
            closed = begun.next()
        except TimeoutError:
            continue
        break
    assert closed is not None
    assert isinstance(closed.body, Close)
    assert closed.body.error is not None
    assert closed.body.error.condition == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize("idle", [None, 0])
def test_2_4_5_zero_is_no_time_out(peer: Peer, idle: int | None) -> None:
    """The broker sends nothing to a client that needs nothing, for longer than its own time-out."""
    peer.open(idle_time_out=idle)
    peer.socket.settimeout(0.25)
    for _ in range(6):
        with pytest.raises(TimeoutError):
            peer.next()
        peer.send(EMPTY)


def test_2_4_5_a_time_out_longer_than_the_brokers_own_is_kept(peer: Peer) -> None:
    peer.open(idle_time_out=0xFFFFFFFF)
    peer.begin()


def test_2_4_5_a_peer_that_does_not_answer_the_close_loses_its_socket(begun: Peer) -> None:
    begun.expect_close("amqp:resource-limit-exceeded")
    began = time.monotonic()
    assert begun.next() is None
    assert time.monotonic() - began < 2 * limits.CLOSING_TIME_MS / 1000


def test_2_4_5_a_silent_peer_behind_a_websocket_of_the_gateway_is_closed(broker: Broker) -> None:
    """The bytes go through two processes, and the time-out is the frontend's."""
    websocket = WSConnection(ConnectionType.CLIENT)
    host, _, port = broker.http.rpartition(":")
    heard = b""
    with socket.create_connection((host, int(port)), 20) as client:
        client.sendall(websocket.send(Request(host=host, target="/", subprotocols=["amqp"])))
        opened = False
        while True:
            data = client.recv(65_536)
            websocket.receive_data(data or None)
            for event in websocket.events():
                if isinstance(event, BytesMessage):
                    heard += event.data
            if not opened and websocket.state is ConnectionState.OPEN:
                opened = True
                client.sendall(websocket.send(BytesMessage(data=AMQP + frame(Open(container_id="silent")))))
            if not data:
                break
    assert b"amqp:resource-limit-exceeded" in heard
