"""Hooks: where a package with the habits of another broker's clients plugs into a gateway.

The process is put together in `main.py`, which gives the gateway one table; without it there are no such
habits.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from lightrail.cluster.coordinator import Coordinator
    from lightrail.cluster.logins import Keys
    from lightrail.gateway.callers import VerifiedCredentials
    from lightrail.gateway.services import Services
    from lightrail.namespace.directory import Directory
    from lightrail.namespace.rights import Resource, ShownKey

Served = Callable[["Services", web.Request], Awaitable[web.StreamResponse]]
Verify = Callable[["Directory", "Coordinator", bytes, str, int], Awaitable["VerifiedCredentials"]]
"""Verifies the text behind a scheme, with the coordinator and its secret, at a time in ms since 1970.

Raises InvalidTokenError, CoordinatorError."""


def _no_keys(*_: object) -> tuple[str, ...]:
    return ()


def _never(_: web.Request) -> bool:
    return False


async def _nothing(*_: object) -> None:
    return None


def _none(*_: object) -> None:
    return None


def _no_rules(_: object) -> "ShownKey":
    return _none


def _opens(_: object, resource: "Resource", path: str) -> bool:
    return resource.opens(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayHooks:
    """The table of one gateway."""

    handler: Callable[["Services", web.Request], Served | None] = _none
    """The handler of a request that is not one of the gateway's own interface; None for all others."""
    opens: "Callable[[Directory, Resource, str], bool]" = _opens
    """Whether what a signature is for opens a path."""
    is_administration: Callable[[web.Request], bool] = _never
    """Whether a frontend may have forwarded a request; on such a connection nothing else is served."""
    before_ready: "Callable[[Services, bool], Awaitable[None]]" = _nothing
    """Called once before the gateway is ready, when its shards serve.

    The argument says whether the gateway replaces one that has ended. Raises CannotServeError.
    """
    keys: "Keys" = _no_keys
    """What a user may give in the place of its password (cluster/logins.py)."""
    shown_keys: "Callable[[Directory], ShownKey]" = _no_rules
    """Finds the caller of a key that a client shows in the place of a user's password."""
    schemes: Mapping[str, Verify] = field(default_factory=dict)
    """Schemes of the header Authorization, as they are written, beside Basic and Bearer."""
