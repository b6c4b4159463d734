"""Links: attach and detach, stolen names, faults, what callers may not do."""

from collections.abc import Callable

import pytest

from lightrail.amqp import events
from lightrail.amqp.errors import EndedError, LocalError
from lightrail.amqp.link import DETACHED
from lightrail.amqp.performatives import (
    Accepted,
    AmqpError,
    Attach,
    Coordinator,
    Detach,
    Disposition,
    End,
    Source,
    Target,
)
from lightrail.amqp.values import Symbol
from tests.unit.amqp.peer import Peer, amqp, attach_sender, conditions_of, data, opened, transfer

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


def test_a_sender_without_an_initial_delivery_count_begins_at_0() -> None:
    peer = opened()
    (event,) = peer.say(attach_sender(initial_delivery_count=None))
    assert isinstance(event, events.Attached)
    event.link.accept()
    event.link.grant(5)
    _, flow = peer.hear()
    assert (flow.delivery_count, flow.link_credit) == (0, 5)


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


def test_where_each_address_has_names_of_its_own_a_link_is_stolen_at_its_address_alone() -> None:
    peer = Peer(names_at_termini=lambda _open, attach: attach.properties is not None)
    peer.open()
    for channel in range(3):
        peer.begin(channel=channel)

    def attached(channel: int, address: str, *, is_own: bool = True) -> list[object]:
        attach = attach_sender("same", properties={Symbol("p"): 1} if is_own else None)
        attach.target = Target(address=address)
        return peer.say(attach, channel=channel)

    (first,) = attached(0, "a")
    (second,) = attached(1, "b")
    stolen, _ = attached(2, "a")
    assert isinstance(first, events.Attached)
    assert isinstance(stolen, events.Detached)
    assert isinstance(second, events.Attached)
    assert stolen.link is first.link
    peer.say(Detach(handle=0, closed=True), channel=0)
    # A link of another kind has its name at all addresses, beside those.
    (third,) = attached(0, "b", is_own=False)
    assert isinstance(third, events.Attached)
    # The name is free with its link.
    peer.say(Detach(handle=0, closed=True), channel=1)
    assert len(attached(1, "b")) == 1


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


def test_a_closing_detach_is_answered_when_the_caller_has_done_its_work() -> None:
    peer = opened()
    link = peer.receiver()
    link.answers_close = True
    (event,) = peer.say(Detach(handle=1, closed=True))
    assert event == events.Detached(link, True, None, True)
    assert peer.hear() == []
    link.detach()
    with pytest.raises(EndedError):
        link.send_one(data(b"x"))
    assert peer.hear() == []
    link.answer_close()
    link.answer_close()
    assert peer.hear() == [Detach(handle=0, closed=True)]
    assert link.state == DETACHED


def test_a_closing_detach_may_be_answered_with_an_error() -> None:
    peer = opened()
    link = peer.receiver()
    link.answers_close = True
    peer.say(Detach(handle=1, closed=True))
    link.answer_close("amqp:internal-error", "it is still there")
    assert conditions_of(peer.hear()) == [("detach", "amqp:internal-error")]


def test_a_detach_that_closes_nothing_is_answered_at_once() -> None:
    peer = opened()
    link = peer.receiver()
    link.answers_close = True
    peer.say(Detach(handle=1, closed=False))
    assert peer.hear() == [Detach(handle=0, closed=False)]
    link.answer_close()
    assert peer.hear() == []


def test_an_attach_that_is_owed_goes_before_a_late_answer() -> None:
    peer = opened()
    (attached,) = peer.say(attach_sender())
    attached.link.answers_close = True
    peer.say(Detach(handle=0, closed=True))
    (answer,) = peer.hear()
    assert answer.target is None
    attached.link.accept()
    attached.link.answer_close()
    assert peer.hear() == [Detach(handle=0, closed=True)]


def test_handle_and_name_are_free_while_the_answer_is_owed() -> None:
    peer = opened()
    link = peer.receiver("same")
    link.answers_close = True
    peer.say(Detach(handle=1, closed=True))
    again = peer.receiver("same")
    link.answer_close()
    assert peer.hear() == [Detach(handle=0, closed=True)]
    assert again.session.links == [again]


def test_an_answer_that_is_owed_goes_with_its_session() -> None:
    peer = opened()
    link = peer.receiver()
    link.answers_close = True
    peer.say(Detach(handle=1, closed=True))
    peer.say(End())
    peer.hear()
    link.answer_close()
    assert peer.hear() == []


def test_links_whose_answer_is_owed_count_as_links() -> None:
    peer = opened(handle_max=1)
    for _ in range(2):
        peer.receiver().answers_close = True
        peer.say(Detach(handle=1, closed=True))
    peer.say(Attach(name="more", handle=1, role=True, source=Source(address="q"), target=Target()))
    assert conditions_of(peer.hear()) == [("end", "amqp:resource-limit-exceeded")]


def test_our_detach_is_answered_by_the_peers() -> None:
    peer = opened()
    link = peer.receiver()
    link.detach("amqp:resource-deleted", "the queue is gone")
    assert conditions_of(peer.hear()) == [("detach", "amqp:resource-deleted")]
    with pytest.raises(EndedError):
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


def test_where_each_address_has_names_of_its_own_a_fault_is_that_of_the_link_at_its_address() -> None:
    peer = Peer(names_at_termini=lambda _open, _attach: True)
    peer.open()
    peer.begin()

    def attached(handle: int, address: str) -> list[events.Event]:
        attach = attach_sender("same", handle)
        attach.target = Target(address=address)
        return peer.say(attach)

    (first,) = attached(0, "a")
    assert isinstance(first, events.Attached)
    first.link.accept()
    peer.say(transfer(0), data(b"x"))
    assert [name for name, _ in conditions_of(peer.hear())] == ["detach"]
    (second,) = attached(1, "b")
    assert isinstance(second, events.Attached)
    attached(2, "a")
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


# --- local misuse ---------------------------------------------------------------------------------------


def test_what_the_other_role_does_is_a_local_error() -> None:
    peer = opened()
    sending = peer.receiver()
    receiving = peer.sender()
    misuses: list[Callable[[], object]] = [
        lambda: sending.grant(1),
        lambda: sending.settle(0, 0),
        lambda: receiving.send_one(b""),
        lambda: receiving.drained(),
        lambda: receiving.settle_sent(0, 0),
        lambda: receiving.forget_sent(0, 0),
        lambda: receiving.accept(),
        lambda: receiving.refuse("amqp:not-found"),
        lambda: receiving.settle(5, 4),
    ]
    for misuse in misuses:
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
