"""The client of LightRail and of every AMQP 1.0 broker.

async with lightrail.client.connect("amqp://localhost") as connection:
    async with connection.sender("orders") as sender:
        await sender.send({"id": 7}, subject="created")
    async with connection.receiver("orders") as receiver:
        async for delivery in receiver:
            await delivery.accept()
"""

from lightrail.client.bodies import Data, Sequence
from lightrail.client.connection import Connection, ConnectOptions, connect
from lightrail.client.delivery import Delivery
from lightrail.client.errors import (
    AuthenticationError,
    ClientError,
    ClosedError,
    ConnectError,
    LinkError,
    LostError,
    NotAllowedError,
    NotFoundError,
    SendError,
    WindowFullError,
)
from lightrail.client.keywords import MessageFields, ReceiverOptions, SenderOptions
from lightrail.client.management import Management, ManagementError
from lightrail.client.message import Message
from lightrail.client.options import Credentials, Event, ReconnectPolicy
from lightrail.client.outcomes import Outcome, OutcomeKind
from lightrail.client.receiver import Receiver
from lightrail.client.requests import Requester
from lightrail.client.sender import Sender
from lightrail.client.tokens import Token
from lightrail.client.transaction import Transaction, TransactionError

__all__ = [
    "AuthenticationError",
    "ClientError",
    "ClosedError",
    "ConnectError",
    "ConnectOptions",
    "Connection",
    "Credentials",
    "Data",
    "Delivery",
    "Event",
    "LinkError",
    "LostError",
    "Management",
    "ManagementError",
    "Message",
    "MessageFields",
    "NotAllowedError",
    "NotFoundError",
    "Outcome",
    "OutcomeKind",
    "Receiver",
    "ReceiverOptions",
    "ReconnectPolicy",
    "Requester",
    "SendError",
    "Sender",
    "SenderOptions",
    "Sequence",
    "Token",
    "Transaction",
    "TransactionError",
    "WindowFullError",
    "connect",
]
