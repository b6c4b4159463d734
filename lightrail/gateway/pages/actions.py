"""Actions: the forms of the pages below /!ui, each confirmed by its sender, and the way back to a page."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from aiohttp import web

from lightrail.gateway.pages.parts import url
from lightrail.namespace.rights import Caller, ForbiddenError
from lightrail.namespace.statuses import ServiceError

if TYPE_CHECKING:
    from lightrail.gateway.views import BrokerViews

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # With no-referrer a browser would not send the origin with forms of this gateway either.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FLASH: Final = "lightrail-flash"
"""Cookie with the text that the next page shows."""
CALLER: Final = web.RequestKey("caller", Caller)
"""The authenticated caller of a page."""
Handler = Callable[[web.Request], Awaitable[web.Response]]


def caller_of(request: web.Request) -> Caller:
    """Who has asked for a page."""
    return request[CALLER]


@dataclass(slots=True, eq=False, repr=False)
class PageActions:
    """What the forms of pages do."""

    _views: "BrokerViews"

    def by_path(self) -> Mapping[str, Handler]:
        """The handlers of the forms."""
        return {
            "/!ui/purge": self._purge,
            "/!ui/redrive": self._redrive,
            "/!ui/close": self._close,
            "/!ui/remove-member": self._remove_member,
        }

    async def _purge(self, request: web.Request) -> web.Response:
        name = await _meant(request, "name", "removes every message that is not in flight")
        purged = await self._views.purge(caller_of(request), name)
        return _back(url("/!ui/name", name=name), f"{purged:,} messages were removed")

    async def _redrive(self, request: web.Request) -> web.Response:
        name = await _meant(request, "name", "sends every dead letter to the queue that it comes from")
        transfer = await self._views.redrive(caller_of(request), name)
        text = f"dead letters are being sent again (transfer {transfer['id']})"
        return _back(url("/!ui/name", name=name), text)

    async def _close(self, request: web.Request) -> web.Response:
        id = await _meant(request, "id", "closes the connection of a client")
        await self._views.close_connection(caller_of(request), id)
        return _back("/!ui/connections", f"connection {id} was closed")

    async def _remove_member(self, request: web.Request) -> web.Response:
        what = await _meant(request, "member", "removes a member of a shard, which will not come back")
        shard, _, member = what.partition("/")
        await self._views.remove_member(caller_of(request), shard, member)
        return _back(url("/!ui/shard", id=shard), f"member {member} was removed")


async def _meant(request: web.Request, key: str, what: str) -> str:
    """The subject of a form whose sender has confirmed it. Raises ServiceError, and ForbiddenError for a form
    of another site, by its origin."""
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if site not in ("same-origin", "none") or (origin and urlsplit(origin).netloc != request.host):
        raise ForbiddenError("this form is not from a page of this gateway; open the page and try again")
    form = await request.post()
    subject = form.get(key)
    if not isinstance(subject, str) or not subject:
        raise ServiceError(f"expected a form with the field {key}; open the page and try again")
    if form.get("sure") != "yes":
        raise ServiceError(f"nothing was done: this {what}; confirm it by the form's box (sure=yes)")
    return subject


def _back(path: str, flash: str) -> web.Response:
    """The way back to a page, which shows a text once.

    The text is in a cookie, since a link, which anybody can write, would show what its author wants.
    """
    answer = web.Response(status=303, headers=HEADERS | {"Location": path})
    answer.set_cookie(FLASH, quote(flash), path="/!ui", max_age=60, httponly=True, samesite="Strict")
    return answer
