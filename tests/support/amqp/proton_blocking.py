"""python-qpid-proton's blocking client as the tests use it: connections that close, options, outcomes."""

import contextlib
from collections.abc import Iterator
from typing import Any

from proton import Delivery, Link, Message
from proton.handlers import FlowController
from proton.reactor import LinkOption
from proton.utils import BlockingConnection, BlockingReceiver

TIMEOUT_S = 30.0
_ROUNDS_MAX = 500
"""Of events: what came, what follows from it, its end; each message that was sent leaves one, too."""


class SettleModes(LinkOption):
    """Any pair of settle modes."""

    def __init__(self, sender: int = Link.SND_MIXED, receiver: int = Link.RCV_FIRST) -> None:
        self.sender = sender
        self.receiver = receiver

    def apply(self, link: Link) -> None:
        link.snd_settle_mode = self.sender
        link.rcv_settle_mode = self.receiver


@contextlib.contextmanager
def connected(address: str, **options: Any) -> Iterator[BlockingConnection]:
    """A connection to HOST:PORT (or a whole URL) that is closed in the end, also when the test fails."""
    url = address if "://" in address else f"amqp://{address}"
    options.setdefault("timeout", TIMEOUT_S)
    connection = BlockingConnection(url, **options)
    try:
        yield connection
    finally:
        with contextlib.suppress(Exception):
            _look(connection)
        with contextlib.suppress(Exception):
            connection.close()


def _look(connection: BlockingConnection) -> None:
    """Proton learns whether the peer is still there: where it died, a close goes round for its whole time."""
    connection.container.timeout = 0
    for _ in range(_ROUNDS_MAX):
        if connection.disconnected:
            return
        connection.container.process()


def received(receiver: BlockingReceiver, count: int, accept: bool = True) -> list[Message]:
    """The next messages of a receiver, in order."""
    found = []
    for _ in range(count):
        found.append(receiver.receive())
        if accept:
            receiver.accept()
    return found


def take(receiver: BlockingReceiver) -> tuple[Message, Delivery]:
    """The next message with its delivery, for outcomes that the blocking client has no method for."""
    message = receiver.receive()
    return message, receiver.fetcher.unsettled.pop()


def drain(connection: BlockingConnection, receiver: BlockingReceiver, credit: int = 10_000) -> list[Message]:
    """Everything that is ready in the queue now; nothing stays on the way (2.6.7)."""
    # A receiver that was made with credit tops it up after each message, which would end the drain.
    handlers = receiver.fetcher.handlers
    handlers[:] = [handler for handler in handlers if not isinstance(handler, FlowController)]
    receiver.link.drain(credit)
    connection.wait(lambda: not receiver.link.draining() and not receiver.link.queued, msg="draining")
    found = []
    while receiver.fetcher.has_message:
        found.append(receiver.fetcher.pop())
    return found
