"""Idle time-outs of connections (transport 2.4.5), with the shortest that the broker can be set to."""

from collections.abc import Iterator

import pytest

from lightrail.amqp.performatives import Attach, Open
from tests.support.broker import Broker
from tests.support.frame_peer import AMQP, EMPTY, Peer, frame


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
