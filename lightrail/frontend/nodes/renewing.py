"""renew-locks: a client renews the locks of its unsettled deliveries, if locks end by time.

A delivery is identified by the name of the receiver's link and its delivery-tag (transport 2.7.5). Only links
of the requesting connection are searched, so no client renews the deliveries of another client.
"""

from typing import TYPE_CHECKING, Final

from lightrail.amqp.messages import Message
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.nodes.requests import Request, RequestError, reply
from lightrail.model import limits

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

OPERATION: Final = "renew-locks"
CAPABILITY: Final = "lightrail:renew-locks"
"""Offered in the broker's open: $management has the operation."""


async def renew_locks(connection: "ClientConnection", request: Request) -> Message:
    """Executes the request. Raises RequestError; ShardDownError, ShardRefusedError: no lock was renewed."""
    name = request.text("link")
    if not name:
        raise RequestError(400, "expected the application property link, the name of a receiver, found none")
    body = request.message.body
    tags = body.get("delivery_tags") if isinstance(body, dict) else None
    if (
        not isinstance(tags, list)
        or not 0 < len(tags) <= limits.LOCKS_RENEWED_MAX
        or not all(isinstance(tag, bytes) for tag in tags)
    ):
        raise RequestError(
            400,
            f"expected the body to be a map with delivery_tags, a list of 1 to {limits.LOCKS_RENEWED_MAX} "
            "binaries",
        )
    engine = connection.amqp
    link = None if engine is None else engine.names.get((name, True))
    consumer = None if link is None else link.context
    if not isinstance(consumer, ConsumerLink):
        raise RequestError(
            404, f"this connection has no receiver {name!a:.80} of a queue; expected its link's name"
        )
    return reply(200, "OK", {"locked_ms": await consumer.settlements.renew_locks(tags)})
