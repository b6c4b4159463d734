"""AMQP Enforcing Connection Uniqueness 1.0, part 3: a container's only connection, with both policies."""

import pytest

from lightrail.amqp.performatives import Begin, Close, Open
from lightrail.amqp.values import Symbol, UInt
from tests.support.amqp.frame_peer import AMQP, Peer, frame
from tests.support.broker import Broker

CAPABILITY = Symbol("sole-connection-for-container")
POLICY = Symbol("sole-connection-enforcement-policy")
FAILED = Symbol("amqp:connection-establishment-failed")
REFUSE, CLOSE = UInt(0), UInt(1)


def open_of(container: str, policy: object = None) -> Open:
    properties = None if policy is None else {POLICY: policy}
    return Open(container_id=container, desired_capabilities=[CAPABILITY], properties=properties)


def opened(broker: Broker, open: Open) -> tuple[Peer, Open]:
    """A peer whose connection is open, and the broker's answer."""
    peer = Peer(broker.amqp)
    peer.send(AMQP, frame(open))
    assert peer.header() == AMQP
    return peer, peer.expect(Open)


def refused(broker: Broker, open: Open) -> Close:
    """The close of a connection that is refused."""
    peer, answer = opened(broker, open)
    with peer:
        assert (answer.properties or {})[FAILED] is True
        return peer.expect(Close)


def test_3_1_the_broker_offers_it_and_says_how_it_detects(broker: Broker) -> None:
    peer, answer = opened(broker, open_of("soleconn/offered"))
    with peer:
        assert CAPABILITY in (answer.offered_capabilities or ())
        assert (answer.properties or {})[Symbol("sole-connection-detection-policy")] == 1
        assert FAILED not in (answer.properties or {})


@pytest.mark.parametrize("policy", [None, REFUSE])
def test_3_2_1_a_second_connection_is_refused(broker: Broker, policy: object) -> None:
    first, _ = opened(broker, open_of(f"soleconn/refused/{policy}"))
    with first:
        error = refused(broker, open_of(f"soleconn/refused/{policy}", policy)).error
        assert error is not None
        assert error.condition == "amqp:invalid-field"
        assert error.info == {Symbol("invalid-field"): Symbol("container-id")}
        first.write(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
        first.expect(Begin)


def test_3_2_1_the_existing_connection_is_closed(broker: Broker) -> None:
    first, _ = opened(broker, open_of("soleconn/closed"))
    second, answer = opened(broker, open_of("soleconn/closed", CLOSE))
    with first, second:
        assert FAILED not in (answer.properties or {})
        error = first.expect(Close).error
        assert error is not None
        assert error.condition == "amqp:resource-locked"
        assert error.info == {Symbol("sole-connection-enforcement"): True}
        second.write(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
        second.expect(Begin)


def test_3_2_a_container_is_free_again_when_its_connection_has_closed(broker: Broker) -> None:
    for _ in range(3):
        peer, answer = opened(broker, open_of("soleconn/again"))
        with peer:
            assert FAILED not in (answer.properties or {})
            peer.write(Close())
            peer.expect(Close)


def test_3_2_other_containers_and_connections_that_do_not_desire_it_are_let_in(broker: Broker) -> None:
    first, _ = opened(broker, open_of("soleconn/one"))
    other, _ = opened(broker, open_of("soleconn/other"))
    plain, _ = opened(broker, Open(container_id="soleconn/one"))
    with first, other, plain:
        for peer in (first, other, plain):
            peer.write(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
            peer.expect(Begin)


@pytest.mark.parametrize("policy", [UInt(2), "close-existing", True])
def test_3_2_another_policy_is_refused(broker: Broker, policy: object) -> None:
    error = refused(broker, open_of("soleconn/policy", policy)).error
    assert error is not None
    assert error.condition == "amqp:invalid-field"
    assert "0 (refuse-connection) or 1 (close-existing)" in (error.description or "")


def test_what_is_sent_behind_the_open_waits_for_the_answer(broker: Broker) -> None:
    begin = Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    with Peer(broker.amqp) as peer:
        peer.send(AMQP, frame(open_of("soleconn/pipelined")), frame(begin))
        assert peer.header() == AMQP
        peer.expect(Open)
        peer.expect(Begin)
