"""Connections: one to the broker for all channels, and the inbox that their consumers fill.

The client library reconnects automatically. Kombu and Celery reconnect themselves: they create new consumers
and drop unsettled messages. So a connection that was lost once is closed here, and Kombu makes another one:
receivers that are opened again would get messages that are not drained. Messages that are being sent at that
moment may still be accepted, within one attempt to reconnect.
"""

import os
import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from lightrail.client import ClientError, ConnectError, Event, ReconnectPolicy, SendError
from lightrail.client import Message as AmqpMessage
from lightrail.client.errors import AuthenticationError
from lightrail.client.outcomes import OutcomeKind
from lightrail.client.sync import Connection as ClientConnection
from lightrail.client.sync import Management, Sender, connect
from lightrail.kombu.errors import ConnectionGoneError
from lightrail.kombu.names import Names

if TYPE_CHECKING:
    from lightrail.kombu.consumer import Inbox

_ONCE: Final = ReconnectPolicy(attempts=1)


class Connection:
    """A connection for Kombu, opened by the constructor.

    Raises ConnectionGoneError if no broker is reached, AuthenticationError if the broker refuses the user.
    """

    def __init__(self, client: Any, url: str, names: Names, **options: Any) -> None:
        self.client = client
        self.names = names
        self.pid = os.getpid()
        self.channels: list[Any] = []
        self.inbox: Inbox = queue.SimpleQueue()
        self._lost = ""
        self._loss_is_known = False
        """Whether `drain_events` has raised the loss."""
        self._lock = threading.Lock()
        self._made = threading.Event()
        self._sender: Sender | None = None
        self._management: Management | None = None
        try:
            self.broker: ClientConnection = connect(url, reconnect=_ONCE, on_event=self._heard, **options)
        except AuthenticationError:
            raise
        except ConnectError as error:
            raise ConnectionGoneError(str(error)) from error
        self._made.set()

    def _heard(self, event: Event) -> None:
        """Handles an event, on the client's thread."""
        if event.kind in ("lost", "closed") and not self._lost:
            self._lost = event.reason or "the connection was closed"
            self.inbox.put(None)
            if event.kind == "lost":
                # Closing waits for the client's thread, so it needs another thread.
                threading.Thread(target=self._close_lost, name="lightrail.kombu lost", daemon=True).start()

    def _close_lost(self) -> None:
        self._made.wait()
        with suppress(ClientError):
            self.broker.close()

    @property
    def connected(self) -> bool:
        return not self._lost and self.pid == os.getpid()

    @property
    def stays(self) -> bool:
        """Whether Kombu keeps this connection; otherwise it makes another one before its next call.

        A lost connection with consumers counts as alive until `drain_events` has raised the loss: another one
        has no consumers, and `drain_events` would wait for ever.
        """
        if self.connected:
            return True
        has_consumers = any(channel.has_consumers for channel in list(self.channels))
        return self.pid == os.getpid() and has_consumers and not self._loss_is_known

    def check(self) -> None:
        """Raises ConnectionGoneError if the connection was lost, and in another process."""
        if self.pid != os.getpid():
            raise ConnectionGoneError(
                f"expected to be used by process {self.pid}, which opened it, found {os.getpid()}: "
                "open a connection after the fork"
            )
        if self._lost:
            raise ConnectionGoneError(f"the connection to the broker was lost: {self._lost}")

    @property
    def management(self) -> Management:
        self.check()
        with self._lock:
            if self._management is None:
                management = self.broker.management()
                management.__enter__()
                self._management = management
            return self._management

    def send(self, message: AmqpMessage) -> None:
        """Returns when the broker has accepted the message.

        Raises:
            SendError: the broker refused it.
            ConnectionGoneError: there was no answer: the message may have been accepted or not.
        """
        self.check()
        with self._lock:
            if self._sender is None:
                sender = self.broker.sender()
                sender.opened()
                self._sender = sender
        try:
            self._sender.send(message)
        except ConnectError as error:
            raise ConnectionGoneError(str(error)) from error
        except SendError as error:
            if error.outcome.kind is OutcomeKind.UNKNOWN:
                raise ConnectionGoneError(str(error)) from error
            raise

    def drain_events(self, timeout: float | None = None) -> None:
        """Delivers one message to its consumer.

        Raises:
            TimeoutError: there was none within `timeout` seconds, as with sockets.
            ConnectionGoneError: the connection was lost, with all consumers.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                self.check()
            except ConnectionGoneError:
                self._loss_is_known = True
                raise
            try:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                arrival = self.inbox.get(timeout=left) if left != 0 else self.inbox.get_nowait()
            except queue.Empty:
                raise TimeoutError(f"no message came within {timeout} s") from None
            if arrival is None:
                continue
            consumer, found = arrival
            if consumer.closed:
                continue
            if isinstance(found, Exception):
                if self._lost:
                    continue
                raise found
            if consumer.cancelled:
                found.release()
                continue
            consumer.deliver(found)
            return

    def close(self) -> None:
        if self.pid != os.getpid():
            return
        for channel in list(self.channels):
            channel.close()
        self.broker.close()
