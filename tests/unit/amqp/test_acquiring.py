"""Flows with the id of a transaction, and the deliveries that a sending link acquires in one."""

from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.errors import LocalError
from lightrail.amqp.performatives import Disposition, Released, TransactionalState
from lightrail.amqp.values import Symbol
from tests.unit.amqp.peer import conditions_of, data, opened, session_of

STATE = TransactionalState(txn_id=b"t")


def of(txn_id: Any) -> dict[Symbol, Any]:
    return {Symbol("txn-id"): txn_id}


@pytest.mark.parametrize("txn_id", [b"t", b"x" * 32, None])
def test_a_flow_with_a_transaction_is_an_event_before_its_credit(txn_id: bytes | None) -> None:
    peer = opened(transactions=True)
    link = peer.receiver()
    assert peer.credit(link, 7, properties=of(txn_id)) == [
        events.Acquire(link, txn_id),
        events.Credit(link, 7),
    ]


def test_other_properties_of_a_flow_are_passed_over() -> None:
    peer = opened(transactions=True)
    link = peer.receiver()
    assert peer.credit(link, 7, properties={Symbol("x"): b"t"}) == [events.Credit(link, 7)]


@pytest.mark.parametrize(
    ("transactions", "txn_id", "condition"),
    [
        (False, b"t", "amqp:not-implemented"),
        (True, "t", "amqp:invalid-field"),
        (True, b"x" * 33, "amqp:invalid-field"),
    ],
)
def test_a_flow_that_can_not_be_used_detaches_the_link_without_credit(
    transactions: bool, txn_id: Any, condition: str
) -> None:
    peer = opened(transactions=transactions)
    link = peer.receiver(credit=0)
    (found,) = peer.credit(link, 7, properties=of(txn_id))
    assert type(found) is events.Detached
    assert conditions_of(peer.hear()) == [("detach", condition)]
    assert link.credit == 0


def test_a_link_on_which_the_peer_sends_acquires_nothing() -> None:
    peer = opened(transactions=True)
    link = peer.sender()
    peer.credit(link, 7, properties=of(b"t"))
    assert conditions_of(peer.hear()) == [("detach", "amqp:not-implemented")]


def test_our_flows_say_in_which_transaction_deliveries_will_be() -> None:
    peer = opened(transactions=True)
    link = peer.receiver(credit=0)
    assert peer.credit(link, 7, properties=of(b"t"), echo=True)[1:] == [events.Credit(link, 7, echo=True)]
    (echoed,) = peer.hear()
    assert (echoed.properties, echoed.handle, echoed.link_credit) == (of(b"t"), link.output_handle, 7)
    assert echoed.incoming_window == session_of(link).incoming_window
    link.send_one(data(b"a"))
    peer.credit(link, 6, drain=True)
    link.drained()
    *_, drained = peer.hear()
    assert (drained.properties, drained.link_credit, drained.delivery_count) == (of(b"t"), 0, 7)
    link.forget_state(TransactionalState(txn_id=b"another"))
    peer.credit(link, 1, echo=True)
    assert peer.hear()[0].properties == of(b"t")
    link.forget_state(STATE)
    peer.credit(link, 1, echo=True)
    assert peer.hear()[0].properties is None


def test_messages_that_are_not_begun_lose_the_state_of_a_transaction() -> None:
    peer = opened()
    link = peer.receiver()
    peer.window(session_of(link), 1)
    link.send(3, [4, 8, 12], data(b"a") + data(b"b") + data(b"c"), state=STATE)
    other = TransactionalState(txn_id=b"u")
    link.send_one(data(b"d"))
    link.send(1, [4], data(b"e"), state=other)
    assert (link.backlog, link.unfinished) == (4, None)
    link.forget_state(STATE)
    peer.window(session_of(link), 10)
    assert [body.state for body, _ in peer.hear()] == [STATE, None, None, None, other]


def test_a_message_that_is_sent_in_part_is_unfinished_until_its_last_frame() -> None:
    peer = opened()
    peer.engine.peer_max_frame_size = 512
    link = peer.receiver()
    peer.window(session_of(link), 2)
    link.send_one(data(b"a"))
    link.send(1, [1_004], data(b"x" * 1_000)[:1_004], state=STATE)
    assert (link.backlog, link.unfinished) == (0, 1)
    link.forget_state(STATE)
    link.send_one(data(b"b"))
    peer.window(session_of(link), 10)
    assert link.unfinished is None
    sent = [body for body, _ in peer.hear()]
    assert [body.delivery_id for body in sent if body.delivery_id is not None] == [0, 1, 2]
    assert [body.state for body in sent if body.delivery_id is not None] == [None, STATE, None]


def test_what_is_taken_back_is_settled_and_counted_where_the_peer_has_not_settled_it() -> None:
    peer = opened()
    link = peer.receiver()
    link.send(4, [4, 8, 12, 16], b"".join(map(data, (b"a", b"b", b"c", b"d"))))
    peer.hear()
    peer.say(Disposition(role=True, first=1, settled=True, state=Released()))
    assert link.settle_sent(0, 2, Released()) == 2
    found = [(body.first, body.last, body.settled, body.state) for body in peer.hear()]
    assert found == [(0, None, True, Released()), (2, None, True, Released())]
    assert link.settle_sent(0, 2, Released()) == 0
    link.detach()
    assert link.settle_sent(3, 3, Released()) == 0


def test_a_receiving_link_has_nothing_to_take_back() -> None:
    link = opened().sender()
    assert link.unfinished is None
    with pytest.raises(LocalError):
        link.settle_sent(0, 0, Released())
    with pytest.raises(LocalError):
        link.forget_state(STATE)
