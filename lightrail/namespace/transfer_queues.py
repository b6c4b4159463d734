"""Transfer queues: NAME/$transfer, whose dead letters are what the queue NAME could not forward.

The queue itself stays empty. It is created where a queue begins to forward, and deleted with that queue.
"""

from typing import Final

from lightrail.model.names import transfer_name
from lightrail.model.policy import Policy, Role
from lightrail.namespace.records import Name
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import MissingError, TakenError

TRANSFER: Final = Policy(
    Role.QUEUE, {"max_delivery_count": 0, "description": "its dead letters could not be forwarded"}
)


async def transfer_queue(service: Service, source: str) -> Name:
    """The transfer queue of a queue that forwards; creates it before its first use.

    Raises MissingError: the queue was deleted. ServiceError, CoordinatorError.
    """
    directory = service.directory
    name = transfer_name(source)
    record = directory.find(name)
    if record is None:
        try:
            record = await service.give(ANYBODY, name, TRANSFER)
        except TakenError:
            directory.refresh()
            record = directory.get(name)
        if directory.get(source).role is not Role.QUEUE:
            # The queue was deleted at the same time, and did not know of this one.
            await service.expire(record)
            raise MissingError(f"{source} is no queue any more")
    return record
