"""The OpenAPI 3.1 description of the gateway, assembled from its parts."""

import json
from functools import lru_cache
from importlib.metadata import version
from typing import Final

from lightrail.gateway.errors import PROBLEM
from lightrail.gateway.openapi import (
    administration,
    journals,
    messages,
    names,
    placement,
    subscriptions,
    transfers,
)
from lightrail.gateway.openapi.operation import (
    ANY,
    IN_PATH,
    TEXT,
    Object,
    Operation,
    Paths,
    content,
    object_of,
    query,
    ref,
)

PATHS: Final[Paths] = {
    **names.PATHS,
    **messages.PATHS,
    **subscriptions.PATHS,
    **administration.PATHS,
    **transfers.PATHS,
    **placement.PATHS,
    **journals.PATHS,
    "/!openapi.json": {
        "get": Operation("openapi", "this description", {200: ("the description", content(ANY))})
    },
    "/healthz": {
        "get": Operation("alive", "whether the gateway runs", {200: ("alive", content(TEXT, "text/plain"))})
    },
    "/readyz": {
        "get": Operation(
            "ready",
            "whether every process serves",
            {
                200: ("ready", content(TEXT, "text/plain")),
                503: ("a line for each process that does not", content(TEXT, "text/plain")),
            },
            (query("self", TEXT, "only about this gateway, for load balancers"),),
        )
    },
}

SCHEMAS: Final[Object] = {
    **journals.SCHEMAS,
    **names.SCHEMAS,
    **messages.SCHEMAS,
    **subscriptions.SCHEMAS,
    **transfers.SCHEMAS,
    **placement.SCHEMAS,
    **administration.SCHEMAS,
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
        "title",
        "status",
        "detail",
    ),
}


@lru_cache(maxsize=1)
def text() -> str:
    return json.dumps(description())


def description() -> Object:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "LightRail gateway",
            "version": version("lightrail"),
            "description": "Names, policies and messages of a LightRail broker; see docs/operate/http.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"basic": []}, {"bearer": []}, {}],
        "paths": {
            path: {method: _operation(path, operation) for method, operation in methods.items()}
            for path, methods in PATHS.items()
        },
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
