"""Settlement in every mode, in both directions."""

from typing import Any

import pytest

from lightrail.amqp import events, receiver
from lightrail.amqp.errors import LocalError
from lightrail.amqp.link_endpoint import encode_state
from lightrail.amqp.performatives import (
    Accepted,
    AmqpError,
    Disposition,
    Modified,
    Received,
    Rejected,
    Released,
)
from lightrail.amqp.receiver import ANSWERED_RANGES_MAX
from lightrail.amqp.values import Symbol
from tests.unit.amqp.peer import WRAP, amqp, conditions_of, data, opened, session_of, transfer

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
    assert session_of(link).incoming.count() == 3


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
    assert session_of(link).incoming.count() == 4
    assert peer.say(Disposition(role=False, first=0, last=3, settled=True, state=Accepted())) == [
        events.SenderSettled(link, 0, 3)
    ]
    assert session_of(link).incoming.count() == 0
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
    assert session_of(link).outgoing.count() == 1
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


def test_a_receiver_that_waits_is_answered_about_deliveries_that_are_settled_already() -> None:
    """Where its session says so: those that were sent, and no others of the range are unsettled."""
    peer = opened()
    link = peer.receiver()
    session = session_of(link)
    for _ in range(4):
        link.send_one(data(b"x"))
    link.forget_sent(0, 2)
    peer.hear()

    def answers(first: int, last: int, settled: bool) -> list[Any]:
        outcome = Disposition(role=True, first=first, last=last, settled=settled, state=Accepted())
        link_events = peer.say(outcome)
        return [*link_events, *peer.hear()]

    assert answers(0, 1, False) == []
    session.stale = encode_state(Released())
    assert answers(0, 1, True) == []
    assert answers(9, 9, False) == []
    (answer,) = answers(0, 1, False)
    assert (answer.role, answer.first, answer.last, answer.settled) == (False, 0, 1, True)
    assert answer.state == Released()
    assert answers(2, 3, False) == [events.Outcome(link, 3, 3, events.ACCEPTED, False)]


def test_presettled_deliveries_have_no_outcome() -> None:
    peer = opened()
    link = peer.receiver()
    link.send_one(data(b"x"), settled=True)
    ((body, _),) = peer.hear()
    assert body.settled is True
    assert peer.say(Disposition(role=True, first=0, settled=True, state=Accepted())) == []


# --- delivery-tags of what was sent (2.7.5) --------------------------------------------------------------


def test_delivery_tags_begin_with_the_prefix_of_their_link() -> None:
    peer = opened(initial_outgoing_id=WRAP - 1, initial_delivery_id=WRAP - 1)
    one = peer.receiver("one", 1)
    one.prefix_tags(b"p" * 28)
    for _ in range(2):
        one.send_one(data(b"x"))
    one.send_one(data(b"z" * 2 * one.session.connection.peer_max_frame_size))
    tags = [body.delivery_tag for body, _ in peer.hear() if body.delivery_tag is not None]
    assert [len(tag) for tag in tags] == [32] * 3
    assert [tag[:28] for tag in tags] == [b"p" * 28] * 3
    assert [one.unsettled_number(tag) for tag in tags] == [0, 1, 2]
    assert one.unsettled_number(tags[0][28:]) is None
    assert one.unsettled_number(b"q" * 28 + tags[0][28:]) is None
    with pytest.raises(LocalError, match="the peer's"):
        peer.sender().prefix_tags(b"p")


def test_an_unsettled_delivery_is_found_by_its_tag_over_links_and_a_wrap_of_the_ids() -> None:
    peer = opened(initial_outgoing_id=WRAP - 3, initial_delivery_id=WRAP - 3)
    one, other = peer.receiver("one", 1), peer.receiver("other", 2)
    for _ in range(3):
        one.send_one(data(b"x"))
        other.send_one(data(b"y"))
    # A message of several frames has one tag, too.
    one.send_one(data(b"z" * 2 * one.session.connection.peer_max_frame_size))
    sent = [(body.handle, body.delivery_tag) for body, _ in peer.hear() if body.delivery_tag is not None]
    tags = {link: [tag for handle, tag in sent if handle == link.output_handle] for link in (one, other)}
    assert [one.unsettled_number(tag) for tag in tags[one]] == [0, 1, 2, 3]
    assert [other.unsettled_number(tag) for tag in tags[other]] == [0, 1, 2]
    assert [one.unsettled_number(tag) for tag in tags[other]] == [None] * 3
    peer.say(Disposition(role=True, first=WRAP - 3, last=WRAP - 1, settled=True, state=Accepted()))
    assert [one.unsettled_number(tag) for tag in tags[one]] == [None, None, 2, 3]
    assert [one.unsettled_number(tag) for tag in (b"", b"\0\0\0", b"\0" * 5, b"\0\0\1\0")] == [None] * 4
    with pytest.raises(LocalError, match="the peer's"):
        peer.sender().unsettled_number(b"\0\0\0\0")


def test_a_peer_that_settles_gets_other_outcomes_than_accepted_unsettled() -> None:
    peer = opened()
    link = peer.sender()
    link.let_peer_settle()
    peer.feed(b"".join(amqp(transfer(number), data(b"x")) for number in range(3)))
    assert link.answer(0, 1, Rejected()) == 2
    assert link.settle(2, 2) == 1
    assert [(each.first, each.last, each.settled) for each in peer.hear()] == [(0, 1, False), (2, None, True)]
    assert peer.say(Disposition(role=False, first=0, last=1, settled=True)) == [
        events.SenderSettled(link, 0, 1)
    ]
    assert session_of(link).incoming.count() == 0


def test_an_answer_is_settled_where_the_peer_leaves_too_many_unsettled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiver, "ANSWERED_RANGES_MAX", 2)
    assert ANSWERED_RANGES_MAX > 2
    peer = opened()
    link = peer.sender()
    link.let_peer_settle()
    peer.feed(b"".join(amqp(transfer(number), data(b"x")) for number in range(6)))
    link.settle(1, 1)
    link.settle(3, 3)
    peer.hear()
    assert len(session_of(link).incoming.ranges) == 3
    link.answer(0, 0, Rejected())
    link.answer(2, 2, Rejected())
    link.answer(4, 4, Rejected())
    assert [each.settled for each in peer.hear()] == [True, True, False], "until they are few again"


def test_an_answer_is_settled_for_all_other_peers() -> None:
    peer = opened()
    link = peer.sender()
    peer.say(transfer(0), data(b"x"))
    link.answer(0, 0, Rejected())
    assert [each.settled for each in peer.hear()] == [True]


@pytest.mark.parametrize("fills", [True, False])
@pytest.mark.parametrize("info", [None, {Symbol("a"): 1}])
def test_errors_of_answers_have_an_info_where_the_link_fills_it(
    fills: bool, info: dict[Symbol, Any] | None
) -> None:
    peer = opened()
    link = peer.sender()
    link.fills_info = fills
    peer.feed(b"".join(amqp(transfer(number), data(b"x")) for number in range(3)))
    link.answer(0, 0, Rejected(error=AmqpError(condition=Symbol("amqp:not-found"), info=info)))
    link.answer(1, 1, Rejected())
    link.answer(2, 2, Released())
    states = [each.state for each in peer.hear()]
    assert [state.error and state.error.info for state in states[:1]] == [info or ({} if fills else None)]
    assert states[1:] == [Rejected(), Released()]


def test_a_sender_has_no_answers() -> None:
    link = opened().receiver()
    with pytest.raises(LocalError):
        link.answer(0, 0, Rejected())
    with pytest.raises(LocalError):
        link.let_peer_settle()
