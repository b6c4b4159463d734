from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from proton import (
    AnyLink,
    Connection,
    ConnectionException,
    Delivery,
    LinkException,
    Message,
    ProtonException,
    Receiver,
    Sender,
)
from proton.handlers import Handler, MessagingHandler
from proton.reactor import Container, LinkOption

L = TypeVar("L", Sender, Receiver)

class SendException(ProtonException):
    state: int

class LinkDetached(LinkException):
    link: AnyLink
    condition: str | None

class ConnectionClosed(ConnectionException):
    connection: Connection
    condition: str | None

class BlockingLink(Generic[L]):
    connection: BlockingConnection
    link: L
    def close(self) -> None: ...

class BlockingSender(BlockingLink[Sender]):
    def send(
        self, msg: Message, timeout: float | bool = False, error_states: Sequence[int] | None = None
    ) -> Delivery: ...

class Fetcher(MessagingHandler):
    incoming: list[tuple[Message, Delivery]]
    unsettled: list[Delivery]
    @property
    def has_message(self) -> int: ...
    def pop(self) -> Message: ...

class BlockingReceiver(BlockingLink[Receiver]):
    # None where the receiver was made with a handler of one's own.
    fetcher: Fetcher
    def receive(self, timeout: float | bool = False) -> Message: ...
    def accept(self) -> None: ...
    def reject(self) -> None: ...
    def release(self, delivered: bool = True) -> None: ...
    def settle(self, state: int | None = None) -> None: ...

class BlockingConnection(Handler):
    container: Container
    conn: Connection
    timeout: float
    disconnected: bool
    def __init__(self, url: str | None = None, timeout: float | None = None, **options: Any) -> None: ...
    def create_sender(
        self,
        address: str | None,
        handler: Handler | None = None,
        name: str | None = None,
        options: LinkOption | Sequence[LinkOption] | None = None,
    ) -> BlockingSender: ...
    def create_receiver(
        self,
        address: str | None = None,
        credit: int | None = None,
        dynamic: bool = False,
        handler: Handler | None = None,
        name: str | None = None,
        options: LinkOption | Sequence[LinkOption] | None = None,
    ) -> BlockingReceiver: ...
    def wait(
        self, condition: Callable[[], object], timeout: float | bool = False, msg: str | None = None
    ) -> None: ...
    def run(self) -> None: ...
    def close(self) -> None: ...

class SyncRequestResponse(MessagingHandler):
    reply_to: str
    def __init__(self, connection: BlockingConnection, address: str | None = None) -> None: ...
    def call(self, request: Message) -> Message: ...
