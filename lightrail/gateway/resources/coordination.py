"""Coordination over HTTP: whether the coordinator was set back, and writing again what it has lost."""

from aiohttp import web

from lightrail.cluster.coordinator import Coordinator, NotSetBack
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.request import Request


async def show(request: Request) -> web.Response:
    """GET /!coordinator: {"set_back": null}, or what is known and what the coordinator has."""
    request.manager()
    return web.json_response(_shown(request.services.coordinator))


async def put_back(request: Request) -> web.Response:
    """POST /!coordinator/put-back: what this gateway knows and the coordinator has lost is written again.

    It deletes nothing. Keys that were changed since stay as they are, under `kept`; `again` are keys that
    this gateway does not know: they had been deleted, or were made since.
    """
    request.manager()
    if request.rest[0] != "put-back":
        raise ProblemError(
            404, f"expected /!coordinator/put-back, found /!coordinator/{request.rest[0][:80]}"
        )
    gateway = request.services
    try:
        done = await gateway.coordinator.put_back()
    except NotSetBack as error:
        raise ProblemError(409, str(error)) from None
    return web.json_response(done.shown())


def _shown(coordinator: Coordinator) -> dict[str, object]:
    found = coordinator.set_back
    return {"set_back": None if found is None else found._asdict()}
