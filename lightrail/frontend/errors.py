"""The error that is sent to a client with an AMQP condition."""

import logging
from typing import Any

from lightrail.amqp.values import Symbol
from lightrail.cluster.coordinator import CoordinatorError, CoordinatorFullError
from lightrail.model import conditions

log = logging.getLogger("lightrail.frontend")


class ConditionError(Exception):
    """A link or request is refused: a condition of the specification, a sentence, and the error's info."""

    def __init__(self, condition: str, description: str, info: dict[Symbol, Any] | None = None) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description
        self.info = info


def unknown_name(what: str, error: CoordinatorError) -> ConditionError:
    """The error for a name that can't be looked up now; the log has the reason, with addresses."""
    log.warning("%s can't be looked up: %s", what, error)
    if isinstance(error, CoordinatorFullError):
        return ConditionError(
            conditions.RESOURCE_LIMIT_EXCEEDED,
            f"{what} can't be created now: etcd has no space left and takes no writes; an operator of "
            "the broker has to free space. Names in use are not affected",
        )
    return ConditionError(
        conditions.INTERNAL_ERROR,
        f"{what} can't be looked up now: the coordinator does not answer; try again",
    )
