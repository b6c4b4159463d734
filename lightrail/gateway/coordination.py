"""Coordination over HTTP: whether the coordinator was set back, and writing again what it has lost."""

from aiohttp import web

from lightrail.cluster.coordinator import Coordinator, NotSetBackError
from lightrail.gateway.asked import Asked
from lightrail.gateway.errors import Problem


async def show(asked: Asked) -> web.Response:
    """GET /!coordinator: {"set_back": null}, or what is known and what the coordinator has."""
    asked.manager()
    return web.json_response(_shown(asked.gateway.coordinator))


async def put_back(asked: Asked) -> web.Response:
    """POST /!coordinator/put-back: what this gateway knows and the coordinator has lost is written again.

    It deletes nothing. Keys that were changed since stay as they are, under `kept`; `again` are keys that
    this gateway does not know: they had been deleted, or were made since.
    """
    asked.manager()
    if asked.rest[0] != "put-back":
        raise Problem(404, f"expected /!coordinator/put-back, found /!coordinator/{asked.rest[0][:80]}")
    gateway = asked.gateway
    try:
        done = await gateway.coordinator.put_back()
    except NotSetBackError as error:
        raise Problem(409, str(error)) from None
    return web.json_response(done.shown())


def _shown(coordinator: Coordinator) -> dict[str, object]:
    found = coordinator.set_back
    return {"set_back": None if found is None else found._asdict()}
