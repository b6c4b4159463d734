"""renew-locks: a client keeps deliveries that it has received and not settled, where their locks run out.

A delivery is named as its receiver knows it: by the name of the link and its delivery-tag (transport 2.7.5).
Only links of the connection that asks are looked at, so nobody renews what another one has received.
"""

from typing import TYPE_CHECKING, Final

from lightrail.amqp.messages import Message
from lightrail.frontend.deliveries import ConsumerLink
from lightrail.frontend.requests import Fault, Request, reply
from lightrail.model import limits

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

OPERATION: Final = "renew-locks"
CAPABILITY: Final = "lightrail:renew-locks"
"""Offered in our open: $management knows the operation."""


async def renew_locks(connection: "ClientConnection", request: Request) -> Message:
    """Carries the request out. Raises Fault; ShardDownError and ShardRefusedError: no lock was renewed."""
    name = request.text("link")
    if not name:
        raise Fault(400, "expected the application property link, the name of a receiver, found none")
    body = request.message.body
    tags = body.get("delivery_tags") if isinstance(body, dict) else None
    if (
        not isinstance(tags, list)
        or not 0 < len(tags) <= limits.LOCKS_RENEWED_MAX
        or not all(isinstance(tag, bytes) for tag in tags)
    ):
        raise Fault(
            400,
            f"expected the body to be a map with delivery_tags, a list of 1 to {limits.LOCKS_RENEWED_MAX} "
            "binaries",
        )
    engine = connection.amqp
    link = None if engine is None else engine.names.get((name, True))
    consumer = None if link is None else link.context
    if not isinstance(consumer, ConsumerLink):
        raise Fault(404, f"this connection has no receiver {name!a:.80} of a queue; expected its link's name")
    return reply(200, "OK", {"locked_ms": await consumer.renew_locks(tags)})
