"""Applying: makes the entities of a configuration file, and later the changes of the file.

The entry `configs/service-bus` keeps what was applied last. What differs between that and the file is
written, so that changes which an application has made meanwhile stay; an entity that is not there is made.
Everything is checked before anything is written. Then entities are written, in a second pass what forwards to
others, and the entry last: after a crash in between, the next start does the rest.

No message is lost: entities that the file no longer has are deleted if they are empty (removing.py), and stay
with a warning otherwise, until a later start. All requests are those of administration clients: what these
can do, the file can.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from xml.etree import ElementTree as Xml

from aiohttp import web

from lightrail.cluster.coordinator import ConflictError, Write
from lightrail.filters.errors import FilterError
from lightrail.gateway.errors import ProblemError, problem_of
from lightrail.gateway.request import Request
from lightrail.gateway.resources.atom import element, text_of
from lightrail.gateway.resources.queues import rows_of
from lightrail.model import limits
from lightrail.model.names import InvalidNameError
from lightrail.model.policy import Role
from lightrail.namespace.deleting import own_queue
from lightrail.namespace.records import Name
from lightrail.namespace.rights import Caller
from lightrail.namespace.rules import rules_of
from lightrail.service_bus.administration import descriptions, entities, entries, subscriptions
from lightrail.service_bus.administration.authorization import ELEMENT
from lightrail.service_bus.administration.call import Call, Figures, Kind, Place
from lightrail.service_bus.administration.entries import Entry
from lightrail.service_bus.administration.properties import (
    NEW_QUEUE,
    NEW_SUBSCRIPTION,
    NEW_TOPIC,
    Server,
    changed,
    queue_properties,
    subscription_properties,
    topic_properties,
)
from lightrail.service_bus.configuration.file import (
    DEFAULT_RULE,
    EVERYTHING,
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    ConfigFileError,
    ConfiguredEntity,
    refusal,
)
from lightrail.service_bus.configuration.removing import Removing, mark_of
from lightrail.service_bus.configuration.rules import rule_parts

if TYPE_CHECKING:
    from lightrail.gateway.services import Services

KEY: Final = "configs/service-bus"
VERSION: Final = 1
APPLY_TRIES: Final[int] = 5
"""Attempts to write the entry while gateways of other machines write it."""
HOST: Final = "localhost"
BY_FILE: Final = Caller("the configuration file", everything=True)
FORWARDS: Final = frozenset(("ForwardTo", "ForwardDeadLetteredMessagesTo"))
_KINDS: Final = {QUEUE: Kind.ENTITY, TOPIC: Kind.ENTITY, SUBSCRIPTION: Kind.SUBSCRIPTION}
_ROLES: Final = {QUEUE: Role.QUEUE, TOPIC: Role.ROUTER, SUBSCRIPTION: Role.QUEUE}
_NEW: Final = {QUEUE: NEW_QUEUE, TOPIC: NEW_TOPIC, SUBSCRIPTION: NEW_SUBSCRIPTION}
_SHOWN: Final = {QUEUE: queue_properties, TOPIC: topic_properties, SUBSCRIPTION: subscription_properties}

log = logging.getLogger("lightrail.service_bus.configuration")

Applied = Mapping[str, Mapping[str, Any]]
"""Entities as `ConfiguredEntity.to_json`, by path. Those that the file has made have `made` (removing.py)."""


class _Http(NamedTuple):
    """What handlers of administration read of a request over HTTP."""

    headers: Mapping[str, str]
    host: str = HOST
    scheme: str = "http"
    query: Mapping[str, str] = {}


@dataclass(slots=True, eq=False, repr=False)
class _FileRequest(Request):
    """A request whose body is made of the file."""

    content: bytes = b""

    async def body(self, most: int = limits.HTTP_JSON_BYTES, received: Any = None) -> bytes:
        return self.content

    def revision(self) -> int | None:
        return None


class _FileCall(Call):
    """A call whose answer nobody reads: no shard is asked for figures, and no key is unsealed."""

    __slots__ = ()

    async def figures(self, queues: list[str]) -> Figures:
        return {}

    def rules_shown(self, record: Name) -> Xml.Element:
        return element(ELEMENT)


async def apply(services: "Services", wanted: list[ConfiguredEntity]) -> None:
    """Applies a file. Raises ConfigFileError: nothing was written, or the message says where it ended."""
    made: dict[str, str] = {}
    for _ in range(APPLY_TRIES):
        entry = await services.coordinator.entry(KEY)
        applied, removed = _read(entry.value if entry is not None else None)
        services.directory.refresh()
        applying = _Applying(services, wanted, applied, removed, made)
        await applying.check()
        await applying.write()
        left = await applying.remove()
        kept = {each.path: each.to_json() | applying.mark(each) for each in wanted}
        found = {"version": VERSION, "entities": kept} | ({"removed": left} if left else {})
        value = json.dumps(found, separators=(",", ":"), sort_keys=True)
        if entry is not None and entry.value == value:
            return
        try:
            await services.coordinator.write([Write(KEY, value, entry.revision if entry is not None else 0)])
            return
        except ConflictError:
            continue
    raise ConfigFileError("other gateways apply configuration files at the same time; start again")


def _read(value: str | None) -> tuple[Applied, Applied]:
    """What was applied last, and what was removed from the file and is there."""
    found: dict[str, Any] = {"version": VERSION, "entities": {}} if value is None else json.loads(value)
    if found.get("version") != VERSION:
        raise ConfigFileError(
            f"the file was applied before by another version of LightRail: expected version {VERSION} of the "
            f"entry {KEY}, found {found.get('version')!r}"
        )
    return found["entities"], found.get("removed", {})


@dataclass(slots=True, eq=False, repr=False)
class _Applying:
    """One attempt."""

    services: "Services"
    wanted: list[ConfiguredEntity]
    applied: Applied
    removed: Applied
    """What earlier files had, and could not be deleted."""
    made: dict[str, str]
    """Marks of the entities that this start has made."""
    updated: int = field(default=0)

    # --- the check -------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Raises ConfigFileError if a part of the file can't be applied."""
        problems: list[str] = []
        names = {each.name for each in self.wanted if not each.subscription}
        for each in self.wanted:
            problems += [f"{place}: {error}" for place, error in self._refused(each, names)]
        problems += self._circles()
        if not problems:
            problems += await self._sessions_with_messages()
        if problems:
            raise refusal(problems)

    def _refused(self, entity: ConfiguredEntity, names: set[str]) -> list[tuple[str, str]]:
        """Places and reasons why an entity can't be applied."""
        found: list[tuple[str, str]] = []
        record = self._record(entity)
        if record is not None and record.role is not _ROLES[entity.kind]:
            there = {Role.QUEUE: "queue", Role.ROUTER: "topic"}.get(record.role, record.role)
            found.append(
                (
                    entity.place,
                    f"{record.name} is there as a {there}; rename it in the file, or delete it with its "
                    f"messages: lightrail-admin names delete {record.name}",
                )
            )
            return found
        policy = _NEW[entity.kind] if record is None else record.policy
        properties = self._changes(entity, record)
        for key, value in properties.items():
            try:
                wanted = {key: element(key, value)}
                if key == "DuplicateDetectionHistoryTimeWindow":
                    wanted["RequiresDuplicateDetection"] = element(
                        "RequiresDuplicateDetection", entity.properties["RequiresDuplicateDetection"]
                    )
                changed(policy, wanted, _SHOWN[entity.kind](policy, self._server))
            except ProblemError as error:
                found.append((f"{entity.place}.Properties.{key}", error.detail))
        for key in FORWARDS & properties.keys():
            target = properties[key]
            if target and target not in names and self.services.directory.find(target) is None:
                place = f"{entity.place}.Properties.{key}"
                found.append((place, f"there is no queue or topic {target!a}, neither here nor in the file"))
        for at, (name, rule) in enumerate(entity.rules.items()):
            try:
                descriptions.rule_of({part.tag: part for part in rule_parts(name, rule)})
            except (ProblemError, FilterError) as error:
                found.append((f"{entity.place}.Rules[{at}].Properties", str(error)))
        return found

    def _circles(self) -> list[str]:
        """Entities that forward messages, or dead letters, to themselves over others of the file."""
        found = []
        for key in sorted(FORWARDS):
            targets = {each.name: each.properties.get(key) for each in self.wanted if each.kind == QUEUE}
            for each in self.wanted:
                at, seen = each.properties.get(key), 0
                while each.kind == QUEUE and at and at != each.name and seen < len(targets):
                    at, seen = targets.get(at), seen + 1
                if at == each.name and each.kind == QUEUE:
                    found.append(f"{each.place}.Properties.{key}: {each.name} forwards to itself in the end")
        return found

    async def _sessions_with_messages(self) -> list[str]:
        """Queues whose messages no receiver would see any more."""
        concerned = {
            record.name: each
            for each in self.wanted
            if (record := self._record(each)) is not None
            and "RequiresSession" in (found := self._changes(each, record))
            and found["RequiresSession"] != ("true" if record.policy["groups"] else "false")
        }
        rows = await rows_of(self.services, list(concerned)) if concerned else []
        return [
            f"{concerned[row['name']].place}.Properties.RequiresSession: {row['name']} has messages, or its "
            "shard does not answer; receive them first, and start again"
            for row in rows
            if row.get("ready") is None
            or row["ready"]
            or row["in_flight"]
            or row["delayed"]
            or row["deferred"]
        ]

    # --- the changes -----------------------------------------------------------------------------------

    async def write(self) -> None:
        """Makes and changes entities. Raises ConfigFileError with the place that could not be written."""
        later: list[tuple[ConfiguredEntity, dict[str, str]]] = []
        for each in self.wanted:
            record = self._record(each)
            changes = self._changes(each, record)
            forwards = {key: value for key, value in changes.items() if key in FORWARDS}
            rest = {key: value for key, value in changes.items() if key not in FORWARDS}
            if record is None:
                await self._put(each, rest, is_new=True)
                if (record_made := self._record(each)) is not None:
                    self.made[each.path] = mark_of(record_made)
                later.append((each, {key: value for key, value in forwards.items() if value}))
            else:
                self.updated += bool(changes)
                if rest:
                    await self._put(each, rest, is_new=False)
                later.append((each, forwards))
            if each.subscription:
                await self._write_rules(each, is_new=record is None)
        for each, forwards in later:
            if forwards:
                await self._put(each, forwards, is_new=False)
        log.info(
            "the configuration file has %d entities: %d were made, %d changed",
            *(len(self.wanted), len(self.made), self.updated),
        )

    async def remove(self) -> Applied:
        """Deletes what the file has no more and is empty. Returns what it has made and stays."""
        paths = {each.path for each in self.wanted}
        removed = {path: each for path, each in {**self.removed, **self.applied}.items() if path not in paths}
        removing = Removing(self.services, removed)
        await removing.remove()
        for path in removed:
            if path in removing.stays:
                log.warning(
                    "%s is no longer in the configuration file; it stays: %s. `lightrail-admin names delete` "
                    "and administration clients delete it with its messages",
                    *(path, removing.stays[path]),
                )
        return {
            path: {"kind": each["kind"], "made": each["made"]}
            for path, each in removed.items()
            if path in removing.stays and each.get("made")
        }

    def mark(self, entity: ConfiguredEntity) -> dict[str, str]:
        """`made` for an entity that the file has made."""
        record = self._record(entity)
        before = self.applied.get(entity.path) or self.removed.get(entity.path) or {}
        mark = self.made.get(entity.path, before.get("made"))
        return {} if record is None or mark != mark_of(record) else {"made": mark}

    def _record(self, entity: ConfiguredEntity) -> Name | None:
        """The record of an entity that is there: of a subscription that of its queue."""
        directory = self.services.directory
        if not entity.subscription:
            found = directory.find(entity.name)
            return found if found is not None and found.role is not Role.NONE else None
        subscription = directory.subscription(entity.name, entity.subscription)
        return None if subscription is None else directory.get(subscription.target)

    def _changes(self, entity: ConfiguredEntity, record: Name | None) -> dict[str, str]:
        """The properties to write: all of a new entity, otherwise those that the file has changed."""
        before = self.applied.get(entity.path, {}).get("properties", {}) if record is not None else {}
        return {key: value for key, value in entity.properties.items() if before.get(key) != value}

    @property
    def _server(self) -> Server:
        settings = self.services.settings
        return Server(HOST, settings.max_delivery_count, settings.max_message_bytes)

    async def _put(self, entity: ConfiguredEntity, properties: Mapping[str, str], *, is_new: bool) -> None:
        content: dict[str, str | Xml.Element] = dict(properties)
        if is_new and entity.subscription:
            name, rule = next(iter(entity.rules.items()))
            first = Xml.Element("DefaultRuleDescription")
            first.extend(rule_parts(name, rule))
            content["DefaultRuleDescription"] = first
        if "DuplicateDetectionHistoryTimeWindow" in content:
            content["RequiresDuplicateDetection"] = entity.properties["RequiresDuplicateDetection"]
        place = Place(_KINDS[entity.kind], entity.name, entity.subscription)
        handler = subscriptions.put if entity.subscription else entities.put
        await self._ask(place, handler, entity.kind, content, entity.place, is_new=is_new)

    async def _ask(
        self,
        place: Place,
        handler: Any,
        kind: str,
        content: Mapping[str, str | Xml.Element],
        where: str,
        *,
        is_new: bool,
    ) -> None:
        """Calls a handler of administration. Raises ConfigFileError."""
        body = text_of(Entry("", "", 0, 0, entries.described(kind, content)).element()).encode()
        http = cast(web.Request, _Http({} if is_new else {"If-Match": "*"}))
        caller = BY_FILE
        if place.subscription:
            caller = caller.at(own_queue(place.name, place.subscription))
        request = _FileRequest(self.services, http, caller, place.name, (), content=body)
        self.services.directory.refresh()
        try:
            await handler(_FileCall(request, place))
        except Exception as error:
            problem = problem_of(error)
            if problem is None and not isinstance(error, InvalidNameError):
                raise
            detail = str(error) if problem is None else problem.detail
            raise ConfigFileError(f"{where}: {detail}") from None

    async def _write_rules(self, entity: ConfiguredEntity, *, is_new: bool) -> None:
        """Adds, replaces and removes rules of a subscription as the file has changed them."""
        found = self.services.directory.subscription(entity.name, entity.subscription)
        there = {} if found is None else rules_of(found)
        before = self.applied.get(entity.path, {}).get("rules", {})
        if not is_new and not before and DEFAULT_RULE not in entity.rules:
            # A subscription that an application has made, or an attempt that was interrupted.
            before = {DEFAULT_RULE: EVERYTHING}
        for name, rule in entity.rules.items():
            if (is_new and name in there) or (before.get(name) == rule and not is_new):
                continue
            place = Place(Kind.RULE, entity.name, entity.subscription, name)
            content = {part.tag: part for part in rule_parts(name, rule)}
            at = f"{entity.place}.Rules, {name}"
            await self._ask(
                place, subscriptions.put_rule, descriptions.RULE, content, at, is_new=name not in there
            )
        for name in before:
            if name not in entity.rules and name in there:
                place = Place(Kind.RULE, entity.name, entity.subscription, name)
                await self._ask(
                    place, subscriptions.delete_rule, descriptions.RULE, {}, entity.place, is_new=False
                )
