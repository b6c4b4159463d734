"""A shard is away for longer than senders wait: what proton's clients hear, and how it goes on."""

import os
import signal
from pathlib import Path
from typing import Any

from proton import Delivery, Event, Message

from tests.support.amqp.proton_reactor import Client
from tests.support.broker import Broker
from tests.support.wait import freeze, gone, until


class Sender(Client):
    """Sends two messages with a shard, two without one, and one when it is back; receives all the time."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.amqp)
        self.broker = broker
        self.outcomes: list[Any] = []
        self.received: list[int] = []

    def begin(self) -> None:
        self.sender = self.container.create_sender(self.connection, "q", name="s")
        self.receiver = self.container.create_receiver(self.connection, "q", name="r")

    def send(self, *numbers: int) -> None:
        for number in numbers:
            self.sender.send(Message(body=number, durable=True))

    def on_sendable(self, event: Event) -> None:
        if not self.outcomes and not self.sender.unsettled:
            self.send(0, 1)
        elif len(self.outcomes) == 4 and not self.sender.unsettled:
            # Credit is there again, with the shard.
            self.send(4)

    def on_message(self, event: Event) -> None:
        self.received.append(event.message.body)
        self.check()

    def on_settled(self, event: Event) -> None:
        if event.link.is_sender:
            self.outcomes.append(event.delivery.remote_state)
            if len(self.outcomes) == 2:
                stop_shard(self.broker)
                self.send(2, 3)
            elif len(self.outcomes) == 4:
                self.broker.process.send_signal(signal.SIGCONT)
        self.check()

    def check(self) -> None:
        if len(self.outcomes) == 5 and 4 in self.received:
            self.done()


def stop_shard(broker: Broker) -> None:
    """Kills the shard; its supervisor starts it again only when it is let go on."""
    freeze(broker.process.pid)
    pid = broker.pid("shard")
    os.kill(pid, signal.SIGKILL)
    until(lambda: gone(pid), "the shard ends")


def test_senders_get_their_messages_back_and_go_on_when_the_shard_is_back(tmp_path: Path) -> None:
    flags = ("--shards", "1", "--frontends", "1", "--shard-wait", "1s")
    with Broker(tmp_path / "data", *flags) as broker:
        sender = Sender(broker)
        sender.run()
        accepted = Delivery.ACCEPTED
        assert sender.outcomes[:2] == [accepted, accepted]
        assert {*sender.outcomes[2:4]} <= {Delivery.RELEASED, Delivery.MODIFIED}
        assert sender.outcomes[4:] == [accepted]
        # What was given back is never sent again by us.
        assert sender.received[0] == 0
        assert set(sender.received) == {0, 1, 4}
