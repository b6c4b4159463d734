"""What the conformance tests share: one broker, a peer that speaks in frames, a fresh queue."""

import itertools
from collections.abc import Iterator

import pytest

from tests.support.amqp.frame_peer import Peer
from tests.support.broker import Broker

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Without users: ANONYMOUS on loopback. Small messages only, so that the limit can be reached."""
    with Broker(tmp_path_factory.mktemp("broker") / "data", "--max-message-bytes", "100kB") as started:
        yield started


@pytest.fixture
def peer(broker: Broker) -> Iterator[Peer]:
    """A socket on which nothing has been said."""
    with Peer(broker.amqp) as made:
        yield made


@pytest.fixture
def opened(peer: Peer) -> Peer:
    """A peer after both opens."""
    peer.open()
    return peer


@pytest.fixture
def begun(opened: Peer) -> Peer:
    """A peer with a session on channel 0."""
    opened.begin()
    return opened


@pytest.fixture
def queue() -> str:
    """The name of a queue that nothing else uses."""
    return f"conformance/q{next(_numbers)}"
