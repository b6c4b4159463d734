"""Connections (transport 2.4, 2.7.1, 2.7.9): open, close, and what they negotiate."""

from typing import Any

import pytest

from lightrail.amqp.performatives import (
    AmqpError,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Source,
    Target,
    Transfer,
)
from lightrail.amqp.values import Symbol
from tests.support.amqp.frame_peer import AMQP, EMPTY, Peer, frame, receiver, sender, transfers, value

BEGIN = Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)


# --- open ------------------------------------------------------------------------------------------------


def test_2_7_1_the_broker_says_its_limits(peer: Peer) -> None:
    answer = peer.open()
    assert answer.container_id
    assert 512 <= answer.max_frame_size <= 1024 * 1024
    assert 0 < answer.channel_max < 0xFFFF
    assert answer.idle_time_out == 30_000


def test_2_7_1_every_field_is_taken(peer: Peer) -> None:
    peer.open(
        container_id="\u00e4",
        hostname="example.com",
        max_frame_size=1_000_000,
        channel_max=10,
        idle_time_out=60_000,
        outgoing_locales=[Symbol("en-US")],
        incoming_locales=[Symbol("de-DE"), Symbol("en-US")],
        offered_capabilities=[Symbol("x")],
        desired_capabilities=[Symbol("ANONYMOUS-RELAY"), Symbol("sole-connection-for-container")],
        properties={Symbol("product"): "test", Symbol("nested"): {"a": [1]}},
    )
    peer.begin()


def test_2_4_1_open_is_sent_on_channel_0(peer: Peer) -> None:
    peer.send(AMQP, frame(Open(container_id="test"), channel=1))
    assert peer.header() == AMQP
    peer.expect(Open)
    peer.expect_close("amqp:connection:framing-error")


def test_2_4_1_open_is_sent_once(opened: Peer) -> None:
    opened.write(Open(container_id="again"))
    opened.expect_close("amqp:not-allowed")


def test_2_7_1_max_frame_size_is_at_least_512(peer: Peer) -> None:
    peer.send(AMQP, frame(Open(container_id="test", max_frame_size=511)))
    assert peer.header() == AMQP
    peer.expect(Open)
    peer.expect_close("amqp:invalid-field")


def test_2_7_1_no_frame_is_larger_than_the_peer_takes(peer: Peer, queue: str) -> None:
    peer.open(max_frame_size=512)
    peer.begin()
    message = value(b"x" * 5_000)
    peer.put(queue, message)
    peer.attach_receiver(queue)
    peer.flow(1)
    arrived = b""
    more = True
    while more:
        found = peer.read()
        assert found.size <= 512
        arrived += found.payload
        more = found.body.more
    assert arrived == message


# --- channels --------------------------------------------------------------------------------------------


def test_2_4_1_the_brokers_open_fits_into_what_every_peer_takes(peer: Peer) -> None:
    """Before both opens have come a frame has 512 bytes at the most."""
    container = "x" * 400
    peer.send(AMQP, frame(Open(container_id=container, max_frame_size=512)))
    assert peer.header() == AMQP
    found = peer.read()
    assert isinstance(found.body, Open)
    assert found.size <= 512


def test_2_7_1_every_frame_of_a_link_fits_into_the_smallest_max_frame_size(peer: Peer, queue: str) -> None:
    peer.open(max_frame_size=512)
    sizes: list[int] = []

    def read_to(kind: type) -> Any:
        """The next performative of a kind; the sizes of all frames up to it are noted."""
        while True:
            found = peer.read()
            sizes.append(found.size)
            if isinstance(found.body, kind):
                return found.body

    peer.begin()
    source, target = Source(), Target(address=queue)
    peer.write(Attach(name="s", handle=0, role=False, source=source, target=target, initial_delivery_count=0))
    read_to(Flow)
    for number in range(100):
        peer.write(
            Transfer(handle=0, delivery_id=number, delivery_tag=b"%d" % number, message_format=0),
            value(b"x" * 400),
        )
    settled = 0
    while settled < 100:
        answer = read_to(Disposition)
        settled += (answer.first if answer.last is None else answer.last) - answer.first + 1
    peer.write(Detach(handle=0, closed=True))
    read_to(Detach)
    peer.write(Close())
    read_to(Close)
    assert max(sizes) <= 512


def test_2_7_1_a_frame_of_exactly_the_brokers_size_is_taken(peer: Peer, queue: str) -> None:
    most = peer.open().max_frame_size
    peer.begin()
    peer.attach_sender(queue)
    transfer = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, settled=False)
    empty = len(frame(transfer, b""))
    body = b"\x00\x53\x75\xb0" + (most - empty - 8).to_bytes(4) + b"x" * (most - empty - 8)
    assert len(frame(transfer, body)) == most
    peer.write(transfer, body)
    peer.expect(Disposition)
    peer.send(frame(transfer, body + b"x"))
    peer.error_of(Close, "amqp:connection:framing-error")


def test_2_7_1_the_larger_max_frame_size_of_a_peer_changes_nothing(peer: Peer, queue: str) -> None:
    """A peer that takes 4 GiB gets frames of the broker's own size, so that links take turns."""
    most = peer.open(max_frame_size=0xFFFFFFFF).max_frame_size
    peer.begin()
    message = value(b"x" * (most + 20_000))
    peer.attach_sender(queue)
    begun = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    peer.write(begun, message[:40_000])
    peer.write(Transfer(handle=0), message[40_000:])
    peer.expect(Disposition)
    peer.attach_receiver(queue, handle=1)
    peer.write(
        Flow(
            next_incoming_id=0,
            incoming_window=100,
            next_outgoing_id=7,
            outgoing_window=100,
            handle=1,
            delivery_count=0,
            link_credit=1,
        )
    )
    arrived = b""
    while len(arrived) < len(message):
        found = peer.read()
        assert found.size <= most
        arrived += found.payload
    assert arrived == message


def test_2_7_1_channels_beyond_channel_max_close_with_framing_error(peer: Peer) -> None:
    highest = peer.open().channel_max
    assert peer.begin(highest)
    peer.write(BEGIN, channel=highest + 1)
    peer.expect_close("amqp:connection:framing-error")


def test_2_7_1_the_broker_keeps_to_our_channel_max(peer: Peer) -> None:
    """The broker would need a second channel to answer a second session."""
    peer.open(channel_max=0)
    peer.begin(0)
    peer.write(BEGIN, channel=1)
    peer.expect_close("amqp:not-allowed")


@pytest.mark.parametrize(
    "body",
    [
        sender("q"),
        Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1),
        Transfer(handle=0),
        Disposition(role=True, first=0),
        Detach(handle=0),
        End(),
    ],
    ids=lambda body: type(body).__name__,
)
def test_2_4_3_frames_on_a_channel_without_a_session_close(opened: Peer, body: object) -> None:
    opened.begin(1)
    opened.write(body, channel=2)
    opened.expect_close("amqp:not-allowed")


@pytest.mark.parametrize("body", [BEGIN, sender("q"), Transfer(handle=0), End()])
def test_2_4_1_nothing_comes_before_open(peer: Peer, body: object) -> None:
    peer.send(AMQP, frame(body))
    assert peer.header() == AMQP
    peer.expect(Open)
    peer.expect_close("amqp:not-allowed")


# --- close -----------------------------------------------------------------------------------------------


def test_2_4_3_close_is_answered_and_the_socket_ends(begun: Peer) -> None:
    begun.write(Close())
    assert begun.expect(Close).error is None
    begun.expect_end()


def test_2_4_3_close_with_an_error_is_answered_without_one(begun: Peer) -> None:
    error = AmqpError(condition=Symbol("amqp:internal-error"), description="of the test")
    begun.write(Close(error=error), channel=0)
    assert begun.expect(Close).error is None
    begun.expect_end()


def test_2_4_3_close_may_be_sent_on_any_channel(begun: Peer) -> None:
    begun.write(Close(), channel=200)
    begun.expect(Close)
    begun.expect_end()


def test_2_4_3_close_right_after_open(peer: Peer) -> None:
    peer.open()
    peer.write(Close())
    peer.expect(Close)
    peer.expect_end()


def test_the_error_of_a_close_has_an_info_which_some_clients_use_unchecked(begun: Peer) -> None:
    """Azure's for Python: without it a send that waits fails by an IndexError, and is not repeated."""
    begun.write(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1), channel=0)
    error = begun.expect(Close).error
    assert error is not None
    assert error.info == {}


def test_2_4_6_frames_after_the_brokers_close_are_discarded(begun: Peer) -> None:
    begun.send(frame(Open(container_id="again")), frame(sender("q")), frame(b"\xff"), EMPTY)
    begun.error_of(Close, "amqp:not-allowed")
    begun.send(frame(receiver("q")), frame(Close()))
    begun.expect_end()


def test_2_4_close_settles_nothing_and_gives_back_what_was_held(begun: Peer, queue: str) -> None:
    begun.put(queue, value("held"))
    begun.attach_receiver(queue)
    begun.flow(1)
    begun.delivery()
    begun.write(Close())
    begun.expect(Close)
    with Peer("{}:{}".format(*begun.socket.getpeername())) as other:
        other.open()
        other.begin()
        other.attach_receiver(queue)
        other.flow(1)
        assert other.delivery()[1].endswith(value("held"))


def test_2_4_7_messages_that_came_before_the_socket_broke_are_kept(begun: Peer, queue: str) -> None:
    """The socket just ends behind the transfers: what came whole is in the queue, and nothing else."""
    begun.attach_sender(queue)
    whole = transfers(0, [value(number) for number in range(10)], settled=True)
    begun.send(whole, transfers(0, [value("cut")], 10, settled=True)[:-3])
    address = "{}:{}".format(*begun.socket.getpeername())
    begun.socket.close()
    with Peer(address) as other:
        other.open()
        other.begin()
        other.attach_receiver(queue)
        other.flow(10)
        assert [other.delivery()[1] for _ in range(10)] == [value(number) for number in range(10)]
        other.flow(20, 10, drain=True)
        answer = other.expect(Flow)
        assert (answer.delivery_count, answer.link_credit) == (30, 0)
