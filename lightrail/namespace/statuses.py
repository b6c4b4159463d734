"""Statuses: the number under which an error is told, the same for HTTP and for AMQP management."""

from collections.abc import Mapping
from typing import Final

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.model import conditions
from lightrail.model.names import InvalidName
from lightrail.model.policy import InvalidPolicy
from lightrail.namespace.rights import Forbidden
from lightrail.namespace.service import Changed, LimitExceeded, Missing, Refused, Taken
from lightrail.wire.control import ControlDownError, ControlRefusedError
from lightrail.wire.requests import ShardDownError, ShardRefusedError

STATUS_OF: Final[Mapping[str, int]] = {
    conditions.NOT_FOUND: 404,
    conditions.RESOURCE_DELETED: 404,
    conditions.UNAUTHORIZED_ACCESS: 403,
    conditions.NOT_ALLOWED: 409,
    conditions.RESOURCE_LOCKED: 409,
    conditions.ILLEGAL_STATE: 409,
    conditions.PRECONDITION_FAILED: 409,
    conditions.DECODE_ERROR: 422,
    conditions.INVALID_FIELD: 422,
    conditions.MESSAGE_SIZE_EXCEEDED: 413,
    conditions.RESOURCE_LIMIT_EXCEEDED: 503,
    conditions.STOLEN: 503,
    conditions.NOT_IMPLEMENTED: 501,
}
"""Status for an AMQP error condition that a shard or frontend gave; 500 for others."""


def status_of(error: Exception) -> int | None:
    """The status of an error that is no mistake of ours; None for the others."""
    match error:
        case InvalidPolicy():
            return 422
        case InvalidName():
            return 400
        case Forbidden():
            return 403
        case Taken() | LimitExceeded():
            return 409
        case Changed():
            return 412
        case Missing():
            return 404
        case Refused():
            return 422
        case ShardRefusedError() | ControlRefusedError():
            return STATUS_OF.get(error.condition, 500)
        case ShardDownError() | ControlDownError() | CoordinatorError():
            return 503
    return None
