"""Forwarded clients: connections of clients that a frontend of this machine forwards to the gateway.

The peer of such a socket is this machine, and its client is not: without users, it would have all rights. So
the first request has a header field about the client, which counts for the connection from then on, and
nothing but administration is served on it. A field that no frontend wrote is refused. A connection whose
client was not read from the field ends with its first answer, also where aiohttp answers by itself: its next
request has no field.
"""

from typing import TYPE_CHECKING, cast

from aiohttp import web

from lightrail.gateway.errors import ProblemError
from lightrail.gateway.websockets import is_request
from lightrail.telemetry.http_connection import HttpConnection
from lightrail.wire.forwarded import FIELD, NONCE_FIELD, TO_GATEWAY, Forwarded

if TYPE_CHECKING:
    from lightrail.gateway.services import Services


def client_of(request: web.Request) -> Forwarded | None:
    """The client that a frontend forwards; None: the peer of the request's socket."""
    found = getattr(request.protocol, "forwarded", None)
    return found if isinstance(found, Forwarded) else None


def is_encrypted(request: web.Request) -> bool:
    """Whether the client's own connection uses TLS."""
    client = client_of(request)
    if client is not None:
        return client.tls
    return request.transport is not None and request.transport.get_extra_info("sslcontext") is not None


def as_client_sees_it(request: web.Request) -> web.Request:
    """A request with the scheme that its client uses."""
    client = client_of(request)
    return request if client is None or not client.tls else request.clone(scheme="https")


def forwarded(services: "Services", request: web.Request, *, is_page: bool) -> None:
    """Takes the client of a connection from its first request, and refuses what may not come over it.

    Args:
        is_page: whether the request is for a page, or for metrics: these have routes of their own.

    Raises ProblemError.
    """
    value = request.headers.get(FIELD)
    client = client_of(request)
    if value is not None:
        # A frontend writes one field into the first request of a connection, and removes others from that.
        if client is not None or len(request.headers.getall(FIELD)) != 1:
            raise ProblemError(400, f"{FIELD} is written by processes of the broker alone")
        nonce = request.headers.get(NONCE_FIELD, "").encode(errors="replace")
        try:
            client = Forwarded.read(value, services.callers.secret, nonce, services.now_ms(), TO_GATEWAY)
        except ValueError as error:
            raise ProblemError(400, str(error)) from None
        if not cast(HttpConnection, request.protocol).forward(client, client.host):
            raise ProblemError(503, "too many connections are open from there", headers={"Retry-After": "1"})
    if client is None:
        return
    # The frontend of a WebSocket would take it for one of this machine: it comes from there.
    if is_page or is_request(request) or not services.hooks.is_administration(request):
        raise ProblemError(
            403, "only administration is served at the ports of AMQP; use the gateway's own port for all else"
        )


async def end_unless_taken(request: web.Request, response: web.StreamResponse) -> None:
    """Ends the connection of a forwarded client that was not taken: aiohttp answers some requests itself."""
    if FIELD in request.headers and client_of(request) is None:
        response.force_close()
