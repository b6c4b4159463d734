"""Transactions of Azure Service Bus's clients: sessions, and messages that are settled by lock tokens."""

import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from lightrail.amqp.composite import write_composite
from lightrail.amqp.messages import read_message
from lightrail.amqp.performatives import (
    Accepted,
    Attach,
    Detach,
    Discharge,
    Disposition,
    Modified,
    Rejected,
    TransactionalState,
)
from lightrail.amqp.sections import Properties, decode_annotations, with_annotations
from lightrail.amqp.values import Array, Int, Long, Symbol, Timestamp, UInt
from tests.conformance.test_messaging_3 import rest
from tests.support.amqp.bus_peer import DURABLE, REQUESTS, VENDOR, Bus, accept_session, of_session
from tests.support.amqp.frame_peer import Peer, transfers, value
from tests.support.amqp.transaction_peer import Client, settle
from tests.support.broker import Broker
from tests.support.moves import move
from tests.support.namespace import give


def body(message: bytes) -> Any:
    return read_message(message).body


def bodies(peer: Peer, count: int, handle: int = 1, before: int = 0) -> list[Any]:
    """The next messages of a link."""
    peer.flow(count, before, handle=handle)
    return [body(peer.delivery()[1]) for _ in range(count)]


def attach(peer: Peer, queue: str, handle: int = 1) -> None:
    """A receiver as one of Azure's clients."""
    peer.attach_receiver(queue, handle, properties=VENDOR)


def ready(peer: Peer, queue: str, count: int) -> list[Any]:
    """Messages that another client gets, who releases them by its end."""
    with Peer("{}:{}".format(*peer.socket.getpeername())) as other:
        other.open()
        other.begin()
        attach(other, queue, 0)
        found = bodies(other, count, 0)
        other.flow(1, count, handle=0)
        other.nothing_before_echo()
        return found


def deferred(peer: Peer, queue: str, *texts: str) -> None:
    """Messages of the queue are deferred, with the numbers 1 …"""
    peer.put(queue, *(DURABLE + value(text) for text in texts))
    with Peer("{}:{}".format(*peer.socket.getpeername())) as other:
        other.open()
        other.begin()
        attach(other, queue, 0)
        assert bodies(other, len(texts), 0) == list(texts)
        state = Modified(undeliverable_here=True)
        other.write(Disposition(role=True, first=0, last=len(texts) - 1, settled=False, state=state))
        # The broker settles when the outcome is on disk.
        assert other.expect(Disposition).settled


def is_deferred(bus: Bus, number: int) -> bool:
    """Whether a message is deferred, and nobody has locked it; it is locked from then on."""
    status, _, _ = bus.ask(
        "receive-by-sequence-number",
        {"sequence-numbers": Array([Long(number)], 0x81), "receiver-settle-mode": UInt(1)},
    )
    return status == 200


# --- deliveries of a link ----------------------------------------------------------------------------------


def test_after_a_rollback_a_delivery_whose_lock_has_no_end_comes_again_as_a_failed_one(
    begun: Peer, queue: str
) -> None:
    """Azure's client for Java can't settle it again."""
    begun.put(queue, DURABLE + value("one"))
    client = Client(begun)
    attach(begun, queue)
    assert bodies(begun, 1) == ["one"]
    txn = client.declare()
    settle(begun, txn, 0, 0)
    client.roll_back(txn)
    with Peer("{}:{}".format(*begun.socket.getpeername())) as other:
        other.open()
        other.begin()
        assert rest(other, queue) == [(1, value("one"))]


# --- deferred messages -------------------------------------------------------------------------------------


def test_a_deferred_message_is_settled_by_the_commit_together_with_what_is_sent(
    begun: Peer, queue: str
) -> None:
    deferred(begun, queue, "one", "two")
    client = Client(begun)
    begun.attach_sender(f"{queue}/out")
    bus = Bus(client, queue)
    one, two = bus.receive_deferred(1, 2)
    txn = client.declare()
    client.send(txn, "answer", head=DURABLE)
    assert bus.settle(one, txn_id=txn) == (200, "")
    assert bus.settle(two, txn_id=txn, status="abandoned") == (200, "")
    assert not is_deferred(bus, 2)
    client.commit(txn)
    assert ready(begun, f"{queue}/out", 1) == ["answer"]
    assert not is_deferred(bus, 1)
    (two,) = bus.receive_deferred(2)
    assert bus.settle(two) == (200, "")


def test_after_a_rollback_a_deferred_message_is_locked_and_may_be_settled(begun: Peer, queue: str) -> None:
    deferred(begun, queue, "one")
    client = Client(begun)
    bus = Bus(client, queue)
    (token,) = bus.receive_deferred(1)
    txn = client.declare()
    assert bus.settle(token, txn_id=txn) == (200, "")
    client.roll_back(txn)
    assert not is_deferred(bus, 1)
    assert bus.settle(token) == (200, "")
    assert not is_deferred(bus, 1)


def test_a_lost_lock_is_answered_and_refuses_the_commit(begun: Peer, queue: str) -> None:
    deferred(begun, queue, "one", "two")
    client = Client(begun)
    begun.attach_sender(f"{queue}/out")
    bus = Bus(client, queue)
    one, two = bus.receive_deferred(1, 2)
    txn = client.declare()
    client.send(txn, "answer")
    unknown = uuid.UUID(int=5)
    assert bus.settle(one, unknown, txn_id=txn) == (410, "com.microsoft:message-lock-lost")
    state = client.discharge(txn)
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert "a request of the transaction failed" in str(state.error.description)
    assert ready(begun, f"{queue}/out", 0) == []
    # Nothing of the request has happened.
    assert bus.settle(one, two) == (200, "")


def test_a_message_is_settled_once_in_a_transaction(begun: Peer, queue: str) -> None:
    deferred(begun, queue, "one")
    client = Client(begun)
    bus = Bus(client, queue)
    (token,) = bus.receive_deferred(1)
    txn = client.declare()
    assert bus.settle(token, txn_id=txn) == (200, "")
    assert bus.settle(token, txn_id=txn) == (410, "com.microsoft:message-lock-lost")


def test_what_another_settles_first_refuses_the_commit(begun: Peer, queue: str) -> None:
    deferred(begun, queue, "one")
    client = Client(begun)
    begun.attach_sender(f"{queue}/out")
    bus = Bus(client, queue)
    (token,) = bus.receive_deferred(1)
    txn = client.declare()
    client.send(txn, "answer")
    assert bus.settle(token, txn_id=txn) == (200, "")
    assert bus.settle(token) == (200, "")
    state = client.discharge(txn)
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert "are no longer locked" in str(state.error.description)
    assert ready(begun, f"{queue}/out", 0) == []


def test_a_delivery_of_a_link_is_settled_by_its_token_in_a_transaction(begun: Peer, queue: str) -> None:
    begun.put(queue, DURABLE + value("one"), DURABLE + value("two"), DURABLE + value("three"))
    client = Client(begun)
    bus = Bus(client, queue)
    attach(begun, queue)
    begun.flow(3, handle=1)
    tokens = [uuid.UUID(bytes_le=bytes(begun.delivery()[0].delivery_tag or b"")) for _ in range(3)]
    committed, undone = client.declare(), client.declare()
    assert bus.settle(tokens[0], txn_id=committed) == (200, "")
    assert bus.settle(tokens[1], txn_id=undone) == (200, "")
    assert bus.settle(tokens[0], txn_id=committed) == (410, "com.microsoft:message-lock-lost")
    client.roll_back(committed)
    client.roll_back(undone)
    # They are the receiver's still.
    for token in tokens:
        assert bus.settle(token) == (200, "")
        assert bus.settle(token) == (410, "com.microsoft:message-lock-lost")


def test_of_two_transactions_that_settle_a_message_one_is_committed(begun: Peer, queue: str) -> None:
    begun.put(queue, DURABLE + value("one"))
    client = Client(begun)
    bus = Bus(client, queue)
    attach(begun, queue)
    begun.flow(1, handle=1)
    token = uuid.UUID(bytes_le=bytes(begun.delivery()[0].delivery_tag or b""))
    one, two = client.declare(), client.declare()
    for txn in (one, two):
        assert bus.settle(token, txn_id=txn) == (200, "")
    client.commit(two)
    assert isinstance(client.discharge(one), Rejected)


def test_a_commit_settles_the_delivery_of_a_link_that_a_token_names(begun: Peer, queue: str) -> None:
    begun.put(queue, DURABLE + value("one"), DURABLE + value("two"))
    client = Client(begun)
    bus = Bus(client, queue)
    attach(begun, queue)
    begun.flow(2, handle=1)
    one, _ = [uuid.UUID(bytes_le=bytes(begun.delivery()[0].delivery_tag or b"")) for _ in range(2)]
    txn = client.declare()
    assert bus.settle(one, txn_id=txn) == (200, "")
    client.commit(txn)
    begun.write(Detach(handle=1, closed=True))
    begun.expect(Detach)
    assert ready(begun, queue, 1) == ["two"]


@pytest.mark.parametrize("operation", ["renew-lock", "peek-message", "set-session-state"])
def test_a_request_that_settles_nothing_runs_beside_the_transaction_whatever_becomes_of_it(
    begun: Peer, queue: str, operation: str
) -> None:
    begun.put(queue, DURABLE + value("one"))
    client = Client(begun)
    bus = Bus(client, queue)
    attach(begun, queue)
    begun.flow(1, handle=1)
    token = uuid.UUID(bytes_le=bytes(begun.delivery()[0].delivery_tag or b""))
    txn = client.declare()
    assert bus.settle(token, txn_id=txn) == (200, "")
    status, found, _ = bus.ask(operation, {}, txn)
    assert status == 400, found
    client.commit(txn)
    begun.write(Detach(handle=1, closed=True))
    begun.expect(Detach)
    assert ready(begun, queue, 0) == []


def scheduled(*texts: str, milliseconds: int = 3_600_000) -> dict[str, Any]:
    """The body of a request that schedules messages."""
    due = Timestamp(round(time.time() * 1000) + milliseconds)
    note = {Symbol("x-opt-scheduled-enqueue-time"): due}
    return {"messages": [{"message": with_annotations(DURABLE + value(text), note)} for text in texts]}


def numbers(*found: int) -> dict[str, Any]:
    return {"sequence-numbers": Array([Long(each) for each in found], 0x81)}


def peeked(bus: Bus) -> dict[int, Any]:
    """The bodies of all messages by their numbers."""
    request = {"from-sequence-number": Long(0), "message-count": Int(100)}
    status, _, found = bus.ask("peek-message", request)
    if status == 204:
        return {}
    messages = [each["message"] for each in found["messages"]]
    return {decode_annotations(each)["x-opt-sequence-number"]: body(each) for each in messages}


@pytest.fixture
def delaying(broker: Broker, queue: str) -> str:
    """A queue that delays messages."""
    give(broker.data, queue, role="queue", delay=True)
    return queue


@pytest.mark.parametrize("commits", [True, False])
def test_messages_are_scheduled_and_cancelled_by_the_commit_and_not_before(
    begun: Peer, delaying: str, commits: bool
) -> None:
    client = Client(begun)
    bus = Bus(client, delaying)
    assert bus.ask("schedule-message", scheduled("old"))[2] == {"sequence-numbers": [1]}
    txn = client.declare()
    status, _, found = bus.ask("schedule-message", scheduled("one", "two"), txn)
    assert (status, found) == (200, {"sequence-numbers": [2, 3]})
    assert bus.ask("cancel-scheduled-message", numbers(1), txn)[0] == 200
    assert bus.ask("schedule-message", scheduled("beside"))[2] == {"sequence-numbers": [4]}
    assert peeked(bus) == {1: "old", 4: "beside"}
    if commits:
        client.commit(txn)
        assert peeked(bus) == {2: "one", 3: "two", 4: "beside"}
        # By the numbers of the answer.
        assert bus.ask("cancel-scheduled-message", numbers(2, 3))[0] == 200
        assert peeked(bus) == {4: "beside"}
    else:
        client.roll_back(txn)
        assert peeked(bus) == {1: "old", 4: "beside"}
        assert bus.ask("cancel-scheduled-message", numbers(1))[0] == 200


def test_what_is_not_scheduled_or_can_not_be_makes_the_transaction_fail(begun: Peer, delaying: str) -> None:
    client = Client(begun)
    bus = Bus(client, delaying)
    assert bus.ask("schedule-message", scheduled("old"))[0] == 200
    for operation, request, status, condition in (
        ("cancel-scheduled-message", numbers(7), 404, "com.microsoft:message-not-found"),
        ("cancel-scheduled-message", numbers(0), 404, "com.microsoft:message-not-found"),
        ("cancel-scheduled-message", {}, 400, "com.microsoft:argument-error"),
        ("schedule-message", {}, 400, "com.microsoft:argument-error"),
    ):
        txn = client.declare()
        assert bus.ask("schedule-message", scheduled("new"), txn)[0] == 200
        found = bus.ask(operation, request, txn)
        assert (found[0], str(found[1]["errorCondition"])) == (status, condition)
        assert isinstance(client.discharge(txn), Rejected)
    # One that is cancelled twice, in one transaction or by another client before the commit.
    for others in ("its own", "another's"):
        txn = client.declare()
        assert bus.ask("cancel-scheduled-message", numbers(1), txn)[0] == 200
        again = bus.ask("cancel-scheduled-message", numbers(1), *((txn,) if others == "its own" else ()))
        assert again[0] == (404 if others == "its own" else 200)
        assert isinstance(client.discharge(txn), Rejected)
    assert peeked(bus) == {}


def test_a_duplicate_is_dropped_by_the_commit_and_the_others_have_their_numbers(
    begun: Peer, broker: Broker, queue: str
) -> None:
    give(broker.data, queue, role="queue", delay=True, duplicate_window=600)
    client = Client(begun)
    bus = Bus(client, queue)

    def of(*ids: str) -> dict[str, Any]:
        found = scheduled(*ids)
        for each, id in zip(found["messages"], ids, strict=True):
            each["message"] = with_annotations(
                DURABLE + write_composite(Properties(message_id=id)) + value(id),
                {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(round(time.time() * 1000) + 3_600_000)},
            )
        return found

    txn = client.declare()
    assert bus.ask("schedule-message", of("a", "b", "c"), txn)[2] == {"sequence-numbers": [1, 2, 3]}
    assert bus.ask("schedule-message", of("b"))[2] == {"sequence-numbers": [4]}
    client.commit(txn)
    assert peeked(bus) == {1: "a", 3: "c", 4: "b"}


@pytest.mark.parametrize("operation", ["batch-delete-messages", "add-rule"])
def test_another_request_in_a_transaction_is_refused(begun: Peer, queue: str, operation: str) -> None:
    client = Client(begun)
    bus = Bus(client, queue)
    txn = client.declare()
    status, found, _ = bus.ask(operation, {}, txn)
    assert (status, str(found["errorCondition"])) == (501, "amqp:not-implemented")
    assert "can't be part of a transaction" in found["statusDescription"]
    assert isinstance(client.discharge(txn), Rejected)


def test_a_request_that_is_not_settled_gets_the_outcome_of_the_transaction(begun: Peer, queue: str) -> None:
    deferred(begun, queue, "one")
    client = Client(begun)
    bus = Bus(client, queue)
    (token,) = bus.receive_deferred(1)
    txn = client.declare()
    message = {"lock-tokens": Array([token], 0x98), "disposition-status": "completed"}
    bus.send("update-disposition", message, txn, settled=False)
    found = [begun.read() for _ in range(2)]
    (state,) = [each.body.state for each in found if type(each.body) is Disposition]
    assert isinstance(state, TransactionalState)
    assert (state.txn_id, type(state.outcome)) == (txn, Accepted)
    client.commit(txn)
    assert not is_deferred(bus, 1)


def test_a_discharge_before_the_answer_to_a_request_rolls_back(begun: Peer, queue: str) -> None:
    """Frames in one write: the discharge is there before the shard can have answered."""
    deferred(begun, queue, "one")
    client = Client(begun)
    bus = Bus(client, queue)
    (token,) = bus.receive_deferred(1)
    txn = client.declare()
    request = {"lock-tokens": Array([token], 0x98), "disposition-status": "completed"}
    held: list[bytes] = []
    write, begun.send = begun.send, lambda *pieces: held.extend(pieces)  # type: ignore[method-assign]
    bus.send("update-disposition", request, txn)
    client.request(Discharge(txn_id=txn))
    begun.send = write  # type: ignore[method-assign]
    begun.send(*held)
    found = [begun.read() for _ in range(2)]
    (state,) = [each.body.state for each in found if type(each.body) is Disposition]
    assert isinstance(state, Rejected)
    (payload,) = [each.payload for each in found if type(each.body) is not Disposition]
    assert read_message(payload).application["statusCode"] == 400
    assert bus.settle(token) == (200, "")


def test_a_request_that_is_no_request_refuses_the_commit(begun: Peer, queue: str) -> None:
    client = Client(begun)
    Bus(client, queue)
    txn = client.declare()
    state = TransactionalState(txn_id=txn)
    begun.send(transfers(REQUESTS, [value(1)], client.next, state=state, message_format=5))
    client.next += 1
    found = client.outcome()
    assert (type(found), type(found.outcome)) == (TransactionalState, Rejected)
    assert isinstance(client.discharge(txn), Rejected)


# --- sessions ----------------------------------------------------------------------------------------------


@pytest.fixture
def sessions(broker: Broker, queue: str) -> str:
    """A queue with sessions."""
    give(broker.data, queue, role="queue", groups=True, lock_duration=30)
    return queue


def test_a_session_is_settled_and_sent_to_in_one_transaction(begun: Peer, sessions: str) -> None:
    begun.put(sessions, *(of_session("a", text) for text in ("a1", "a2", "a3", "a4")))
    client = Client(begun)
    begun.attach_sender(sessions)
    accept_session(begun, sessions, "a")
    assert bodies(begun, 4) == ["a1", "a2", "a3", "a4"]
    txn = client.declare()
    settle(begun, txn, 0, 0)
    settle(begun, txn, 1, 1, outcome=Modified(undeliverable_here=True))
    settle(begun, txn, 2, 2, outcome=Rejected())
    begun.send(transfers(0, [of_session("a", "a5")], client.next, state=TransactionalState(txn_id=txn)))
    client.next += 1
    assert type(client.outcome()) is TransactionalState
    client.commit(txn)
    assert bodies(begun, 1, before=4) == ["a5"]
    bus = Bus(client, sessions)
    assert is_deferred(bus, 2)
    assert ready(begun, f"{sessions}/$dlq", 1) == ["a3"]


def test_messages_of_a_session_are_its_receivers_after_a_rollback_and_come_again_in_order_with_its_end(
    begun: Peer, sessions: str
) -> None:
    begun.put(sessions, *(of_session("a", text) for text in ("a1", "a2", "a3")))
    client = Client(begun)
    accept_session(begun, sessions, "a")
    assert bodies(begun, 2) == ["a1", "a2"]
    txn = client.declare()
    settle(begun, txn, 0, 1)
    client.roll_back(txn)
    assert bodies(begun, 1, before=2) == ["a3"]
    begun.write(Detach(handle=1, closed=True))
    begun.expect(Detach)
    accept_session(begun, sessions, "a")
    assert bodies(begun, 3) == ["a1", "a2", "a3"]


@pytest.mark.parametrize("commits", [True, False])
def test_a_session_that_is_closed_before_the_discharge_stays_locked_until_then(
    begun: Peer, sessions: str, commits: bool
) -> None:
    begun.put(sessions, of_session("a", "a1"), of_session("a", "a2"))
    client = Client(begun)
    begun.attach_sender(f"{sessions}/out")
    accept_session(begun, sessions, "a")
    assert bodies(begun, 2) == ["a1", "a2"]
    txn = client.declare()
    client.send(txn, "answer")
    settle(begun, txn, 0, 0)
    begun.write(Detach(handle=1, closed=True))
    begun.expect(Detach)
    assert isinstance(client.discharge(txn, fail=not commits), Accepted)
    assert ready(begun, f"{sessions}/out", int(commits)) == ["answer"] * commits
    assert isinstance(accept_session(begun, sessions, "a"), Attach)
    assert bodies(begun, 1 if commits else 2) == ["a1", "a2"][commits:]


def test_the_end_of_a_sessions_lock_rolls_the_transaction_back(
    begun: Peer, broker: Broker, queue: str
) -> None:
    give(broker.data, queue, role="queue", groups=True, lock_duration=1)
    begun.put(queue, of_session("a", "a1"), of_session("a", "a2"))
    client = Client(begun)
    begun.attach_sender(f"{queue}/out")
    accept_session(begun, queue, "a")
    assert bodies(begun, 1) == ["a1"]
    txn = client.declare()
    client.send(txn, "answer")
    settle(begun, txn, 0, 0)
    error = begun.error_of(Detach, "com.microsoft:session-lock-lost")
    assert error.description
    begun.write(Detach(handle=1, closed=True))
    state = client.discharge(txn)
    assert isinstance(state, Rejected)
    assert ready(begun, f"{queue}/out", 0) == []
    accept_session(begun, queue, "a")
    assert bodies(begun, 2) == ["a1", "a2"]


def test_who_accepts_a_session_next_gets_what_a_commit_has_left_of_it(begun: Peer, sessions: str) -> None:
    begun.put(sessions, *(of_session("a", text) for text in ("a1", "a2", "a3")))
    client = Client(begun)
    accept_session(begun, sessions, None)
    assert bodies(begun, 3) == ["a1", "a2", "a3"]
    txn = client.declare()
    settle(begun, txn, 1, 1)
    client.commit(txn)
    begun.write(Detach(handle=1, closed=True))
    begun.expect(Detach)
    accept_session(begun, sessions, "a")
    assert bodies(begun, 2) == ["a1", "a3"]


def test_a_deferred_message_of_a_session_is_settled_in_a_transaction(begun: Peer, sessions: str) -> None:
    begun.put(sessions, of_session("a", "a1"), of_session("a", "a2"))
    client = Client(begun)
    accept_session(begun, sessions, "a")
    assert bodies(begun, 1) == ["a1"]
    txn = client.declare()
    settle(begun, txn, 0, 0, outcome=Modified(undeliverable_here=True))
    client.commit(txn)
    bus = Bus(client, sessions)
    fields = {"session-id": "a"}
    (token,) = bus.receive_deferred(1, **fields)
    assert bodies(begun, 1, before=1) == ["a2"]
    txn = client.declare()
    # Delivery 1 of the client's AMQP session was the answer.
    settle(begun, txn, 2, 2)
    assert bus.settle(token, txn_id=txn, **fields) == (200, "")
    client.commit(txn)
    assert not is_deferred(bus, 1)
    begun.write(Detach(handle=1, closed=True))
    begun.expect(Detach)
    accept_session(begun, sessions, "a")
    begun.flow(1, handle=1)
    begun.nothing_before_echo(next_outgoing_id=client.next)


# --- a queue that moves ------------------------------------------------------------------------------------


def test_a_lock_moves_with_its_queue_before_the_commit(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data, "--shards", "2") as broker, Peer(broker.amqp) as peer:
        peer.open()
        peer.begin()
        deferred(peer, "q", "one", "two")
        client = Client(peer)
        peer.attach_sender("out")
        bus = Bus(client, "q")
        one, two = bus.receive_deferred(1, 2)
        txn = client.declare()
        client.send(txn, "answer", head=DURABLE)
        assert bus.settle(one, txn_id=txn) == (200, "")
        assert bus.settle(two, txn_id=txn, status="abandoned") == (200, "")
        move(data, "q")
        client.commit(txn)
        assert ready(peer, "out", 1) == ["answer"]
        assert not is_deferred(bus, 1)
        assert is_deferred(bus, 2)
