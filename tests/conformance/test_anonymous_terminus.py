"""Anonymous terminus 1.0 with hand-built frames: answers for addresses that can't be sent to; redirects.

By the sections of "Using the AMQP Anonymous Terminus for Message Routing", and transport 2.8.18.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from lightrail.amqp.performatives import (
    Accepted,
    Attach,
    Detach,
    Disposition,
    Flow,
    Rejected,
    Source,
    Target,
    Transfer,
    encode_performative,
)
from lightrail.amqp.sections import Properties
from lightrail.amqp.values import Symbol
from lightrail.cli import admin
from tests.conformance.test_transport_2_7_transfers import contents
from tests.support.amqp.frame_peer import Peer, receiver, sender, value
from tests.support.broker import Broker
from tests.support.namespace import give, permit

NOWHERE = "$temporary/nowhere"
"""No broker makes a temporary name because somebody sends to it."""


def message(to: str | None, body: str = "m") -> bytes:
    return encode_performative(Properties(to=to)) + value(body)


def send(peer: Peer, number: int, payload: bytes, **fields: Any) -> None:
    peer.write(Transfer(handle=0, delivery_id=number, delivery_tag=b"tag %d" % number, **fields), payload)


def outcome(peer: Peer, number: int) -> Any:
    found = peer.read().body
    while type(found) is Flow:
        found = peer.read().body
    assert type(found) is Disposition, found
    assert (found.role, found.first, found.last or found.first, found.settled) == (True, number, number, True)
    return found.state


def refused(peer: Peer, number: int, condition: str) -> None:
    """The delivery is rejected with the condition and its delivery-tag."""
    state = outcome(peer, number)
    assert type(state) is Rejected
    assert state.error is not None
    assert state.error.condition == condition
    assert state.error.info == {"delivery-tag": b"tag %d" % number}
    assert state.error.description


def detached(peer: Peer, condition: str) -> Detach:
    found = peer.read().body
    while type(found) is Flow:
        found = peer.read().body
    assert type(found) is Detach, found
    assert found.error is not None
    assert found.error.condition == condition
    return found


@pytest.fixture
def anonymous(begun: Peer) -> Peer:
    """A link without a target address, on handle 0."""
    begun.attach_sender(None)
    return begun


def test_2_1_the_connection_offers_the_capability(peer: Peer) -> None:
    offered = peer.open().offered_capabilities
    assert offered is not None
    assert "ANONYMOUS-RELAY" in offered


def test_2_2_1_each_message_goes_to_the_node_of_its_to_field(anonymous: Peer, queue: str) -> None:
    for number, name in enumerate((f"{queue}/a", f"{queue}/b")):
        send(anonymous, number, message(name, name))
        assert outcome(anonymous, number) == Accepted()
    for handle, name in enumerate((f"{queue}/a", f"{queue}/b"), 5):
        assert contents(anonymous, name, 1, handle) == [message(name, name)]


@pytest.mark.parametrize("to", [NOWHERE, None, ""])
def test_2_2_2_no_such_node_is_rejected_with_not_found(anonymous: Peer, queue: str, to: str | None) -> None:
    """The outcome is that of the delivery alone: the link goes on."""
    send(anonymous, 0, message(to))
    refused(anonymous, 0, "amqp:not-found")
    send(anonymous, 1, message(queue))
    assert outcome(anonymous, 1) == Accepted()


def test_2_2_2_without_properties_there_is_no_node(anonymous: Peer) -> None:
    send(anonymous, 0, value("m"))
    refused(anonymous, 0, "amqp:not-found")


@pytest.mark.parametrize("to", [NOWHERE, None])
def test_2_2_2_a_settled_message_for_no_node_detaches(anonymous: Peer, queue: str, to: str | None) -> None:
    """There is no delivery to reject, so the link ends with the reason; what came before is stored."""
    send(anonymous, 0, message(queue), settled=True)
    send(anonymous, 1, message(to), settled=True)
    found = detached(anonymous, "amqp:not-found")
    assert found.closed is True
    assert found.error is not None
    assert found.error.info == {"delivery-tag": b"tag 1"}
    anonymous.write(Detach(handle=0, closed=True))
    assert contents(anonymous, queue, 1) == [message(queue)]


def test_2_2_2_a_source_that_does_not_know_rejected_is_detached(begun: Peer) -> None:
    source = Source(outcomes=[Symbol("amqp:accepted:list")])
    begun.attach_sender(None, source=source)
    send(begun, 0, message(NOWHERE))
    assert detached(begun, "amqp:not-found").error is not None


def test_2_2_2_a_node_that_does_not_take_messages_of_such_links(
    broker: Broker, anonymous: Peer, queue: str
) -> None:
    give(broker.data, f"{queue}/listeners", role="connection-point")
    send(anonymous, 0, message(f"{queue}/listeners"))
    refused(anonymous, 0, "amqp:not-allowed")


# --- rights ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Its one user may send to `open` alone."""
    directory = tmp_path_factory.mktemp("guarded")
    password = directory / "password"
    password.write_text("pencil\n")
    data = str(directory / "data")
    given = ["--data", data, "user", "add", "user", "--no-rights", "--password-file", str(password)]
    assert admin.main(given) == 0
    with Broker(directory / "data") as started:
        for name in ("open", "shut"):
            give(data, name, role="queue")
        permit(data, "user", "open", "send")
        yield started


@pytest.fixture
def user(guarded: Broker) -> Iterator[Peer]:
    with Peer(guarded.amqp) as made:
        assert made.sasl("PLAIN", b"\0user\0pencil").code == 0
        made.open()
        made.begin()
        made.attach_sender(None)
        yield made


@pytest.mark.parametrize("name", ["shut", "no/such/name"])
def test_2_2_2_a_node_without_the_right_is_rejected_with_unauthorized_access(user: Peer, name: str) -> None:
    """Whether the node is there is not said."""
    send(user, 0, message(name))
    refused(user, 0, "amqp:unauthorized-access")
    send(user, 1, message("open"))
    assert outcome(user, 1) == Accepted()


def test_2_2_2_a_settled_message_without_the_right_detaches(user: Peer) -> None:
    send(user, 0, message("shut"), settled=True)
    detached(user, "amqp:unauthorized-access")


# --- redirects -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_transport_2_8_18_a_link_to_another_place_is_redirected(
    broker: Broker, begun: Peer, queue: str, role: str
) -> None:
    give(broker.data, queue, role="metadata", reference="amqps://other.example:5999/there")
    begun.write(sender(queue) if role == "sender" else receiver(queue))
    answer = begun.expect(Attach)
    assert (answer.target if role == "sender" else answer.source) is None
    error = begun.error_of(Detach, "amqp:link:redirect")
    assert error.info == {
        "address": "amqps://other.example:5999/there",
        "hostname": "other.example",
        "network-host": "other.example",
        "port": 5999,
    }


def test_2_2_the_target_of_the_answer_has_no_address(begun: Peer) -> None:
    begun.write(sender(None, target=Target()))
    answer = begun.expect(Attach)
    assert isinstance(answer.target, Target)
    assert answer.target.address is None
