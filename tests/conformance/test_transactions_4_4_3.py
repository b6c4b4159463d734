"""Transactional acquisition (transactions 4.4.3, 4.4.4): credit with the id of a transaction."""

from typing import Any

import pytest

from lightrail.amqp.performatives import (
    Accepted,
    Detach,
    Discharge,
    Disposition,
    Flow,
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    TransactionalState,
    Transfer,
)
from lightrail.amqp.values import Symbol
from tests.conformance.test_messaging_3 import rest
from tests.conformance.test_transactions_4 import others_see
from tests.support.amqp.frame_peer import Peer, receiver, value
from tests.support.amqp.transaction_peer import COORDINATOR, Client, settle
from tests.support.broker import Broker
from tests.support.namespace import give

RECEIVER = 1


def acquire(peer: Peer, txn_id: Any, credit: int, count: int = 0, **fields: Any) -> None:
    """Credit of the receiving link for a transaction."""
    peer.flow(credit, count, handle=RECEIVER, properties={Symbol("txn-id"): txn_id}, **fields)


def acquired(client: Client, queue: str, count: int) -> bytes:
    """So many messages, value(0) and on, are delivered in a transaction; its id."""
    peer = client.peer
    peer.put(queue, *(value(number) for number in range(count)))
    peer.attach_receiver(queue, handle=RECEIVER)
    txn = client.declare()
    acquire(peer, txn, count)
    for number in range(count):
        transfer, message = peer.delivery()
        assert transfer.state == TransactionalState(txn_id=txn)
        assert not transfer.settled
        assert message == value(number)
    return txn


def discharged(client: Client, txn: bytes, *, fail: bool = False) -> list[Disposition]:
    """Discharges a transaction with success; the dispositions of the broker for what it has sent."""
    client.request(Discharge(txn_id=txn, fail=fail))
    found: list[Disposition] = []
    while True:
        each = client.peer.read().body
        if type(each) is Disposition and each.role is True:
            assert type(each.state) is Accepted
            return found
        if type(each) is Disposition:
            found.append(each)


def detached(client: Client, handle: int, condition: str) -> None:
    """The broker ends a link with an error; dispositions may precede it."""
    while type(found := client.peer.read().body) is not Detach:
        assert type(found) in (Flow, Disposition), found
    assert found.error is not None
    assert str(found.error.condition) == condition
    assert found.error.description
    client.peer.write(Detach(handle=handle, closed=True))


# --- commits ---------------------------------------------------------------------------------------------


def test_what_is_acquired_and_accepted_goes_with_the_commit_together_with_what_is_sent(
    begun: Peer, queue: str
) -> None:
    client = Client(begun)
    begun.attach_sender(f"{queue}/out")
    txn = acquired(client, queue, 2)
    settle(begun, txn, 0, 1)
    client.send(txn, "answer")
    assert others_see(begun, queue) == []
    assert others_see(begun, f"{queue}/out") == []
    assert discharged(client, txn) == []
    assert others_see(begun, f"{queue}/out") == [value("answer")]
    assert rest(begun, queue) == []


def test_an_outcome_that_the_receiver_does_not_settle_is_settled_by_the_commit(
    begun: Peer, queue: str
) -> None:
    client = Client(begun)
    txn = acquired(client, queue, 2)
    settle(begun, txn, 0, 1, settled=False)
    (found,) = discharged(client, txn)
    assert (found.first, found.last, found.settled, type(found.state)) == (0, 1, True, Accepted)
    assert rest(begun, queue) == []


def test_what_has_no_outcome_stays_with_the_receiver_after_the_commit(begun: Peer, queue: str) -> None:
    client = Client(begun)
    txn = acquired(client, queue, 3)
    settle(begun, txn, 0, 0)
    assert discharged(client, txn) == []
    assert others_see(begun, queue) == []
    begun.write(Disposition(role=True, first=1, settled=True, state=Accepted()))
    begun.write(Disposition(role=True, first=2, settled=True, state=Released()))
    assert rest(begun, queue) == [(0, value(2))]


def test_credit_that_is_left_at_the_discharge_is_for_no_transaction(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.attach_receiver(queue, handle=RECEIVER)
    txn = client.declare()
    acquire(begun, txn, 10)
    client.commit(txn)
    begun.put(queue, value("later"))
    transfer, message = begun.delivery()
    assert (transfer.state, message) == (None, value("later"))
    begun.write(Disposition(role=True, first=0, settled=True, state=Accepted()))
    assert rest(begun, queue) == []


def test_a_drain_ends_the_credit_of_a_transaction(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.put(queue, value(0))
    begun.attach_receiver(queue, handle=RECEIVER)
    txn = client.declare()
    acquire(begun, txn, 10, drain=True)
    assert begun.delivery()[0].state == TransactionalState(txn_id=txn)
    assert begun.expect(Flow).link_credit == 0
    client.commit(txn)


def test_flows_of_the_broker_say_which_transaction_acquires(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.attach_receiver(queue, handle=RECEIVER)
    txn = client.declare()
    acquire(begun, txn, 1, echo=True)
    assert begun.expect(Flow).properties == {Symbol("txn-id"): txn}
    begun.flow(1, handle=RECEIVER, drain=True)
    assert begun.expect(Flow).properties == {Symbol("txn-id"): txn}
    client.commit(txn)
    begun.flow(1, 1, handle=RECEIVER, echo=True)
    assert begun.expect(Flow).properties is None


def test_a_subscription_is_acquired_from(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.attach_receiver(
        queue, handle=RECEIVER, source=Source(address=queue, capabilities=[Symbol("topic")])
    )
    begun.put(queue, value(0), value(1))
    txn = client.declare()
    acquire(begun, txn, 2)
    for number in range(2):
        transfer, message = begun.delivery()
        assert (transfer.state, message) == (TransactionalState(txn_id=txn), value(number))
    settle(begun, txn, 0, 1)
    assert discharged(client, txn) == []


# --- rollbacks -------------------------------------------------------------------------------------------


def test_a_rollback_releases_what_was_acquired(begun: Peer, queue: str) -> None:
    client = Client(begun)
    txn = acquired(client, queue, 3)
    (found,) = discharged(client, txn, fail=True)
    assert (found.first, found.last, found.settled, type(found.state)) == (0, 2, True, Released)
    assert rest(begun, queue) == [(0, value(number)) for number in range(3)]


@pytest.mark.parametrize("settled", [True, False])
def test_a_rollback_returns_what_had_an_outcome_as_a_failed_delivery(
    begun: Peer, queue: str, settled: bool
) -> None:
    client = Client(begun)
    txn = acquired(client, queue, 3)
    settle(begun, txn, 1, 1, settled=settled)
    found = discharged(client, txn, fail=True)
    states = {
        number: each.state for each in found for number in range(each.first, (each.last or each.first) + 1)
    }
    failed = {} if settled else {1: Modified(delivery_failed=True)}
    assert states == {0: Released(), 2: Released()} | failed
    assert rest(begun, queue) == [(0, value(0)), (1, value(1)), (0, value(2))]


def test_deliveries_from_before_the_transaction_stay_with_the_receiver_after_a_rollback(
    begun: Peer, queue: str
) -> None:
    client = Client(begun)
    begun.put(queue, value(0), value(1))
    begun.attach_receiver(queue, handle=RECEIVER)
    begun.flow(1, handle=RECEIVER)
    assert begun.delivery()[0].state is None
    txn = client.declare()
    acquire(begun, txn, 1, 1, next_incoming_id=1)
    assert begun.delivery()[0].state == TransactionalState(txn_id=txn)
    settle(begun, txn, 0, 1, settled=False)
    (found,) = discharged(client, txn, fail=True)
    assert (found.first, found.last) == (1, None)
    assert others_see(begun, queue) == [value(1)]


def test_a_commit_that_is_refused_returns_what_was_acquired(begun: Peer, queue: str) -> None:
    client = Client(begun)
    txn = acquired(client, queue, 1)
    settle(begun, txn, 7, 7)
    client.request(Discharge(txn_id=txn))
    found = [begun.read().body for _ in range(2)]
    (mine,) = [each for each in found if type(each) is Disposition and each.role is False]
    assert (mine.settled, type(mine.state)) == (True, Released)
    (theirs,) = [each for each in found if type(each) is Disposition and each.role is True]
    assert type(theirs.state) is Rejected
    assert rest(begun, queue) == [(0, value(0))]


def test_the_end_of_the_link_to_the_coordinator_releases_what_was_acquired(begun: Peer, queue: str) -> None:
    client = Client(begun)
    acquired(client, queue, 1)
    begun.write(Detach(handle=COORDINATOR, closed=True))
    found = [begun.read().body for _ in range(2)]
    assert {type(each) for each in found} == {Disposition, Detach}
    assert rest(begun, queue) == [(0, value(0))]


def test_the_end_of_the_receiving_link_returns_what_was_acquired(begun: Peer, queue: str) -> None:
    client = Client(begun)
    txn = acquired(client, queue, 1)
    begun.write(Detach(handle=RECEIVER, closed=True))
    begun.expect(Detach)
    assert rest(begun, queue) == [(0, value(0))]
    assert discharged(client, txn) == []


def test_a_rollback_while_the_window_is_closed_leaves_what_was_not_sent_to_no_transaction(
    opened: Peer, queue: str
) -> None:
    opened.begin(incoming_window=2)
    client = Client(opened)
    opened.put(queue, *(value(number) for number in range(4)))
    opened.attach_receiver(queue, handle=RECEIVER)
    txn = client.declare()
    acquire(opened, txn, 4, incoming_window=2)
    for _ in range(2):
        assert opened.delivery()[0].state == TransactionalState(txn_id=txn)
    (found,) = discharged(client, txn, fail=True)
    assert (found.first, found.last, type(found.state)) == (0, 1, Released)
    opened.flow(2, 2, handle=RECEIVER, next_incoming_id=2, incoming_window=10)
    for number in (2, 3):
        transfer, message = opened.delivery()
        assert (transfer.state, message) == (None, value(number))


def test_a_rollback_ends_the_link_of_a_message_that_was_sent_in_part(broker: Broker, queue: str) -> None:
    with Peer(broker.amqp) as peer:
        peer.open(max_frame_size=512)
        peer.begin(incoming_window=1)
        client = Client(peer)
        peer.put(queue, value("x" * 2_000))
        peer.attach_receiver(queue, handle=RECEIVER)
        txn = client.declare()
        acquire(peer, txn, 1, incoming_window=1)
        first = peer.expect(Transfer)
        assert first.more
        assert first.state == TransactionalState(txn_id=txn)
        client.request(Discharge(txn_id=txn, fail=True))
        peer.error_of(Detach, "amqp:transaction:rollback")
        assert type(client.outcome()) is Accepted
        assert others_see(peer, queue) == [value("x" * 2_000)]


def test_a_commit_completes_a_message_that_was_sent_in_part(broker: Broker, queue: str) -> None:
    with Peer(broker.amqp) as peer:
        peer.open(max_frame_size=512)
        peer.begin(incoming_window=1)
        client = Client(peer)
        peer.put(queue, value("x" * 1_000), value("next"))
        peer.attach_receiver(queue, handle=RECEIVER)
        txn = client.declare()
        acquire(peer, txn, 2, incoming_window=1)
        assert peer.expect(Transfer).state == TransactionalState(txn_id=txn)
        client.commit(txn)
        peer.flow(1, 1, handle=RECEIVER, next_incoming_id=1, incoming_window=100)
        more = True
        while more:
            more = peer.expect(Transfer).more
        transfer, message = peer.delivery()
        assert (transfer.state, message) == (None, value("next"))


# --- which transaction -----------------------------------------------------------------------------------


def test_a_flow_with_another_transaction_is_for_that_one(begun: Peer, queue: str) -> None:
    client = Client(begun)
    first = acquired(client, queue, 1)
    second = client.declare()
    begun.put(queue, value(1))
    acquire(begun, second, 1, 1, next_incoming_id=1)
    assert begun.delivery()[0].state == TransactionalState(txn_id=second)
    (found,) = discharged(client, first, fail=True)
    assert (found.first, found.last) == (0, None)
    settle(begun, second, 1, 1)
    assert discharged(client, second) == []
    assert rest(begun, queue) == [(0, value(0))]


def test_a_flow_without_a_transaction_leaves_it_and_null_ends_it(begun: Peer, queue: str) -> None:
    client = Client(begun)
    txn = acquired(client, queue, 1)
    begun.put(queue, value(1), value(2))
    begun.flow(1, 1, handle=RECEIVER, next_incoming_id=1)
    assert begun.delivery()[0].state == TransactionalState(txn_id=txn)
    acquire(begun, None, 1, 2, next_incoming_id=2)
    assert begun.delivery()[0].state is None
    (found,) = discharged(client, txn, fail=True)
    assert (found.first, found.last) == (0, 1)


def test_an_unknown_transaction_detaches_the_link_and_gives_no_messages(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.put(queue, value(0))
    begun.attach_receiver(queue, handle=RECEIVER)
    txn = client.declare()
    client.commit(txn)
    acquire(begun, txn, 1)
    detached(client, RECEIVER, "amqp:transaction:unknown-id")
    assert rest(begun, queue) == [(0, value(0))]


@pytest.mark.parametrize("txn_id", ["text", 7, b"x" * 33], ids=["text", "number", "too-long"])
def test_what_is_no_id_detaches_the_link(begun: Peer, queue: str, txn_id: Any) -> None:
    client = Client(begun)
    begun.attach_receiver(queue, handle=RECEIVER)
    acquire(begun, txn_id, 1)
    detached(client, RECEIVER, "amqp:invalid-field")


# --- outcomes elsewhere ----------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("outcome", [Accepted(), None], ids=["accepted", "without-an-outcome"])
def test_an_outcome_in_no_transaction_ends_the_link_to_the_coordinator(
    begun: Peer, queue: str, settled: bool, outcome: Any
) -> None:
    client = Client(begun)
    txn = acquired(client, queue, 2)
    begun.write(Disposition(role=True, first=0, settled=settled, state=outcome))
    if outcome is None and not settled:
        # This is no outcome.
        assert len(discharged(client, txn, fail=True)) == 1
    else:
        detached(client, COORDINATOR, "amqp:transaction:rollback")
    assert rest(begun, queue) == [(0, value(0)), (0, value(1))]


def test_a_received_part_is_no_outcome(begun: Peer, queue: str) -> None:
    client = Client(begun)
    txn = acquired(client, queue, 1)
    begun.write(Disposition(role=True, first=0, state=Received(section_number=0, section_offset=0)))
    settle(begun, txn, 0, 0)
    assert discharged(client, txn) == []
    assert rest(begun, queue) == []


def test_other_deliveries_of_the_same_disposition_get_their_outcome(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.put(queue, *(value(number) for number in range(3)))
    begun.attach_receiver(queue, handle=RECEIVER)
    begun.flow(1, handle=RECEIVER)
    begun.delivery()
    acquire(begun, client.declare(), 1, 1, next_incoming_id=1)
    begun.delivery()
    acquire(begun, None, 1, 2, next_incoming_id=2)
    begun.delivery()
    begun.write(Disposition(role=True, first=0, last=2, settled=True, state=Accepted()))
    detached(client, COORDINATOR, "amqp:transaction:rollback")
    assert rest(begun, queue) == [(0, value(1))]


@pytest.mark.parametrize("settled", [True, False])
def test_an_outcome_in_another_transaction_ends_the_link_on_which_that_was_declared(
    begun: Peer, queue: str, settled: bool
) -> None:
    client = Client(begun)
    acquired(client, queue, 1)
    other = client.declare()
    settle(begun, other, 0, 0, settled=settled)
    detached(client, COORDINATOR, "amqp:transaction:rollback")
    assert rest(begun, queue) == [(int(settled), value(0))]


# --- where messages can't be acquired --------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"source": {"distribution_mode": Symbol("copy")}},
        {"snd_settle_mode": 1},
        {"properties": {Symbol("com.microsoft:receiver-name"): "r"}},
        {"source": {"timeout": 60, "expiry_policy": Symbol("never")}},
    ],
    ids=["browsing", "settled-when-sent", "of-azure", "may-be-resumed"],
)
def test_links_that_can_not_acquire_are_detached_with_the_reason(
    begun: Peer, queue: str, fields: dict[str, Any]
) -> None:
    client = Client(begun)
    begun.put(queue, value(0))
    if "source" in fields:
        fields = fields | {"source": Source(address=queue, **fields["source"])}
    begun.write(receiver(queue, RECEIVER, **fields))
    begun.read()
    acquire(begun, client.declare(), 1)
    detached(client, RECEIVER, "amqp:not-implemented")


def test_a_connection_point_is_not_acquired_from(begun: Peer, broker: Broker, queue: str) -> None:
    give(broker.data, queue, role="connection-point")
    client = Client(begun)
    begun.attach_receiver(queue, handle=RECEIVER)
    acquire(begun, client.declare(), 1)
    detached(client, RECEIVER, "amqp:not-implemented")


def test_a_link_on_which_the_client_sends_acquires_nothing(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.attach_sender(queue, RECEIVER)
    acquire(begun, client.declare(), 0)
    detached(client, RECEIVER, "amqp:not-implemented")
