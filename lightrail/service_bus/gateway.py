"""What plugs into a gateway: administration over Atom, and signatures as credentials."""

from typing import Final

from aiohttp import web

from lightrail.cluster.coordinator import Coordinator
from lightrail.gateway.callers import VerifiedCredentials
from lightrail.gateway.hooks import GatewayHooks, Served
from lightrail.namespace.rights import Caller
from lightrail.service_bus import signatures
from lightrail.service_bus.administration import dispatch
from lightrail.service_bus.spelling import opens


def _handler(http: web.Request) -> Served | None:
    return dispatch.serve if dispatch.is_administration(http) else None


async def _signature(coordinator: Coordinator, secret: bytes, value: str, now_ms: int) -> VerifiedCredentials:
    found = signatures.read(signatures.PREFIX + value, now_ms)
    record = await signatures.signer(coordinator, secret, found)
    caller = Caller(found.user, resource=found.resource if found.resource.is_name else None)
    keys = record.access_keys
    return VerifiedCredentials(
        caller,
        # Bound to the keys of its user, and not to the password.
        is_current=lambda user: user.access_keys == keys,
        expires_ms=found.expires_s * 1000,
        resource=found.resource,
    )


HOOKS: Final = GatewayHooks(handler=_handler, opens=opens, schemes={"SharedAccessSignature": _signature})
