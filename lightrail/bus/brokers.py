"""Brokers: which broker the URLs of a bus name, and the options of a connection to it."""

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


def broker_of(urls: tuple[str, ...], options: BrokerOptions) -> Broker:
    if not urls:
        raise ConfigurationError('expected the URL of a broker, as Bus("amqp://localhost", name="billing")')
    if urls[0].startswith("memory://"):
        from lightrail.transport import memory_broker

        return memory_broker(urls[0].removeprefix("memory://").strip("/"))
    from lightrail.transport.amqp import AmqpBroker

    return AmqpBroker(*urls, **options)
