"""A client of a node that answers requests, on our own engine in the other role."""

import itertools
from typing import Any

from lightrail.amqp import events
from lightrail.amqp.link import Link
from lightrail.amqp.messages import Message, read_message, write_message
from lightrail.amqp.performatives import Source, Target
from lightrail.amqp.sections import Properties
from lightrail.amqp.session import Session
from tests.support.amqp.frontend_scene import Client


class Requester:
    """A pair of links to a node, and the answers that came."""

    def __init__(self, client: Client, node: str, session: Session, sender: Link, receiver: Link) -> None:
        self.client = client
        self.node = node
        self.session = session
        self.sender = sender
        self.receiver = receiver
        self._numbers = itertools.count(1)

    @classmethod
    async def attach(
        cls,
        client: Client,
        node: str = "$management",
        *,
        credit: int = 100,
        session: Session | None = None,
    ) -> "Requester":
        """On a connection that is opened for it, or on a session that is there."""
        if session is None:
            session = await client.open()
        sender = await client.sender(session, f"requests to {node}", node)
        receiver = session.attach(
            f"from {node}", False, source=Source(address=node), target=Target(address="me")
        )
        await client.turn()
        if credit:
            receiver.grant(credit)
            await client.turn()
        return cls(client, node, session, sender, receiver)

    async def send(self, message: Message, *, settled: bool = False) -> None:
        """Send a request as it is."""
        self.sender.send_one(write_message(message), 0, settled)
        await self.client.turn()

    async def ask(self, body: Any = None, **application: Any) -> Message:
        """One request, and its answer; an underscore in a key stands for a hyphen."""
        application = {key.replace("_", "-"): value for key, value in application.items()}
        number = f"request-{next(self._numbers)}"
        await self.send(Message(Properties(message_id=number, reply_to="me"), application, body))
        (answer,) = await self.answers()
        assert answer.properties.correlation_id == number
        return answer

    async def answers(self) -> list[Message]:
        """Everything that came on the receiver since the last time."""
        for _ in range(20):
            await self.client.turn()
        return [
            read_message(payload)
            for event in self.client.take(events.Transfers)
            if event.link is self.receiver
            for payload in event.payloads
        ]

    def outcomes(self) -> list[Any]:
        """States of requests that were settled since the last time."""
        return [event.state for event in self.client.take(events.Outcome)]
