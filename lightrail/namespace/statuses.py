"""Why a request about the namespace is refused: the errors, and their numbers.

Statuses: the number of each error, the same for HTTP and for AMQP management.

Errors: why a change of the namespace is refused.
"""

from collections.abc import Mapping
from typing import Final

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.model import conditions
from lightrail.model.names import InvalidNameError
from lightrail.model.policy import InvalidPolicyError
from lightrail.namespace.rights import ForbiddenError
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.wire.control import ControlDownError, ControlRefusedError


class ServiceError(Exception):
    """The change can't be made as requested; the message has what was expected and what was found."""


class LimitExceededError(ServiceError):
    """The number of names, or of a router's subscriptions, is at its limit."""


class TakenError(ServiceError):
    """The name has a role, or the subscription exists, already."""


class MissingError(ServiceError):
    """The name has no role, or the subscription does not exist."""


class ChangedError(ServiceError):
    """The entry changed since the caller read it (the If-Match does not hold)."""


STATUS_OF: Final[Mapping[str, int]] = {
    conditions.NOT_FOUND: 404,
    conditions.RESOURCE_DELETED: 404,
    conditions.UNAUTHORIZED_ACCESS: 403,
    conditions.NOT_ALLOWED: 409,
    conditions.RESOURCE_LOCKED: 409,
    conditions.ILLEGAL_STATE: 409,
    conditions.PRECONDITION_FAILED: 409,
    conditions.ENTITY_DISABLED: 409,
    conditions.DECODE_ERROR: 422,
    conditions.INVALID_FIELD: 422,
    conditions.MESSAGE_SIZE_EXCEEDED: 413,
    conditions.RESOURCE_LIMIT_EXCEEDED: 503,
    conditions.STOLEN: 503,
    conditions.NOT_IMPLEMENTED: 501,
}
"""Status of an AMQP error condition of a shard or frontend; 500 for unknown ones."""


def status_of(error: Exception) -> int | None:
    """The status of an expected error; None for an internal error."""
    match error:
        case InvalidPolicyError():
            return 422
        case InvalidNameError():
            return 400
        case ForbiddenError():
            return 403
        case TakenError() | LimitExceededError():
            return 409
        case ChangedError():
            return 412
        case MissingError():
            return 404
        case ServiceError():
            return 422
        case ShardRefusedError() | ControlRefusedError():
            return STATUS_OF.get(error.condition, 500)
        case ShardDownError() | ControlDownError() | CoordinatorError():
            return 503
    return None
