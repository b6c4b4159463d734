"""The service bus: events, commands and requests between services, over the broker.

bus = Bus("amqp://localhost", name="billing")

@message("shop.order-placed")
@dataclass
class OrderPlaced:
    id: int

@bus.handler(retry=Retry(immediate=3, delayed=[5, 60, 600]))
async def bill(order: OrderPlaced, context: Context) -> None:
    await context.publish(Invoice(order.id))

async with bus:
    await bus.publish(OrderPlaced(7))
"""

from lightrail.bus.bus import Bus
from lightrail.bus.claims import ClaimCheck, Claims, FolderClaims
from lightrail.bus.consumer import Handled, Outcome
from lightrail.bus.context import Context
from lightrail.bus.depends import Depends
from lightrail.bus.errors import (
    BrokerAwayError,
    BusError,
    ConfigurationError,
    MiddlewareError,
    NotReadableError,
    RequestError,
    RequestFailedError,
    RequestTimeoutError,
    UnexpectedAnswerError,
)
from lightrail.bus.fault import Fault
from lightrail.bus.formats import CloudEvents, Format, Json
from lightrail.bus.handlers import Batch, Handlers, Middleware
from lightrail.bus.limits import KillSwitch, RateLimit, Retry
from lightrail.bus.masstransit import MassTransit
from lightrail.bus.messages import Conventions, Kind, MessageType, Scheduled, command, message
from lightrail.bus.sagas import Saga, SagaContext
from lightrail.bus.slips import Activity, RoutingSlip, SlipCompleted, SlipContext, SlipFaulted
from lightrail.bus.sqlite import SqliteStore
from lightrail.bus.store import MemoryStore, Store, StoreError

__all__ = [
    "Activity",
    "Batch",
    "BrokerAwayError",
    "Bus",
    "BusError",
    "ClaimCheck",
    "Claims",
    "CloudEvents",
    "ConfigurationError",
    "Context",
    "Conventions",
    "Depends",
    "Fault",
    "FolderClaims",
    "Format",
    "Handled",
    "Handlers",
    "Json",
    "KillSwitch",
    "Kind",
    "MassTransit",
    "MemoryStore",
    "MessageType",
    "Middleware",
    "MiddlewareError",
    "NotReadableError",
    "Outcome",
    "RateLimit",
    "RequestError",
    "RequestFailedError",
    "RequestTimeoutError",
    "Retry",
    "RoutingSlip",
    "Saga",
    "SagaContext",
    "Scheduled",
    "SlipCompleted",
    "SlipContext",
    "SlipFaulted",
    "SqliteStore",
    "Store",
    "StoreError",
    "UnexpectedAnswerError",
    "command",
    "message",
]
