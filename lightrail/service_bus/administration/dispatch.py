"""Dispatch: the handler of each of the requests of Azure Service Bus's administration clients.

These requests have the parameter api-version, which no other request has. Bodies are Atom; errors have the
bodies and statuses that these clients expect: 401 without the right, 403 at a limit, 400 for invalid values.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from aiohttp import web

from lightrail.gateway.callers import VerifiedCredentials
from lightrail.gateway.errors import ProblemError, problem_of
from lightrail.gateway.forwarded import as_client_sees_it
from lightrail.gateway.request import Request
from lightrail.gateway.services import Services
from lightrail.model.names import InvalidNameError
from lightrail.namespace.directory import Directory
from lightrail.namespace.rights import Caller, ForbiddenError
from lightrail.namespace.statuses import ChangedError, LimitExceededError
from lightrail.service_bus.administration import entities, entries, subscriptions
from lightrail.service_bus.administration.call import Call, Kind, place_of

log = logging.getLogger("lightrail.service_bus.administration")

VERSION: Final = "api-version"
SUPPLEMENTARY: Final = ("ServiceBusSupplementaryAuthorization", "ServiceBusDlqSupplementaryAuthorization")
"""Headers with the credentials of a client for the names to which an entity forwards messages."""
Handler = Callable[[Call], Awaitable[web.Response]]

HANDLERS: Final[Mapping[Kind, Mapping[str, Handler]]] = {
    Kind.NAMESPACE: {"GET": entities.namespace},
    Kind.QUEUES: {"GET": entities.queues},
    Kind.TOPICS: {"GET": entities.topics},
    Kind.ENTITY: {"GET": entities.read, "PUT": entities.put, "DELETE": entities.delete},
    # A client that is about to answer asks whether the queue for answers exists (MassTransit does).
    Kind.TEMPORARY: {"GET": entities.read},
    Kind.SUBSCRIPTIONS: {"GET": subscriptions.list_all},
    Kind.SUBSCRIPTION: {"GET": subscriptions.read, "PUT": subscriptions.put, "DELETE": subscriptions.delete},
    Kind.RULES: {"GET": subscriptions.list_rules},
    Kind.RULE: {
        "GET": subscriptions.read_rule,
        "PUT": subscriptions.put_rule,
        "DELETE": subscriptions.delete_rule,
    },
}


def is_administration(http: web.Request) -> bool:
    """Whether a request comes from one of these clients."""
    return VERSION in http.query


async def serve(services: Services, http: web.Request) -> web.Response:
    """Answers a request; no request makes it raise."""
    http = as_client_sees_it(http)
    try:
        place = place_of(http.rel_url.raw_path)
        methods = HANDLERS[place.kind]
        handler = methods.get(http.method)
        if handler is None:
            allowed = ", ".join(methods)
            raise ProblemError(405, f"{http.method} can't be done here; expected {allowed}")
        # What a signature is for depends on the names that exist.
        services.directory.refresh()
        caller = await services.callers.caller(http)
        supplements = await _supplements(services, http)
        services.directory.refresh()
        place = place.resolved(services.directory)
        caller = caller.at(place.name)
        if supplements:
            caller = replace(caller, supplements=supplements)
        return await handler(Call(Request(services, http, caller, place.name, ()), place))
    except (ConnectionResetError, asyncio.CancelledError):
        # The client closed the connection: an answer can't be sent.
        raise
    except Exception as error:
        return _refusal(error, http)


async def _supplements(services: Services, http: web.Request) -> tuple[Caller, ...]:
    """The callers by the further credentials of a request that forwards messages to other names.

    Only for a request whose caller has been found. Raises ProblemError: 401.
    """
    callers = services.callers
    headers = [http.headers[each] for each in SUPPLEMENTARY if each in http.headers]
    if not callers.has_users or not headers:
        return ()
    found = [await callers.verified(each, http) for each in headers]
    services.directory.refresh()
    return tuple(_bound(services.directory, each) for each in found)


def _bound(directory: Directory, credentials: VerifiedCredentials) -> Caller:
    """The caller by a signature, for the name that exists.

    Bound in every case: a signature for a path that is no name opens no name.
    """
    signed = credentials.resource
    with suppress(InvalidNameError):
        signed = signed._replace(path=directory.resolve(signed.path))
    return replace(credentials.caller, resource=signed)


def _refusal(error: Exception, http: web.Request) -> web.Response:
    problem = problem_of(error)
    if problem is None:
        log.exception("%s %s failed", http.method, http.path)
        problem = ProblemError(500, "internal error; see the log of the gateway")
    status, detail = problem.status, problem.detail
    match error:
        case ForbiddenError():
            status = 401
        case LimitExceededError():
            status = 403
        case ChangedError():
            # By this word clients distinguish a conflict from an entity that exists.
            status, detail = 409, f"SubCode=40901. {detail}"
    if status == 422:
        status = 400
    body = entries.error(status, detail).encode()
    headers = {"Content-Type": "application/xml; charset=utf-8"} | dict(problem.headers or {})
    return web.Response(status=status, body=body, headers=headers)
