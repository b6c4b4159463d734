"""Subscriptions with hand-built frames: durable, shared and global ones, their filters and their ends.

By messaging 3.5.3 to 3.5.8, and by what JMS clients ask for (AMQP Binding and Mapping for JMS; JMS 2.0, 8.3).
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
    Source,
    Target,
)
from lightrail.amqp.values import Described, Symbol, ULong
from tests.support.amqp.frame_peer import Peer, receiver, value
from tests.support.broker import Broker
from tests.support.namespace import give

KEPT = 2
NEVER = Symbol("never")
LINK_DETACH = Symbol("link-detach")
FILTERS = {
    "selector": ("apache.org:selector-filter:string", 0x0000468C00000004, "JMSPriority > 9"),
    "topic": ("apache.org:legacy-amqp-topic-binding:string", 0x0000468C00000001, "other.*"),
    "direct": ("apache.org:legacy-amqp-direct-binding:string", 0x0000468C00000000, "other"),
    "headers": ("apache.org:legacy-amqp-headers-binding:map", 0x0000468C00000002, {"x-match": "all", "a": 1}),
}


@pytest.fixture
def topic(broker: Broker, queue: str) -> str:
    """A router that nothing else uses."""
    give(broker.data, queue, role="router", unroutable="drop")
    return queue


@pytest.fixture
def other(broker: Broker) -> Iterator[Peer]:
    """A connection of another container, with a session."""
    with Peer(broker.amqp) as made:
        made.open(container_id="other")
        made.begin()
        yield made


def subscribed(
    peer: Peer,
    topic: str,
    name: str,
    *capabilities: str,
    durable: bool = False,
    handle: int = 0,
    **fields: Any,
) -> Source:
    """The source of the answer to a receiver of this name at the topic, which has credit then."""
    if durable:
        fields |= {"durable": KEPT, "expiry_policy": NEVER}
    marks = [Symbol(each) for each in capabilities] or None
    source = Source(address=topic, capabilities=marks, **fields)
    answer = peer.attach_receiver(topic, handle, name=f"{topic} {name}", source=source)
    assert isinstance(answer.source, Source)
    if "shared" in capabilities:
        assert "SHARED-SUBS" in (answer.offered_capabilities or ())
    peer.flow(10, handle=handle)
    return answer.source


def publish(peer: Peer, topic: str, count: int = 1) -> None:
    """Messages to the topic, accepted, over a connection of their own."""
    peer.put(topic, *(value(number) for number in range(count)))


def close(peer: Peer, handle: int = 0, closed: bool = True) -> None:
    peer.write(Detach(handle=handle, closed=closed))
    assert peer.expect(Detach).error is None


def received(peer: Peer, first: int = 0) -> bytes:
    """The next message, accepted."""
    message = peer.delivery()[1]
    peer.write(Disposition(role=True, first=first, settled=True, state=Accepted()))
    return message


def nothing(peer: Peer, handle: int = 0, count: int = 0) -> None:
    """Everything was received: a drain brings nothing."""
    peer.flow(10, count, handle=handle, drain=True)
    assert peer.expect(Flow).link_credit == 0


def test_3_5_3_a_volatile_subscription_ends_with_its_link(begun: Peer, topic: str) -> None:
    source = subscribed(begun, topic, "s")
    assert (source.durable, source.expiry_policy) == (0, LINK_DETACH)
    publish(begun, topic)
    assert received(begun) == value(0)
    close(begun, closed=False)
    publish(begun, topic)
    subscribed(begun, topic, "s")
    nothing(begun)


def test_3_5_5_a_durable_subscription_is_kept_at_a_detach(begun: Peer, topic: str) -> None:
    """It is that of the container and the link's name."""
    source = subscribed(begun, topic, "s", durable=True)
    assert (source.durable, source.expiry_policy) == (KEPT, NEVER)
    close(begun, closed=False)
    publish(begun, topic, 2)
    subscribed(begun, topic, "another name", durable=True, handle=3)
    nothing(begun, handle=3)
    subscribed(begun, topic, "s", durable=True)
    assert [begun.delivery()[1] for _ in range(2)] == [value(0), value(1)]


def test_2_6_5_a_closing_detach_ends_a_durable_subscription(begun: Peer, topic: str) -> None:
    subscribed(begun, topic, "s", durable=True)
    close(begun)
    publish(begun, topic)
    subscribed(begun, topic, "s", durable=True)
    nothing(begun)


def test_jms_a_durable_subscription_that_is_not_shared_has_one_link(begun: Peer, topic: str) -> None:
    subscribed(begun, topic, "s", durable=True)
    with Peer("{}:{}".format(*begun.socket.getpeername())) as again:
        again.open()
        again.begin()
        source = Source(address=topic, durable=KEPT, expiry_policy=NEVER)
        again.write(receiver(topic, name=f"{topic} s", source=source))
        again.expect_refusal("amqp:resource-locked")


@pytest.mark.parametrize("durable", [False, True], ids=["volatile", "durable"])
def test_jms_links_of_one_name_share_a_subscription(begun: Peer, topic: str, durable: bool) -> None:
    """What follows a bar in the name tells the links of one connection from each other."""
    subscribed(begun, topic, "s", "shared", durable=durable)
    subscribed(begun, topic, "s|2", "shared", durable=durable, handle=1)
    publish(begun, topic, 4)
    found = [begun.delivery() for _ in range(4)]
    assert sorted(message for _, message in found) == [value(number) for number in range(4)]
    assert {transfer.handle for transfer, _ in found} == {0, 1}


@pytest.mark.parametrize("durable", [False, True], ids=["volatile", "durable"])
def test_jms_a_shared_subscription_is_of_its_container_unless_global(
    begun: Peer, other: Peer, topic: str, durable: bool
) -> None:
    for peer in (begun, other):
        subscribed(peer, topic, "s", "shared", durable=durable)
    publish(begun, topic)
    assert (received(begun), received(other)) == (value(0), value(0)), "each container has its own"
    for peer in (begun, other):
        close(peer)
        subscribed(peer, topic, "s|global", "shared", "global", durable=durable)
    publish(begun, topic, 2)
    assert sorted((received(begun, 1), received(other, 1))) == [value(0), value(1)]


def test_jms_a_shared_volatile_subscription_ends_with_its_last_link(begun: Peer, topic: str) -> None:
    subscribed(begun, topic, "s", "shared")
    subscribed(begun, topic, "s|2", "shared", handle=1)
    close(begun, 0)
    publish(begun, topic)
    assert received(begun) == value(0)
    close(begun, 1)
    publish(begun, topic)
    subscribed(begun, topic, "s", "shared")
    nothing(begun)


def unsubscribe(peer: Peer, topic: str, name: str, *capabilities: str) -> None:
    """As Qpid JMS does it: a receiver without a source, whose detach closes the subscription."""
    desired = [Symbol(each) for each in capabilities] or None
    name = f"{topic} {name}"
    peer.write(receiver(None, 9, name=name, source=None, target=Target(), desired_capabilities=desired))


def test_jms_unsubscribing_ends_a_durable_subscription(begun: Peer, topic: str) -> None:
    subscribed(begun, topic, "s", durable=True)
    close(begun, closed=False)
    publish(begun, topic)
    unsubscribe(begun, topic, "s")
    answer = begun.expect(Attach)
    assert isinstance(answer.source, Source)
    assert (answer.source.address, answer.source.durable) == (topic, KEPT)
    close(begun, 9)
    subscribed(begun, topic, "s", durable=True)
    nothing(begun)


def test_jms_unsubscribing_what_is_not_there_is_not_found(begun: Peer, topic: str) -> None:
    unsubscribe(begun, topic, "s")
    begun.expect_refusal("amqp:not-found", 9)


def test_jms_unsubscribing_what_others_receive_from_is_refused(begun: Peer, topic: str) -> None:
    """Their subscription stays, and is ended when they have closed."""
    subscribed(begun, topic, "s|1", "shared", "global", durable=True)
    unsubscribe(begun, topic, "s", "shared", "global")
    begun.expect_refusal("amqp:resource-locked", 9)
    publish(begun, topic)
    assert received(begun) == value(0)
    close(begun, closed=False)
    unsubscribe(begun, topic, "s", "shared", "global")
    assert begun.expect(Attach).source is not None
    close(begun, 9)


def test_jms_a_link_that_closes_leaves_what_others_share(begun: Peer, topic: str) -> None:
    subscribed(begun, topic, "s|1", "shared", durable=True)
    subscribed(begun, topic, "s|2", "shared", durable=True, handle=1)
    close(begun, 0)
    publish(begun, topic)
    assert received(begun) == value(0)


# --- filters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FILTERS)
@pytest.mark.parametrize("numeric", [False, True], ids=["symbol", "code"])
def test_3_5_8_filters_that_are_applied_are_in_the_answer(
    begun: Peer, topic: str, kind: str, numeric: bool
) -> None:
    """They choose what the subscription gets: nothing here."""
    name, code, wanted = FILTERS[kind]
    applied = Described(ULong(code) if numeric else Symbol(name), wanted)
    unknown = Described(Symbol("example:unknown"), 1)
    asked = {Symbol("one"): applied, Symbol("two"): unknown}
    source = subscribed(begun, topic, "s", filter=asked)
    assert source.filter == {Symbol("one"): applied}
    publish(begun, topic)
    nothing(begun)


def test_3_5_8_a_shared_subscription_has_one_filter(begun: Peer, topic: str) -> None:
    name, _, wanted = FILTERS["selector"]
    asked = {Symbol("one"): Described(Symbol(name), wanted)}
    subscribed(begun, topic, "s", "shared", filter=asked)
    marks = [Symbol("shared")]
    begun.write(receiver(topic, 1, name=f"{topic} s|2", source=Source(address=topic, capabilities=marks)))
    begun.expect_refusal("amqp:not-allowed", 1)


def test_jms_another_selector_is_another_durable_subscription(begun: Peer, topic: str) -> None:
    subscribed(begun, topic, "s", durable=True)
    close(begun, closed=False)
    publish(begun, topic)
    name, _, wanted = FILTERS["selector"]
    asked = {Symbol("one"): Described(Symbol(name), wanted)}
    subscribed(begun, topic, "s", durable=True, filter=asked)
    nothing(begun)


def test_3_5_3_the_capabilities_that_are_honoured_are_in_the_answer(begun: Peer, topic: str) -> None:
    source = subscribed(begun, topic, "s", "topic", "shared", "global")
    assert set(source.capabilities or ()) == {"topic", "shared", "global"}
