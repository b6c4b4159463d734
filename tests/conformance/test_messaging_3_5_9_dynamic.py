"""Dynamic nodes with hand-built frames: what is answered, who may use them, their end (3.5.9 to 3.5.13)."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

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
    Transfer,
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


# --- topics: a router has no messages; those of its subscriptions' queues are its messages -----------------

TOPIC = "temporary-topic"


def durable(peer: Peer, topic: str, handle: int = 1) -> None:
    """A receiver with a durable subscription."""
    peer.attach_receiver(topic, handle=handle, source=Source(address=topic, durable=2), name="subscription")


def detach(peer: Peer, handle: int = 1) -> None:
    """Detaches a receiver whose subscription stays."""
    peer.write(Detach(handle=handle))
    assert peer.expect(Detach).error is None


def expect_deleted(peer: Peer) -> None:
    """Its link ends, since the node was deleted."""
    error = peer.expect(Detach).error
    assert error is not None
    assert error.condition == "amqp:resource-deleted"


@pytest.mark.parametrize("policy", POLICIES)
def test_3_5_9_a_topic_has_the_lifetime_policy_in_the_answer(begun: Peer, policy: str) -> None:
    assert made(begun, policy, TOPIC).startswith("$temporary/")


@pytest.mark.parametrize("policy", POLICIES)
def test_3_5_4_a_dynamic_target_may_be_a_topic(begun: Peer, policy: str) -> None:
    target = Target(
        dynamic=True,
        dynamic_node_properties={LIFETIME: POLICIES[policy]},
        capabilities=[Symbol(TOPIC)],
    )
    begun.write(sender(None, target=target))
    answer = begun.expect(Attach)
    assert isinstance(answer.target, Target)
    assert answer.target.dynamic_node_properties == {LIFETIME: POLICIES[policy]}
    begun.expect(Flow)
    begun.attach_receiver(str(answer.target.address), handle=1)
    begun.flow(1, handle=1)
    begun.send(transfers(0, [value("m")]))
    found = {type(begun.read().body) for _ in range(2)}
    assert found == {Transfer, Disposition}


def test_3_5_10_only_its_connection_receives_from_a_topic(begun: Peer, other: Peer) -> None:
    name = made(begun, "close", TOPIC)
    other.write(receiver(name))
    other.expect_refusal("amqp:unauthorized-access")


@pytest.mark.parametrize("policy", ["no-links", "no-messages", "no-links-or-messages"])
def test_3_5_11_others_receive_from_a_topic(begun: Peer, other: Peer, policy: str) -> None:
    name = made(begun, policy, TOPIC)
    other.attach_receiver(name, handle=1)
    send(begun, name)
    other.flow(1, handle=1)
    assert other.delivery()[1].endswith(value("m"))


@pytest.mark.parametrize("kind", ["sender", "receiver"])
def test_3_5_11_a_topic_is_deleted_when_no_link_remains(
    broker: Broker, begun: Peer, other: Peer, kind: str
) -> None:
    """The connection that made it may be closed. Each link of others keeps it, whether source or target."""
    name = made(begun, "no-links", TOPIC)
    if kind == "sender":
        other.attach_sender(name, handle=1)
    else:
        other.attach_receiver(name, handle=1)
    begun.socket.close()
    other.attach_sender(name, handle=8)
    close(other, 8)
    assert name in named(broker.data)
    close(other, 1)
    until_gone(broker, name)


def test_3_5_11_messages_do_not_keep_a_topic(broker: Broker, begun: Peer, other: Peer) -> None:
    name = made(begun, "no-links", TOPIC)
    durable(other, name)
    send(other, name)
    close(begun)
    detach(other)
    assert name in named(broker.data)
    close(other, 8)
    until_gone(broker, name)


def test_3_5_12_a_topic_is_deleted_when_its_link_and_all_messages_have_gone(
    broker: Broker, begun: Peer, other: Peer
) -> None:
    """It waits without any link for the last message, and does not wait for the links of others."""
    name = made(begun, "no-messages", TOPIC)
    durable(other, name)
    detach(other)
    send(other, name)
    close(other, 8)
    close(begun)
    assert name in named(broker.data)
    durable(other, name)
    other.flow(1, handle=1)
    assert other.delivery()[1].endswith(value("m"))
    assert name in named(broker.data)
    other.write(Disposition(role=True, first=0, settled=True, state=Accepted()))
    expect_deleted(other)
    until_gone(broker, name)


def test_3_5_12_a_topic_without_messages_is_deleted_with_its_link(
    broker: Broker, begun: Peer, other: Peer
) -> None:
    name = made(begun, "no-messages", TOPIC)
    other.attach_receiver(name)
    other.attach_sender(name, handle=1)
    close(begun)
    expect_deleted(other)
    expect_deleted(other)
    until_gone(broker, name)


def test_3_5_13_a_topic_is_deleted_when_neither_links_nor_messages_remain(
    broker: Broker, begun: Peer, other: Peer
) -> None:
    name = made(begun, "no-links-or-messages", TOPIC)
    durable(other, name)
    send(other, name)
    close(other, 8)
    begun.socket.close()
    other.flow(1, handle=1)
    assert other.delivery()[1].endswith(value("m"))
    other.write(Disposition(role=True, first=0, settled=True, state=Accepted()))
    other.attach_sender(name, handle=8)
    assert name in named(broker.data)
    detach(other)
    close(other, 8)
    until_gone(broker, name)


def test_3_5_13_messages_alone_keep_a_topic(broker: Broker, begun: Peer, other: Peer) -> None:
    name = made(begun, "no-links-or-messages", TOPIC)
    durable(other, name)
    send(other, name)
    close(other, 8)
    close(begun)
    detach(other)
    durable(other, name)
    other.flow(1, handle=1)
    assert other.delivery()[1].endswith(value("m"))
    other.write(Disposition(role=True, first=0, settled=True, state=Accepted()))
    detach(other)
    until_gone(broker, name)


def test_nothing_of_a_topic_stays(broker: Broker, begun: Peer, other: Peer) -> None:
    """Its subscriptions, their messages and the queue that counts its senders are deleted with it."""
    name = made(begun, "no-links", TOPIC)
    durable(other, name)
    send(other, name)
    detach(other)
    close(other, 8)
    close(begun)
    wait.until(lambda: not [each for each in named(broker.data) if each.startswith(name)], "all are deleted")


# --- over several frontends ------------------------------------------------------------------------------


def at(broker: Broker, frontend: str) -> Peer:
    """A connection at this frontend, with a session: the system chooses one for each connection."""

    def found() -> Peer | None:
        peer = Peer(broker.amqp)
        if peer.open(container_id=f"at {frontend}").container_id == frontend:
            peer.begin()
            return peer
        peer.socket.close()
        return None

    peer = wait.until(found, f"{frontend} accepts a connection")
    assert peer is not None
    return peer


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Broker, Peer, Peer]]:
    """A broker of two frontends, and a connection at each."""
    with (
        Broker(tmp_path / "data", "--frontends", "2", "--shards", "1") as broker,
        at(broker, "frontend-0") as one,
        at(broker, "frontend-1") as other,
    ):
        yield broker, one, other


@pytest.mark.parametrize(("capability", "kind"), [("temporary-queue", "receiver"), (TOPIC, "sender")])
def test_links_at_other_frontends_keep_a_node(
    two: tuple[Broker, Peer, Peer], capability: str, kind: str
) -> None:
    """Also while its shard is killed and starts again; not when their own frontend is killed."""
    broker, maker, other = two
    name = made(maker, "no-links", capability)
    if kind == "sender":
        other.attach_sender(name, handle=1)
    else:
        other.attach_receiver(name, handle=1)
    close(maker)
    os.kill(broker.pid("shard"), signal.SIGKILL)
    # The shard answers again, and has the link of the other frontend.
    maker.attach_sender(name, handle=3)
    close(maker, 3)
    assert name in named(broker.data)
    os.kill(broker.pid("frontend", 1), signal.SIGKILL)
    until_gone(broker, name)


@pytest.mark.parametrize("policy", ["no-links", "no-messages", "no-links-or-messages"])
def test_a_topic_is_deleted_with_the_frontend_that_made_it(
    two: tuple[Broker, Peer, Peer], policy: str
) -> None:
    broker, maker, other = two
    name = made(maker, policy, TOPIC)
    durable(other, name)
    send(other, name)
    os.kill(broker.pid("frontend", 0), signal.SIGKILL)
    expect_deleted(other)
    wait.until(lambda: named(broker.data) == [], "nothing of it stays")
