"""What a shard has for links is shared by users: one user can't fill it for another (ADR 54)."""

from collections.abc import Iterator

import pytest

from lightrail.amqp.performatives import Source
from lightrail.amqp.values import Described, Symbol
from lightrail.cli import admin
from lightrail.model import conditions
from lightrail.shard.links.receiving.consumer_options import SELECTOR_FACTOR
from lightrail.shard.queues.memory import LINKS_BYTES_MIN
from tests.support.amqp.frame_peer import Peer, receiver
from tests.support.broker import Broker

LARGE = "a = '" + "x" * 8_000 + "'"
"""A selector of which two have room in a half of LINKS_BYTES_MIN."""
FITTING = LINKS_BYTES_MIN // 2 // (SELECTOR_FACTOR * len(LARGE))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With two users, and so small a memory mark that receivers have LINKS_BYTES_MIN."""
    directory = tmp_path_factory.mktemp("users")
    password, data = directory / "password", str(directory / "data")
    password.write_text("pencil\n")
    for user in ("ann", "bob"):
        assert admin.main(["--data", data, "user", "add", user, "--password-file", str(password)]) == 0
        assert admin.main(["--data", data, "permission", "set", user, "/", "all"]) == 0
    with Broker(data, "--memory-mark", "10MB") as started:
        yield started


def connected(broker: Broker, user: str) -> Peer:
    """A peer of a user with a session."""
    peer = Peer(broker.amqp)
    assert peer.sasl("PLAIN", f"\0{user}\0pencil".encode()).code == 0
    peer.open(container_id=user)
    peer.begin()
    return peer


def source(queue: str) -> Source:
    selector = Described(Symbol("apache.org:selector-filter:string"), LARGE)
    return Source(address=queue, filter={Symbol("selector"): selector})


def test_a_user_beyond_its_share_of_receivers_is_refused_and_another_is_not(
    broker: Broker, queue: str
) -> None:
    """Also over connections: a user has as many as it likes."""
    peers = []
    for _ in range(FITTING):
        peers.append(peer := connected(broker, "ann"))
        peer.attach_receiver(queue, source=source(queue))
    refused = connected(broker, "ann")
    refused.write(receiver(queue, source=source(queue)))
    refused.expect_refusal(conditions.RESOURCE_LIMIT_EXCEEDED)
    other = connected(broker, "bob")
    assert other.attach_receiver(queue, source=source(queue)).source is not None
    for peer in (*peers, refused, other):
        peer.socket.close()
