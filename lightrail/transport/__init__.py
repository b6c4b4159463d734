"""Transports and endpoints: the sending and receiving of messages, independent of their content.

A transport moves envelopes, which are bytes with headers, to and from one address. An endpoint translates
between envelopes and objects. `open_transport` returns the transport of a URL.
"""

from lightrail.transport.addresses import memory_broker, open_transport, transport_of
from lightrail.transport.clock import Clock, LoopClock, ManualClock
from lightrail.transport.endpoint import Codec, Endpoint
from lightrail.transport.envelope import Envelope, Header
from lightrail.transport.errors import SendRefusedError, TransportClosedError, TransportError
from lightrail.transport.loopback import Loopback
from lightrail.transport.memory import MemoryBroker
from lightrail.transport.outbox_file import OutboxError, OutboxFullError
from lightrail.transport.protocol import Broker, Handler, Offers, Received, Selector, Transport
from lightrail.transport.store_forward import StoreForwardTransport
from lightrail.transport.topology import QueueRules, Subscription, Topology, TopologyError

__all__ = [
    "Broker",
    "Clock",
    "Codec",
    "Endpoint",
    "Envelope",
    "Handler",
    "Header",
    "LoopClock",
    "Loopback",
    "ManualClock",
    "MemoryBroker",
    "Offers",
    "OutboxError",
    "OutboxFullError",
    "QueueRules",
    "Received",
    "Selector",
    "SendRefusedError",
    "StoreForwardTransport",
    "Subscription",
    "Topology",
    "TopologyError",
    "Transport",
    "TransportClosedError",
    "TransportError",
    "memory_broker",
    "open_transport",
    "transport_of",
]
