"""Pages: the requests below /!ui, each a template filled from the views.

Everything works without script; script adds charts and figures that stay current. No page contains script or
style, and its Content-Security-Policy forbids resources of other sites.
"""

import logging
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lightrail.gateway.errors import ProblemError
from lightrail.gateway.pages.actions import CALLER, FLASH, HEADERS, Handler, PageActions, caller_of
from lightrail.gateway.pages.parts import FILTERS, Branch, Charts, branches, draw
from lightrail.gateway.resources.replicas import SHARD_MAX
from lightrail.model import names
from lightrail.model.policy import Role, fields_of
from lightrail.namespace.listing import visible
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import Caller, ForbiddenError, may
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import MissingError, ServiceError
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.wire.control import ControlDownError

if TYPE_CHECKING:
    from lightrail.gateway.views import BrokerViews

log = logging.getLogger("lightrail.gateway.pages")

ROWS_MAX: Final = 200
"""Names or queues on one page."""
PEEK_MAX: Final = 100
"""Messages on one page."""
STATIC: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}
NOBODY: Final = Caller("")


class Pages:
    """The pages of one gateway.

    Args:
        now_s: seconds since 1970, for charts.
    """

    def __init__(self, service: Service, views: "BrokerViews", now_s: Callable[[], float]) -> None:
        self._service = service
        self._views = views
        self._charts = Charts(self._figures, now_s)
        folder = files("lightrail.gateway.pages")
        self._templates = Environment(
            loader=FileSystemLoader(str(folder / "templates")),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(FILTERS)
        self._static = {
            each.name: each.read_bytes() for each in (folder / "static").iterdir() if each.is_file()
        }

    def add_routes(self, app: web.Application) -> None:
        """Adds everything below /!ui."""
        for path, handler in (
            ("/!ui", self._overview),
            ("/!ui/names", self._names),
            ("/!ui/names/below", self._below),
            ("/!ui/name", self._name),
            ("/!ui/queues", self._queues),
            ("/!ui/shard", self._shard),
            ("/!ui/connections", self._connections),
            ("/!ui/connection", self._connection),
            ("/!ui/data/overview", self._overview_data),
            ("/!ui/data/queue", self._queue_data),
        ):
            app.router.add_get(path, self._guarded(handler))
        for path, action in PageActions(self._views).by_path().items():
            app.router.add_post(path, self._guarded(action))
        app.router.add_get("/!ui/static/{file}", self._file)
        app.router.add_route("*", "/!ui/{rest:.*}", self._guarded(self._nothing))
        app.on_cleanup.append(self._charts.stop)

    # --- pages -----------------------------------------------------------------------------------------

    async def _overview(self, request: web.Request) -> web.Response:
        caller = caller_of(request)
        if not self._manages(caller):
            return self._render("welcome.html", request, "Overview", here="/!ui")
        status = await self._views.status(caller)
        return self._render("overview.html", request, "Overview", here="/!ui", status=status)

    async def _names(self, request: web.Request) -> web.Response:
        prefix = request.query.get("prefix", "")
        found, more = await self._branches(request, prefix)
        title = f"Names below {prefix}" if prefix else "Names"
        return self._render(
            "names.html", request, title, here="/!ui/names", prefix=prefix, branches=found, more=more
        )

    async def _below(self, request: web.Request) -> web.Response:
        prefix = request.query.get("prefix", "")
        found, more = await self._branches(request, prefix)
        text = self._templates.get_template("branches.html").render(branches=found, more=more, prefix=prefix)
        return web.Response(text=text, content_type="text/html", headers=HEADERS)

    async def _branches(self, request: web.Request, prefix: str) -> tuple[list[Branch], bool]:
        """The branches of a page, and whether others follow."""
        after = request.query.get("after", "")
        found: list[Branch] = []
        async for branch in branches(self._service.directory, caller_of(request), prefix, after):
            if len(found) == ROWS_MAX:
                return found, True
            found.append(branch)
        return found, False

    async def _name(self, request: web.Request) -> web.Response:
        caller, name = caller_of(request), request.query.get("name", "")
        names.check(name)
        self._service.directory.refresh()
        record = self._service.directory.get(name)
        if not visible(self._service.directory, caller, record):
            raise ForbiddenError(f"user {caller.user} has no right to see {name}")
        if record.role is Role.QUEUE:
            return await self._queue(request, caller, record)
        common: dict[str, Any] = {
            "here": "/!ui/names",
            "name": name,
            "record": record,
            "policy": _policy(record),
        }
        if record.role is Role.ROUTER:
            directory = self._service.directory
            picture = draw(name, directory.subscriptions, lambda each: directory.get(each).role)
            subscriptions = directory.subscriptions(name)
            return self._render(
                "router.html", request, name, picture=picture, subscriptions=subscriptions, **common
            )
        return self._render("name.html", request, name, **common)

    async def _queue(self, request: web.Request, caller: Caller, record: Name) -> web.Response:
        name = record.name
        first = _whole(request, "from", 0, 0, 1 << 62)
        count = _whole(request, "count", 10, 1, PEEK_MAX)
        messages = None
        if "peek" in request.query:
            messages = await self._views.messages(caller, name, first, count)
        dead = names.is_dead_letter(name)
        return self._render(
            "queue.html",
            request,
            name,
            here="/!ui/queues",
            name=name,
            queue=await self._views.queue(caller, name),
            policy=_policy(record),
            messages=messages,
            first=first,
            count=count,
            source=names.owner(name) if dead else "",
            dead_letters="" if dead else names.dead_letter_name(name),
            may_manage=may(self._service.directory, caller, Right.MANAGE, record),
        )

    async def _queues(self, request: web.Request) -> web.Response:
        prefix, after = request.query.get("prefix", ""), request.query.get("after", "")
        page = await self._views.queues(caller_of(request), prefix, after, ROWS_MAX)
        return self._render(
            "queues.html",
            request,
            "Queues",
            here="/!ui/queues",
            prefix=prefix,
            queues=page["queues"],
            next=page.get("next"),
        )

    async def _shard(self, request: web.Request) -> web.Response:
        id = _whole(request, "id", 0, 0, SHARD_MAX)
        status = await self._views.status(caller_of(request))
        shard = next((each for each in status["shards"] if each["id"] == id), None)
        if shard is None:
            raise MissingError(f"there is no shard {id}; the overview has those that there are")
        return self._render("shard.html", request, f"Shard {id}", here="/!ui", shard=shard)

    async def _connections(self, request: web.Request) -> web.Response:
        found = await self._views.connections(caller_of(request))
        return self._render(
            "connections.html", request, "Connections", here="/!ui/connections", connections=found
        )

    async def _connection(self, request: web.Request) -> web.Response:
        found = await self._views.connection(caller_of(request), request.query.get("id", ""))
        return self._render(
            "connection.html",
            request,
            f"Connection {found['id']}",
            here="/!ui/connections",
            connection=found,
            sessions=found.get("session_list", []),
        )

    async def _nothing(self, request: web.Request) -> web.Response:
        raise MissingError(f"there is no page {request.path[:200]}")

    def refused(self, request: web.Request, problem: ProblemError) -> web.Response:
        """The answer to a request of a refused caller: a page, with the headers that request a password."""
        if "/data/" in request.path:
            return problem.response()
        request[CALLER] = NOBODY
        answer = self._failed(request, problem.status, problem.detail)
        answer.headers.update(problem.headers or {})
        return answer

    # --- data of charts --------------------------------------------------------------------------------

    async def _overview_data(self, request: web.Request) -> web.Response:
        columns = await self._charts.columns(
            "", caller_of(request), ("messages", "connections"), ("received", "delivered")
        )
        return web.json_response(columns, headers=HEADERS)

    async def _queue_data(self, request: web.Request) -> web.Response:
        name = request.query.get("name", "")
        names.check(name)
        columns = await self._charts.columns(
            name, caller_of(request), ("ready", "in_flight"), ("enqueued", "delivered")
        )
        return web.json_response(columns, headers=HEADERS)

    async def _figures(self, of: str, caller: Caller) -> Mapping[str, float]:
        """The present figures of the whole broker ("") or of a queue."""
        if not of:
            totals: dict[str, float] = (await self._views.status(caller))["totals"]
            return totals
        queue = await self._views.queue(caller, of)
        return {key: float(value) for key, value in queue.items() if isinstance(value, (int, float))}

    # --- answers ---------------------------------------------------------------------------------------

    def _render(
        self, template: str, request: web.Request, title: str, *, status_code: int = 200, **values: Any
    ) -> web.Response:
        flash = unquote(request.cookies.get(FLASH, ""))
        text = self._templates.get_template(template).render(
            title=title,
            caller=caller_of(request),
            manages=self._manages(caller_of(request)),
            flash=flash,
            **values,
        )
        answer = web.Response(status=status_code, text=text, content_type="text/html", headers=HEADERS)
        if flash:
            answer.del_cookie(FLASH, path="/!ui")
        return answer

    def _failed(self, request: web.Request, status: int, text: str) -> web.Response:
        return self._render(
            "error.html", request, "The request failed", status_code=status, here="", text=text
        )

    def _manages(self, caller: Caller) -> bool:
        """Whether a caller may see sums, processes and connections of the whole installation."""
        directory = self._service.directory
        return may(directory, caller, Right.MANAGE, directory.get(""))

    def _guarded(self, handler: Handler) -> Handler:
        """Answers expected errors with a page, or with JSON for charts."""

        async def guarded(request: web.Request) -> web.Response:
            try:
                return await handler(request)
            except ForbiddenError as error:
                status, text = 403, str(error)
            except MissingError as error:
                status, text = 404, str(error)
            except (ServiceError, ValueError) as error:
                status, text = 400, str(error)
            except ShardRefusedError as error:
                status, text = 409, error.description
            except (ShardDownError, ControlDownError) as error:
                status, text = 503, str(error)
            except ProblemError as error:
                status, text = error.status, error.detail
            except web.HTTPException as error:
                status, text = error.status, error.text or error.reason
            except ConnectionResetError:
                # The client closed the connection: an answer can't be sent.
                raise
            except Exception:
                log.exception("%s %s failed", request.method, request.path)
                status, text = 500, "internal error; see the log of the gateway"
            if "/data/" in request.path:
                return web.json_response({"detail": text}, status=status, headers=HEADERS)
            return self._failed(request, status, text)

        return guarded

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["file"]
        data = self._static.get(name)
        if data is None:
            raise web.HTTPNotFound(text=f"there is no {name}\n")
        kind = STATIC.get("." + name.rpartition(".")[2], "application/octet-stream")
        # A file with a version in its name never changes.
        keep = "max-age=31536000, immutable" if any(c.isdigit() for c in name) else "no-cache"
        headers = HEADERS | {"Cache-Control": keep}
        return web.Response(body=data, content_type=kind, charset="utf-8", headers=headers)


def _policy(record: Name) -> list[tuple[str, Any, bool]]:
    """(field, value, whether the policy sets it) of every field of the role."""
    return [
        (field.name, record.policy[field.name], field.name in record.policy.given)
        for field in fields_of(record.role)
    ]


def _whole(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise ServiceError(f"{name} is {text[:40]!a}; expected a whole number from {low} to {high}")
    return int(text)
