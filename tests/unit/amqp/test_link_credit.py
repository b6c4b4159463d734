"""Credit of links in both directions, drain and echo."""

import pytest

from lightrail.amqp import events
from lightrail.amqp.errors import LocalError
from lightrail.amqp.performatives import Attach, Flow, Source, Target
from tests.unit.amqp.peer import WINDOW, WRAP, amqp, attach_sender, conditions_of, data, opened, transfer

# --- credit, incoming (2.6.7) ---------------------------------------------------------------------------


def test_grant_sets_the_credit_and_does_not_add_to_it() -> None:
    peer = opened()
    link = peer.sender(credit=10)
    for number in range(4):
        peer.say(transfer(number), data(b"x"))
    assert (link.delivery_count, link.credit) == (4, 6)
    link.grant(10)
    (flow,) = peer.hear()
    assert (flow.delivery_count, flow.link_credit) == (4, 10)
    assert link.credit == 10


def test_more_than_the_granted_credit_is_transfer_limit_exceeded() -> None:
    peer = opened()
    link = peer.sender(credit=3)
    found = peer.feed(b"".join(amqp(transfer(number), data(b"x")) for number in range(4)))
    assert sum(len(event.payloads) for event in found[:-1]) == 3
    assert found[-1].link is link
    assert not found[-1].by_peer
    (detach,) = peer.hear()
    assert detach.closed is True
    assert detach.error.condition == "amqp:link:transfer-limit-exceeded"


def test_so_many_more_as_the_settings_bear_arrive_and_then_it_is_transfer_limit_exceeded() -> None:
    peer = opened(beyond_credit_max=2)
    link = peer.sender(credit=3)
    found = peer.feed(b"".join(amqp(transfer(number), data(b"x")) for number in range(5)))
    assert sum(len(event.payloads) for event in found) == 5
    assert (link.delivery_count, link.credit) == (5, 0)
    link.grant(1)
    peer.hear()
    peer.say(transfer(5), data(b"x"))
    assert peer.hear() == []
    for number in (6, 7, 8):
        peer.say(transfer(number), data(b"x"))
    assert conditions_of(peer.hear()) == [("detach", "amqp:link:transfer-limit-exceeded")]


def test_transfers_before_any_credit_are_refused_with_an_attach_first() -> None:
    peer = opened()
    peer.say(attach_sender())
    peer.say(transfer(0), data(b"x"))
    attach, detach = peer.hear()
    assert isinstance(attach, Attach)
    assert detach.error.condition == "amqp:link:transfer-limit-exceeded"


def test_credit_that_was_taken_back_may_still_be_used_by_what_is_in_flight() -> None:
    peer = opened()
    link = peer.sender(credit=5)
    link.grant(0)
    found = peer.feed(b"".join(amqp(transfer(number), data(b"x")) for number in range(5)))
    assert sum(len(event.payloads) for event in found) == 5
    peer.hear()
    peer.say(transfer(5), data(b"x"))
    assert conditions_of(peer.hear()) == [("detach", "amqp:link:transfer-limit-exceeded")]


def test_a_sender_that_drains_moves_the_delivery_count() -> None:
    peer = opened()
    link = peer.sender(credit=10)
    peer.say(transfer(0), data(b"x"))
    peer.say(
        Flow(
            next_incoming_id=0,
            incoming_window=9,
            next_outgoing_id=1,
            outgoing_window=9,
            handle=0,
            delivery_count=10,
            link_credit=0,
            available=4,
            drain=True,
        )
    )
    assert (link.delivery_count, link.credit, link.available) == (10, 0, 4)
    peer.say(transfer(1), data(b"x"))
    assert conditions_of(peer.hear()) == [("detach", "amqp:link:transfer-limit-exceeded")]


def test_the_delivery_count_of_a_sender_wraps() -> None:
    peer = opened()
    link = peer.sender(credit=4, initial_delivery_count=WRAP - 2)
    for number in range(4):
        peer.say(transfer(number), data(b"x"))
    link.grant(4)
    (flow,) = peer.hear()
    assert flow.delivery_count == 2
    peer.say(
        Flow(
            next_incoming_id=0,
            incoming_window=9,
            next_outgoing_id=4,
            outgoing_window=9,
            handle=0,
            delivery_count=3,
            link_credit=3,
        )
    )
    assert link.credit == 3


def test_echo_on_an_incoming_link_is_answered_with_its_state() -> None:
    peer = opened()
    peer.sender(credit=10)
    peer.say(
        Flow(
            next_incoming_id=0,
            incoming_window=9,
            next_outgoing_id=0,
            outgoing_window=9,
            handle=0,
            delivery_count=0,
            link_credit=10,
            echo=True,
        )
    )
    (flow,) = peer.hear()
    assert (flow.handle, flow.link_credit, flow.delivery_count) == (0, 10, 0)


# --- credit, outgoing -----------------------------------------------------------------------------------


def test_credit_is_told_as_the_number_below_which_may_be_sent() -> None:
    peer = opened()
    link = peer.receiver(credit=0)
    assert peer.credit(link, 10) == [events.Credit(link, 10)]
    for _ in range(4):
        link.send_one(data(b"x"))
    assert peer.credit(link, 10) == [events.Credit(link, 14)]
    assert peer.credit(link, 10, delivery_count=1) == [events.Credit(link, 11)], "three are in flight"
    assert peer.credit(link, 1, delivery_count=1) == [events.Credit(link, 4)]
    assert link.limit == 4


def test_credit_without_delivery_count_counts_from_the_initial_one() -> None:
    peer = opened(initial_delivery_count=WRAP - 3)
    link = peer.receiver(credit=0)
    (event,) = peer.say(
        Flow(
            next_incoming_id=0,
            incoming_window=WINDOW,
            next_outgoing_id=0,
            outgoing_window=1,
            handle=1,
            link_credit=7,
        )
    )
    assert event.limit == 7
    for _ in range(5):
        link.send_one(data(b"x"))
    assert link.delivery_count == WRAP + 2
    assert peer.credit(link, 7) == [events.Credit(link, 12)], "across the wrap"


def test_sending_beyond_the_credit_is_a_local_error() -> None:
    peer = opened()
    link = peer.receiver(credit=2)
    link.send_one(data(b"x"))
    with pytest.raises(LocalError, match="may send deliveries below 2"):
        link.send(2, [5, 10], b"x" * 10)


def test_what_exceeds_credit_that_was_taken_back_waits_for_it() -> None:
    peer = opened()
    link = peer.receiver(credit=5)
    peer.credit(link, 1)
    for _ in range(3):
        link.send_one(data(b"x"))
    assert len(peer.hear()) == 1
    peer.credit(link, 5)
    assert len(peer.hear()) == 2


def test_echo_on_an_outgoing_link_is_answered_with_its_state() -> None:
    peer = opened()
    link = peer.receiver(credit=5)
    link.available = 12
    (event,) = peer.credit(link, 9, echo=True)
    assert event == events.Credit(link, 9, False, True)
    (flow,) = peer.hear()
    assert (flow.handle, flow.delivery_count, flow.link_credit, flow.available) == (0, 0, 9, 12)


def test_how_many_messages_wait_is_not_claimed_where_it_is_not_known() -> None:
    peer = opened()
    link = peer.receiver(credit=5)
    peer.credit(link, 9, echo=True)
    assert [flow.available for flow in peer.hear()] == [None]
    peer.credit(link, 9, drain=True)
    link.drained()
    assert [flow.available for flow in peer.hear()] == [0]
    peer.credit(link, 0, echo=True)
    assert [flow.available for flow in peer.hear()] == [None]


def test_drain_uses_up_the_credit_after_what_there_is() -> None:
    peer = opened()
    link = peer.receiver(credit=0)
    assert peer.credit(link, 10, drain=True) == [events.Credit(link, 10, True)]
    link.send_one(data(b"x"))
    link.drained()
    sent, flow = peer.hear()
    assert isinstance(sent, tuple)
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (10, 0, True)
    with pytest.raises(LocalError):
        link.send_one(data(b"x"))
    assert peer.credit(link, 5, delivery_count=10) == [events.Credit(link, 6)]
    link.drained()
    assert peer.hear() == [], "no longer asked for"


def test_drain_waits_for_the_window() -> None:
    peer = opened()
    link = peer.receiver(credit=0)
    peer.credit(link, 10, drain=True, incoming_window=1)
    link.send_one(data(b"x"))
    link.send_one(data(b"x"))
    link.drained()
    assert len(peer.hear()) == 1
    peer.window(link.session, 5)
    sent, flow = peer.hear()
    assert isinstance(sent, tuple)
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (10, 0, True)


def test_the_answer_to_a_former_drain_is_not_taken_for_that_of_a_new_one() -> None:
    peer = opened()
    link = peer.receiver(credit=0)
    peer.credit(link, 10, drain=True, incoming_window=1)
    link.send_one(data(b"x"))
    link.send_one(data(b"x"))
    link.drained()
    peer.hear()
    peer.credit(link, 20, delivery_count=1, drain=True, incoming_window=0)
    peer.window(link.session, 5)
    (sent,) = peer.hear()
    assert isinstance(sent, tuple), "no flow yet: there may be more to send for the new credit"
    link.drained()
    (flow,) = peer.hear()
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (21, 0, True)


def test_credit_may_come_before_the_link_is_accepted() -> None:
    peer = opened()
    (attached,) = peer.say(
        Attach(name="out", handle=1, role=True, source=Source(address="q"), target=Target())
    )
    link = attached.link
    assert peer.credit(link, 3) == [events.Credit(link, 3)]
    assert peer.hear() == []
    link.accept()
    link.send_one(data(b"x"))
    attach, sent = peer.hear()
    assert isinstance(attach, Attach)
    assert sent[0].delivery_id == 0


def test_a_receiver_that_claims_to_have_seen_more_than_was_sent_gets_no_more_than_its_credit() -> None:
    peer = opened()
    link = peer.receiver(credit=0)
    (event,) = peer.credit(link, WRAP - 1, delivery_count=1, echo=True)
    assert event.limit == WRAP - 1
    (flow,) = peer.hear()
    assert flow.link_credit == WRAP - 1
