"""Definitions over HTTP: export and import of all names, subscriptions and rights, without secrets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.gateway.bodies import JSON
from lightrail.gateway.errors import AGAIN, ProblemError
from lightrail.gateway.request import Request
from lightrail.gateway.resources import permissions
from lightrail.model import limits
from lightrail.model import names as rules
from lightrail.model.names import InvalidNameError
from lightrail.model.policy import InvalidPolicyError, Policy, Role
from lightrail.namespace.listing import every_name
from lightrail.namespace.records import Name, Right, Subscription
from lightrail.namespace.rights import ForbiddenError
from lightrail.namespace.statuses import ServiceError

FORMAT: Final = 1
AT_ONCE: Final = 64
"""Names that an import writes at a time."""
MEMBERS: Final = ("format", "names", "subscriptions", "permissions")


async def export(request: Request) -> web.StreamResponse:
    """GET /!definitions?prefix=: written as it is read, so that the other requests go on meanwhile."""
    request.manager()
    response = web.StreamResponse()
    response.content_type = JSON
    response.charset = "utf-8"
    await response.prepare(request.http)
    parts: list[str] = []
    async for part in _exported(request, request.http.query.get("prefix", "")):
        parts.append(part)
        if len(parts) >= limits.NAMES_AT_ONCE:
            await response.write("".join(parts).encode())
            parts = []
            await asyncio.sleep(0)
    await response.write_eof("".join(parts).encode())
    return response


async def _exported(request: Request, prefix: str) -> AsyncIterator[str]:
    """The parts of the JSON text of an export."""
    directory = request.directory
    yield f'{{"format": {FORMAT}, "names": {{'
    comma = ""
    async for record in _definable(request, prefix):
        yield f"{comma}{json.dumps(record.name)}: {json.dumps(record.policy.to_json())}"
        comma = ", "
    yield '}, "subscriptions": ['
    comma = ""
    async for record in _definable(request, prefix):
        for each in sorted(directory.subscriptions(record.name), key=lambda each: each.id):
            if not each.owner:
                yield comma + json.dumps(each.shown())
                comma = ", "
    yield '], "permissions": ['
    comma = ""
    for right in sorted(directory.every_permission(), key=lambda each: (each.user, each.prefix)):
        if not prefix or right.prefix == prefix or right.prefix.startswith(prefix + "/"):
            yield comma + json.dumps(permissions.shown(right))
            comma = ", "
    yield "]}"


async def _definable(request: Request, prefix: str) -> AsyncIterator[Name]:
    """Names that belong to no connection, session or link; system names are left out."""
    async for record in every_name(request.directory, lambda _: request.caller, prefix):
        if not record.owner and not rules.is_system(record.name):
            yield record


async def take_in(request: Request) -> web.Response:
    """POST /!definitions?dry_run=&replace=: existing entries that differ are changed only with `replace`."""
    request.manager()
    value = await request.json_object(*MEMBERS, most=limits.HTTP_DEFINITIONS_BYTES)
    if value.get("format", FORMAT) != FORMAT:
        raise ProblemError(422, f"format is {str(value['format'])[:40]!a}; expected {FORMAT}", field="format")
    if not isinstance(value.get("names", {}), dict):
        raise ProblemError(422, "names is no object; expected policies by name", field="names")
    for key in ("subscriptions", "permissions"):
        if not isinstance(value.get(key, []), list):
            raise ProblemError(422, f"{key} is no list", field=key)
    taking = _Import(request, dry=request.flag("dry_run"), replace=request.flag("replace"))
    try:
        await taking.names(value.get("names", {}))
        for each in value.get("subscriptions", []):
            await taking.subscription(each)
        for each in value.get("permissions", []):
            await taking.permission(each)
    except CoordinatorError as error:
        # Each of the others would wait for the coordinator as long as this one did.
        raise ProblemError(
            503, f"the import ended: {error}; repeat it to go on", headers=AGAIN, report=taking.report
        ) from None
    return web.json_response(taking.report)


class _Import:
    """One import, and its report."""

    def __init__(self, request: Request, *, dry: bool, replace: bool) -> None:
        self._request = request
        self._service = request.services.namespace
        self._dry = dry
        self._replace = replace
        self._roles: dict[str, Role] = {}
        """Roles of imported names; in a dry run, those that the names would have."""
        self._created: list[str] = []
        self._changed: list[str] = []
        self._refused: list[dict[str, str]] = []
        self._unchanged = 0

    @property
    def report(self) -> dict[str, Any]:
        return {
            "created": self._created,
            "changed": self._changed,
            "unchanged": self._unchanged,
            "refused": self._refused,
            "dry_run": self._dry,
        }

    async def names(self, wanted: dict[str, Any]) -> None:
        """Gives names their roles, AT_ONCE at a time: the coordinator writes what comes together in batches.

        Names with a target for dead letters follow one after the other, since each is checked for a cycle.
        """
        plain = [each for each in wanted.items() if not _forwards(each[1])]
        for at in range(0, len(plain), AT_ONCE):
            taken = [self._take(name, value) for name, value in plain[at : at + AT_ONCE]]
            if error := next(filter(None, await asyncio.gather(*taken)), None):
                raise error
        for name in _targets_first(wanted):
            if _forwards(wanted[name]) and (error := await self._take(name, wanted[name])):
                raise error
        place = {name: at for at, name in enumerate(wanted)}
        self._created.sort(key=place.__getitem__)
        self._changed.sort(key=place.__getitem__)

    async def _take(self, name: str, value: Any) -> CoordinatorError | None:
        """Takes one name in. Returns the error that ends the import; others are in the report."""
        try:
            rules.check(name)
            policy = Policy.parse(value)
            await self._name(name, policy)
            self._roles[name] = policy.role
        except CoordinatorError as error:
            return error
        except (InvalidNameError, InvalidPolicyError, ServiceError, ForbiddenError) as error:
            self._refuse(f"name {name}", str(error))
        return None

    async def _name(self, name: str, policy: Policy) -> None:
        found = self._request.directory.find(name)
        caller = self._request.caller
        if found is None:
            if rules.is_system(name):
                raise ServiceError(f"{name} is created and deleted with the name that it belongs to")
            await self._do(self._created, name, lambda: self._service.give(caller, name, policy))
        elif found.policy.to_json() == policy.to_json():
            self._unchanged += 1
        elif found.role is not policy.role:
            raise ServiceError(
                f"{name} has role {found.role}, and {policy.role} was expected; delete it first"
            )
        elif not self._replace:
            raise ServiceError(f"{name} exists with another policy; add replace to change it")
        else:
            await self._do(self._changed, name, lambda: self._service.change(caller, name, policy))

    async def subscription(self, value: Any) -> None:
        known = ("id", "router", "target", "filter", "action", "rules", "expires_at", "drop_failed")
        if not isinstance(value, dict) or any(key not in known for key in value):
            self._refuse(f"subscription {str(value)[:80]}", f"expected an object with {', '.join(known)}")
            return
        router, id, target = (str(value.get(key) or "") for key in ("router", "id", "target"))
        if not (router and id and target):
            self._refuse(f"subscription {str(value)[:80]}", "expected router, id and target as texts")
            return
        what = f"subscription {id} of {router}"
        found = self._request.directory.subscription(router, id)
        wanted: dict[str, Any] = {key: value.get(key) for key in known[3:]}
        if not isinstance(wanted["drop_failed"], bool | None):
            shown = str(wanted["drop_failed"])[:80]
            self._refuse(what, f"drop_failed is {shown!a}; expected true, false or null")
            return
        wanted["drop_failed"] = wanted["drop_failed"] or None
        if found is not None and _same(found, target, wanted):
            self._unchanged += 1
            return
        try:
            if found is not None and not self._replace:
                raise ServiceError("it exists and differs; add replace to change it")
            self._check_there(router, target)
            into = self._created if found is None else self._changed
            service, caller = self._service, self._request.caller
            await self._do(
                into,
                what,
                lambda: service.subscribe(
                    caller, router, target, **wanted, id=id, replace_it=found is not None
                ),
            )
        except (InvalidNameError, ServiceError, ForbiddenError) as error:
            self._refuse(what, str(error))

    def _check_there(self, router: str, target: str) -> None:
        """Raises ServiceError unless `router` is a router and `target` a possible target. In a dry run,
        imported names count as existing."""
        for name in (router, target):
            if "://" in name:
                continue
            role = self._roles.get(name, self._request.directory.get(name).role)
            if role not in (Role.QUEUE, Role.ROUTER) or (name is router and role is not Role.ROUTER):
                raise ServiceError(f"{name} has role {role}")

    async def permission(self, value: Any) -> None:
        known = ("user", "prefix", "rights")
        try:
            user, prefix = str(value["user"]), str(value.get("prefix", ""))
            rights = frozenset(map(Right, value["rights"]))
            if any(key not in known for key in value):
                raise ValueError
        except (TypeError, KeyError, ValueError, AttributeError):
            self._refuse(f"permission {str(value)[:80]}", f"expected an object with {', '.join(known)}")
            return
        what = f"permission of {user} at {prefix or 'all names'}"
        found = next(
            (each for each in self._request.directory.permissions(user) if each.prefix == prefix), None
        )
        if found is not None and found.rights == rights:
            self._unchanged += 1
            return
        try:
            if found is not None and not self._replace:
                raise ServiceError("it exists and differs; add replace to change it")
            into = self._created if found is None else self._changed
            service, caller = self._service, self._request.caller
            await self._do(into, what, lambda: service.permit(caller, user, prefix, rights))
        except (InvalidNameError, ServiceError, ForbiddenError) as error:
            self._refuse(what, str(error))

    async def _do(self, into: list[str], what: str, work: Callable[[], Awaitable[Any]]) -> None:
        if not self._dry:
            await work()
        into.append(what)

    def _refuse(self, what: str, why: str) -> None:
        self._refused.append({"what": what, "why": why})


def _same(found: Subscription, target: str, wanted: dict[str, Any]) -> bool:
    return found.target == target and all(getattr(found, key) == each for key, each in wanted.items())


def _targets_first(wanted: Mapping[str, Any]) -> list[str]:
    """The names in their order, but each behind the one to which it forwards, which has to exist."""
    found: dict[str, None] = {}
    for name in wanted:
        chain: dict[str, None] = {}
        following: Any = name
        while (
            isinstance(following, str)
            and following in wanted
            and following not in chain
            and following not in found
        ):
            chain[following] = None
            policy = wanted[following]
            following = policy.get("forward_to") if isinstance(policy, dict) else None
        found |= dict.fromkeys(reversed(chain))
    return list(found)


def _forwards(policy: Any) -> bool:
    names = ("dead_letter", "forward_to")
    return isinstance(policy, dict) and any(policy.get(each) is not None for each in names)
