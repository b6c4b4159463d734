"""A transport for Kombu and Celery on LightRail.

    import lightrail.kombu  # registers lightrail:// and lightrails:// (TLS) with Kombu

    app = Celery("shop", broker="lightrail://user:password@host:5672")

Kombu finds transports in a table of its own module and has no entry points for them, so one line has to name
this package: the import above, or `broker_transport = "lightrail.kombu:Transport"` beside `broker_url`, which
needs no import. docs/use/celery.md is the guide, docs/adr/0031 has the reasons.
"""

from kombu.transport import TRANSPORT_ALIASES

from lightrail.kombu.channel import Channel
from lightrail.kombu.errors import ConnectionGoneError
from lightrail.kombu.transport import TlsTransport, Transport

TRANSPORT_ALIASES.update(
    {"lightrail": "lightrail.kombu:Transport", "lightrails": "lightrail.kombu:TlsTransport"}
)

__all__ = ["Channel", "ConnectionGoneError", "TlsTransport", "Transport"]
