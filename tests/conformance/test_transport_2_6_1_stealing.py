"""Link stealing (transport 2.6.1): a link is active on one connection, that of its latest attach."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from lightrail.amqp.performatives import Detach, Disposition, Transfer
from lightrail.model import conditions
from tests.support.amqp.frame_peer import Peer, value
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


def stolen(peer: Peer) -> None:
    """The next frame detaches the link as stolen; the connection goes on."""
    detach = peer.expect(Detach)
    assert detach.closed
    assert detach.error is not None
    assert str(detach.error.condition) == conditions.STOLEN
    peer.write(Detach(handle=0, closed=True))
    peer.nothing_before_echo()


def test_the_second_attach_of_a_sender_has_the_link(broker: Broker, queue: str) -> None:
    # Eight connections in turn: with two frontends they meet over processes as well.
    peers = [connected(broker, container_id="c") for _ in range(8)]
    peers[0].attach_sender(queue, name="link")
    for former, latter in itertools.pairwise(peers):
        latter.attach_sender(queue, name="link")
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
        first.attach_receiver(queue, name="link")
        first.flow(10)
        assert first.delivery()[1].endswith(value("m"))
        second.attach_receiver(queue, name="link")
        stolen(first)
        second.flow(10)
        assert second.delivery()[1].endswith(value("m"))


def test_a_name_counts_per_direction_container_and_queue(broker: Broker, queue: str) -> None:
    with (
        connected(broker, container_id="c") as first,
        connected(broker, container_id="c") as second,
        connected(broker, container_id="d") as third,
    ):
        first.attach_sender(queue, name="link")
        second.attach_receiver(queue, name="link")
        second.attach_sender(queue, handle=1, name="another link")
        second.attach_sender(f"{queue}/other", handle=2, name="link")
        third.attach_sender(queue, name="link")
        first.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"0"), value("m"))
        assert first.expect(Disposition).settled


def test_containers_without_an_id_do_not_share_names(broker: Broker, queue: str) -> None:
    with connected(broker, container_id="") as first, connected(broker, container_id="") as second:
        first.attach_sender(queue, name="link")
        second.attach_sender(queue, name="link")
        first.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"0"), value("m"))
        assert first.expect(Disposition).settled


def test_a_link_that_was_detached_steals_from_nobody(broker: Broker, queue: str) -> None:
    with connected(broker, container_id="c") as first, connected(broker, container_id="c") as second:
        first.attach_sender(queue, name="link")
        first.write(Detach(handle=0, closed=False))
        assert first.expect(Detach).error is None
        second.attach_sender(queue, name="link")
        first.nothing_before_echo()
