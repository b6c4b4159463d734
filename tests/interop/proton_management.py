"""A client of $management and $cbs on python-qpid-proton's blocking connection."""

import itertools
from typing import Any

from proton import Link, Message
from proton.reactor import LinkOption
from proton.utils import BlockingConnection

_numbers = itertools.count(1)


class ReplyTo(LinkOption):
    """The target address of a receiver: what requests say as reply-to."""

    def __init__(self, address: str) -> None:
        self.address = address

    def apply(self, link: Link) -> None:
        link.target.address = self.address


class Node:
    """A pair of links to a node of the broker itself."""

    def __init__(self, connection: BlockingConnection, node: str = "$management") -> None:
        self.reply_to = f"answers-{next(_numbers)}"
        self.sender = connection.create_sender(node)
        self.receiver = connection.create_receiver(node, credit=10, options=[ReplyTo(self.reply_to)])

    def ask(self, body: Any = None, **properties: Any) -> Message:
        """One request, and its answer; an underscore in a key stands for a hyphen."""
        id = next(_numbers)
        properties = {key.replace("_", "-"): value for key, value in properties.items()}
        self.sender.send(Message(id=id, reply_to=self.reply_to, properties=properties, body=body))
        answer = self.receiver.receive()
        self.receiver.accept()
        assert answer.correlation_id == id
        return answer
