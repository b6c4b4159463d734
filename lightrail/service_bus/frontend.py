"""What plugs into a frontend: how links of Azure Service Bus's clients are recognised, and what is theirs."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from lightrail.amqp.values import Symbol
from lightrail.frontend.hooks import FrontendHooks, Verified
from lightrail.frontend.links.bound import Attach
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.links.outcomes import rejected
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.model import conditions
from lightrail.namespace.rights import RuleKey
from lightrail.namespace.tokens import Claims, InvalidTokenError
from lightrail.service_bus import development, signatures
from lightrail.service_bus.access_keys import texts_of
from lightrail.service_bus.links.deliveries import BusConsumerLink
from lightrail.service_bus.links.refusals import refuse_address, refuse_foreign
from lightrail.service_bus.links.sending import SessionProducer
from lightrail.service_bus.links.sessions import SessionLink, request_session
from lightrail.service_bus.nodes.management import node_at
from lightrail.service_bus.paths import entity_name
from lightrail.service_bus.rule_keys import RuleKeys
from lightrail.service_bus.spelling import opens
from lightrail.wire.bodies import ConsumerOpen

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.amqp.performatives import Attach as AttachFrame
    from lightrail.amqp.performatives import Open, Rejected
    from lightrail.frontend.auth import Authenticator
    from lightrail.namespace.directory import Directory

VENDOR: Final = "com.microsoft:"
PRODUCT: Final = Symbol("product")
GO_PRODUCT: Final = "MSGolangClient"
AGENT: Final = Symbol("user-agent")
SDK: Final = "azsdk-"
DOTNET: Final = "azsdk-net"
PYTHON: Final = "azsdk-python"
SERVICE: Final = "servicebus"
"""Parts of the user-agent of Azure's clients for this service, in small letters."""
TOKEN_TYPE: Final = "servicebus.windows.net:sastoken"
LOST: Final = rejected(conditions.TIMEOUT, "the shard of the queue does not answer; send the message again")
MECHANISM: Final = "MSSBCBS"
"""ANONYMOUS by the name that older clients insist on: they put their token to $cbs afterwards."""
VERSION: Final = "api-version"
"""The parameter that all requests of administration clients have."""
SUBPROTOCOL: Final = "AMQPWSB10"
"""The subprotocol of WebSockets that these clients used formerly."""


def is_bus_link(link: "Link") -> bool:
    """Whether the client of a link is for Service Bus."""
    return is_bus_client(link.session.connection.peer_open, link.attach)


def is_bus_client(opened: "Open | None", attach: "AttachFrame | None") -> bool:
    """Whether a client is for Service Bus, by the properties of its open, or by one of an attach."""
    found = None if attach is None else attach.properties
    if any(str(key).startswith(VENDOR) for key in found or ()):
        return True
    if opened is None or not opened.properties:
        return False
    agent = str(opened.properties.get(AGENT, "")).lower()
    return opened.properties.get(PRODUCT) == GO_PRODUCT or (SDK in agent and SERVICE in agent)


def settles_itself(link: "Link") -> bool:
    """Whether the client is that for .NET, which settles what it sent by itself.

    It takes a delivery that is settled before it looks for accepted, about 1 in 20,000. Those for other
    languages wait for settled outcomes.
    """
    return _is_written(link, DOTNET)


def reads_info(link: "Link") -> bool:
    """Whether the client is that for Python, which uses the third field of an error without a check.

    It finds none, keeps the failure to itself, and waits for an outcome for ever.
    """
    return _is_written(link, PYTHON)


def _is_written(link: "Link", language: str) -> bool:
    opened = link.session.connection.peer_open
    return (
        opened is not None and language in str((opened.properties or {}).get(AGENT, "")).lower()
    ) and is_bus_link(link)


def _lost(link: "Link") -> "Rejected | None":
    """These clients read accepted and rejected alone, and try again after this condition."""
    return LOST if is_bus_link(link) else None


def _producer_link(attach: Attach) -> type[ProducerLink] | None:
    return SessionProducer if attach.record.policy["groups"] and is_bus_link(attach.link) else None


def _consumer_link(attach: Attach, options: ConsumerOpen) -> Callable[..., ConsumerLink] | None:
    if request_session(attach, options):
        return partial(SessionLink, terms=attach.terms)
    return BusConsumerLink if not options.relay and is_bus_link(attach.link) else None


def _admit(attach: Attach) -> None:
    if is_bus_link(attach.link):
        refuse_foreign(attach)


async def _token(
    authenticator: "Authenticator", directory: "Directory", text: str, audience: str, now_ms: int
) -> Verified | None:
    """A shared access signature; some clients send it under the type of another token."""
    if not signatures.is_signature(text):
        return None
    found = signatures.read(text, now_ms)
    if not opens(directory, found.resource, audience):
        raise InvalidTokenError(
            f"the signature is for {found.resource.path!a:.200} and names below, and not for "
            f"{audience!a:.200}; one for a host begins with a scheme: sb://HOST/"
        )
    if not authenticator.has_users and development.made(found):
        return Verified(Claims(found.name, "", found.expires_s), found.resource, everything=True)
    made_by = await signatures.signer(authenticator.coordinator, directory, authenticator.secret, found)
    if isinstance(made_by, RuleKey):
        return Verified(Claims(made_by.user, "", found.expires_s), found.resource, by_rule=made_by)
    return Verified(Claims(found.name, "", found.expires_s), found.resource)


def _is_administration(target: str) -> bool:
    query = target.partition("?")[2]
    return any(part.partition("=")[0] == VERSION for part in query.split("&"))


HOOKS: Final = FrontendHooks(
    # Service Bus has no transient messages, and its clients send no `durable`.
    stores_all=is_bus_link,
    lost=_lost,
    settles_itself=settles_itself,
    reads_info=reads_info,
    schedules=is_bus_link,
    producer_link=_producer_link,
    consumer_link=_consumer_link,
    admit=_admit,
    admit_address=refuse_address,
    names_entities=is_bus_client,
    name_at=entity_name,
    node=node_at,
    token_types=(TOKEN_TYPE,),
    token=_token,
    anonymous_mechanisms=(MECHANISM,),
    keys=texts_of,
    shown_keys=lambda directory: RuleKeys(directory).caller,
    is_administration=_is_administration,
    subprotocols=(SUBPROTOCOL,),
)
