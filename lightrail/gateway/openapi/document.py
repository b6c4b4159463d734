"""All requests that the gateway serves: their OpenAPI 3.1 description, and the tables of their handlers."""

import json
from functools import lru_cache
from importlib.metadata import version
from typing import Final

from aiohttp import web

from lightrail.gateway.bodies import JSON
from lightrail.gateway.errors import PROBLEM
from lightrail.gateway.openapi import administration, applications, journals
from lightrail.gateway.openapi.operation import (
    ANY,
    IN_PATH,
    TEXT,
    Handler,
    Object,
    Operation,
    Operations,
    content,
    object_of,
    ok,
    query,
    ref,
)
from lightrail.gateway.paths import BELOW, parse_path
from lightrail.gateway.request import Request

Table = dict[tuple[str, int], dict[str, Handler]]
"""Handlers by part, number of segments behind it, and method."""


async def read(_: Request) -> web.Response:
    """GET /!openapi.json."""
    return web.Response(text=_text(), content_type=JSON)


OPERATIONS: Final[Operations] = {
    **applications.OPERATIONS,
    **administration.OPERATIONS,
    **journals.OPERATIONS,
    "GET /!openapi.json": Operation(read, "openapi", "this description", ok("the description", ANY)),
    "GET /healthz": Operation(
        None, "alive", "whether the gateway runs", {200: ("alive", content(TEXT, "text/plain"))}
    ),
    "GET /readyz": Operation(
        None,
        "ready",
        "whether every process serves",
        {
            200: ("ready", content(TEXT, "text/plain")),
            503: ("a line for each process that does not", content(TEXT, "text/plain")),
        },
        (query("self", TEXT, "only about this gateway, for load balancers"),),
    ),
}

SCHEMAS: Final[Object] = {
    **applications.SCHEMAS,
    **administration.SCHEMAS,
    **journals.SCHEMAS,
    "Problem": object_of(
        {
            "title": TEXT,
            "status": {"type": "integer"},
            "detail": TEXT,
            "field": TEXT,
            "found": {},
            "allowed": {},
            "condition": TEXT,
        },
        ("title", "status", "detail"),
    ),
}


def routes(*, named: bool) -> Table:
    """Handlers for every name, or for the installation as a whole; both list the names below."""
    table: Table = {}
    for key, operation in OPERATIONS.items():
        method, path = key.split()
        found = parse_path(path.replace("{", "").replace("}", ""))
        if operation.handler and (bool(found.name) is named or found.part == BELOW):
            table.setdefault((found.part, len(found.rest)), {})[method] = operation.handler
    return table


@lru_cache(maxsize=1)
def _text() -> str:
    return json.dumps(description())


def description() -> Object:
    """The whole document."""
    paths: Object = {}
    for key, operation in OPERATIONS.items():
        method, path = key.split()
        paths.setdefault(path, {})[method.lower()] = _operation(path, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "LightRail gateway",
            "version": version("lightrail"),
            "description": "Names, policies and messages of a LightRail broker; see docs/operate/http.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"basic": []}, {"bearer": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
            "schemas": SCHEMAS,
        },
    }


def _operation(path: str, operation: Operation) -> Object:
    parameters = [IN_PATH[part[1:-1]] for part in path.split("/") if part.startswith("{")]
    made: Object = {
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": [*parameters, *operation.parameters],
        "responses": {
            str(status): {"description": doc} | ({"content": given} if given else {})
            for status, (doc, given) in operation.answers.items()
        }
        | {"default": {"description": "refused: the reason", "content": content(ref("Problem"), PROBLEM)}},
    }
    if operation.body is not None:
        made["requestBody"] = {"content": operation.body, "required": operation.body_required}
    return made
