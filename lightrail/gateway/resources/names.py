"""Names over HTTP: policies of names, which define their roles, and lists of names."""

import json
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from aiohttp import web

from lightrail.gateway.bodies import ATOM, JSON, POLICY, rfc3339
from lightrail.gateway.errors import ProblemError, problem_of
from lightrail.gateway.paths import path_of
from lightrail.gateway.resources import atom
from lightrail.gateway.rights import demand_name
from lightrail.model import limits
from lightrail.model.policy import InvalidPolicyError, Policy, Role
from lightrail.namespace.listing import children, every_name, visible
from lightrail.namespace.records import Name, Right, policy_from
from lightrail.namespace.rights import ForbiddenError, demand, may

if TYPE_CHECKING:
    from lightrail.gateway.request import Request

POLICY_TYPES: Final = (JSON, POLICY, ATOM)
"""Content types of a POST to a name that is a policy and no message."""
JSON_IS_A_POLICY: Final = (
    "JSON that is posted to a name without a role is the policy that gives it one; to send JSON as a "
    "message, add the header BrokerProperties: {}, or give the name its role first"
)


async def give(request: "Request") -> web.Response:
    """POST /name with a policy."""
    try:
        policy = await _policy(request)
        record = await request.services.namespace.give(request.caller, request.name, policy)
    except (InvalidPolicyError, ForbiddenError) as error:
        problem = problem_of(error)
        if problem is not None and request.content_type == JSON:
            problem.detail = f"{problem.detail}. {JSON_IS_A_POLICY}"
            raise problem from None
        raise
    answer = _shown(request, record, status=201)
    answer.headers["Location"] = f"{path_of(record.name)}/!policy"
    return answer


async def read(request: "Request") -> web.Response:
    """GET /name/!policy."""
    record = _visible(request)
    if request.http.headers.get("If-None-Match", "").strip().removeprefix("W/") == _tag(record):
        return web.Response(status=304, headers={"ETag": _tag(record)})
    return _shown(request, record)


async def change(request: "Request") -> web.Response:
    """PUT /name/!policy."""
    policy = await _policy(request)
    record = await request.services.namespace.change(request.caller, request.name, policy, request.revision())
    return _shown(request, record)


async def drop(request: "Request") -> web.Response:
    """DELETE /name/!policy."""
    await request.services.namespace.drop(request.caller, request.name, request.revision())
    return web.Response(status=204)


async def summary(request: "Request") -> web.Response:
    """GET /name: the role of a name and links to its parts; 303 to the reference of a metadata name."""
    record = _visible(request)
    if record.role is Role.METADATA:
        raise refer(record)
    path = path_of(record.name)
    links = links_of(record)
    body = {
        "name": record.name,
        "role": str(record.role),
        "policy": record.policy.to_json(),
        "created_at": rfc3339(record.created_at_ms) if record.created_at_ms else None,
        "changed_at": rfc3339(record.changed_at_ms) if record.changed_at_ms else None,
        "revision": record.revision,
        "links": {relation: href for href, relation in links} | {"children": f"{path}/"},
    }
    headers = {"ETag": _tag(record), "Link": _link_header(links)}
    return web.json_response(body, headers=headers)


async def below(request: "Request") -> web.Response:
    """GET /name/: a page of the names below."""
    deep = request.flag("deep")
    after = request.http.query.get("after", "")
    most = request.whole("limit", 100, 1, limits.PAGE_MAX)
    found = (
        _deep(request, after) if deep else children(request.directory, request.caller, request.name, after)
    )
    page: list[tuple[Name, int | None]] = []
    following = None
    async for record, beneath in found:
        if len(page) == most:
            following = page[-1][0].name
            break
        page.append((record, beneath))
    path = None
    headers = {}
    if following is not None:
        query = {"after": following, "limit": str(most)} | ({"deep": "true"} if deep else {})
        path = f"{path_of(request.name)}/?{urlencode(query)}"
        headers["Link"] = f'<{path}>; rel="next"'
    if request.wants(ATOM):
        text = atom.feed(request.name, (record for record, _ in page), path)
        return web.Response(text=text, content_type=ATOM, headers=headers)
    names = [
        {"name": record.name, "role": str(record.role), "href": path_of(record.name)}
        | ({} if beneath is None else {"below": beneath})
        for record, beneath in page
    ]
    return web.json_response({"name": request.name, "names": names, "next": following}, headers=headers)


def demanded(request: "Request", right: Right) -> Name:
    """The record of a name, which may have no role. Raises ForbiddenError without the right."""
    directory = request.directory
    directory.refresh()
    record = directory.get(request.name)
    demand(directory, request.caller, right, record)
    return record


async def used(request: "Request", right: Right) -> Name:
    """The record of a name for sending; a name without a role becomes a queue if a policy above allows it."""
    record = demanded(request, right)
    if record.role is Role.NONE:
        record = await request.services.namespace.first_use(request.name)
    if record.role is Role.NONE:
        raise ProblemError(
            404, f"{request.name} has no role; POST a policy to it to give it one", role="none"
        )
    if record.role is Role.METADATA:
        raise refer(record)
    return record


def refer(record: Name) -> ProblemError:
    """303 to the reference of a metadata name."""
    reference = record.policy["reference"]
    return ProblemError(
        303,
        f"{record.name} stands for {reference}",
        headers={"Location": _header_uri(reference)},
        reference=reference,
    )


def links_of(record: Name) -> list[tuple[str, str]]:
    """(path, relation) of the parts that a name of this role has."""
    path = path_of(record.name)
    links = [(f"{path}/!policy", "policy")]
    if record.role in (Role.QUEUE, Role.ROUTER, Role.CONNECTION_POINT):
        links.insert(0, (path, "tail"))
    if record.role is Role.QUEUE:
        links += [(f"{path}/!head", "head"), (f"{path}/!messages", "messages")]
    if record.role is Role.ROUTER:
        links.append((f"{path}/!subscriptions", "subscriptions"))
    return links


def _link_header(links: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f'<{href}>; rel="{relation}"' for href, relation in links)


def _header_uri(text: str) -> str:
    """A URI of a policy as a header value, percent-encoded where necessary."""
    return "".join(c if "!" <= c <= "~" else "".join(f"%{b:02X}" for b in c.encode()) for c in text)


async def _policy(request: "Request") -> Policy:
    """The policy in the body, which is read only for callers who may manage the name."""
    demand_name(request.directory, request.caller, request.name, Right.MANAGE)
    text = await request.body()
    if request.content_type == ATOM:
        return Policy.parse(atom.policy_of(text))
    return policy_from(text)


def _visible(request: "Request") -> Name:
    request.directory.refresh()
    record = request.directory.get(request.name)
    if record.role is Role.NONE and not record.revision:
        _demand_any(request, record)
        raise ProblemError(
            404, f"{request.name} has no role; POST a policy to it to give it one", role="none"
        )
    if not visible(request.directory, request.caller, record):
        demand(request.directory, request.caller, Right.MANAGE, record)
    return record


def _demand_any(request: "Request", record: Name) -> None:
    """Raises ForbiddenError for callers without any right, so that they can't find out which names exist."""
    if not any(may(request.directory, request.caller, right, record) for right in Right):
        demand(request.directory, request.caller, Right.MANAGE, record)


def _tag(record: Name) -> str:
    return f'"{record.revision}"'


def _shown(request: "Request", record: Name, *, status: int = 200) -> web.Response:
    headers = {"ETag": _tag(record), "Link": _link_header(links_of(record))}
    if request.wants(ATOM):
        return web.Response(status=status, text=atom.entry(record), content_type=ATOM, headers=headers)
    policy = record.policy.effective() if request.flag("effective") else record.policy.to_json()
    return web.Response(status=status, text=json.dumps(policy), content_type=JSON, headers=headers)


async def _deep(request: "Request", after: str) -> AsyncIterator[tuple[Name, int | None]]:
    """All names with a role below a name, without the number of names below each."""
    async for record in every_name(request.directory, lambda _: request.caller, request.name, after):
        if record.name != request.name:
            yield record, None
