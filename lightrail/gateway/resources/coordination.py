"""The coordinator over HTTP: whether a restored snapshot set it back, and writing lost keys again."""

from aiohttp import web

from lightrail.cluster.coordinator import Coordinator, NotSetBackError
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.request import Request


async def show(request: Request) -> web.Response:
    """GET /!coordinator: {"set_back": null}, or how the coordinator differs from this gateway's copy."""
    request.manager()
    return web.json_response(_shown(request.services.coordinator))


async def put_back(request: Request) -> web.Response:
    """POST /!coordinator/put-back: writes keys again that this gateway has and the coordinator lost.

    No key is deleted. Keys that were changed since are not written and listed under `kept`; `again` lists
    keys that this gateway does not have: they had been deleted before, or were created since.
    """
    request.manager()
    if request.rest[0] != "put-back":
        raise ProblemError(
            404, f"expected /!coordinator/put-back, found /!coordinator/{request.rest[0][:80]}"
        )
    services = request.services
    try:
        done = await services.coordinator.put_back()
    except NotSetBackError as error:
        raise ProblemError(409, str(error)) from None
    return web.json_response(done.shown())


def _shown(coordinator: Coordinator) -> dict[str, object]:
    found = coordinator.set_back
    return {"set_back": None if found is None else found._asdict()}
