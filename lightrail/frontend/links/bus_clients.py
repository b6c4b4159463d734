"""Clients of Azure Service Bus: how their links are recognised."""

from typing import TYPE_CHECKING, Final

from lightrail.amqp.values import Symbol

if TYPE_CHECKING:
    from lightrail.amqp.link import Link

VENDOR: Final = "com.microsoft:"
PRODUCT: Final = Symbol("product")
GO_PRODUCT: Final = "MSGolangClient"
AGENT: Final = Symbol("user-agent")
SDK: Final = "azsdk-"
SERVICE: Final = "servicebus"
"""Parts of the user-agent of Azure's clients for this service, in small letters."""


def is_bus_link(link: "Link") -> bool:
    """Whether the client is for Service Bus, by a property of its attach or by those of its open."""
    attach = link.attach
    found = None if attach is None else attach.properties
    if any(str(key).startswith(VENDOR) for key in found or ()):
        return True
    opened = link.session.connection.peer_open
    if opened is None or not opened.properties:
        return False
    agent = str(opened.properties.get(AGENT, "")).lower()
    return opened.properties.get(PRODUCT) == GO_PRODUCT or (SDK in agent and SERVICE in agent)
