"""Transactions (part 4) are committed whole: with all settlements and messages, or not at all."""

from typing import Any

import pytest

from lightrail.amqp.composite import write_composite
from lightrail.amqp.performatives import (
    Accepted,
    AmqpError,
    Attach,
    Declare,
    Detach,
    Discharge,
    Disposition,
    End,
    Released,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from lightrail.amqp.sections import Properties
from lightrail.amqp.values import Symbol
from tests.conformance.test_messaging_3 import rest
from tests.conformance.test_transactions_4 import fetch, others_see, refused
from tests.support.amqp.frame_peer import Peer, frame, receiver, transfers, value
from tests.support.amqp.transaction_peer import COORDINATOR, Client, settle

ROLLBACK = "amqp:transaction:rollback"
MISSING = "$temporary/" + 22 * "k"
"""A name that nobody can create by using it."""


def received_in_another_session(client: Client, queue: str, count: int) -> None:
    """The messages value(0), value(1) … are delivered on channel 1, handle 1, unsettled."""
    peer = client.peer
    peer.put(queue, *(value(number) for number in range(count)))
    peer.begin(1)
    peer.attach_receiver(queue, handle=1, channel=1)
    peer.flow(count, handle=1, channel=1)
    for number in range(count):
        assert peer.delivery()[1] == value(number)


def settle_there(peer: Peer, txn: bytes, first: int, last: int, *, settled: bool = True) -> None:
    state = TransactionalState(txn_id=txn, outcome=Accepted())
    peer.write(Disposition(role=True, first=first, last=last, settled=settled, state=state), channel=1)


def end_in_order(peer: Peer, how: str) -> None:
    """The client ends the link of channel 1, or its session."""
    if how == "session":
        peer.write(End(), channel=1)
        peer.expect(End, channel=1)
    else:
        peer.write(Detach(handle=1, closed=how == "close"), channel=1)
        peer.expect(Detach, channel=1)


# --- the client ends its link first ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "detach", "session"])
@pytest.mark.parametrize("settled", [True, False])
def test_a_settlement_stands_though_the_client_closes_its_link_before_the_commit(
    begun: Peer, queue: str, how: str, settled: bool
) -> None:
    client = Client(begun)
    begun.attach_sender(f"{queue}/out")
    received_in_another_session(client, queue, 3)
    txn = client.declare()
    settle_there(begun, txn, 1, 1, settled=settled)
    client.send(txn, "derived")
    end_in_order(begun, how)
    # All others are back at once, as if they had not been delivered.
    assert others_see(begun, queue) == [value(0), value(2)]
    client.commit(txn)
    assert rest(begun, queue) == [(0, value(0)), (0, value(2))]
    assert others_see(begun, f"{queue}/out") == [value("derived")]


@pytest.mark.parametrize("how", ["close", "session"])
@pytest.mark.parametrize("settled", [True, False])
def test_a_rollback_after_the_close_delivers_again_as_failed_what_was_settled(
    begun: Peer, queue: str, how: str, settled: bool
) -> None:
    client = Client(begun)
    received_in_another_session(client, queue, 2)
    txn = client.declare()
    settle_there(begun, txn, 0, 0, settled=settled)
    end_in_order(begun, how)
    client.roll_back(txn)
    assert sorted(rest(begun, queue)) == [(0, value(1)), (1, value(0))]


def test_the_end_of_the_control_link_returns_what_a_closed_link_had_settled(begun: Peer, queue: str) -> None:
    client = Client(begun)
    received_in_another_session(client, queue, 1)
    settle_there(begun, client.declare(), 0, 0)
    end_in_order(begun, "close")
    begun.write(Detach(handle=COORDINATOR, closed=True))
    begun.expect(Detach)
    assert rest(begun, queue) == [(1, value(0))]


@pytest.mark.parametrize("how", ["close", "session"])
def test_a_temporary_subscription_stays_until_what_was_settled_of_it_is_committed(
    begun: Peer, queue: str, how: str
) -> None:
    client = Client(begun)
    begun.attach_sender(f"{queue}/out")
    begun.attach_sender(queue, handle=2, target=Target(address=queue, capabilities=[Symbol("topic")]))
    begun.begin(1)
    begun.attach_receiver(queue, handle=1, channel=1)
    begun.flow(1, handle=1, channel=1)
    begun.send(transfers(2, [value("news")], client.next))
    client.next += 1
    found = [begun.read().body for _ in range(2)]
    assert {type(each) for each in found} == {Disposition, Transfer}
    txn = client.declare()
    settle_there(begun, txn, 0, 0)
    client.send(txn, "derived")
    end_in_order(begun, how)
    client.commit(txn)
    assert others_see(begun, f"{queue}/out") == [value("derived")]


@pytest.mark.parametrize("again", [True, False])
def test_a_queue_with_one_consumer_has_the_next_one_at_once(begun: Peer, queue: str, again: bool) -> None:
    """A durable subscription: its next receiver gets what the transaction has settled, which fails then."""
    client = Client(begun)
    begun.attach_sender(queue, target=Target(address=queue, capabilities=[Symbol("topic")]))
    source = Source(address=queue, durable=2, expiry_policy=Symbol("never"))
    begun.attach_receiver(queue, handle=1, source=source)
    begun.flow(1, handle=1)
    begun.send(transfers(0, [value("news")], client.next))
    client.next += 1
    found = [begun.read().body for _ in range(2)]
    assert {type(each) for each in found} == {Disposition, Transfer}
    txn = client.declare()
    settle(begun, txn, 0, 0)
    begun.write(Detach(handle=1))
    begun.expect(Detach)
    if again:
        begun.attach_receiver(queue, handle=1, source=source)
        begun.flow(1, handle=1)
        assert begun.delivery()[1].endswith(value("news"))
        refused(client.discharge(txn), ROLLBACK)
        begun.write(Disposition(role=True, first=1, settled=True, state=Accepted()))
    else:
        client.commit(txn)
        begun.attach_receiver(queue, handle=1, source=source)
    begun.write(Detach(handle=1, closed=True))
    begun.expect(Detach)


# --- deliveries that can't be settled any more -----------------------------------------------------------


def spoil(peer: Peer, how: str, queue: str) -> tuple[int, int]:
    """Makes delivery 0 of handle 1 one that can't be settled; the range that the client settles then."""
    if how == "closed":
        peer.write(Detach(handle=1, closed=True))
        peer.expect(Detach)
    elif how == "stolen":
        peer.begin(2)
        peer.write(receiver(queue, handle=1), channel=2)
        peer.error_of(Detach, "amqp:link:stolen")
        peer.write(Detach(handle=1, closed=True))
        peer.expect(Attach, None)
    elif how == "released":
        peer.write(Disposition(role=True, first=0, settled=True, state=Released()))
    return (0, 7) if how == "in part never sent" else (7, 7) if how == "never sent" else (0, 0)


@pytest.mark.parametrize("how", ["closed", "stolen", "released", "never sent", "in part never sent"])
@pytest.mark.parametrize("settled", [True, False])
def test_a_commit_without_a_settlement_that_it_contains_is_refused(
    begun: Peer, queue: str, how: str, settled: bool
) -> None:
    client = Client(begun)
    begun.attach_sender(f"{queue}/out")
    fetch(begun, queue, 1)
    txn = client.declare()
    settle(begun, txn, *spoil(begun, how, queue), settled=settled)
    client.send_unanswered(txn, "derived")
    refused(client.discharge_after(1, txn), ROLLBACK)
    assert others_see(begun, f"{queue}/out") == []


@pytest.mark.parametrize("settled", [True, False])
def test_a_link_that_its_client_ends_with_an_error_takes_its_settlements_back(
    begun: Peer, queue: str, settled: bool
) -> None:
    client = Client(begun)
    begun.attach_sender(f"{queue}/out")
    fetch(begun, queue, 1)
    txn = client.declare()
    settle(begun, txn, 0, 0, settled=settled)
    client.send(txn, "derived")
    begun.write(Detach(handle=1, closed=True, error=AmqpError(condition=Symbol("app:error"))))
    begun.expect(Detach)
    refused(client.discharge(txn), ROLLBACK)
    assert others_see(begun, f"{queue}/out") == []
    assert [message for _, message in rest(begun, queue)] == [value(0)]


def test_an_outcome_that_is_sent_twice_is_no_reason_to_refuse(begun: Peer, queue: str) -> None:
    """First unsettled, then settled, then once more; the last outcome counts while there is one to change."""
    client = Client(begun)
    fetch(begun, queue, 3)
    txn = client.declare()
    settle(begun, txn, 0, 2, settled=False)
    settle(begun, txn, 1, 1, outcome=Released())
    settle(begun, txn, 0, 2)
    settle(begun, txn, 0, 2)
    client.commit(txn)
    assert rest(begun, queue) == [(0, value(1))]


# --- sends --------------------------------------------------------------------------------------------------


def partial(client: Client, txn: bytes, *, settled: bool = False) -> None:
    """The first of two frames of a message, on handle 0."""
    state = TransactionalState(txn_id=txn)
    begin = Transfer(
        handle=0, delivery_id=client.next, delivery_tag=b"part", more=True, settled=settled, state=state
    )
    client.peer.send(frame(begin, value("x" * 100)[:50]))
    client.next += 1


def complete(client: Client, txn: bytes) -> None:
    client.peer.send(frame(Transfer(handle=0, state=TransactionalState(txn_id=txn)), value("x" * 100)[50:]))


@pytest.mark.parametrize("settled", [True, False])
def test_4_4_1_a_commit_while_a_message_is_sent_in_part_ends_the_control_link(
    begun: Peer, queue: str, settled: bool
) -> None:
    client = Client(begun)
    begun.attach_sender(queue)
    txn = client.declare()
    client.send(txn, "whole")
    partial(client, txn, settled=settled)
    client.request(Discharge(txn_id=txn))
    begun.error_of(Detach, ROLLBACK)
    begun.write(Detach(handle=COORDINATOR, closed=True))
    complete(client, txn)
    if not settled:
        refused(client.outcome(), ROLLBACK)
    # The link of the sender goes on.
    begun.send(transfers(0, [value("after")], client.next))
    client.next += 1
    assert type(client.outcome()) is Accepted
    assert others_see(begun, queue) == [value("after")]


@pytest.mark.parametrize("settled", [True, False])
def test_4_3_a_rollback_is_possible_while_a_message_is_sent_in_part(
    begun: Peer, queue: str, settled: bool
) -> None:
    client = Client(begun)
    begun.attach_sender(queue)
    txn = client.declare()
    partial(client, txn, settled=settled)
    client.roll_back(txn)
    complete(client, txn)
    if not settled:
        refused(client.outcome(), ROLLBACK)
    client.send(client.declare(), "next")


def test_a_message_that_is_aborted_is_not_missing(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.attach_sender(queue)
    txn = client.declare()
    partial(client, txn)
    begun.write(Transfer(handle=0, aborted=True))
    client.send(txn, "whole")
    client.commit(txn)
    assert others_see(begun, queue) == [value("whole")]


@pytest.mark.parametrize("how", ["link", "too large", "unknown transaction"])
def test_a_commit_without_a_message_that_was_dropped_is_refused(begun: Peer, queue: str, how: str) -> None:
    """Its link has ended: by its client amid the message, or because of the message, or of one before it."""
    client = Client(begun)
    begun.attach_sender(queue)
    txn = client.declare()
    state = TransactionalState(txn_id=txn)
    if how == "link":
        partial(client, txn)
        begun.write(Detach(handle=0, closed=True))
    elif how == "too large":
        partial(client, txn, settled=True)
        for _ in range(11):
            begun.send(frame(Transfer(handle=0, more=True, state=state), b"x" * 10_000))
    else:
        lost = TransactionalState(txn_id=b"none")
        begun.send(
            transfers(0, [value(1)], client.next, settled=True, state=lost),
            transfers(0, [value(2)], client.next + 1, settled=True, state=state),
        )
        client.next += 2
    while type(begun.read().body) is not Detach:
        pass
    refused(client.discharge(txn), ROLLBACK)
    assert others_see(begun, queue) == []


def addressed(to: str, body: Any) -> bytes:
    return write_composite(Properties(to=to)) + value(body)


def test_a_message_to_a_name_that_does_not_exist_is_rejected_and_everything_else_may_be_committed(
    begun: Peer, queue: str
) -> None:
    client = Client(begun)
    begun.attach_sender(None)
    txn = client.declare()
    state = TransactionalState(txn_id=txn)
    for to in MISSING, "", queue:
        begun.send(transfers(0, [addressed(to, to)], client.next, state=state))
        client.next += 1
        found = client.outcome()
        assert type(found) is TransactionalState
        if to == queue:
            assert type(found.outcome) is Accepted
        else:
            refused(found.outcome, "amqp:not-found")
    client.commit(txn)
    assert others_see(begun, queue) == [addressed(queue, queue)]


@pytest.mark.parametrize("settled", [True, False])
def test_a_message_that_can_not_be_rejected_ends_its_link_and_the_transaction(
    begun: Peer, queue: str, settled: bool
) -> None:
    client = Client(begun)
    outcomes = None if settled else [Symbol("amqp:accepted:list")]
    begun.attach_sender(None, target=Target(), source=Source(outcomes=outcomes))
    txn = client.declare()
    state = TransactionalState(txn_id=txn)
    begun.send(transfers(0, [addressed(MISSING, 1)], client.next, settled=settled, state=state))
    client.next += 1
    begun.error_of(Detach, "amqp:not-found")
    refused(client.discharge(txn), "amqp:not-found")


# --- 4.3 requests to the coordinator ----------------------------------------------------------------------


@pytest.mark.parametrize("request_of", [lambda _: Declare(), lambda txn: Discharge(txn_id=txn)])
def test_4_3_a_request_that_is_sent_settled_ends_the_control_link(
    begun: Peer, queue: str, request_of: Any
) -> None:
    client = Client(begun)
    begun.attach_sender(queue)
    txn = client.declare()
    client.send(txn, "one")
    client.request(request_of(txn), settled=True)
    begun.error_of(Detach, "amqp:not-allowed")
    assert others_see(begun, queue) == []
