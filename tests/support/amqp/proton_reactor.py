"""python-qpid-proton's reactor as the tests use it: a handler that fails loudly, and ends in time."""

from collections.abc import Callable
from typing import Any

from proton import Delivery, Event, Link, Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

TIMEOUT_S = 60.0


class Client(MessagingHandler):
    """Connects to `address`; every error fails the test unless a subclass expects it. `done` ends it."""

    def __init__(self, address: str, **options: Any) -> None:
        self.connect_options = {
            name: options.pop(name) for name in ("heartbeat", "handler") if name in options
        }
        super().__init__(**options)
        self.address = address
        self.connection: Any = None
        self.container: Any = None
        self._watchdog: Any = None

    def run(self) -> None:
        """Until `done` is called; a failed assertion in a callback comes out of here."""
        Container(self).run()

    def done(self) -> None:
        """Close the connection: the container ends by itself then."""
        self._watchdog.cancel()
        self.connection.close()

    def on_start(self, event: Event) -> None:
        self.container = event.container
        self._watchdog = self.container.schedule(TIMEOUT_S, self)
        url = f"amqp://{self.address}"
        self.connection = self.container.connect(url, reconnect=False, **self.connect_options)
        self.begin()

    def begin(self) -> None:
        """Open links on self.connection."""

    def on_timer_task(self, event: Event) -> None:
        raise AssertionError(f"waited {TIMEOUT_S:.0f} s in vain: {self!r}")

    def on_link_error(self, event: Event) -> None:
        raise AssertionError(f"link {event.link.name}: {event.link.remote_condition}")

    def on_session_error(self, event: Event) -> None:
        raise AssertionError(f"session: {event.session.remote_condition}")

    def on_connection_error(self, event: Event) -> None:
        raise AssertionError(f"connection: {event.connection.remote_condition}")

    def on_transport_error(self, event: Event) -> None:
        raise AssertionError(f"transport: {event.transport.condition}")

    def on_disconnected(self, event: Event) -> None:
        raise AssertionError("the broker ended the socket")

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call `action` when so much time has passed: where time is the subject."""
        self.container.schedule(delay_s, _Timer(action))


class _Timer(MessagingHandler):
    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__()
        self._action = action

    def on_timer_task(self, event: Event) -> None:
        self._action()


class Passage(Client):
    """Sends messages on one link and receives them on another of the same connection, until all have come."""

    def __init__(self, address: str, queue: str, messages: list[Message], **options: Any) -> None:
        self.sender_options = options.pop("sender_options", None)
        self.receiver_options = options.pop("receiver_options", None)
        super().__init__(address, **options)
        self.queue = queue
        self.to_send = list(messages)
        self.count = len(messages)
        self.received: list[Message] = []
        self.accepted = 0
        self.confirmed = 0

    def begin(self) -> None:
        self.sender = self.container.create_sender(
            self.connection, self.queue, name="sender", options=self.sender_options
        )
        self.receiver = self.container.create_receiver(
            self.connection, self.queue, name="receiver", options=self.receiver_options
        )

    def on_sendable(self, event: Event) -> None:
        while self.to_send and event.sender.credit:
            delivery = event.sender.send(self.to_send.pop(0))
            if event.sender.snd_settle_mode == Link.SND_SETTLED:
                assert delivery.local_state == 0
                self.confirmed += 1

    def on_accepted(self, event: Event) -> None:
        self.accepted += 1

    def on_settled(self, event: Event) -> None:
        if event.link.is_sender:
            self.confirmed += 1
            self.check()

    def on_message(self, event: Event) -> None:
        self.received.append(event.message)
        self.check()

    def check(self) -> None:
        if len(self.received) == self.count == self.confirmed:
            self.done()


class RawPassage(Client):
    """Sends encoded messages byte by byte as they are, and gathers the bytes that arrive."""

    def __init__(self, address: str, queue: str, payloads: list[bytes]) -> None:
        super().__init__(address, prefetch=0, auto_accept=False)
        self.queue = queue
        self.payloads = payloads
        self.received: list[bytes] = []

    def begin(self) -> None:
        self.sender = self.container.create_sender(self.connection, self.queue, name="sender")
        self.receiver = self.container.create_receiver(self.connection, self.queue, name="receiver")
        self.receiver.flow(len(self.payloads))

    def on_link_remote_open(self, event: Event) -> None:
        if event.link.is_sender:
            for number, payload in enumerate(self.payloads):
                self.sender.delivery(str(number))
                self.sender.stream(payload)
                self.sender.advance()

    def on_delivery(self, event: Event) -> None:
        # Comes before proton's own handler, which then finds nothing to decode.
        delivery = event.delivery
        if delivery.link.is_receiver and delivery.readable and not delivery.partial:
            self.received.append(bytes(delivery.link.recv(delivery.pending)))
            delivery.link.advance()
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()
            if len(self.received) == len(self.payloads):
                self.done()
