"""What plugs into a gateway: administration over Atom, signatures as credentials, the configuration file."""

import logging
from typing import TYPE_CHECKING, Final

from aiohttp import web

from lightrail.cluster.coordinator import Coordinator
from lightrail.gateway.callers import VerifiedCredentials
from lightrail.gateway.hooks import GatewayHooks, Served
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.rights import Caller, RuleKey
from lightrail.service_bus import signatures
from lightrail.service_bus.access_keys import texts_of
from lightrail.service_bus.administration import dispatch
from lightrail.service_bus.configuration import applying, file
from lightrail.service_bus.rule_keys import RuleKeys, is_current
from lightrail.service_bus.spelling import opens
from lightrail.telemetry.process import CannotServeError

if TYPE_CHECKING:
    from lightrail.gateway.services import Services

log = logging.getLogger("lightrail.service_bus.configuration")

HEALTH: Final = "health"
"""The path at which the emulator of Service Bus says that it serves; it may be a name here."""


def _handler(services: "Services", http: web.Request) -> Served | None:
    if dispatch.is_administration(http):
        return dispatch.serve
    if http.path != f"/{HEALTH}" or http.method not in ("GET", "HEAD"):
        return None
    return _health if services.directory.get(HEALTH).role is Role.NONE else None


async def _health(services: "Services", http: web.Request) -> web.Response:
    """What tools that start the emulator wait for."""
    reasons = await services.health.reasons()
    if reasons:
        return web.json_response({"status": "unhealthy", "message": "; ".join(reasons)}, status=503)
    healthy = '{"status":"healthy","message":"Service is healthy."}'
    return web.Response(text=healthy, content_type="application/json")


async def _configure(services: "Services", replaces: bool) -> None:
    """Applies the configuration file of the settings. Raises CannotServeError."""
    path = services.settings.service_bus_config
    if path is None:
        return
    try:
        await applying.apply(services, file.load(path))
    except file.ConfigFileError as error:
        problem = f"{path} can't be applied:\n{error}"
        if not replaces:
            raise CannotServeError(problem, heals=False) from None
        # A broker that serves is not ended for a file that was changed since its start.
        log.error("%s", problem)


async def _signature(
    directory: Directory, coordinator: Coordinator, secret: bytes, value: str, now_ms: int
) -> VerifiedCredentials:
    found = signatures.read(signatures.PREFIX + value, now_ms)
    made_by = await signatures.signer(coordinator, directory, secret, found)
    bound = found.resource if found.resource.is_name else None
    expires_ms = found.expires_s * 1000
    if isinstance(made_by, RuleKey):
        caller = Caller(made_by.user, resource=bound, by_rule=made_by)
        return VerifiedCredentials(
            caller, lambda _: is_current(directory, made_by), expires_ms, found.resource
        )
    keys = made_by.access_keys
    return VerifiedCredentials(
        Caller(found.name, resource=bound),
        # Bound to the keys of its user, and not to the password.
        lambda user: user is not None and user.access_keys == keys,
        expires_ms,
        found.resource,
    )


HOOKS: Final = GatewayHooks(
    handler=_handler,
    opens=opens,
    is_administration=dispatch.is_administration,
    before_ready=_configure,
    keys=texts_of,
    shown_keys=lambda directory: RuleKeys(directory).caller,
    schemes={"SharedAccessSignature": _signature},
)
