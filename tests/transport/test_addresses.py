"""Which transport a URL stands for."""

from pathlib import Path

import pytest

from lightrail.transport import (
    Envelope,
    StoreForwardTransport,
    TransportError,
    memory_broker,
    open_transport,
    transport_of,
)
from lightrail.transport.udp import UdpTransport
from tests.support.broker import Broker
from tests.support.ports import free_ports
from tests.transport.conftest import gathering, play


def test_each_scheme_sends_and_receives(shared_broker: Broker, tmp_path: Path) -> None:
    async def test() -> None:
        (port,) = free_ports(1)
        for url in (
            f"amqp://{shared_broker.amqp}/of-a-url",
            "memory://test-addresses/orders",
            "loopback://test-addresses/orders",
            f"udp://239.255.71.8:{port}",
            f"store-forward+memory://test-addresses/stored?outbox={tmp_path / 'outbox.db'}",
            f"store-forward+amqp://{shared_broker.amqp}/stored?outbox={tmp_path / 'other.db'}",
        ):
            transport = await open_transport(url)
            await transport.send(Envelope(body=url.encode()))
            found: list[Envelope] = []
            assert await transport.receive(gathering(found), timeout=10), url
            assert found[0].body == url.encode()
            await transport.close()

    play(test())


def test_memory_urls_of_one_broker_reach_each_other_and_tests_reach_the_broker() -> None:
    async def test() -> None:
        transport = transport_of("memory://shared/orders%2F7")
        await transport.send(Envelope(body=b"x"))
        assert len(memory_broker("shared").queue("orders/7")) == 1

    play(test())


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://localhost/orders", "expected the URL of a transport"),
        ("orders", "expected the URL of a transport"),
        ("amqp://localhost", "expected the name of a queue"),
        ("udp://239.255.1.1", "expected udp://GROUP:PORT"),
        ("udp://10.0.0.1:5000", "multicast"),
        ("store-forward+memory://a/b", r"expected \?outbox=FILE"),
    ],
)
def test_a_url_that_is_none_is_refused_with_what_was_expected(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        transport_of(url)


def test_a_broker_that_is_not_there_is_an_error_at_once_but_not_for_store_and_forward(tmp_path: Path) -> None:
    async def test() -> None:
        (port,) = free_ports(1)
        with pytest.raises(TransportError, match=str(port)):
            await open_transport(f"amqp://127.0.0.1:{port}/orders")
        transport = await open_transport(
            f"store-forward+amqp://127.0.0.1:{port}/orders?outbox={tmp_path / 'outbox.db'}"
        )
        assert isinstance(transport, StoreForwardTransport)
        await transport.send(Envelope(body=b"x"))
        assert (await transport.depth()).messages == 1
        await transport.close()

    play(test())


def test_other_datagrams_are_counted_and_dropped() -> None:
    transport = UdpTransport("239.255.71.9", 1)
    for datagram in (
        b"",
        b"GET / HTTP/1.1",
        b"LRD1\xff\xff\xff\xff{}",
        b"LRD1\x00\x00\x00\x02[]",
        b"LRD1\x00\x00\x00\x01x",
    ):
        transport.arrived(datagram)
    assert transport.dropped == 5
