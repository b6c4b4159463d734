"""Dynamic nodes with hand-built frames: what is answered, who may use them, their end (3.5.9 to 3.5.13)."""

from collections.abc import Iterator

import pytest

from lightrail.amqp.performatives import (
    Accepted,
    Attach,
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
    Detach,
    Disposition,
    Flow,
    Source,
    Target,
)
from lightrail.amqp.values import Symbol
from tests.support import wait
from tests.support.amqp.frame_peer import Peer, receiver, sender, transfers, value
from tests.support.broker import Broker
from tests.support.namespace import named

LIFETIME = Symbol("lifetime-policy")
POLICIES = {
    "close": DeleteOnClose(),
    "no-links": DeleteOnNoLinks(),
    "no-messages": DeleteOnNoMessages(),
    "no-links-or-messages": DeleteOnNoLinksOrMessages(),
}


@pytest.fixture
def other(broker: Broker) -> Iterator[Peer]:
    """A connection of another container, with a session."""
    with Peer(broker.amqp) as made:
        made.open(container_id="other")
        made.begin()
        yield made


def made(peer: Peer, policy: str | None, *capabilities: str, handle: int = 0) -> str:
    """The address of a dynamic source."""
    properties = {} if policy is None else {LIFETIME: POLICIES[policy]}
    marks = [Symbol(each) for each in capabilities] or None
    source = Source(dynamic=True, dynamic_node_properties=properties, capabilities=marks)
    answer = peer.attach_receiver(None, handle=handle, source=source)  # type: ignore[arg-type]
    assert isinstance(answer.source, Source)
    assert answer.source.dynamic is True
    assert answer.source.dynamic_node_properties == {LIFETIME: POLICIES[policy or "close"]}
    return str(answer.source.address)


def close(peer: Peer, handle: int = 0) -> None:
    peer.write(Detach(handle=handle, closed=True))
    assert peer.expect(Detach).error is None


def send(peer: Peer, address: str, handle: int = 8) -> None:
    """One message to a node, accepted; the link stays."""
    peer.attach_sender(address, handle=handle)
    peer.send(transfers(handle, [value("m")]))
    while type(peer.read().body) is not Disposition:
        pass


def until_gone(broker: Broker, name: str) -> None:
    wait.until(lambda: name not in named(broker.data), f"{name} is deleted")


@pytest.mark.parametrize("policy", [None, *POLICIES])
def test_3_5_9_the_lifetime_policy_is_in_the_answer(begun: Peer, policy: str | None) -> None:
    assert made(begun, policy).startswith("$temporary/")


@pytest.mark.parametrize("policy", [None, *POLICIES])
def test_3_5_4_a_dynamic_target_has_an_address_and_its_lifetime(begun: Peer, policy: str | None) -> None:
    properties = {} if policy is None else {LIFETIME: POLICIES[policy]}
    target = Target(dynamic=True, dynamic_node_properties=properties)
    begun.write(sender(None, target=target))
    answer = begun.expect(Attach)
    assert isinstance(answer.target, Target)
    assert answer.target.address
    assert answer.target.dynamic_node_properties == {LIFETIME: POLICIES[policy or "close"]}


def test_3_5_3_a_dynamic_source_has_no_address(begun: Peer) -> None:
    begun.write(receiver(None, source=Source(dynamic=True, address="chosen")))
    begun.expect_refusal("amqp:invalid-field")


def test_3_5_10_deleted_when_the_link_that_made_it_ends(broker: Broker, begun: Peer, other: Peer) -> None:
    """Messages and links of others do not keep it."""
    name = made(begun, "close")
    send(other, name)
    close(begun)
    assert name not in named(broker.data)
    error = other.expect(Detach).error
    assert error is not None
    assert error.condition == "amqp:resource-deleted"


def test_3_5_10_only_its_connection_receives_from_it(begun: Peer, other: Peer) -> None:
    name = made(begun, "close")
    other.write(receiver(name))
    other.expect_refusal("amqp:unauthorized-access")


def receive(peer: Peer, address: str, handle: int = 1) -> None:
    """The one message of a node, which is removed; the link stays."""
    peer.attach_receiver(address, handle=handle)
    peer.flow(1, handle=handle)
    assert peer.delivery()[1].endswith(value("m"))
    peer.write(Disposition(role=True, first=0, settled=True, state=Accepted()))


def test_3_5_11_deleted_when_no_link_remains(broker: Broker, begun: Peer, other: Peer) -> None:
    """The connection that made it may be closed. Messages do not keep it."""
    name = made(begun, "no-links")
    send(other, name)
    begun.socket.close()
    other.attach_receiver(name, handle=1)
    close(other, 8)
    assert name in named(broker.data)
    close(other, 1)
    until_gone(broker, name)


def test_3_5_12_deleted_when_its_link_and_all_messages_have_gone(
    broker: Broker, begun: Peer, other: Peer
) -> None:
    """It waits for its last message without any link, and does not wait for the links of others."""
    name = made(begun, "no-messages")
    send(other, name)
    close(other, 8)
    close(begun)
    assert name in named(broker.data)
    receive(other, name)
    error = other.expect(Detach).error
    assert error is not None
    assert error.condition == "amqp:resource-deleted"
    assert name not in named(broker.data)


def test_3_5_12_without_messages_deleted_with_its_link(broker: Broker, begun: Peer, other: Peer) -> None:
    name = made(begun, "no-messages")
    other.attach_receiver(name)
    close(begun)
    assert other.expect(Detach).error is not None
    assert name not in named(broker.data)


def test_3_5_13_deleted_when_neither_links_nor_messages_remain(
    broker: Broker, begun: Peer, other: Peer
) -> None:
    name = made(begun, "no-links-or-messages")
    send(other, name)
    close(other, 8)
    begun.socket.close()
    receive(other, name)
    assert name in named(broker.data)
    close(other, 1)
    until_gone(broker, name)


def test_3_5_13_messages_alone_keep_it(broker: Broker, begun: Peer, other: Peer) -> None:
    name = made(begun, "no-links-or-messages")
    send(other, name)
    close(other, 8)
    close(begun)
    receive(other, name)
    close(other, 1)
    until_gone(broker, name)


@pytest.mark.parametrize(("capability", "copies"), [("temporary-queue", 1), ("temporary-topic", 2)])
def test_3_5_9_capabilities_choose_the_kind_of_node(begun: Peer, capability: str, copies: int) -> None:
    """A queue gives a message to one of its receivers, a topic to all of them."""
    name = made(begun, None, capability)
    begun.attach_receiver(name, handle=1)
    for handle in (0, 1):
        begun.flow(5, handle=handle)
    begun.attach_sender(name, handle=8)
    begun.send(transfers(8, [value("m")]))
    found: list[type] = []
    while len(found) < copies + 1:
        arrived = begun.read()
        if type(arrived.body) is not Flow:
            found.append(type(arrived.body))
    assert sorted(each.__name__ for each in found) == ["Disposition"] + ["Transfer"] * copies
    begun.nothing_before_echo(next_outgoing_id=1)
