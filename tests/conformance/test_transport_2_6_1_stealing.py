"""Link stealing (transport 2.6.1): a link is active on one connection, that of its latest attach.

Over connections this concerns links that ask to outlive theirs; others are links of their own (ADR 41).
"""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from lightrail.amqp.messages import read_message
from lightrail.amqp.performatives import Attach, Detach, Disposition, Source, Target, Transfer
from lightrail.amqp.sections import decode_header
from lightrail.amqp.values import Symbol
from lightrail.model import conditions
from tests.support.amqp.bus_peer import VENDOR
from tests.support.amqp.frame_peer import Peer, receiver, value
from tests.support.broker import Broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With two frontends and two shards: the kernel gives each connection to one of the frontends."""
    with Broker(tmp_path_factory.mktemp("broker") / "data", "--frontends", "2", "--shards", "2") as started:
        yield started


def connected(broker: Broker, **fields: Any) -> Peer:
    """A peer with a session on a connection of its own."""
    peer = Peer(broker.amqp)
    peer.open(**fields)
    peer.begin()
    return peer


def kept(queue: str, **fields: Any) -> dict[str, Any]:
    """The broker's terminus of a link that asks to outlive its connection."""
    return {"address": queue, "timeout": 60} | fields


def stolen(peer: Peer) -> None:
    """The next frame detaches the link as stolen; the connection goes on."""
    detach = peer.expect(Detach)
    assert detach.closed
    assert detach.error is not None
    assert str(detach.error.condition) == conditions.STOLEN
    peer.write(Detach(handle=0, closed=True))
    peer.nothing_before_echo()


@pytest.mark.parametrize(
    "asks",
    [
        {"target": {}},
        {"target": {"timeout": 0, "expiry_policy": Symbol("never")}},
        {"target": {"timeout": 0, "durable": 1}},
        {"target": {"timeout": 0}, "unsettled": {}},
    ],
    ids=["timeout", "never", "durable", "unsettled"],
)
def test_the_second_attach_of_a_sender_has_the_link(broker: Broker, queue: str, asks: dict[str, Any]) -> None:
    # Eight connections in turn: with two frontends they meet over processes as well.
    peers = [connected(broker, container_id="c") for _ in range(8)]
    fields = asks | {"name": "link", "target": Target(**kept(queue, **asks["target"]))}
    peers[0].attach_sender(queue, **fields)
    for former, latter in itertools.pairwise(peers):
        latter.attach_sender(queue, **fields)
        stolen(former)
    peers[-1].write(Transfer(handle=0, delivery_id=0, delivery_tag=b"0"), value("m"))
    assert peers[-1].expect(Disposition).settled
    for peer in peers:
        peer.socket.close()


def test_the_second_attach_of_a_receiver_has_the_link_and_what_the_first_had_not_settled(
    broker: Broker, queue: str
) -> None:
    with connected(broker, container_id="c") as first, connected(broker, container_id="c") as second:
        first.put(queue, value("m"))
        first.attach_receiver(queue, name="link", source=Source(**kept(queue)))
        first.flow(10)
        assert first.delivery()[1].endswith(value("m"))
        second.attach_receiver(queue, name="link", source=Source(**kept(queue)))
        stolen(first)
        second.flow(10)
        # Marked as possibly delivered (ADR 28), since the former process may go on with it, and not counted.
        assert decode_header(second.delivery()[1]).delivery_count == 1


def test_two_connections_of_one_container_may_name_their_links_alike(broker: Broker, queue: str) -> None:
    """As clients do that give all containers of a process one id, and call each link "receiver"."""
    with connected(broker, container_id="c") as first, connected(broker, container_id="c") as second:
        for peer in (first, second):
            peer.attach_sender(queue, name="sender")
            peer.attach_receiver(queue, handle=1, name="receiver")
        first.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"0", settled=True), value("m"))
        second.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"0", settled=True), value("m"))
        for peer in (first, second):
            peer.flow(1, handle=1)
            assert peer.delivery()[1] == value("m")


def test_a_name_counts_per_direction_container_and_queue(broker: Broker, queue: str) -> None:
    with (
        connected(broker, container_id="c") as first,
        connected(broker, container_id="c") as second,
        connected(broker, container_id="d") as third,
    ):
        first.attach_sender(queue, name="link", target=Target(**kept(queue)))
        second.attach_receiver(queue, name="link", source=Source(**kept(queue)))
        second.attach_sender(queue, handle=1, name="another link", target=Target(**kept(queue)))
        second.attach_sender("", handle=2, name="link", target=Target(**kept(f"{queue}/other")))
        third.attach_sender(queue, name="link", target=Target(**kept(queue)))
        first.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"0"), value("m"))
        assert first.expect(Disposition).settled


def test_containers_without_an_id_do_not_share_names(broker: Broker, queue: str) -> None:
    with connected(broker, container_id="") as first, connected(broker, container_id="") as second:
        first.attach_sender(queue, name="link", target=Target(**kept(queue)))
        second.attach_sender(queue, name="link", target=Target(**kept(queue)))
        first.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"0"), value("m"))
        assert first.expect(Disposition).settled


def test_a_link_that_was_detached_steals_from_nobody(broker: Broker, queue: str) -> None:
    with connected(broker, container_id="c") as first, connected(broker, container_id="c") as second:
        first.attach_sender(queue, name="link", target=Target(**kept(queue)))
        first.write(Detach(handle=0, closed=False))
        assert first.expect(Detach).error is None
        second.attach_sender(queue, name="link", target=Target(**kept(queue)))
        first.nothing_before_echo()


def test_links_of_azures_clients_have_names_of_their_own_at_each_address(broker: Broker, queue: str) -> None:
    """Azure's client for Java names the receiver of a session by the id of the session."""
    with connected(broker) as peer:
        peer.begin(channel=1)
        peer.put(f"{queue}/0", value("zero"))
        peer.put(f"{queue}/1", value("one"))
        for channel in range(2):
            source = Source(address=f"{queue}/{channel}")
            peer.write(receiver(None, 0, name="s", source=source, properties=VENDOR), channel=channel)
            peer.expect(Attach, channel)
            peer.flow(1, channel=channel)
            assert read_message(peer.delivery()[1]).body == ["zero", "one"][channel]
        # At one address a name is that of one link, and at all addresses for other clients.
        attach(peer, f"{queue}/0", 1, VENDOR, stolen_from=0)
        attach(peer, f"{queue}/0", 2, None)
        attach(peer, f"{queue}/1", 2, None, stolen_from=1, channel=0)


def attach(
    peer: Peer,
    queue: str,
    handle: int,
    properties: Any,
    *,
    stolen_from: int | None = None,
    channel: int = 1,
) -> None:
    """A receiver with the name s, which steals another one, in a session, or none."""
    source = Source(address=queue)
    peer.write(receiver(None, handle, name="s", source=source, properties=properties), channel=channel)
    if stolen_from is not None:
        detach = peer.expect(Detach, stolen_from)
        assert detach.error is not None
        assert str(detach.error.condition) == conditions.STOLEN
        peer.write(Detach(handle=2 * stolen_from, closed=True), channel=stolen_from)
    peer.expect(Attach, channel)
