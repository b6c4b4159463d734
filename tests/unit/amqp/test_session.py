"""Sessions: windows in both directions, ids that wrap, handles, dispositions, faults that end one."""

import pytest

from lightrail.amqp import events
from lightrail.amqp.errors import LocalError
from lightrail.amqp.link import Link
from lightrail.amqp.performatives import (
    Accepted,
    AmqpError,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Source,
    Target,
    Transfer,
)
from lightrail.amqp.unsettled import Unsettled, signed, unwrap
from lightrail.amqp.values import Symbol
from tests.unit.amqp.peer import Peer, amqp, conditions_of, data, opened, session_of, transfer

WRAP = 2**32


def attach(name: str = "in", handle: int = 0, **fields: object) -> Attach:
    return Attach(
        name=name,
        handle=handle,
        role=False,
        source=Source(),
        target=Target(address="q"),
        initial_delivery_count=0,
        **fields,  # type: ignore[arg-type]
    )


# --- serial numbers (RFC 1982) --------------------------------------------------------------------------


def test_a_wire_number_means_the_nearest_integer() -> None:
    assert unwrap(5, 3) == 5
    assert unwrap(0, WRAP - 1) == WRAP
    assert unwrap(WRAP - 1, WRAP + 3) == WRAP - 1
    assert unwrap(7, 5 * WRAP + 9) == 5 * WRAP + 7
    assert signed(3 - (WRAP - 2)) == 5
    assert signed((WRAP - 2) - 3) == -5


# --- begin and end (2.5) --------------------------------------------------------------------------------


def test_begin_is_answered_with_the_peers_channel() -> None:
    peer = Peer(session_incoming_window=77, handle_max=9)
    peer.open()
    (event,) = peer.say(
        Begin(next_outgoing_id=5, incoming_window=10, outgoing_window=20, handle_max=3), channel=7
    )
    assert isinstance(event, events.Begun)
    (answer,) = peer.hear()
    assert answer.remote_channel == 7
    assert (answer.incoming_window, answer.handle_max) == (77, 9)


def test_our_channels_are_the_lowest_free() -> None:
    peer = Peer()
    peer.open()
    assert [peer.begin(channel=channel).channel for channel in (9, 4, 7)] == [0, 1, 2]
    peer.say(End(), channel=4)
    peer.hear()
    assert peer.begin(channel=200).channel == 1


def test_end_is_answered_and_the_channel_is_free_again() -> None:
    peer = opened()
    link = peer.sender()
    error = AmqpError(condition=Symbol("amqp:internal-error"))
    (event,) = peer.say(End(error=error))
    assert isinstance(event, events.Ended)
    assert (event.error, event.by_peer) == (error, True)
    assert event.session.links == [link], "so that the caller can let go of them"
    assert peer.hear() == [End()]
    link.settle(0, 0)
    link.grant(5)
    link.detach()
    assert peer.hear() == [], "commands to what is gone do nothing"
    peer.begin()


def test_our_end_drops_what_comes_until_the_peers() -> None:
    peer = opened()
    link = peer.sender()
    link.session.end("amqp:internal-error", "sorry")
    assert conditions_of(peer.hear()) == [("end", "amqp:internal-error")]
    assert peer.say(transfer(0), data(b"x")) == []
    assert peer.say(transfer(1, handle=99), data(b"x")) == []
    assert peer.say(Detach(handle=44)) == []
    assert peer.say(End()) == []
    assert peer.hear() == []
    peer.begin()


def test_simultaneous_end_is_the_answer() -> None:
    peer = opened()
    session = peer.engine.sessions[0]
    session.end()
    assert peer.say(End(error=AmqpError(condition=Symbol("amqp:internal-error")))) == []
    assert peer.hear() == [End()]


def test_frames_after_the_peers_end_are_on_an_unknown_channel() -> None:
    peer = opened()
    peer.say(End())
    peer.hear()
    peer.say(Disposition(role=True, first=0, settled=True))
    assert conditions_of(peer.hear()) == [("close", "amqp:not-allowed")]


def test_credit_after_the_peers_end_is_ignored_until_the_channel_has_another_session() -> None:
    peer = opened()
    peer.say(End())
    peer.hear()
    assert peer.say(Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1)) == []
    assert peer.say(Detach(handle=0)) == []
    assert peer.hear() == []
    peer.begin()
    assert not peer.engine.ended


def test_close_within_a_session_that_we_ended_is_heard() -> None:
    peer = opened()
    peer.engine.sessions[0].end()
    (event,) = peer.say(Close())
    assert isinstance(event, events.Closed)


def test_remote_channel_of_nothing_is_not_allowed() -> None:
    peer = Peer()
    peer.open()
    peer.say(Begin(remote_channel=3, next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    assert conditions_of(peer.hear()) == [("close", "amqp:not-allowed")]


# --- handles (2.6.2, 2.7.3) -----------------------------------------------------------------------------


def test_a_handle_in_use_closes_with_handle_in_use() -> None:
    peer = opened()
    peer.sender("a", 0)
    peer.say(attach("b", 0))
    (close,) = peer.hear()
    assert isinstance(close, Close), "the specification says close, not end (2.7.3)"
    assert close.error is not None
    assert close.error.condition == "amqp:session:handle-in-use"


def test_a_handle_beyond_handle_max_closes_with_framing_error() -> None:
    peer = opened(handle_max=4)
    peer.sender("a", 4)
    peer.say(attach("b", 5))
    assert conditions_of(peer.hear()) == [("close", "amqp:connection:framing-error")]


@pytest.mark.parametrize(
    "body",
    [
        transfer(0, handle=3),
        Detach(handle=3),
        Flow(next_incoming_id=0, incoming_window=1, next_outgoing_id=0, outgoing_window=1, handle=3),
    ],
)
def test_a_handle_that_is_not_attached_ends_the_session(body: object) -> None:
    peer = opened()
    (event,) = peer.say(body)
    assert isinstance(event, events.Ended)
    assert not event.by_peer
    assert conditions_of(peer.hear()) == [("end", "amqp:session:unattached-handle")]


def test_handles_may_be_used_again_after_detach() -> None:
    peer = opened()
    peer.sender("a", 0)
    peer.say(Detach(handle=0, closed=True))
    assert peer.hear() == [Detach(handle=0, closed=True)]
    peer.sender("b", 0)


def test_more_links_than_the_peers_handle_max_lets_us_answer_end_the_session() -> None:
    peer = Peer()
    peer.open()
    peer.begin(handle_max=1)
    peer.sender("a", 0)
    peer.sender("b", 1)
    peer.say(attach("c", 2))
    assert conditions_of(peer.hear()) == [("end", "amqp:resource-limit-exceeded")]


def test_our_handles_are_the_lowest_free() -> None:
    peer = opened()
    for handle in range(4):
        peer.sender(f"l{handle}", handle * 10)
    peer.say(Detach(handle=10, closed=True))
    peer.hear()
    peer.say(attach("again", 99))
    peer.engine.sessions[0].inputs[99].accept()
    (answer,) = peer.hear()
    assert answer.handle in (1, 3), "one that is free"


# --- the incoming window (2.5.6) ------------------------------------------------------------------------


def test_transfers_beyond_the_incoming_window_are_a_window_violation() -> None:
    peer = opened(session_incoming_window=4)
    peer.sender()
    chunk = b"".join(amqp(transfer(number), data(b"x")) for number in range(5))
    *transfers, ended = peer.feed(chunk)
    assert sum(len(event.payloads) for event in transfers) == 4
    assert isinstance(ended, events.Ended)
    assert conditions_of(peer.hear()) == [("end", "amqp:session:window-violation")]


def test_the_window_opens_again_when_half_of_it_is_used() -> None:
    peer = opened(session_incoming_window=8)
    peer.sender()
    for number in range(3):
        peer.say(transfer(number), data(b"x"))
    assert peer.hear() == []
    peer.say(transfer(3), data(b"x"))
    (flow,) = peer.hear()
    assert (flow.next_incoming_id, flow.incoming_window, flow.handle) == (4, 8, None)
    for number in range(4, 100):
        peer.say(transfer(number), data(b"x"))
    assert not conditions_of(peer.hear())


def test_a_grant_opens_the_window_as_well() -> None:
    peer = opened(session_incoming_window=8)
    link = peer.sender()
    for number in range(3):
        peer.say(transfer(number), data(b"x"))
    link.grant(50)
    (flow,) = peer.hear()
    assert (flow.next_incoming_id, flow.incoming_window) == (3, 8)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (0, 3, 50)


def test_transfer_ids_wrap() -> None:
    peer = Peer(session_incoming_window=8)
    peer.open()
    peer.begin(next_outgoing_id=WRAP - 2)
    peer.sender()
    for number in range(4):
        peer.say(transfer(number), data(b"x"))
    (flow,) = peer.hear()
    assert flow.next_incoming_id == 2


def test_flow_sets_next_incoming_id_from_the_peers_next_outgoing_id() -> None:
    peer = opened()
    peer.say(Flow(next_incoming_id=0, incoming_window=1, next_outgoing_id=40, outgoing_window=1, echo=True))
    (flow,) = peer.hear()
    assert flow.next_incoming_id == 40


# --- the outgoing window --------------------------------------------------------------------------------


def test_not_one_transfer_leaves_beyond_the_peers_window() -> None:
    peer = Peer()
    peer.open()
    session = peer.begin(incoming_window=3)
    link = peer.receiver(credit=0)
    peer.credit(link, 100, incoming_window=3)
    peer.hear()
    for _ in range(10):
        link.send_one(data(b"x"))
    assert len(peer.hear()) == 3
    assert peer.window(session, 2) == []
    assert len(peer.hear()) == 2
    peer.window(session, 0)
    assert peer.hear() == []
    peer.window(session, 1000)
    sent = peer.hear()
    assert [body.delivery_id for body, _ in sent] == [5, 6, 7, 8, 9]


def test_what_is_in_flight_counts_against_the_window() -> None:
    peer = Peer()
    peer.open()
    session = peer.begin(incoming_window=5)
    link = peer.receiver(credit=0)
    peer.credit(link, 100, incoming_window=5)
    for _ in range(9):
        link.send_one(data(b"x"))
    peer.hear()
    # The peer has seen 2 of our 5 and has room for 4 more than those: 1 may still leave.
    peer.say(Flow(next_incoming_id=2, incoming_window=4, next_outgoing_id=0, outgoing_window=1))
    assert len(peer.hear()) == 1
    assert session.remote_incoming_window == 0


def test_a_window_that_shrinks_below_what_is_in_flight_is_shut() -> None:
    peer = Peer()
    peer.open()
    session = peer.begin(incoming_window=5)
    link = peer.receiver(credit=0)
    peer.credit(link, 100, incoming_window=5)
    for _ in range(9):
        link.send_one(data(b"x"))
    peer.hear()
    peer.say(Flow(next_incoming_id=0, incoming_window=2, next_outgoing_id=0, outgoing_window=1))
    assert peer.hear() == []
    assert session.remote_incoming_window == 0


def test_flow_without_next_incoming_id_counts_from_our_first() -> None:
    peer = Peer(initial_outgoing_id=WRAP - 2)
    peer.open()
    session = peer.begin(incoming_window=2)
    link = peer.receiver(credit=0)
    peer.say(
        Flow(
            incoming_window=4,
            next_outgoing_id=0,
            outgoing_window=1,
            handle=1,
            delivery_count=0,
            link_credit=100,
        )
    )
    for _ in range(9):
        link.send_one(data(b"x"))
    assert len(peer.hear()) == 4
    assert session.next_outgoing_id == WRAP + 2


def test_outgoing_transfer_ids_and_delivery_ids_wrap() -> None:
    peer = Peer(initial_outgoing_id=WRAP - 3, initial_delivery_id=WRAP - 3)
    peer.open()
    session = peer.begin()
    link = peer.receiver(credit=0)
    peer.credit(link, 100, incoming_window=4)
    peer.hear()
    body = data(b"x")
    link.send(8, [len(body) * (index + 1) for index in range(8)], body * 8)
    sent = peer.hear()
    assert [each.delivery_id for each, _ in sent] == [WRAP - 3, WRAP - 2, WRAP - 1, 0]
    assert [each.delivery_tag for each, _ in sent][2:] == [b"\xff\xff\xff\xff", b"\0\0\0\0"]
    peer.window(session, 100)
    assert [each.delivery_id for each, _ in peer.hear()] == [1, 2, 3, 4]
    (outcome,) = peer.say(Disposition(role=True, first=WRAP - 3, last=4, settled=True, state=Accepted()))
    assert outcome == events.Outcome(link, 0, 7, events.ACCEPTED, True)


def test_links_take_turns_when_the_window_is_short() -> None:
    peer = Peer()
    peer.open()
    session = peer.begin(incoming_window=0)
    links = [peer.receiver(f"r{handle}", handle, credit=0) for handle in range(3)]
    for link in links:
        peer.credit(link, 10, incoming_window=0)
        for _ in range(4):
            link.send_one(data(link.name.encode()))
    peer.hear()
    got = []
    for _ in range(6):
        peer.window(session, 2)
        got += [body.handle for body, _ in peer.hear()]
    assert sorted(got) == sorted([0, 1, 2] * 4)
    assert len(set(got[:6])) == 3


# --- flow for the session -------------------------------------------------------------------------------


def test_echo_for_the_session_is_answered_with_its_state() -> None:
    peer = opened(session_incoming_window=50)
    assert (
        peer.say(
            Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=1, echo=True)
        )
        == []
    )
    (flow,) = peer.hear()
    assert (flow.incoming_window, flow.handle, flow.echo) == (50, None, False)


@pytest.mark.parametrize("field", ["delivery_count", "link_credit", "available", "drain"])
def test_the_state_of_a_link_without_a_handle_is_passed_over(field: str) -> None:
    peer = opened()
    link = peer.receiver(credit=3)
    flow = Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=1, echo=True)
    setattr(flow, field, field == "drain" or 4)
    assert peer.say(flow) == []
    (answer,) = peer.hear()
    assert (answer.handle, link.credit, link.session.remote_incoming_window) == (None, 3, 9)


def test_flow_with_properties_goes_through_the_complete_decoder() -> None:
    peer = opened()
    link = peer.receiver(credit=0)
    (event,) = peer.credit(link, 7, properties={Symbol("a"): 1})
    assert event == events.Credit(link, 7)


# --- delivery-ids ---------------------------------------------------------------------------------------


def test_a_delivery_id_that_was_used_ends_the_session() -> None:
    peer = opened()
    peer.sender()
    peer.say(transfer(10), data(b"x"))
    *_, event = peer.say(transfer(10), data(b"x"))
    assert isinstance(event, events.Ended)
    assert conditions_of(peer.hear()) == [("end", "amqp:invalid-field")]


def test_delivery_ids_wrap_and_events_go_on_counting() -> None:
    peer = opened()
    link = peer.sender()
    first = WRAP - 30
    found = peer.feed(b"".join(amqp(transfer(first + number), data(b"x")) for number in range(60)))
    numbers = [event.first_delivery_id + index for event in found for index in range(len(event.payloads))]
    assert numbers == list(range(first, first + 60))
    link.settle(first, first + 59)
    (disposition,) = peer.hear()
    assert (disposition.first, disposition.last) == (WRAP - 30, 29)
    assert session_of(link).incoming.count() == 0


def test_a_gap_in_delivery_ids_is_let_through() -> None:
    peer = opened()
    peer.sender()
    peer.say(transfer(1), data(b"x"))
    (event,) = peer.say(transfer(5), data(b"x"))
    assert event.first_delivery_id == 5


# --- dispositions ---------------------------------------------------------------------------------------


def test_a_disposition_over_several_links_is_told_link_by_link() -> None:
    peer = opened()
    left = peer.receiver("l", 1)
    right = peer.receiver("r", 2)
    for link in (left, left, right, left, right, right):
        link.send_one(data(b"x"))
    found = peer.say(Disposition(role=True, first=1, last=4, settled=True, state=Accepted()))
    assert found == [
        events.Outcome(left, 1, 1, events.ACCEPTED, True),
        events.Outcome(right, 0, 0, events.ACCEPTED, True),
        events.Outcome(left, 2, 2, events.ACCEPTED, True),
        events.Outcome(right, 1, 1, events.ACCEPTED, True),
    ]
    assert peer.say(Disposition(role=True, first=0, last=5, settled=True, state=Accepted())) == [
        events.Outcome(left, 0, 0, events.ACCEPTED, True),
        events.Outcome(right, 2, 2, events.ACCEPTED, True),
    ]


def test_settled_once_is_settled() -> None:
    peer = opened()
    link = peer.receiver()
    link.send_one(data(b"x"))
    assert len(peer.say(Disposition(role=True, first=0, settled=True, state=Accepted()))) == 1
    assert peer.say(Disposition(role=True, first=0, settled=True, state=Accepted())) == []
    assert peer.say(Disposition(role=True, first=500, last=600, settled=True, state=Accepted())) == []


def test_single_dispositions_in_a_row_are_one_outcome() -> None:
    peer = opened()
    link = peer.receiver()
    for _ in range(50):
        link.send_one(data(b"x"))
    chunk = b"".join(
        amqp(Disposition(role=True, first=number, settled=True, state=Accepted())) for number in range(50)
    )
    assert peer.feed(chunk) == [events.Outcome(link, 0, 49, events.ACCEPTED, True)]


def test_last_before_first_is_an_invalid_field() -> None:
    peer = opened()
    peer.say(Disposition(role=True, first=5, last=4, settled=True))
    assert conditions_of(peer.hear()) == [("end", "amqp:invalid-field")]


def test_unsettled_is_kept_as_ranges() -> None:
    peer = opened()
    link = peer.receiver(credit=10_000)
    body = data(b"x")
    for _ in range(10):
        link.send(100, [len(body) * (index + 1) for index in range(100)], body * 100)
    assert len(session_of(link).outgoing.ranges) == 1
    peer.say(Disposition(role=True, first=0, last=99, settled=True, state=Accepted()))
    assert len(session_of(link).outgoing.ranges) == 1
    peer.say(Disposition(role=True, first=500, last=599, settled=True, state=Accepted()))
    assert len(session_of(link).outgoing.ranges) == 2
    assert session_of(link).outgoing.count() == 800


def test_ranges_agree_with_a_set_of_numbers() -> None:
    import random

    seeded = random.Random(1)
    link = opened().sender()
    ranges: Unsettled[Link] = Unsettled()
    numbers: set[int] = set()
    following = 0
    for _ in range(2000):
        if seeded.random() < 0.5:
            first = following + seeded.randrange(3)
            last = first + seeded.randrange(6)
            following = last + 1
            ranges.add(link, first, last)
            numbers.update(range(first, last + 1))
        else:
            first = seeded.randrange(max(0, following - 60), following + 2)
            last = first + seeded.randrange(12)
            taken = ranges.take(first, last)
            got = [number for each in taken for number in range(each.first, each.last + 1)]
            assert got == sorted(numbers & set(range(first, last + 1)))
            numbers -= set(got)
        held = [number for each in ranges.ranges for number in range(each.first, each.last + 1)]
        assert held == sorted(numbers)


# --- faults end one session only ------------------------------------------------------------------------


def test_a_fault_of_one_session_leaves_the_others() -> None:
    peer = Peer()
    peer.open()
    peer.begin(channel=0)
    peer.begin(channel=1)
    link = peer.sender("a", channel=1)
    peer.say(Detach(handle=50), channel=0)
    assert conditions_of(peer.hear()) == [("end", "amqp:session:unattached-handle")]
    (event,) = peer.say(transfer(0), data(b"x"), channel=1)
    assert event.link is link


def test_local_misuse_raises() -> None:
    peer = opened()
    session = peer.engine.sessions[0]
    session.attach("a", True)
    with pytest.raises(LocalError):
        session.attach("a", True)
    session.end()
    with pytest.raises(LocalError):
        session.attach("b", True)


def test_continuation_on_a_link_that_never_was() -> None:
    peer = opened()
    peer.say(Transfer(handle=7), b"x")
    assert conditions_of(peer.hear()) == [("end", "amqp:session:unattached-handle")]


# --- an end that the caller answers -------------------------------------------------------------------------


def test_an_end_that_waits_for_the_caller_is_answered_once() -> None:
    peer = Peer()
    peer.open()
    session = peer.begin()
    session.answers_end = True
    (ended,) = peer.say(End())
    assert isinstance(ended, events.Ended)
    session.end()
    assert peer.hear() == [], "it has ended"
    assert peer.begin().channel != session.channel, "our channel is not free before our end"
    session.answer_end()
    session.answer_end()
    assert [type(body) for body in peer.hear()] == [End]
    assert peer.begin(1).channel == session.channel


def test_an_end_that_waits_is_answered_before_a_close() -> None:
    peer = Peer()
    peer.open()
    session = peer.begin()
    session.answers_end = True
    peer.say(End())
    peer.say(Close())
    assert [type(body) for body in peer.hear()] == [End, Close]
    session.answer_end()
    assert peer.hear() == []
