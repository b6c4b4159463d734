"""What a link's terminus asks for: the name that it addresses, and options of a consumer."""

from typing import TYPE_CHECKING

from lightrail.amqp.performatives import Coordinator, Modified, Source, Target
from lightrail.frontend.errors import ConditionError
from lightrail.model import conditions, limits
from lightrail.model.names import InvalidNameError, queue_name
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import OutcomeCode

if TYPE_CHECKING:
    from lightrail.amqp.link import Link


def terminus_of(link: "Link") -> Source | Target:
    """The terminus on our side: the source of a link that receives, the target of one that sends.

    Raises:
        ConditionError: there is none, it is a transaction coordinator, or the link is to be resumed.
    """
    terminus = link.source if link.is_sender else link.target
    if isinstance(terminus, Coordinator):
        raise ConditionError(conditions.NOT_IMPLEMENTED, "transactions are not available in this version")
    if not isinstance(terminus, (Source, Target)):
        side = "source" if link.is_sender else "target"
        raise ConditionError(conditions.INVALID_FIELD, f"expected a {side} with an address, none came")
    if link.attach is not None and link.attach.unsettled:
        raise ConditionError(
            conditions.NOT_IMPLEMENTED,
            "links are not resumed in this version; attach with an empty unsettled map",
        )
    return terminus


def name_of(address: object) -> str:
    """The name that an address stands for. Raises ConditionError."""
    if address is None or address == "":
        raise ConditionError(conditions.INVALID_FIELD, "expected an address, none came")
    if not isinstance(address, str):
        raise ConditionError(
            conditions.INVALID_FIELD, f"expected a string as address, got {type(address).__name__}"
        )
    try:
        return queue_name(address)
    except InvalidNameError as error:
        raise ConditionError(conditions.INVALID_FIELD, str(error)) from None


def label_of(link: "Link") -> str:
    """A link's name for people: container and link name, each cut to half of the length."""
    peer = link.session.connection.peer_open
    half = limits.LABEL_CHARACTERS_MAX // 2
    container = peer.container_id if peer is not None else ""
    return f"{container[: half - 1]}/{link.name[:half]}"


def consumer_options(link: "Link", queue: str) -> ConsumerOpen:
    """The consumer that the source of a receiving link asks for (messaging 3.5.3)."""
    source = link.source
    assert isinstance(source, Source)
    options = ConsumerOpen(queue, label=label_of(link))
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
