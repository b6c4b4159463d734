"""Hooks: where a package with the habits of another broker's clients plugs into a frontend.

The process is put together in `main.py`, which gives the frontend one table. Each field has a default, which
says that there is no such habit. A hook is called for an attach, a token or a handshake, never for a message:
what a link does differently with messages is in the class that a hook chooses for the link.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.amqp.performatives import Attach, Open, Rejected
    from lightrail.cluster.logins import Keys
    from lightrail.frontend.auth import Authenticator
    from lightrail.frontend.links.bound import Attach as AttachingLink
    from lightrail.frontend.links.deliveries import ConsumerLink
    from lightrail.frontend.links.transfers import ProducerLink
    from lightrail.frontend.nodes.node import Node
    from lightrail.namespace.directory import Directory
    from lightrail.namespace.records import Name
    from lightrail.namespace.rights import Resource, RuleKey, ShownKey
    from lightrail.namespace.tokens import Claims
    from lightrail.wire.bodies import ConsumerOpen


def _none(*_: object) -> None:
    return None


def _never(_: object) -> bool:
    return False


def _unchanged(_: object, name: str, _folds: object) -> str:
    return name


def _no_entities(*_: object) -> bool:
    return False


def _no_keys(*_: object) -> tuple[str, ...]:
    return ()


def _no_rules(_: object) -> "ShownKey":
    return _none


async def _no_token(*_: object) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Verified:
    """A token that a hook has verified: its claims, and what it opens."""

    claims: "Claims"
    resource: "Resource"
    everything: bool = False
    """Whether it leaves the client all rights, within the resource, if the client has them without it."""
    by_rule: "RuleKey | None" = None
    """The key that made it, if that is of an authorization rule and not of a user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendHooks:
    """The table of one frontend."""

    # --- links -----------------------------------------------------------------------------------------

    stores_all: "Callable[[Link], bool]" = _never
    """Whether all messages on a link are durable, whatever their headers say."""
    lost: "Callable[[Link], Rejected | None]" = _none
    """The outcome of messages that may not be stored, as their shard does not answer.

    None: released or modified, as the specification has it (messaging 3.4).
    """
    settles_itself: "Callable[[Link], bool]" = _never
    """Whether the client settles deliveries that it sent, after outcomes other than accepted."""
    reads_info: "Callable[[Link], bool]" = _never
    """Whether the client reads the info of each error of an outcome, which errors need not have."""
    names_at_termini: "Callable[[Open | None, Attach], bool]" = _no_entities
    """Whether links of a client that have one name at different addresses are different links (ADR 41)."""
    schedules: "Callable[[Link], bool]" = _never
    """Whether messages that a client sends to a router may wait for their time (links/scheduling.py)."""
    producer_link: "Callable[[AttachingLink], type[ProducerLink] | None]" = _none
    """The class of a link on which a client sends to a queue; None for others.

    A link that may be resumed, or to an address in its messages, has no other class.
    """
    consumer_link: "Callable[[AttachingLink, ConsumerOpen], Callable[..., ConsumerLink] | None]" = _none
    """The class of a link on which a client receives from a queue or a connection point; None for others.

    A function with the arguments of the constructor will do. A link of such a class can't be resumed. The
    hook may request a session in the options; then it alone reads the filters of the source.
    Raises ConditionError.
    """
    admit: "Callable[[AttachingLink], None]" = _none
    """Refuses an attach that the other broker refuses to its clients, after the check of rights.

    Raises ConditionError.
    """
    admit_address: "Callable[[Directory, Name, str], None]" = _none
    """The same for messages with an address, of a client with `names_entities`, by the name for which the
    address stands, and the name in it."""
    names_entities: "Callable[[Open | None, Attach | None], bool]" = _no_entities
    """Whether the names in a client's addresses are those of entities that somebody has created.

    To such a client case makes no difference in a name, and its first use creates nothing, unless a policy
    above the name or the setting service_bus_auto_create says so. Asked with the client's open, and the
    attach of a link if there is one.
    """
    name_at: "Callable[[Directory, str, bool], str]" = _unchanged
    """The name for which an address stands; the address itself for all others. With True case makes no
    difference. Raises ConditionError, InvalidNameError."""

    # --- what the broker answers itself ----------------------------------------------------------------

    node: "Callable[[str], Node | None]" = _none
    """The node at an address with a `$`, made for one connection; None without one."""
    token_types: tuple[str, ...] = ()
    """Types of tokens that $cbs accepts beside those of JSON web tokens, in small letters."""
    token: "Callable[[Authenticator, Directory, str, str, int], Awaitable[Verified | None]]" = _no_token
    """Verifies the text of a token, put for an audience at a time in milliseconds since 1970.

    None for a text of another kind. Raises InvalidTokenError, CoordinatorError.
    """
    anonymous_mechanisms: tuple[str, ...] = ()
    """Further names of SASL's mechanism ANONYMOUS."""
    keys: "Keys" = _no_keys
    """What a user may give in the place of its password (cluster/logins.py)."""
    shown_keys: "Callable[[Directory], ShownKey]" = _no_rules
    """Finds the caller of a key that a client shows in the place of a user's password."""
    is_administration: Callable[[str], bool] = _never
    """Whether a request over HTTP, by its target, is one that frontends forward to a gateway."""
    subprotocols: tuple[str, ...] = ()
    """Further names of AMQP as a subprotocol of WebSockets."""
