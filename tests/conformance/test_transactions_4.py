"""Transactions (part 4): declare and discharge, sends and settlements that take effect together, errors."""

from typing import Any

import pytest

from lightrail.amqp.performatives import (
    Accepted,
    Attach,
    Close,
    Coordinator,
    Declare,
    Detach,
    Discharge,
    Disposition,
    Flow,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from lightrail.amqp.values import Symbol
from lightrail.frontend.transactions.coordinator import COORDINATOR_CREDIT, COORDINATOR_REQUEST_BYTES
from lightrail.frontend.transactions.transactions import TRANSACTIONS_PER_CONNECTION_MAX
from lightrail.model import limits
from tests.conformance.test_messaging_3 import rest
from tests.support.amqp.frame_peer import Peer, frame, sender, transfers, value
from tests.support.amqp.transaction_peer import COORDINATOR, Client, settle


def fetch(peer: Peer, queue: str, count: int, handle: int = 1) -> None:
    """The messages value(0), value(1) … are in the queue and delivered, unsettled."""
    peer.put(queue, *(value(number) for number in range(count)))
    peer.attach_receiver(queue, handle=handle)
    peer.flow(count, handle=handle)
    for number in range(count):
        assert peer.delivery()[1] == value(number)


def refused(state: Any, condition: str) -> None:
    assert type(state) is Rejected
    assert state.error is not None
    assert str(state.error.condition) == condition
    assert state.error.description


def others_see(peer: Peer, queue: str) -> list[bytes]:
    """Ready messages of a queue, over a connection of their own, which ends in order and so returns them."""
    with Peer("{}:{}".format(*peer.socket.getpeername())) as other:
        other.open()
        other.begin()
        found = [body for _, body in rest(other, queue)]
        other.write(Close())
        other.expect(Close)
    return found


# --- 4.2, 4.3: the coordinator ---------------------------------------------------------------------------


def test_4_2_1_the_coordinator_says_what_it_can_do(begun: Peer) -> None:
    client = Client(begun)
    assert isinstance(client.answer.target, Coordinator)
    assert {str(each) for each in client.answer.target.capabilities or ()} == {
        "amqp:local-transactions",
        "amqp:multi-txns-per-ssn",
        "amqp:multi-ssns-per-txn",
    }
    assert client.credit == COORDINATOR_CREDIT
    assert client.answer.max_message_size == COORDINATOR_REQUEST_BYTES


def test_4_2_each_declare_gets_an_id_of_its_own(begun: Peer) -> None:
    client = Client(begun)
    ids = {client.declare() for _ in range(20)}
    assert len(ids) == 20
    assert all(0 < len(each) <= 32 for each in ids)


def test_4_2_credit_for_the_coordinator_does_not_run_out(begun: Peer) -> None:
    client = Client(begun)
    for _ in range(2 * COORDINATOR_CREDIT):
        client.commit(client.declare())


def test_4_2_1_transactions_of_several_resources_are_refused(begun: Peer) -> None:
    client = Client(begun)
    client.request(Declare(global_id=b"elsewhere"))
    refused(client.outcome(), "amqp:not-implemented")


@pytest.mark.parametrize("body", ["text", None, Accepted()])
def test_4_2_other_messages_are_refused(begun: Peer, body: Any) -> None:
    client = Client(begun)
    client.request(body)
    refused(client.outcome(), "amqp:decode-error")
    client.commit(client.declare())


def test_4_2_large_requests_end_the_link(begun: Peer) -> None:
    client = Client(begun)
    client.request(Declare(global_id=b"x" * COORDINATOR_REQUEST_BYTES))
    begun.error_of(Detach, "amqp:link:message-size-exceeded")


def test_4_3_an_unknown_transaction_is_not_discharged(begun: Peer) -> None:
    client = Client(begun)
    refused(client.discharge(b"none"), "amqp:transaction:unknown-id")
    known = client.declare()
    client.commit(known)
    refused(client.discharge(known), "amqp:transaction:unknown-id")


def test_4_3_where_the_source_takes_no_rejected_the_link_is_detached(begun: Peer) -> None:
    client = Client(begun, source=Source(outcomes=[Symbol("amqp:accepted:list")]))
    client.request(Discharge(txn_id=b"none"))
    found = begun.read().body
    while type(found) is Flow:
        found = begun.read().body
    assert type(found) is Detach
    assert found.error is not None
    assert str(found.error.condition) == "amqp:transaction:unknown-id"


def test_4_2_a_connection_has_so_many_open_transactions(begun: Peer) -> None:
    client = Client(begun)
    ids = [client.declare() for _ in range(TRANSACTIONS_PER_CONNECTION_MAX)]
    client.request(Declare())
    refused(client.outcome(), "amqp:resource-limit-exceeded")
    client.roll_back(ids[0])
    client.declare()


# --- 4.4.1 sends -----------------------------------------------------------------------------------------


def test_4_4_1_messages_are_there_when_the_transaction_is_committed(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.attach_sender(queue)
    txn = client.declare()
    client.send(txn, "one", "two")
    assert others_see(begun, queue) == []
    client.commit(txn)
    assert others_see(begun, queue) == [value("one"), value("two")]


def test_4_4_1_a_rollback_leaves_no_message(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.attach_sender(queue)
    txn = client.declare()
    client.send(txn, "one")
    client.roll_back(txn)
    assert others_see(begun, queue) == []


def test_4_4_1_settled_messages_belong_to_the_transaction_too(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.attach_sender(queue)
    txn = client.declare()
    begun.send(transfers(0, [value(1)], client.next, settled=True, state=TransactionalState(txn_id=txn)))
    client.next += 1
    assert others_see(begun, queue) == []
    client.commit(txn)
    assert others_see(begun, queue) == [value(1)]


def test_4_4_1_a_message_of_several_frames(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.attach_sender(queue)
    txn = client.declare()
    message = value("x" * 5_000)
    first = Transfer(
        handle=0,
        delivery_id=client.next,
        delivery_tag=b"t",
        more=True,
        state=TransactionalState(txn_id=txn),
    )
    begun.send(frame(first, message[:3_000]), frame(Transfer(handle=0), message[3_000:]))
    client.next += 1
    assert type(client.outcome()) is TransactionalState
    client.commit(txn)
    assert others_see(begun, queue) == [message]


def test_4_4_1_transactions_of_one_session_do_not_touch_each_other(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.attach_sender(queue)
    one, two = client.declare(), client.declare()
    client.send(one, "kept")
    client.send(two, "dropped")
    client.send(one, "kept as well")
    client.roll_back(two)
    client.commit(one)
    assert others_see(begun, queue) == [value("kept"), value("kept as well")]


def test_4_4_1_other_messages_of_the_link_are_sent_at_once(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.attach_sender(queue)
    txn = client.declare()
    client.send(txn, "later")
    begun.send(transfers(0, [value("now")], client.next))
    client.next += 1
    assert type(client.outcome()) is Accepted
    assert others_see(begun, queue) == [value("now")]
    client.commit(txn)
    assert others_see(begun, queue) == [value("now"), value("later")]


def test_4_4_1_a_transaction_reaches_several_queues_and_those_of_other_sessions(
    begun: Peer, queue: str
) -> None:
    client = Client(begun)
    begun.attach_sender(queue)
    begun.begin(1)
    begun.attach_sender(f"{queue}/other", channel=1, name="other")
    txn = client.declare()
    client.send(txn, "one")
    begun.send(
        frame(
            Transfer(handle=0, delivery_id=0, delivery_tag=b"0", state=TransactionalState(txn_id=txn)),
            value("two"),
            channel=1,
        )
    )
    assert type(client.outcome()) is TransactionalState
    client.commit(txn)
    assert others_see(begun, queue) == [value("one")]
    assert others_see(begun, f"{queue}/other") == [value("two")]


def test_4_4_1_through_a_router_of_topics(begun: Peer, queue: str) -> None:
    topic = Target(address=queue, capabilities=[Symbol("topic")])
    client = Client(begun)
    begun.write(sender(queue, 0, target=topic))
    begun.expect(Attach)
    begun.expect(Flow)
    begun.attach_receiver(queue, handle=1)
    begun.flow(10, handle=1)
    txn = client.declare()
    client.send(txn, "one", "two")
    begun.nothing_before_echo(next_outgoing_id=client.next)
    client.request(Discharge(txn_id=txn))
    arrived: list[bytes] = []
    while len(arrived) < 2:
        found = begun.read()
        if type(found.body) is Transfer:
            arrived.append(found.payload)
    assert arrived == [value("one"), value("two")]


def test_4_4_1_without_a_target_by_the_addresses_in_the_messages(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.attach_sender(None)
    to_queue = b"\x00\x53\x73\xd0\x00\x00\x00" + bytes([len(queue) + 4 + 4]) + b"\x00\x00\x00\x03\x40\x40\xa1"
    message = to_queue + bytes([len(queue)]) + queue.encode() + value("there")
    # Two nulls and the address.
    txn = client.declare()
    begun.send(transfers(0, [message], client.next, state=TransactionalState(txn_id=txn)))
    client.next += 1
    assert type(client.outcome()) is TransactionalState
    client.commit(txn)
    assert others_see(begun, queue) == [message]


def test_4_4_1_requests_to_other_nodes_are_in_no_transaction(begun: Peer) -> None:
    client = Client(begun)
    begun.attach_sender("$management")
    txn = client.declare()
    begun.send(transfers(0, [value(1)], client.next, state=TransactionalState(txn_id=txn)))
    error = begun.error_of(Detach, "amqp:not-implemented")
    assert "may be part of one" in str(error.description)


def test_4_4_1_an_unknown_transaction_detaches_the_link(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.attach_sender(queue)
    txn = client.declare()
    client.commit(txn)
    begun.send(transfers(0, [value(1)], client.next, state=TransactionalState(txn_id=txn)))
    begun.error_of(Detach, "amqp:transaction:unknown-id")


def with_credit(peer: Peer, flow: Flow, deliveries: int) -> Flow:
    """The flow of a link that lets it send as many deliveries in all, this one or a later one."""
    latest = flow
    while (latest.delivery_count or 0) + (latest.link_credit or 0) < deliveries:
        found = peer.expect(Flow)
        if found.handle == flow.handle:
            latest = found
    return latest


def test_4_4_1_more_messages_than_a_transaction_may_have_roll_it_back(begun: Peer, queue: str) -> None:
    client = Client(begun)
    flow = begun.attach_sender(queue)
    txn = client.declare()
    most = limits.TRANSACTION_MESSAGES_MAX
    for first in range(0, most, 500):
        flow = with_credit(begun, flow, first + 500)
        begun.send(
            transfers(
                0, [value(1)] * 500, client.next + first, settled=True, state=TransactionalState(txn_id=txn)
            )
        )
    with_credit(begun, flow, most + 1)
    client.next += most
    begun.send(transfers(0, [value(1)], client.next, state=TransactionalState(txn_id=txn)))
    client.next += 1
    found = client.outcome()
    assert type(found) is TransactionalState
    refused(found.outcome, "amqp:resource-limit-exceeded")
    refused(client.discharge(txn), "amqp:resource-limit-exceeded")
    assert others_see(begun, queue) == []


# --- 4.4.2 retirement ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [True, False])
def test_4_4_2_deliveries_are_settled_when_the_transaction_is_committed(
    begun: Peer, queue: str, settled: bool
) -> None:
    client = Client(begun)
    fetch(begun, queue, 3)
    txn = client.declare()
    settle(begun, txn, 0, 2, settled=settled)
    client.request(Discharge(txn_id=txn))
    found = [begun.read().body for _ in range(1 if settled else 2)]
    found = [each for each in found if type(each) is Disposition]
    if not settled:
        (mine,) = [each for each in found if each.role is False]
        assert (mine.first, mine.last, mine.settled, type(mine.state)) == (0, 2, True, Accepted)
    begun.write(Detach(handle=1, closed=True))
    while type(begun.read().body) is not Detach:
        pass
    assert others_see(begun, queue) == []


def test_4_4_2_after_a_rollback_settled_deliveries_come_again_as_failed_ones(begun: Peer, queue: str) -> None:
    client = Client(begun)
    fetch(begun, queue, 2)
    txn = client.declare()
    settle(begun, txn, 0, 1)
    client.roll_back(txn)
    assert rest(begun, queue) == [(1, value(0)), (1, value(1))]


def test_4_4_2_after_a_rollback_unsettled_deliveries_stay_with_the_receiver(begun: Peer, queue: str) -> None:
    client = Client(begun)
    fetch(begun, queue, 1)
    txn = client.declare()
    settle(begun, txn, 0, 0, settled=False)
    client.roll_back(txn)
    assert others_see(begun, queue) == []
    begun.write(Disposition(role=True, first=0, settled=True, state=Released()))
    assert rest(begun, queue) == [(0, value(0))]


@pytest.mark.parametrize(
    ("outcome", "left"),
    [(Released(), [(0, value(0))]), (Modified(delivery_failed=True), [(1, value(0))]), (Rejected(), [])],
    ids=["released", "modified", "rejected"],
)
def test_4_4_2_every_outcome_is_applied_by_the_commit(
    begun: Peer, queue: str, outcome: Any, left: list[tuple[int, bytes]]
) -> None:
    client = Client(begun)
    fetch(begun, queue, 1)
    txn = client.declare()
    settle(begun, txn, 0, 0, outcome=outcome)
    assert others_see(begun, queue) == []
    client.commit(txn)
    assert rest(begun, queue) == left
    assert len(rest(begun, f"{queue}/$dlq", 6)) == (type(outcome) is Rejected)


def test_4_4_2_what_is_received_and_what_is_sent_for_it_are_one(begun: Peer, queue: str) -> None:
    client = Client(begun)
    begun.attach_sender(f"{queue}/out")
    fetch(begun, queue, 1)
    txn = client.declare()
    settle(begun, txn, 0, 0)
    client.send(txn, "answer")
    assert others_see(begun, f"{queue}/out") == []
    client.commit(txn)
    assert others_see(begun, f"{queue}/out") == [value("answer")]
    assert rest(begun, queue) == []


# --- 4.3 the end of the control link ---------------------------------------------------------------------


def test_4_3_when_the_link_to_the_coordinator_ends_its_transactions_are_rolled_back(
    begun: Peer, queue: str
) -> None:
    client = Client(begun)
    begun.attach_sender(f"{queue}/out")
    fetch(begun, queue, 1)
    txn = client.declare()
    settle(begun, txn, 0, 0)
    client.send(txn, "answer")
    begun.write(Detach(handle=COORDINATOR, closed=True))
    begun.expect(Detach)
    assert rest(begun, queue) == [(1, value(0))]
    assert others_see(begun, f"{queue}/out") == []
    begun.send(transfers(0, [value(1)], client.next, state=TransactionalState(txn_id=txn)))
    begun.error_of(Detach, "amqp:transaction:unknown-id")


def test_4_3_a_lost_connection_leaves_nothing_of_its_transactions(begun: Peer, queue: str) -> None:
    with Peer("{}:{}".format(*begun.socket.getpeername())) as other:
        other.open()
        other.begin()
        client = Client(other)
        other.attach_sender(f"{queue}/out")
        fetch(other, queue, 1)
        txn = client.declare()
        settle(other, txn, 0, 0)
        client.send(txn, "answer")
    begun.attach_receiver(queue, handle=1)
    begun.flow(1, handle=1)
    assert begun.delivery()[1].endswith(value(0))
    assert others_see(begun, f"{queue}/out") == []
