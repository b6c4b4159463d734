"""From a link to a queue: which name it asks for, with what options, or why it can't be had."""

from typing import TYPE_CHECKING

from lightrail.amqp.performatives import Coordinator, Modified, Source, Target
from lightrail.model import conditions
from lightrail.model.names import InvalidName, queue_name
from lightrail.wire.frames import OutcomeCode
from lightrail.wire.messages import ConsumerOpen

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.model.settings import Settings


class Refused(Exception):
    """A link that can't be attached, with the condition of the specification."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


def queue_of(link: "Link", settings: "Settings") -> str:
    """The queue that a link names.

    Raises:
        Refused: no terminus, no usable address, or a thing that this version does not have (transactions,
            dynamic nodes, link resumption), each with its condition.
    """
    terminus = link.source if link.is_sender else link.target
    if isinstance(terminus, Coordinator):
        raise Refused(conditions.NOT_IMPLEMENTED, "transactions are not available in this version")
    if not isinstance(terminus, (Source, Target)):
        side = "source" if link.is_sender else "target"
        raise Refused(conditions.INVALID_FIELD, f"expected a {side} with an address, none came")
    if terminus.dynamic:
        raise Refused(conditions.NOT_IMPLEMENTED, "dynamic nodes are not available in this version")
    if link.attach is not None and link.attach.unsettled:
        raise Refused(
            conditions.NOT_IMPLEMENTED,
            "links are not resumed in this version; attach with an empty unsettled map",
        )
    address = terminus.address
    if address is None or address == "":
        if not link.is_sender:
            raise Refused(
                conditions.NOT_IMPLEMENTED,
                "the anonymous terminus is not available in this version; name the queue as target",
            )
        raise Refused(conditions.INVALID_FIELD, "expected an address in the source, none came")
    if not isinstance(address, str):
        raise Refused(conditions.INVALID_FIELD, f"expected a string as address, got {type(address).__name__}")
    try:
        return queue_name(address)
    except InvalidName as error:
        raise Refused(conditions.INVALID_FIELD, str(error)) from None


def consumer_options(link: "Link", queue: str) -> ConsumerOpen:
    """What the source of a receiving link asks of the queue (messaging 3.5.3)."""
    source = link.source
    assert isinstance(source, Source)
    options = ConsumerOpen(queue)
    options.browse = source.distribution_mode is not None and str(source.distribution_mode) == "copy"
    options.presettled = link.snd_settle_mode == 1
    default = source.default_outcome
    name = type(default).__name__.lower() if default is not None else "modified"
    codes = {
        "accepted": OutcomeCode.ACCEPTED,
        "rejected": OutcomeCode.REJECTED,
        "released": OutcomeCode.RELEASED,
        "modified": OutcomeCode.MODIFIED,
    }
    options.default_outcome = int(codes.get(name, OutcomeCode.MODIFIED))
    options.default_failed = bool(default.delivery_failed) if isinstance(default, Modified) else True
    return options
