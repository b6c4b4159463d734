"""Scheduled messages of a router: they wait in the queue ROUTER/$scheduled, and gateways route them when due.

The queue is created at the first scheduled message, and deleted with its router (ADR 43).
"""

from typing import Final

from lightrail.model.names import scheduled_name
from lightrail.model.policy import Policy, Role
from lightrail.namespace.records import Name
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import MissingError, ServiceError, TakenError

SCHEDULED: Final = Policy(
    Role.QUEUE,
    {"delay": True, "max_delivery_count": 0, "description": "messages of a router that wait for their time"},
)
"""Policy of the queue. Its messages neither expire nor become dead letters by failed deliveries."""


async def scheduled_queue(service: Service, router: str) -> Name:
    """The queue of a router's scheduled messages; creates it at the first of them.

    Raises MissingError: the router was deleted. ServiceError: no queue that delays its messages.
    """
    directory = service.directory
    name = scheduled_name(router)
    record = directory.get(name)
    if record.role is Role.NONE:
        try:
            record = await service.give(ANYBODY, name, SCHEDULED)
        except TakenError:
            directory.refresh()
            record = directory.get(name)
        if directory.get(router).role is not Role.ROUTER:
            # The router was deleted at the same time, and did not know of this queue.
            await service.expire(record)
            raise MissingError(f"{router} is no router any more")
    if record.role is not Role.QUEUE or not record.policy["delay"]:
        raise ServiceError(
            f"{name} is {record.policy.to_json()}; expected a queue whose policy has delay: "
            "delete it, and the next scheduled message creates it again"
        )
    return record
