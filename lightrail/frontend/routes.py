"""What a link's terminus says: which name it means and what it asks of a queue, or why it can't be had."""

from typing import TYPE_CHECKING, Any

from lightrail.amqp.performatives import Coordinator, Modified, Source, Target
from lightrail.amqp.types import Symbol
from lightrail.model import conditions, limits
from lightrail.model.names import InvalidName, queue_name
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import OutcomeCode

if TYPE_CHECKING:
    from lightrail.amqp.link import Link


class Refused(Exception):
    """A link that can't be attached, with the condition of the specification and its info."""

    def __init__(self, condition: str, description: str, info: dict[Symbol, Any] | None = None) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description
        self.info = info


def terminus_of(link: "Link") -> Source | Target:
    """The terminus on our side: the source of a link that receives, the target of one that sends.

    Raises:
        Refused: there is none, it is a transaction coordinator, or the link is to be resumed.
    """
    terminus = link.source if link.is_sender else link.target
    if isinstance(terminus, Coordinator):
        raise Refused(conditions.NOT_IMPLEMENTED, "transactions are not available in this version")
    if not isinstance(terminus, (Source, Target)):
        side = "source" if link.is_sender else "target"
        raise Refused(conditions.INVALID_FIELD, f"expected a {side} with an address, none came")
    if link.attach is not None and link.attach.unsettled:
        raise Refused(
            conditions.NOT_IMPLEMENTED,
            "links are not resumed in this version; attach with an empty unsettled map",
        )
    return terminus


def name_of(address: object) -> str:
    """The name that an address means. Raises Refused."""
    if address is None or address == "":
        raise Refused(conditions.INVALID_FIELD, "expected an address, none came")
    if not isinstance(address, str):
        raise Refused(conditions.INVALID_FIELD, f"expected a string as address, got {type(address).__name__}")
    try:
        return queue_name(address)
    except InvalidName as error:
        raise Refused(conditions.INVALID_FIELD, str(error)) from None


def label_of(link: "Link") -> str:
    """Who a link is, for people: container and name, cut where they are long."""
    peer = link.session.connection.peer_open
    half = limits.LABEL_CHARACTERS_MAX // 2
    container = peer.container_id if peer is not None else ""
    return f"{container[: half - 1]}/{link.name[:half]}"


def consumer_options(link: "Link", queue: str) -> ConsumerOpen:
    """What the source of a receiving link asks of the queue (messaging 3.5.3)."""
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
