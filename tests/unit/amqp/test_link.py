"""Links: attach and detach, credit and drain, deliveries of one and many frames, settlement in every mode."""

from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.faults import LocalError
from lightrail.amqp.link import DETACHED
from lightrail.amqp.performatives import (
    Accepted,
    AmqpError,
    Attach,
    Coordinator,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from lightrail.amqp.values import Symbol

from .peer import WINDOW, Peer, amqp, conditions_of, data, opened, transfer

WRAP = 2**32


def attach_sender(name: str = "in", handle: int = 0, **fields: Any) -> Attach:
    fields.setdefault("initial_delivery_count", 0)
    return Attach(name=name, handle=handle, role=False, source=Source(), target=Target(address="q"), **fields)


# --- attach (2.6.3) -------------------------------------------------------------------------------------


def test_attach_is_told_with_every_field_and_echoed_by_accept() -> None:
    peer = opened(max_message_size=5000)
    source = Source(address="q", distribution_mode=Symbol("copy"), filter={Symbol("f"): 1}, timeout=9)
    target = Target(address="here", capabilities=[Symbol("queue")])
    attach = Attach(
        name="out",
        handle=3,
        role=True,
        snd_settle_mode=1,
        rcv_settle_mode=1,
        source=source,
        target=target,
        max_message_size=77,
        properties={Symbol("p"): "v"},
        desired_capabilities=[Symbol("d")],
    )
    (event,) = peer.say(attach)
    link = event.link
    assert (link.name, link.handle, link.is_sender) == ("out", 3, True)
    assert (link.snd_settle_mode, link.rcv_settle_mode, link.peer_max_message_size) == (1, 1, 77)
    assert link.source.filter == {Symbol("f"): 1}
    assert (link.target.capabilities, link.properties) == ([Symbol("queue")], {Symbol("p"): "v"})
    assert link.attach.desired_capabilities == [Symbol("d")]
    assert peer.hear() == [], "the caller answers, when it likes"
    link.source.filter = None
    link.accept(properties={Symbol("ours"): True}, offered_capabilities=[Symbol("o")])
    (answer,) = peer.hear()
    assert (answer.name, answer.role, answer.handle) == ("out", False, 0)
    assert (answer.snd_settle_mode, answer.rcv_settle_mode) == (1, 1)
    assert (answer.source.address, answer.source.distribution_mode, answer.source.filter) == (
        "q",
        "copy",
        None,
    )
    assert answer.target.address == "here"
    assert (answer.initial_delivery_count, answer.max_message_size) == (0, 5000)
    assert (answer.properties, answer.offered_capabilities) == ({Symbol("ours"): True}, [Symbol("o")])


@pytest.mark.parametrize("role", [False, True])
def test_refusal_is_an_attach_without_our_terminus_and_a_closing_detach(role: bool) -> None:
    peer = opened()
    attach = attach_sender()
    attach.role = role
    (event,) = peer.say(attach)
    event.link.refuse("amqp:not-found", "no such queue")
    answer, detach = peer.hear()
    assert (answer.source is None) is role
    assert (answer.target is None) is not role
    assert detach == Detach(
        handle=0,
        closed=True,
        error=AmqpError(condition=Symbol("amqp:not-found"), description="no such queue"),
    )
    assert peer.say(Detach(handle=0, closed=True)) == []
    assert event.link.state == DETACHED


def test_coordinators_unsettled_maps_and_dynamic_nodes_are_shown_to_the_caller() -> None:
    peer = opened()
    (event,) = peer.say(
        Attach(
            name="t",
            handle=0,
            role=False,
            source=Source(),
            target=Coordinator(capabilities=[Symbol("amqp:local-transactions")]),
            initial_delivery_count=0,
        )
    )
    assert isinstance(event.link.target, Coordinator)
    event.link.refuse("amqp:not-implemented", "no transactions yet")
    peer.hear()
    (event,) = peer.say(attach_sender("r", 1, unsettled={b"tag": Accepted()}))
    assert event.link.attach.unsettled == {b"tag": Accepted()}
    (event,) = peer.say(Attach(name="d", handle=2, role=True, source=Source(dynamic=True), target=Target()))
    assert event.link.source.dynamic is True


def test_a_sender_must_say_its_initial_delivery_count() -> None:
    peer = opened()
    (event,) = peer.say(attach_sender(initial_delivery_count=None))
    assert isinstance(event, events.Detached)
    assert conditions_of(peer.hear()) == [("detach", "amqp:invalid-field")]


def test_an_attach_too_large_for_the_peers_frames_ends_the_session() -> None:
    peer = Peer()
    peer.open(max_frame_size=512)
    peer.begin()
    (event,) = peer.say(attach_sender())
    event.link.accept(properties={Symbol("p"): "x" * 600})
    assert conditions_of(peer.hear()) == [("end", "amqp:frame-size-too-small")]


def test_a_long_description_is_cut_to_fit_a_frame() -> None:
    peer = Peer()
    peer.open(max_frame_size=512)
    peer.begin()
    (event,) = peer.say(attach_sender())
    event.link.refuse("amqp:not-found", "ü" * 1000)
    assert all(len(piece) <= 512 for piece in peer.engine.output)
    peer.hear()


def test_a_link_is_stolen_by_its_name() -> None:
    peer = Peer()
    peer.open()
    peer.begin(channel=0)
    peer.begin(channel=1)
    first = peer.sender("same", 0, channel=0)
    same, attached = peer.say(attach_sender("same", 5), channel=1)
    assert (same.link, same.by_peer, same.closed) == (first, False, True)
    assert isinstance(attached, events.Attached)
    assert conditions_of(peer.hear()) == [("detach", "amqp:link:stolen")]
    attached.link.accept()
    attached.link.grant(5)
    peer.hear()
    assert peer.say(transfer(0), data(b"in flight")) == [], "dropped: it was within the credit"
    assert peer.say(Detach(handle=0, closed=True)) == []
    (event,) = peer.say(transfer(0, handle=5), data(b"x"), channel=1)
    assert event.link is attached.link


def test_a_link_is_stolen_within_its_session_too() -> None:
    peer = opened()
    first = peer.sender("same", 0)
    stolen, attached = peer.say(attach_sender("same", 1))
    assert stolen.link is first
    assert attached.link is not first


def test_the_two_directions_of_a_name_are_two_links() -> None:
    peer = opened()
    peer.sender("same", 0)
    peer.receiver("same", 1)
    assert len(peer.engine.sessions[0].links) == 2


# --- detach (2.6.6) -------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [True, False])
def test_detach_is_answered_in_kind(closed: bool) -> None:
    peer = opened()
    link = peer.sender()
    (event,) = peer.say(Detach(handle=0, closed=closed))
    assert event == events.Detached(link, closed, None, True)
    assert peer.hear() == [Detach(handle=0, closed=closed)]


def test_detach_before_the_attach_is_answered_gets_both_answers() -> None:
    peer = opened()
    (attached,) = peer.say(attach_sender())
    (event,) = peer.say(Detach(handle=0, closed=True))
    assert isinstance(event, events.Detached)
    answer, detach = peer.hear()
    assert answer.target is None
    assert detach.closed is True
    attached.link.accept()
    attached.link.refuse("amqp:not-found")
    assert peer.hear() == [], "too late, and no misuse: the caller could not know"


def test_our_detach_is_answered_by_the_peers() -> None:
    peer = opened()
    link = peer.receiver()
    link.detach("amqp:resource-deleted", "the queue is gone")
    assert conditions_of(peer.hear()) == [("detach", "amqp:resource-deleted")]
    link.send_one(data(b"x"))
    link.settle_sent(0, 0)
    link.drained()
    assert peer.credit(link, 5) == []
    assert peer.say(Detach(handle=1, closed=True)) == []
    assert peer.hear() == []
    assert link.session.links == []


def test_dispositions_for_a_link_that_is_gone_are_passed_over() -> None:
    peer = opened()
    link = peer.receiver()
    link.send_one(data(b"x"))
    link.detach()
    peer.hear()
    assert peer.say(Disposition(role=True, first=0, settled=True, state=Accepted())) == []


def test_after_the_peers_fault_anything_but_detach_is_errant() -> None:
    peer = opened()
    peer.sender(credit=1)
    peer.feed(amqp(transfer(0), data(b"x")) + amqp(transfer(1), data(b"x")))
    assert conditions_of(peer.hear()) == [("detach", "amqp:link:transfer-limit-exceeded")]
    *_, ended = peer.say(transfer(2), data(b"x"))
    assert isinstance(ended, events.Ended)
    assert conditions_of(peer.hear()) == [("end", "amqp:session:errant-link")]


def test_a_pipelined_attach_after_the_peers_fault_is_errant_and_a_resuming_one_is_not() -> None:
    peer = opened()
    peer.sender(credit=0)
    peer.say(transfer(0), data(b"x"))
    peer.hear()
    (event,) = peer.say(attach_sender("in", 1, unsettled={}))
    assert isinstance(event, events.Attached)
    event.link.accept()
    peer.hear()
    peer.say(attach_sender("in", 2))
    assert conditions_of(peer.hear()) == [("end", "amqp:session:errant-link")]


def test_flow_after_the_peers_fault_is_errant() -> None:
    peer = opened()
    link = peer.receiver()
    peer.say(transfer(0, handle=1), data(b"x"))
    assert conditions_of(peer.hear()) == [("detach", "amqp:not-allowed")]
    peer.credit(link, 5)
    assert conditions_of(peer.hear()) == [("end", "amqp:session:errant-link")]


def test_what_was_within_credit_when_the_caller_detached_is_dropped_and_no_more() -> None:
    peer = opened()
    link = peer.sender(credit=2)
    link.detach("amqp:link:detach-forced", "moved")
    peer.hear()
    assert peer.say(transfer(0), data(b"x")) == []
    assert peer.say(transfer(1), data(b"x")) == []
    peer.say(transfer(2), data(b"x"))
    assert conditions_of(peer.hear()) == [("end", "amqp:session:errant-link")]


def test_faults_of_one_link_leave_the_others() -> None:
    peer = opened()
    peer.sender("a", 0, credit=0)
    other = peer.sender("b", 1)
    (event,) = peer.say(transfer(0, handle=0), data(b"x"))
    assert isinstance(event, events.Detached)
    (event,) = peer.say(transfer(1, handle=1), data(b"x"))
    assert event.link is other


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
    assert left.session.incoming.count() == 2
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
    assert link.session.incoming.count() == 1, "an aborted delivery is settled"
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


# --- settlement, incoming -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [
        Accepted(),
        Rejected(error=AmqpError(condition=Symbol("amqp:precondition-failed"), description="no")),
        Released(),
        Modified(delivery_failed=True, undeliverable_here=True, message_annotations={Symbol("x-a"): 1}),
        None,
    ],
)
def test_settle_is_one_disposition_for_the_range(state: Any) -> None:
    peer = opened()
    link = peer.sender()
    peer.feed(b"".join(amqp(transfer(number), data(b"x")) for number in range(9)))
    link.settle(2, 7, state)
    (said,) = peer.hear()
    assert (said.role, said.first, said.last, said.settled, said.state) == (True, 2, 7, True, state)
    assert link.session.incoming.count() == 3


def test_settle_writes_the_outcome_that_it_was_given() -> None:
    peer = opened()
    link = peer.sender()
    peer.feed(b"".join(amqp(transfer(number), data(b"x")) for number in range(9)))
    link.settle(2, 7, events.ACCEPTED)
    link.settle(0, 0, Rejected(error=AmqpError(condition=Symbol("amqp:not-allowed"))))
    first, second = peer.hear()
    assert (first.role, first.first, first.last, first.settled, first.state) == (True, 2, 7, True, Accepted())
    assert (second.first, second.last, second.settled) == (0, None, True)
    assert second.state.error.condition == "amqp:not-allowed"


def test_what_was_sent_settled_is_not_answered() -> None:
    peer = opened()
    link = peer.sender()
    peer.say(transfer(0, settled=True), data(b"x"))
    link.settle(0, 0)
    assert peer.hear() == []


def test_what_the_sender_settled_first_is_told_and_not_answered() -> None:
    peer = opened()
    link = peer.sender()
    peer.feed(b"".join(amqp(transfer(number), data(b"x")) for number in range(4)))
    assert peer.say(Disposition(role=False, first=1, last=2, settled=True)) == [
        events.SenderSettled(link, 1, 2)
    ]
    link.settle(0, 3)
    assert [(body.first, body.last) for body in peer.hear()] == [(0, None), (3, None)]


def test_receiver_settle_mode_second_waits_for_the_sender() -> None:
    peer = opened()
    link = peer.sender(rcv_settle_mode=1)
    peer.feed(b"".join(amqp(transfer(number), data(b"x")) for number in range(4)))
    link.settle(0, 3)
    (disposition,) = peer.hear()
    assert (disposition.settled, disposition.state) == (False, Accepted())
    assert link.session.incoming.count() == 4
    assert peer.say(Disposition(role=False, first=0, last=3, settled=True, state=Accepted())) == [
        events.SenderSettled(link, 0, 3)
    ]
    assert link.session.incoming.count() == 0
    assert peer.hear() == []


def test_a_transfer_may_ask_for_first_on_a_link_of_second() -> None:
    peer = opened()
    link = peer.sender(rcv_settle_mode=1)
    peer.say(transfer(0, rcv_settle_mode=0), data(b"x"))
    peer.say(transfer(1), data(b"x"))
    link.settle(0, 1)
    assert [(body.first, body.settled) for body in peer.hear()] == [(0, True), (1, False)]


def test_a_transfer_may_not_ask_for_second_on_a_link_of_first() -> None:
    peer = opened()
    peer.sender()
    peer.say(transfer(0, rcv_settle_mode=1), data(b"x"))
    assert conditions_of(peer.hear()) == [("detach", "amqp:invalid-field")]


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
    from .peer import split

    payloads: list[bytes] = [b""]
    for body, payload in split(data):
        payloads[-1] += payload
        if not body.more:
            payloads.append(b"")
    assert payloads[:-1] == [message, b"mid", message]


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


# --- settlement, outgoing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [
        Rejected(
            error=AmqpError(condition=Symbol("amqp:not-allowed"), description="bad", info={Symbol("i"): 1})
        ),
        Modified(delivery_failed=True, undeliverable_here=False, message_annotations={Symbol("a"): "b"}),
        Released(),
        Accepted(),
        Received(section_number=1, section_offset=2),
        None,
    ],
)
def test_every_state_comes_through(state: Any) -> None:
    peer = opened()
    link = peer.receiver()
    link.send_one(data(b"x"))
    (event,) = peer.say(Disposition(role=True, first=0, settled=True, state=state))
    assert event == events.Outcome(link, 0, 0, state, True)
    if state == Accepted():
        assert event.state is events.ACCEPTED


def test_outcomes_in_a_row_join_and_different_ones_do_not() -> None:
    peer = opened()
    link = peer.receiver()
    for _ in range(6):
        link.send_one(data(b"x"))

    def say(number: int, state: Any) -> bytes:
        return amqp(Disposition(role=True, first=number, settled=True, state=state))

    chunk = (
        say(0, Accepted()) + say(1, Accepted()) + say(2, Released()) + say(3, Released()) + say(5, Accepted())
    )
    assert peer.feed(chunk) == [
        events.Outcome(link, 0, 1, events.ACCEPTED, True),
        events.Outcome(link, 2, 3, events.RELEASED, True),
        events.Outcome(link, 5, 5, events.ACCEPTED, True),
    ]


def test_with_second_the_outcome_comes_unsettled_and_we_settle() -> None:
    peer = opened()
    link = peer.receiver(rcv_settle_mode=1)
    for _ in range(3):
        link.send_one(data(b"x"))
    peer.hear()
    (event,) = peer.say(Disposition(role=True, first=0, last=1, settled=False, state=Accepted()))
    assert event == events.Outcome(link, 0, 1, events.ACCEPTED, False)
    link.settle_sent(0, 1, events.ACCEPTED)
    (disposition,) = peer.hear()
    assert (disposition.role, disposition.first, disposition.last) == (False, 0, 1)
    assert (disposition.settled, disposition.state) == (True, Accepted())
    assert link.session.outgoing.count() == 1
    link.settle_sent(0, 1)
    assert peer.hear() == [], "once"


def test_settle_sent_speaks_in_the_links_own_numbers() -> None:
    peer = opened()
    left = peer.receiver("l", 1)
    right = peer.receiver("r", 2)
    for link in (left, right, left, right):
        link.send_one(data(b"x"))
    peer.hear()
    right.settle_sent(0, 1)
    assert [(body.first, body.last) for body in peer.hear()] == [(1, None), (3, None)]


def test_presettled_deliveries_have_no_outcome() -> None:
    peer = opened()
    link = peer.receiver()
    link.send_one(data(b"x"), settled=True)
    ((body, _),) = peer.hear()
    assert body.settled is True
    assert peer.say(Disposition(role=True, first=0, settled=True, state=Accepted())) == []


# --- local misuse ---------------------------------------------------------------------------------------


def test_what_the_other_role_does_is_a_local_error() -> None:
    peer = opened()
    sending = peer.receiver()
    receiving = peer.sender()
    for misuse in (
        lambda: sending.grant(1),
        lambda: sending.settle(0, 0),
        lambda: receiving.send_one(b""),
        lambda: receiving.drained(),
        lambda: receiving.settle_sent(0, 0),
        lambda: receiving.accept(),
        lambda: receiving.refuse("amqp:not-found"),
        lambda: receiving.settle(5, 4),
    ):
        with pytest.raises(LocalError):
            misuse()
    assert peer.hear() == []


def test_before_accept_is_a_local_error() -> None:
    peer = opened()
    (event,) = peer.say(attach_sender())
    with pytest.raises(LocalError):
        event.link.grant(1)
    (event,) = peer.say(Attach(name="out", handle=1, role=True, source=Source(), target=Target()))
    with pytest.raises(LocalError):
        event.link.send_one(b"x")


def test_sending_against_the_settle_mode_is_a_local_error() -> None:
    peer = opened()
    link = peer.receiver(snd_settle_mode=1)
    with pytest.raises(LocalError):
        link.send_one(b"x")
    link.send_one(b"x", settled=True)


def test_ending_the_session_ends_what_waits() -> None:
    peer = opened()
    link = peer.receiver(credit=0)
    peer.credit(link, 5, incoming_window=0)
    link.send_one(data(b"x"))
    peer.say(End())
    peer.hear()
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


def test_a_receiver_that_claims_to_have_seen_more_than_was_sent_gets_no_more_than_its_credit() -> None:
    peer = opened()
    link = peer.receiver(credit=0)
    (event,) = peer.credit(link, WRAP - 1, delivery_count=1, echo=True)
    assert event.limit == WRAP - 1
    (flow,) = peer.hear()
    assert flow.link_credit == WRAP - 1
