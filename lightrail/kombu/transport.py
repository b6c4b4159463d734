"""Transports: they open and close connections for Kombu.

They are not asynchronous in Kombu's sense: the client has its loop in a separate thread, and consumers wait
in `drain_events`. There is no socket that an event loop of Kombu could read.
"""

import os
import ssl
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from kombu.transport import base

from lightrail.client.options import PORTS
from lightrail.kombu.channel import Channel
from lightrail.kombu.connection import Connection
from lightrail.kombu.errors import CHANNEL_ERRORS, CONNECTION_ERRORS
from lightrail.kombu.names import EXCHANGE_TYPES, Names


class Transport(base.Transport):  # type: ignore[misc, unused-ignore]
    """lightrail://[USER[:PASSWORD]@]HOST[:PORT][/VIRTUAL_HOST]; with `broker_use_ssl`, over TLS."""

    scheme = "amqp"
    default_port = PORTS["amqp"]
    connection_errors = (*base.Transport.connection_errors, *CONNECTION_ERRORS)
    channel_errors = (*base.Transport.channel_errors, *CHANNEL_ERRORS)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors: tuple[type[Exception], ...] = ()
    driver_type = "lightrail"
    driver_name = "lightrail.client"
    implements = base.Transport.implements.extend(
        asynchronous=False, exchange_type=EXCHANGE_TYPES, heartbeats=False
    )

    def driver_version(self) -> str:
        return version("lightrail")

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {"hostname": "localhost", "port": self.default_port}

    def establish_connection(self) -> Connection:
        client = self.client
        tls = tls_context(client.ssl)
        scheme = "amqps" if tls is not None else self.scheme
        user = quote(client.userid or "", safe="")
        if user and client.password is not None:
            user = f"{user}:{quote(client.password, safe='')}"
        host = client.hostname or "localhost"
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        url = f"{scheme}://{user}{'@' if user else ''}{host}:{client.port or PORTS[scheme]}"
        options: dict[str, Any] = {} if tls is None else {"tls": tls}
        if client.heartbeat:
            options["heartbeat"] = client.heartbeat
        return Connection(client, url, Names.of(client.virtual_host), **options)

    def create_channel(self, connection: Connection) -> Channel:
        return Channel(connection)

    def close_channel(self, channel: Channel) -> None:
        channel.close()

    def close_connection(self, connection: Connection) -> None:
        connection.close()

    def _collect(self, connection: Connection | None) -> None:
        """Kombu calls this after a fork: drops the parent's connection, or closes it in the parent."""
        if connection is not None and connection.pid == os.getpid():
            connection.close()

    def drain_events(self, connection: Connection, timeout: float | None = None, **_: Any) -> None:
        connection.drain_events(timeout)

    def verify_connection(self, connection: Connection) -> bool:
        return connection.stays

    def qos_semantics_matches_spec(self, connection: Connection) -> bool:
        """False: a changed prefetch_count applies to running consumers, which Celery calls global."""
        return False


class TlsTransport(Transport):
    """lightrails://…: TLS, with the system's certificate authorities unless `broker_use_ssl` has others."""

    scheme = "amqps"
    default_port = PORTS["amqps"]


def tls_context(given: Any) -> ssl.SSLContext | None:
    """The context for `broker_use_ssl`: a context, or a dict with ca_certs, certfile, keyfile, cert_reqs.

    Raises ValueError for other keys: none is silently ignored.
    """
    if not given:
        return None
    if isinstance(given, ssl.SSLContext):
        return given
    options = {} if given is True else dict(given)
    context = ssl.create_default_context(cafile=options.pop("ca_certs", None))
    certificate, key = options.pop("certfile", None), options.pop("keyfile", None)
    if certificate:
        context.load_cert_chain(certificate, key)
    required = options.pop("cert_reqs", ssl.CERT_REQUIRED)
    if required != ssl.CERT_REQUIRED:
        context.check_hostname = False
        context.verify_mode = required
    if options:
        raise ValueError(
            "expected ca_certs, certfile, keyfile, cert_reqs or an SSLContext in broker_use_ssl, found "
            + ", ".join(sorted(options))
        )
    return context
