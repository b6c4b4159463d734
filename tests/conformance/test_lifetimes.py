"""Queues that are deleted with what made them or with their last consumer, and who uses them next."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lightrail.amqp.performatives import Accepted, Close, Detach, Disposition, End, Transfer
from tests.support.amqp.frame_peer import Peer, frame, sender, value
from tests.support.broker import Broker

ROUNDS = 10


@contextmanager
def connected(broker: Broker, container: str) -> Iterator[Peer]:
    with Peer(broker.amqp) as peer:
        peer.open(container_id=container)
        peer.begin()
        yield peer


def make_template(broker: Broker, name: str, lifetime: str) -> None:
    """Makes queues below a name, by their first use, that live so long."""
    connection = http.client.HTTPConnection(broker.http)
    body = {"role": "none", "template": {"role": "queue", "lifetime": lifetime}}
    connection.request("POST", f"/{name}", json.dumps(body), {"Content-Type": "application/json"})
    assert connection.getresponse().status < 300
    connection.close()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With two frontends: the kernel gives each connection to one of them."""
    with Broker(tmp_path_factory.mktemp("two") / "data", "--frontends", "2") as started:
        yield started


@pytest.mark.parametrize("lifetime", ["connection", "session", "link", "last_consumer"])
def test_a_queue_that_is_used_again_while_it_is_deleted_is_made_anew(
    broker: Broker, queue: str, lifetime: str
) -> None:
    """The next client neither meets the end of the former queue nor loses a message that was accepted."""
    use_again(broker, queue, lifetime)


@pytest.mark.parametrize("lifetime", ["connection", "link"])
def test_an_end_is_answered_when_the_queues_that_end_with_it_are_deleted(
    two: Broker, queue: str, lifetime: str
) -> None:
    """So the next client gets a new queue at another frontend, too."""
    use_again(two, queue, lifetime)


def use_again(broker: Broker, queue: str, lifetime: str) -> None:
    """Uses a queue, ends everything, and uses it again with a client that waited for the ends."""
    make_template(broker, queue, lifetime)
    for number in range(ROUNDS):
        with connected(broker, f"first {number}") as first:
            first.attach_sender(f"{queue}/q")
            first.attach_receiver(f"{queue}/q", handle=1)
            first.write(Detach(handle=0, closed=True))
            first.write(Detach(handle=1, closed=True))
            first.expect(Detach)
            first.expect(Detach)
            first.write(End())
            first.write(Close())
            first.expect(End)
            first.expect(Close)
        with connected(broker, f"next {number}") as peer:
            peer.attach_sender(f"{queue}/q")
            peer.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"0"), value(f"{number}"))
            assert type(peer.expect(Disposition).state) is Accepted
            peer.attach_receiver(f"{queue}/q", handle=1)
            peer.flow(1, handle=1)
            assert peer.delivery()[1] == value(f"{number}")
            peer.write(Close())
            peer.expect(Close)


def test_a_queue_of_a_connection_that_closed_at_once_is_made_anew(broker: Broker, queue: str) -> None:
    """The first connection sends everything at once, so that its attach is processed after its close."""
    make_template(broker, queue, "connection")
    for number in range(ROUNDS):
        with connected(broker, f"first {number}") as first:
            attach, close = frame(sender(f"{queue}/q")), frame(Close())
            first.send(attach + close)
            while type(first.read().body) is not Close:
                pass
        with connected(broker, f"next {number}") as peer:
            peer.attach_sender(f"{queue}/q")
            # Whatever the first connection left is deleted by now, or by the time of this answer.
            for delivery in range(20):
                peer.write(
                    Transfer(handle=0, delivery_id=delivery, delivery_tag=b"%d" % delivery), value("m")
                )
                assert type(peer.expect(Disposition).state) is Accepted
            peer.write(Close())
            peer.expect(Close)
