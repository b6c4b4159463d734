"""Messages through a cluster, by one client that waits."""

from proton import Message
from proton.utils import BlockingConnection, LinkDetached

from tests.support import wait


def send(amqp: str, queue: str, *bodies: str) -> None:
    """Returns when the broker has taken every one of them."""
    connection = BlockingConnection(amqp, timeout=wait.DEADLINE_S)
    try:
        sender = connection.create_sender(queue)
        for body in bodies:
            sender.send(Message(body=body, durable=True))
    finally:
        connection.close()


def receive(amqp: str, queue: str, count: int) -> list[str]:
    """So many messages, which are gone then."""
    connection = BlockingConnection(amqp, timeout=wait.DEADLINE_S)
    try:
        receiver = connection.create_receiver(queue)
        bodies = []
        for _ in range(count):
            bodies.append(str(receiver.receive(wait.DEADLINE_S).body))
            receiver.accept()
        return bodies
    finally:
        connection.close()


def make(amqp: str, *queues: str) -> None:
    """Each queue is used once: from then on every process knows it."""

    def used(queue: str) -> bool:
        try:
            send(amqp, queue)
        except LinkDetached:
            return False
        return True

    for queue in queues:
        wait.until_with(queue, lambda queue: used(queue), f"queue {queue} is known to its shard")
