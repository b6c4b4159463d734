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
    from lightrail.gateway.callers import VerifiedCredentials
    from lightrail.gateway.services import Services
    from lightrail.namespace.directory import Directory
    from lightrail.namespace.rights import Resource

Served = Callable[["Services", web.Request], Awaitable[web.StreamResponse]]
Verify = Callable[["Coordinator", bytes, str, int], Awaitable["VerifiedCredentials"]]
"""Verifies the text behind a scheme, with the coordinator and its secret, at a time in ms since 1970.

Raises InvalidTokenError, CoordinatorError."""


def _none(_: web.Request) -> None:
    return None


def _opens(_: object, resource: "Resource", path: str) -> bool:
    return resource.opens(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayHooks:
    """The table of one gateway."""

    handler: Callable[[web.Request], Served | None] = _none
    """The handler of a request that is not one of the gateway's own interface; None for all others."""
    opens: "Callable[[Directory, Resource, str], bool]" = _opens
    """Whether what a signature is for opens a path."""
    schemes: Mapping[str, Verify] = field(default_factory=dict)
    """Schemes of the header Authorization, as they are written, beside Basic and Bearer."""
