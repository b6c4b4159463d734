"""Sessions (transport 2.5, 2.7.2, 2.7.8): begin, end, channels, windows, delivery-ids."""

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
    Transfer,
)
from lightrail.amqp.values import Symbol
from tests.support.amqp.frame_peer import Peer, frame, receiver, sender, transfers, value

BEGIN = Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)


# --- begin and end ---------------------------------------------------------------------------------------


def test_2_5_1_begin_is_answered_with_our_channel(opened: Peer) -> None:
    answer = opened.begin(7)
    assert answer.remote_channel == 7
    assert answer.incoming_window > 0
    assert answer.outgoing_window > 0
    assert answer.handle_max > 0


def test_2_5_1_sessions_have_channels_of_their_own(opened: Peer) -> None:
    for channel in (3, 1, 2):
        opened.write(BEGIN, channel=channel)
    found = [opened.read() for _ in range(3)]
    assert [each.body.remote_channel for each in found] == [3, 1, 2]
    assert len({each.channel for each in found}) == 3


def test_2_5_1_begin_on_a_channel_in_use_closes(begun: Peer) -> None:
    begun.write(BEGIN)
    begun.expect_close("amqp:not-allowed")


def test_2_7_2_remote_channel_of_no_session_closes(opened: Peer) -> None:
    opened.write(Begin(remote_channel=5, next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    opened.expect_close("amqp:not-allowed")


def test_2_5_2_end_is_answered_and_the_channel_is_free(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue)
    begun.write(End())
    assert begun.expect(End).error is None
    begun.begin()
    begun.attach_sender(queue)


def test_2_5_2_end_with_an_error_is_answered_without_one(begun: Peer) -> None:
    begun.write(End(error=AmqpError(condition=Symbol("amqp:internal-error"))))
    assert begun.expect(End).error is None
    begun.begin()


def test_2_5_2_end_detaches_links_and_gives_back_what_they_held(opened: Peer, queue: str) -> None:
    opened.begin(0)
    opened.begin(1)
    opened.put(queue, value("held"))
    opened.attach_receiver(queue, channel=0)
    opened.flow(1)
    opened.delivery()
    opened.attach_receiver(queue, channel=1, name="other")
    opened.flow(1, channel=1)
    opened.write(End(), channel=0)
    assert opened.expect(End).error is None
    _, message = opened.delivery()
    assert message.endswith(value("held"))


def test_2_5_2_credit_of_an_ended_session_is_ignored(begun: Peer, queue: str) -> None:
    """rhea writes it; no other frame is expected on the channel (ADR 51)."""
    begun.attach_receiver(queue)
    flow = Flow(
        next_incoming_id=0, incoming_window=1, next_outgoing_id=0, outgoing_window=1, handle=0, link_credit=1
    )
    begun.send(frame(End()), frame(flow), frame(Detach(handle=0, closed=True)))
    assert begun.expect(End).error is None
    begun.begin()
    begun.attach_receiver(queue)
    begun.send(frame(End()), frame(Transfer(handle=0, delivery_id=0, delivery_tag=b"0")))
    begun.expect(End)
    begun.expect_close("amqp:not-allowed")


@pytest.mark.parametrize(
    "body", [Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1), Detach(handle=0)]
)
def test_2_5_1_a_frame_on_a_channel_that_never_had_a_session_closes(begun: Peer, body: object) -> None:
    begun.write(body, channel=1)
    begun.expect_close("amqp:not-allowed")


def test_2_5_4_after_the_brokers_end_everything_is_discarded(begun: Peer) -> None:
    begun.send(frame(Detach(handle=9)), frame(sender("q")), frame(Transfer(handle=77)))
    begun.error_of(End, "amqp:session:unattached-handle")
    begun.send(frame(receiver("q")), frame(End()))
    begun.begin()


# --- handles ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        Transfer(handle=5, delivery_id=0, delivery_tag=b"0"),
        Flow(
            next_incoming_id=0,
            incoming_window=1,
            next_outgoing_id=0,
            outgoing_window=1,
            handle=5,
            link_credit=1,
        ),
        Detach(handle=5),
    ],
    ids=lambda body: type(body).__name__,
)
def test_2_8_17_an_unattached_handle_ends_the_session(begun: Peer, queue: str, body: object) -> None:
    begun.attach_sender(queue)
    begun.write(body)
    begun.expect_session_end("amqp:session:unattached-handle")


def test_2_7_3_a_handle_in_use_closes_the_connection(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue, handle=4)
    begun.write(receiver(queue, handle=4))
    begun.expect_close("amqp:session:handle-in-use")


def test_2_7_2_a_handle_beyond_handle_max_closes_the_connection(opened: Peer, queue: str) -> None:
    highest = opened.begin().handle_max
    opened.attach_receiver(queue, handle=highest)
    opened.write(receiver(queue, handle=highest + 1))
    opened.expect_close("amqp:connection:framing-error")


def test_2_7_2_the_broker_keeps_to_our_handle_max(opened: Peer, queue: str) -> None:
    """With handle-max 0 the broker has no handle for a second link, and may not use one."""
    opened.begin(handle_max=0)
    opened.attach_receiver(queue)
    opened.write(receiver(queue, handle=1))
    found = opened.read().body
    assert type(found) in (End, Close)
    assert found.error.condition in (
        "amqp:not-allowed",
        "amqp:resource-limit-exceeded",
        "amqp:connection:framing-error",
    )


# --- windows ---------------------------------------------------------------------------------------------


def test_2_5_6_echo_is_answered_with_the_state_of_the_session(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue)
    begun.send(transfers(0, [value(number) for number in range(3)]))
    left = 3
    while left:
        found = begun.expect(Disposition)
        left -= (found.first if found.last is None else found.last) - found.first + 1
    answer = begun.nothing_before_echo(next_outgoing_id=3)
    assert answer.next_incoming_id == 3
    assert answer.next_outgoing_id == 0
    assert (answer.link_credit, answer.delivery_count, answer.drain, answer.echo) == (
        None,
        None,
        False,
        False,
    )


def test_2_7_4_link_state_without_a_handle_is_passed_over(begun: Peer) -> None:
    begun.write(
        Flow(next_incoming_id=0, incoming_window=1, next_outgoing_id=0, outgoing_window=1, link_credit=5)
    )
    assert begun.nothing_before_echo().handle is None


def test_2_5_6_not_one_transfer_beyond_our_incoming_window(opened: Peer, queue: str) -> None:
    opened.begin(incoming_window=3)
    opened.put(queue, *(value(number) for number in range(8)))
    opened.attach_receiver(queue)
    opened.flow(100, incoming_window=3)
    assert [opened.delivery()[1] for _ in range(3)] == [value(number) for number in range(3)]
    # Echo: the broker stands at 3 transfers, none of the other five has left.
    opened.write(
        Flow(next_incoming_id=3, incoming_window=0, next_outgoing_id=0, outgoing_window=0, echo=True)
    )
    assert opened.expect(Flow).next_outgoing_id == 3
    opened.flow(100, next_incoming_id=3, incoming_window=2)
    assert [opened.delivery()[1] for _ in range(2)] == [value(number) for number in (3, 4)]
    opened.flow(100, next_incoming_id=5, incoming_window=100)
    assert [opened.delivery()[1] for _ in range(3)] == [value(number) for number in (5, 6, 7)]


def test_2_5_6_the_window_counts_frames_of_large_messages(peer: Peer, queue: str) -> None:
    peer.open(max_frame_size=512)
    peer.begin(incoming_window=1)
    message = value(b"x" * 1_200)
    peer.put(queue, message)
    peer.attach_receiver(queue)
    peer.flow(1, incoming_window=1)
    arrived = b""
    for number in range(1, 4):
        found = peer.read()
        arrived += found.payload
        assert found.body.more is (number < 3)
        peer.write(
            Flow(next_incoming_id=number, incoming_window=1, next_outgoing_id=0, outgoing_window=0, echo=True)
        )
        assert peer.expect(Flow).next_outgoing_id == number
    assert arrived == message


def test_2_5_6_our_initial_window_is_zero(opened: Peer, queue: str) -> None:
    opened.begin(incoming_window=0)
    opened.put(queue, value("one"))
    opened.attach_receiver(queue)
    opened.flow(1, incoming_window=0)
    opened.write(
        Flow(next_incoming_id=0, incoming_window=0, next_outgoing_id=0, outgoing_window=0, echo=True)
    )
    assert opened.expect(Flow).next_outgoing_id == 0
    opened.flow(1, incoming_window=1)
    assert opened.delivery()[1] == value("one")


def test_2_5_6_the_brokers_window_opens_again(begun: Peer, queue: str) -> None:
    """More transfers than the first window, for which the broker gives credit as it goes."""
    credit = begun.attach_sender(queue).link_credit
    assert credit is not None
    sent, settled, target = 0, 0, 20_000
    while settled < target:
        count = min(credit - sent, target - sent)
        if count > 0:
            begun.send(transfers(0, [value("x")] * count, sent))
            sent += count
        found = begun.read().body
        if type(found) is Flow:
            if found.handle is not None:
                assert found.delivery_count is not None
                assert found.link_credit is not None
                credit = found.delivery_count + found.link_credit
        else:
            settled = (found.first if found.last is None else found.last) + 1


# --- delivery-ids, serial numbers ------------------------------------------------------------------------


def test_2_8_10_transfer_numbers_and_delivery_ids_wrap_around(opened: Peer, queue: str) -> None:
    first = 0xFFFFFFFE
    opened.begin(next_outgoing_id=first)
    opened.attach_sender(queue)
    ids = [first, first + 1, 0, 1]
    for number in ids:
        opened.write(Transfer(handle=0, delivery_id=number, delivery_tag=b"%d" % number), value(number))
    done: list[int] = []
    while len(done) < 4:
        found = opened.expect(Disposition)
        last = found.first if found.last is None else found.last
        number = found.first
        done.append(number)
        while number != last:
            number = (number + 1) & 0xFFFFFFFF
            done.append(number)
    assert done == ids
    assert opened.nothing_before_echo(next_outgoing_id=2).next_incoming_id == 2


def test_2_6_12_a_delivery_id_may_not_come_again(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue)
    begun.send(transfers(0, [value(1)], 5), transfers(0, [value(2)], 5))
    begun.error_of(End, "amqp:invalid-field")


def test_2_5_6_an_unknown_next_incoming_id_starts_at_the_first(opened: Peer, queue: str) -> None:
    """A flow before the broker's begin is known carries no next-incoming-id (2.7.4)."""
    opened.put(queue, value(1))
    flow = Flow(incoming_window=5, next_outgoing_id=0, outgoing_window=5, handle=0, link_credit=1)
    opened.send(frame(BEGIN), frame(receiver(queue)), frame(flow))
    opened.expect(Begin)
    opened.expect(Attach)
    assert opened.delivery()[1] == value(1)
