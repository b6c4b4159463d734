"""Errors of the gateway as people and programs see them: JSON problem details (RFC 9457)."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from lightrail.model.policy import InvalidPolicy
from lightrail.namespace.statuses import STATUS_OF, status_of
from lightrail.wire.control import ControlRefusedError
from lightrail.wire.requests import ShardRefusedError

PROBLEM: Final = "application/problem+json"
AGAIN: Final = {"Retry-After": "1"}
"""What failed for now is worth another try after a second."""


class Problem(Exception):
    """A request that can't be served; `members` go into the problem's JSON object as they are."""

    def __init__(
        self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.members = members

    def response(self) -> web.Response:
        body = {"title": HTTPStatus(self.status).phrase, "status": self.status, "detail": self.detail}
        body |= self.members
        text = json.dumps(body, default=str)
        return web.Response(status=self.status, text=text, content_type=PROBLEM, headers=self.headers)


def refused(condition: str, description: str) -> Problem:
    """What a shard refused: full queues and disks may have room again, the rest will not pass by itself."""
    status = STATUS_OF.get(condition, 500)
    return Problem(
        status, description or condition, headers=AGAIN if status == 503 else None, condition=condition
    )


def unknown(name: str) -> Problem:
    """Nothing was heard of a message in time."""
    return Problem(
        503,
        f"the shard of {name} has not answered in time: the message may or may not be stored; send it again "
        "with the same MessageId where the queue has a duplicate_window",
        headers=AGAIN,
    )


def away(name: str) -> Problem:
    """A message waited for a shard that was not there all the time."""
    return Problem(
        503, f"the shard of {name} is not there now: the message is not stored; try again", headers=AGAIN
    )


def problem_of(error: Exception) -> Problem | None:
    """How an error that is no mistake of ours is told; None for the others."""
    match error:
        case Problem():
            return error
        case InvalidPolicy():
            found = error.found
            return Problem(422, str(error), field=error.field, found=found, allowed=error.allowed)
        case ShardRefusedError() | ControlRefusedError():
            return refused(error.condition, error.description)
        case web.HTTPException():
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
            return Problem(error.status, error.text or error.reason, headers=headers)
    status = status_of(error)
    return None if status is None else Problem(status, str(error), headers=AGAIN if status == 503 else None)
