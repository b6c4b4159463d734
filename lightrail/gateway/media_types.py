"""Media types of bodies that the gateway reads and writes."""

from typing import Final

JSON: Final = "application/json"
ATOM: Final = "application/atom+xml"
POLICY: Final = "application/vnd.lightrail.policy+json"
AMQP: Final = "application/vnd.lightrail.amqp"
BATCH: Final = "application/vnd.lightrail.batch+json"
