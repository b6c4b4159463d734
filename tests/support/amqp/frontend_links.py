"""Links of a client at a frontend: a sender and a receiver that are attached, and slices for the receiver."""

from array import array
from typing import Any

from lightrail.wire.frames import deliver
from tests.support.amqp.frontend_scene import Client, Scene


def slice_of(number: int, count: int, size: int = 20) -> bytes:
    body = b"\x00\x53\x75\xa0" + bytes((size - 5,)) + b"x" * (size - 5)
    ends = array("I", [size * index for index in range(1, count + 1)])
    return deliver(1, 1, number, count, 0, number, 0, 0, 0, 0, 0, ends, body * count)


async def both(scene: Scene, **options: Any) -> tuple[Client, Any, Any, Any]:
    """A client with a sender and a receiver, attached."""
    client = scene.client(**options)
    session = await client.open()
    sender = await client.sender(session)
    receiver = await client.receiver(session)
    scene.shard.ready()
    await client.turn()
    scene.shard.take()
    assert scene.links_attached() == 2
    return client, session, sender, receiver
