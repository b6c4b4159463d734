"""The fields of a link's terminus: the name that it addresses, and options of a consumer."""

import hashlib
import json
from typing import TYPE_CHECKING, Final

from lightrail.amqp.performatives import Modified, Open, Source, Target
from lightrail.frontend import sole_connections
from lightrail.frontend.errors import ConditionError
from lightrail.model import conditions
from lightrail.model.names import InvalidNameError, queue_name
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import OutcomeCode

if TYPE_CHECKING:
    from lightrail.amqp.link import Link

TERMINUS_TIMEOUT_S_MAX: Final[int] = 3_600
"""Longest time for which a link is suspended, whatever the client requests; the attach answer has this
time."""
LABEL_CHARACTERS_MAX: Final[int] = 256
"""Characters of a link's name that are shown to people."""


def terminus_of(link: "Link") -> Source | Target:
    """The terminus at the broker: the source of a link that receives, the target of a link that sends.

    Raises:
        ConditionError: there is none.
    """
    terminus = link.source if link.is_sender else link.target
    if not isinstance(terminus, (Source, Target)):
        side = "source" if link.is_sender else "target"
        raise ConditionError(conditions.INVALID_FIELD, f"expected a {side} with an address, found none")
    return terminus


def suspended_s(link: "Link") -> int | None:
    """How long a link is suspended after its end; None if it is not resumable.

    The client requests this by the timeout of the broker's terminus or an expiry-policy of never, or resumes
    the link now.
    """
    terminus, attach = link.source if link.is_sender else link.target, link.attach
    assert isinstance(terminus, Source | Target)
    most = TERMINUS_TIMEOUT_S_MAX
    wanted = most if str(terminus.expiry_policy) == "never" else min(terminus.timeout, most)
    return wanted if wanted or (attach is not None and attach.unsettled is not None) else None


def durability_of(link: "Link") -> int:
    """The durability that the client requests for the broker's terminus."""
    terminus = link.source if link.is_sender else link.target
    assert isinstance(terminus, Source | Target)
    return int(terminus.durable or 0)


def consumer_suspended_s(link: "Link", options: ConsumerOpen) -> int | None:
    """The same of a link that receives from a queue: what is never in flight can't be resumed."""
    source = link.source
    assert isinstance(source, Source)
    if not options.client_link or options.relay or options.browse or options.presettled or source.dynamic:
        return None
    return suspended_s(link)


def refuse_incomplete(link: "Link") -> None:
    """Refuses the incomplete map of a receiver whose link can't be resumed. Raises ConditionError."""
    if link.attach is not None and link.attach.incomplete_unsettled:
        raise ConditionError(
            conditions.NOT_IMPLEMENTED,
            "expected a link that may be resumed, found an incomplete unsettled map on another one, to which"
            " nothing new may be sent; attach with a complete map",
        )


def name_of(address: object) -> str:
    """The name in an address. Raises ConditionError."""
    if address is None or address == "":
        raise ConditionError(conditions.INVALID_FIELD, "expected an address, found none")
    if not isinstance(address, str):
        raise ConditionError(
            conditions.INVALID_FIELD, f"expected a string as address, got {type(address).__name__}"
        )
    try:
        return queue_name(address)
    except InvalidNameError as error:
        raise ConditionError(conditions.INVALID_FIELD, str(error)) from None


def label_of(link: "Link") -> str:
    """A readable name of a link: container and link name, each cut to half of the length."""
    peer = link.session.connection.peer_open
    half = LABEL_CHARACTERS_MAX // 2
    container = peer.container_id if peer is not None else ""
    return f"{container[: half - 1]}/{link.name[:half]}"


def client_link_of(link: "Link", user: str | None) -> str:
    """Identity of a client's link at the shard of its queue (2.6.1): a digest of its names.

    It is the same for each attach of the link, on any connection of its container and user. It is empty for a
    container without an id, and for a link that does not ask to outlive its connection: many clients name all
    containers of a process, or of all copies of a service, alike, and their links by their purpose.
    """
    peer = link.session.connection.peer_open
    if peer is None or not peer.container_id or not _outlives_connection(link, peer):
        return ""
    named = json.dumps([peer.container_id, link.name, link.is_sender, user])
    return hashlib.blake2b(named.encode(), digest_size=16).hexdigest()


def _outlives_connection(link: "Link", peer: Open) -> bool:
    """Whether the client asks that the link is kept, or that its container has one connection only."""
    is_sole = sole_connections.CAPABILITY in (peer.desired_capabilities or ())
    return is_sole or suspended_s(link) is not None or durability_of(link) > 0


def consumer_options(link: "Link", queue: str, user: str) -> ConsumerOpen:
    """The options of a consumer of a user in the source of a receiving link (messaging 3.5.3)."""
    source = link.source
    assert isinstance(source, Source)
    options = ConsumerOpen(queue, label=label_of(link), user=user)
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
    options.default_undeliverable = isinstance(default, Modified) and bool(default.undeliverable_here)
    return options
