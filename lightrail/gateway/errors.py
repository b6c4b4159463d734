"""Errors of the gateway as answers: JSON problem details (RFC 9457)."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from lightrail.model.policy import InvalidPolicyError
from lightrail.namespace.statuses import STATUS_OF, status_of
from lightrail.shard_client.peers.requests import ShardRefusedError
from lightrail.wire.control import ControlRefusedError

PROBLEM: Final = "application/problem+json"
AGAIN: Final = {"Retry-After": "1"}
"""For failures that may pass: try again after a second."""


class ProblemError(Exception):
    """A request that can't be served; `members` become members of the problem's JSON object."""

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


def invalid(field: str, found: Any, allowed: str, status: int = 422) -> ProblemError:
    """A field of the body, the query or a header with a value that is not allowed."""
    text = f"{field} is {str(found)[:80]!a}; expected {allowed}"
    return ProblemError(status, text, field=field, found=found, allowed=allowed)


def refused(condition: str, description: str) -> ProblemError:
    """A refusal of a shard, by its AMQP condition; full queues and disks may have room again later."""
    status = STATUS_OF.get(condition, 500)
    return ProblemError(
        status, description or condition, headers=AGAIN if status == 503 else None, condition=condition
    )


def unknown(name: str) -> ProblemError:
    """A message without an answer in time."""
    return ProblemError(
        503,
        f"the shard of {name} has not answered in time: the message may or may not be stored; send it again "
        "with the same MessageId where the queue has a duplicate_window",
        headers=AGAIN,
    )


def not_sent(name: str) -> ProblemError:
    """A message that was never sent to its shard, which was disconnected all the time."""
    return ProblemError(
        503, f"the shard of {name} is not connected: the message is not stored; try again", headers=AGAIN
    )


def problem_of(error: Exception) -> ProblemError | None:
    """The answer to an expected error; None for an internal error."""
    match error:
        case ProblemError():
            return error
        case InvalidPolicyError():
            found = error.found
            return ProblemError(422, str(error), field=error.field, found=found, allowed=error.allowed)
        case ShardRefusedError() | ControlRefusedError():
            return refused(error.condition, error.description)
        case web.HTTPException():
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
            return ProblemError(error.status, error.text or error.reason, headers=headers)
    status = status_of(error)
    if status is None:
        return None
    return ProblemError(status, str(error), headers=AGAIN if status == 503 else None)
