"""Brokers: the one that a bus reaches by its URLs, over AMQP or in this process."""

import ssl
from collections.abc import Callable
from typing import TypedDict

from lightrail.bus.errors import ConfigurationError
from lightrail.client import Credentials, Event, ReconnectPolicy
from lightrail.client.tokens import TokenSource
from lightrail.transport import Broker


class BrokerOptions(TypedDict, total=False):
    """Keywords of the connection, which `lightrail.client.connect` describes."""

    credentials: Credentials | None
    token: TokenSource | None
    tls: ssl.SSLContext | None
    reconnect: ReconnectPolicy | None
    heartbeat: float
    on_event: Callable[[Event], None] | None


def broker_at(urls: tuple[str, ...], options: BrokerOptions) -> Broker:
    """The broker at the URLs, not connected yet. Raises ConfigurationError where there is no URL."""
    if not urls:
        raise ConfigurationError('expected the URL of a broker, as Bus("amqp://localhost", name="billing")')
    if urls[0].startswith("memory://"):
        from lightrail.transport import memory_broker

        return memory_broker(urls[0].removeprefix("memory://").strip("/"))
    from lightrail.transport.amqp import AmqpBroker

    return AmqpBroker(*urls, **options)
